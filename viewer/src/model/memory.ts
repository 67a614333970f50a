/** Graph -> what is in memory after every node, by category, and what of it is alive at a moment.
 *
 * Lifetimes and categories are those of torchatlas/analysis/storages.py, bytes those of atlas.memory: a test compares.
 */

import { PHASES, ROLES } from "../document/words";
import type { Graph } from "./graph";

/** The keys of atlas.memory(graph).by_category, and how people read them. */
export const CATEGORIES = {
  parameters: "parameters",
  buffers: "buffers",
  inputs: "inputs",
  constants: "constants",
  gradients: "gradients",
  optimizer_state: "optimizer state",
  saved_activations: "activations saved for backward",
  activations: "activations",
  temporaries: "temporaries",
  unattributed: "not attributed",
} as const;
export type Category = keyof typeof CATEGORIES;
const KEYS = Object.keys(CATEGORIES) as Category[];
const OF_ROLE: Record<(typeof ROLES)[number], Category> = {
  input: "inputs",
  parameter: "parameters",
  buffer: "buffers",
  constant: "constants",
  activation: "activations",
  gradient: "gradients",
  "optimizer state": "optimizer_state",
  temporary: "temporaries",
};
const BACKWARD = PHASES.indexOf("backward");

type Resize = [storage: number, node: number, before: number, after: number];

export interface Alive {
  storage: number;
  bytes: number; // NaN: unknown
  category: Category;
}

/** What is alive at a moment: the largest, and how much there is beside them. */
export interface AliveList {
  rows: Alive[]; // sizes that are unknown first, then the largest
  others: { count: number; bytes: number; unknown: number };
  unknown: ReadonlyMap<Category, number>; // how many sizes are unknown, of all categories
}

export class Memory {
  /** Bytes alive after each node, as the recording counted; -1 where it did not. */
  readonly live: ArrayLike<number>;
  readonly peakBytes: number;
  readonly peakNode: number;
  /** Storages whose size nobody knows: with any, sums are "at least". */
  readonly unknown: number;
  readonly timeline: ReadonlyMap<Category, Float64Array>;
  /** The first and the last node after which a storage counts. */
  readonly start: Int32Array;
  readonly end: Int32Array;
  private readonly category: Uint8Array;
  private readonly bytes: ArrayLike<number>;
  private readonly resized: Map<number, Resize[]>;

  private constructor(readonly graph: Graph) {
    const { document } = graph;
    this.live = document.need("node_memory_bytes");
    this.bytes = document.need("storage_bytes");
    this.resized = resizesOf(graph, this.bytes.length);
    [this.start, this.end] = lifetimes(graph);
    this.category = categories(graph, this.start, this.end);
    this.timeline = this.summed();
    let node = 0,
      unknown = 0;
    for (let i = 1; i < graph.count; i++) if (this.live[i]! > this.live[node]!) node = i;
    for (let i = 0; i < this.bytes.length; i++) if (this.bytes[i]! < 0) unknown++;
    this.peakNode = node;
    this.peakBytes = this.live[node]!;
    this.unknown = unknown;
  }

  /** null where memory was not followed. */
  static of(graph: Graph): Memory | null {
    return graph.keep("memory", () => {
      const live = graph.document.column("node_memory_bytes");
      return live?.some((bytes) => bytes >= 0) ? new Memory(graph) : null;
    });
  }

  /** What is alive right after a node, of all categories or of one; at most so many rows. */
  alive(node: number, most: number, only: Category | null = null): AliveList {
    const { start, end, category } = this,
      wanted = only === null ? -1 : KEYS.indexOf(only);
    const unknown = new Map<Category, number>(),
      others = { count: 0, bytes: 0, unknown: 0 };
    // The largest so far, as a heap whose top is the smallest of them: most storages are not among them.
    const heap = new SmallestFirst();
    const drop = (bytes: number) => {
      others.count++;
      if (bytes === Number.POSITIVE_INFINITY) others.unknown++;
      else others.bytes += bytes;
    };
    for (let storage = 0; storage < start.length; storage++) {
      if (start[storage]! > node || end[storage]! < node) continue;
      const size = this.bytesAt(storage, node),
        isUnknown = Number.isNaN(size),
        key = category[storage]!;
      if (isUnknown) unknown.set(KEYS[key]!, (unknown.get(KEYS[key]!) ?? 0) + 1);
      if (wanted >= 0 && key !== wanted) continue;
      const bytes = isUnknown ? Number.POSITIVE_INFINITY : size;
      if (heap.length < most) heap.push(bytes, storage);
      else if (most && bytes > heap.smallest) drop(heap.replace(bytes, storage));
      else drop(bytes);
    }
    const rows = heap.largestFirst().map(([bytes, storage]) => ({
      storage,
      bytes: bytes === Number.POSITIVE_INFINITY ? Number.NaN : bytes,
      category: KEYS[category[storage]!]!,
    }));
    return { rows, others, unknown };
  }

  /** The size of a storage right after a node; NaN is unknown. */
  bytesAt(storage: number, node: number): number {
    const most = this.bytes[storage]!;
    if (most < 0) return Number.NaN;
    const rows = this.resized.get(storage);
    return rows
      ? rows.reduce((size, [, from, before, after]) => size + (from <= node ? after - before : 0), rows[0]![2])
      : most;
  }

  private summed(): Map<Category, Float64Array> {
    const { count } = this.graph;
    const changes = new Map<number, Float64Array>();
    const row = (storage: number) => {
      const key = this.category[storage]!;
      let found = changes.get(key);
      if (!found) {
        found = new Float64Array(count + 1);
        changes.set(key, found);
      }
      return found;
    };
    for (let storage = 0; storage < this.bytes.length; storage++) {
      const rows = this.resized.get(storage),
        change = row(storage);
      let size = rows ? rows[0]![2] : Math.max(this.bytes[storage]!, 0);
      change[this.start[storage]!]! += size;
      for (const [, node, before, after] of rows ?? []) {
        change[node]! += after - before;
        size += after - before;
      }
      change[this.end[storage]! + 1]! -= size;
    }
    const found = new Map<Category, Float64Array>(),
      rest = new Float64Array(count);
    for (let node = 0; node < count; node++) rest[node] = Math.max(this.live[node]!, 0);
    for (const [key, change] of changes) {
      for (let node = 0; node < count; node++) {
        if (node) change[node]! += change[node - 1]!;
        if (this.live[node]! >= 0) rest[node]! -= change[node]!;
      }
      found.set(KEYS[key]!, change.subarray(0, count));
    }
    // The recording's own count is right: what no storage explains is a category of its own.
    if (rest.some((bytes) => bytes !== 0)) found.set("unattributed", rest);
    return found;
  }
}

/** Where a storage comes from: its first value, the node that made it (-1: it was there before), its name in the model. */
export function originOf(graph: Graph, storage: number): { value: number; born: number; name: string } {
  const { first, named } = graph.keep("storageValues", () => {
    const owner = graph.document.need("value_storage"),
      parameter = graph.document.need("value_parameter"),
      count = graph.document.need("storage_bytes").length;
    const first = new Int32Array(count).fill(-1),
      named = new Int32Array(count).fill(-1);
    for (let value = owner.length - 1; value >= 0; value--) {
      const one = owner[value]!;
      if (one < 0) continue;
      first[one] = value;
      if (parameter[value]! >= 0) named[one] = value;
    }
    return { first, named };
  });
  return {
    value: first[storage]!,
    born: graph.document.need("storage_born")[storage]!,
    name: named[storage]! < 0 ? "" : graph.parameterName(named[storage]!),
  };
}

/** Numbers with what they are of; the smallest number is on top. */
class SmallestFirst {
  private readonly items: [number: number, of: number][] = [];

  get length(): number {
    return this.items.length;
  }
  get smallest(): number {
    return this.items[0]![0];
  }

  push(number: number, of: number): void {
    const { items } = this;
    let at = items.push([number, of]) - 1;
    for (let above = (at - 1) >> 1; at > 0 && items[above]![0] > number; at = above, above = (at - 1) >> 1) {
      items[at] = items[above]!;
      items[above] = [number, of];
    }
  }

  /** Put another in the place of the smallest; returns the smallest. */
  replace(number: number, of: number): number {
    const { items } = this,
      out = items[0]![0];
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= items.length) break;
      if (child + 1 < items.length && items[child + 1]![0] < items[child]![0]) child++;
      if (items[child]![0] >= number) break;
      items[at] = items[child]!;
      at = child;
    }
    items[at] = [number, of];
    return out;
  }

  largestFirst(): [number: number, of: number][] {
    // Equal infinities would give NaN.
    return this.items.sort((a, b) => (a[0] === b[0] ? a[1] - b[1] : b[0] - a[0]));
  }
}

/** The node after which a storage is counted first, and the last one. */
function lifetimes(graph: Graph): [Int32Array, Int32Array] {
  const { document } = graph;
  const born = document.need("storage_born"),
    died = document.need("storage_died"),
    storageOf = document.need("value_storage"),
    parameter = document.need("value_parameter"),
    pointer = document.need("input_ptr"),
    inputs = document.need("input_value");
  const firstRead = new Int32Array(born.length).fill(-1),
    named = new Uint8Array(born.length);
  for (let node = graph.count - 1; node >= 0; node--) {
    for (let at = pointer[node]!; at < pointer[node + 1]!; at++) {
      const storage = storageOf[inputs[at]!]!;
      if (storage >= 0) firstRead[storage] = node;
    }
  }
  for (let value = 0; value < storageOf.length; value++)
    if (parameter[value]! >= 0 && storageOf[value]! >= 0) named[storageOf[value]!] = 1;
  const start = new Int32Array(born.length),
    end = new Int32Array(born.length);
  for (let storage = 0; storage < born.length; storage++) {
    // What came from outside and was freed meanwhile, a batch of a loop, counts from its first use.
    const cameAndWent = born[storage]! < 0 && died[storage]! >= 0 && firstRead[storage]! >= 0 && !named[storage];
    start[storage] = cameAndWent ? firstRead[storage]! : Math.max(born[storage]!, 0);
    end[storage] = Math.max(died[storage]! < 0 ? graph.count - 1 : died[storage]!, start[storage]!);
  }
  return [start, end];
}

/** By role; activations that are alive when an op of backward runs were saved for it, where backward was recorded. */
function categories(graph: Graph, start: Int32Array, end: Int32Array): Uint8Array {
  const role = graph.document.need("storage_role");
  const ofRole = ROLES.map((one) => KEYS.indexOf(OF_ROLE[one]));
  const activations = KEYS.indexOf("activations"),
    saved = KEYS.indexOf("saved_activations"),
    passing = KEYS.indexOf("temporaries");
  // next[i]: the first op of backward from node i on.
  const next = new Int32Array(graph.count + 1).fill(graph.count);
  for (let node = graph.count - 1; node >= 0; node--)
    next[node] = graph.phase[node] === BACKWARD ? node : next[node + 1]!;
  const hasBackward = next[0]! < graph.count;
  const found = new Uint8Array(role.length);
  for (let storage = 0; storage < role.length; storage++) {
    const key = ofRole[role[storage]!]!;
    found[storage] =
      key !== activations || !hasBackward ? key : next[start[storage]! + 1]! <= end[storage]! ? saved : passing;
  }
  return found;
}

/** The resizes that the recording noted, by storage. Rows that cannot be right, in a foreign file, are left out. */
function resizesOf(graph: Graph, storages: number): Map<number, Resize[]> {
  const rows = graph.document.header.metadata["resized"];
  const limits = [storages - 1, graph.count, 2 ** 62, 2 ** 62];
  const found = new Map<number, Resize[]>();
  for (const row of Array.isArray(rows) ? rows : []) {
    const sound =
      Array.isArray(row) &&
      row.length === 4 &&
      row.every((number, i) => Number.isInteger(number) && number >= 0 && number <= limits[i]!);
    if (sound) found.set(row[0], [...(found.get(row[0]) ?? []), row as Resize]);
  }
  return found;
}
