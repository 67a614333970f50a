/** What boxes can be coloured by: a number per node, and how those of a group make one. NaN is unknown, never zero. */

import type { Graph } from "./graph";
import type { Item, Outline } from "./outline";
import { formatBytes, formatFlops, formatNumber, formatTime } from "./units";

export interface Measure {
  readonly name: string;
  readonly title: string;
  readonly format: (value: number) => string;
  readonly values: Float64Array; // per node
  readonly combine: "sum" | "max" | "ratio";
  readonly below?: Float64Array; // what a ratio divides by
  readonly modules?: ReadonlyMap<string, number>; // by path: numbers of modules themselves
}

/** All measures that a graph has numbers for, by name. */
export function measuresOf(graph: Graph): Map<string, Measure> {
  const found = [
    time(graph),
    memory(graph),
    flops(graph),
    intensity(graph),
    gradient(graph),
    saved(graph),
    ...overlays(graph),
  ];
  return new Map(found.filter((one): one is Measure => one !== null && hasNumbers(one)).map((one) => [one.name, one]));
}

function hasNumbers(measure: Measure): boolean {
  return measure.values.some((value) => !Number.isNaN(value));
}

/** Measures of the items of an outline: sums are differences of running sums, so that any group costs the same. */
export class ItemValues {
  private readonly sums: Float64Array;
  private readonly known: Int32Array;
  private readonly below: Float64Array | null;
  private readonly perLeaf: Float64Array;

  constructor(
    readonly outline: Outline,
    readonly measure: Measure,
  ) {
    const leaves = outline.leafNode.length;
    this.perLeaf = new Float64Array(leaves).fill(Number.NaN);
    const below = measure.below ? new Float64Array(leaves) : null;
    for (let node = 0; node < measure.values.length; node++) {
      const value = measure.values[node]!,
        leaf = outline.nodeLeaf[node]!;
      if (leaf < 0 || Number.isNaN(value)) continue;
      const before = this.perLeaf[leaf]!;
      this.perLeaf[leaf] = Number.isNaN(before)
        ? value
        : measure.combine === "max"
          ? Math.max(before, value)
          : before + value;
      if (below) below[leaf]! += measure.below![node]!;
    }
    this.sums = new Float64Array(leaves + 1);
    this.known = new Int32Array(leaves + 1);
    this.below = below && new Float64Array(leaves + 1);
    for (let leaf = 0; leaf < leaves; leaf++) {
      const value = this.perLeaf[leaf]!;
      this.sums[leaf + 1] = this.sums[leaf]! + (Number.isNaN(value) ? 0 : value);
      this.known[leaf + 1] = this.known[leaf]! + (Number.isNaN(value) ? 0 : 1);
      if (this.below) this.below[leaf + 1] = this.below[leaf]! + below![leaf]!;
    }
  }

  /** The value of an item, all its rounds together (of a largest value the largest round). */
  of(item: Item): number {
    const { modules } = this.measure;
    if (!modules?.size || item.level < 0) return this.between(item.start, item.end);
    // A round is worth the number that its module was given, if it was given one.
    let most = Number.NaN;
    for (let start = item.start; start < item.end; start += item.length) {
      const value = modules.get(this.outline.pathAt(start, item.level)) ?? this.between(start, start + item.length);
      if (!Number.isNaN(value) && !(value <= most)) most = value;
    }
    return most;
  }

  between(start: number, stop: number): number {
    if (this.known[stop] === this.known[start]) return Number.NaN;
    if (this.measure.combine === "max") {
      let most = Number.NEGATIVE_INFINITY;
      for (let leaf = start; leaf < stop; leaf++)
        most = Math.max(most, Number.isNaN(this.perLeaf[leaf]!) ? most : this.perLeaf[leaf]!);
      return most;
    }
    const sum = this.sums[stop]! - this.sums[start]!;
    if (!this.below) return sum;
    const below = this.below[stop]! - this.below[start]!;
    return below ? sum / below : Number.NaN;
  }
}

function columnOf(graph: Graph, name: string): Float64Array | null {
  const column = graph.document.column(name);
  if (!column) return null;
  const values = new Float64Array(column); // several times as quick as from() with a function
  for (let node = 0; node < values.length; node++) if (values[node]! < 0) values[node] = Number.NaN;
  return values;
}

function time(graph: Graph): Measure | null {
  const values = columnOf(graph, "node_time_ns");
  return (
    values && {
      name: "time",
      title: graph.info.time ? `time (${graph.info.time})` : "time",
      format: formatTime,
      values,
      combine: "sum",
    }
  );
}

/** The bytes that a node allocated; unknown if the size of anything that it allocated is. */
function memory(graph: Graph): Measure | null {
  if (!graph.document.column("node_memory_bytes")?.some((one) => one >= 0)) return null; // nobody followed it
  const born = graph.document.need("storage_born"),
    bytes = graph.document.need("storage_bytes");
  const values = new Float64Array(graph.count).fill(Number.NaN);
  for (let node = 0; node < graph.count; node++) if (graph.isOp(node)) values[node] = 0;
  for (let storage = 0; storage < born.length; storage++)
    if (born[storage]! >= 0) values[born[storage]!]! += bytes[storage]! < 0 ? Number.NaN : bytes[storage]!;
  return { name: "memory", title: "memory allocated", format: formatBytes, values, combine: "sum" };
}

function flops(graph: Graph): Measure | null {
  const values = columnOf(graph, "viewer/node_flops");
  return values && { name: "flops", title: "FLOPs (2 per multiply-add)", format: formatFlops, values, combine: "sum" };
}

function intensity(graph: Graph): Measure | null {
  const work = columnOf(graph, "viewer/node_arithmetic"),
    moved = columnOf(graph, "viewer/node_moved");
  if (!work || !moved) return null;
  return {
    name: "intensity",
    title: "arithmetic per byte moved",
    format: formatNumber,
    combine: "ratio",
    values: work.map((value, node) => (moved[node]! > 0 ? value : Number.NaN)),
    below: moved.map((value) => Math.max(value, 0)),
  };
}

function gradient(graph: Graph): Measure | null {
  const column = graph.document.column("viewer/node_gradient");
  return column
    ? {
        name: "gradient",
        title: "gradient norm of parameters",
        format: finiteOrNot,
        values: new Float64Array(column),
        combine: "max",
      }
    : null;
}

/** The bytes of what an op makes and autograd keeps for backward; each tensor's memory once. */
function saved(graph: Graph): Measure | null {
  const kept = graph.document.json<Record<string, number[]>>("viewer/saved.json");
  if (!kept) return null;
  const values = new Float64Array(graph.count).fill(Number.NaN);
  const seen = new Set<number>();
  for (const value of Object.keys(kept).map(Number)) {
    const storage = graph.storage(value);
    const maker = graph.producer(value);
    const bytes = storage < 0 ? -1 : graph.storageBytes(storage);
    if (maker === undefined || bytes < 0 || seen.has(storage)) continue;
    seen.add(storage);
    values[maker] = (Number.isNaN(values[maker]!) ? 0 : values[maker]!) + bytes;
  }
  return { name: "saved", title: "kept for backward", format: formatBytes, values, combine: "sum" };
}

/** What is not finite is kept as infinity: files say no more of it. */
function finiteOrNot(value: number): string {
  return Number.isFinite(value) ? formatNumber(value) : "not finite";
}

interface Overlay {
  title: string;
  nodes: [node: number, value: number | null][]; // null: not finite
  modules?: [path: string, value: number | null][];
}

/** Numbers of the user's own: graph.save("x.html", overlay={name: number}). */
function overlays(graph: Graph): Measure[] {
  return (graph.document.json<Overlay[]>("viewer/overlay.json") ?? []).map(({ title, nodes, modules }) => {
    const number = (value: number | null) => value ?? Number.POSITIVE_INFINITY;
    const byPath = new Map((modules ?? []).map(([path, value]) => [path, number(value)]));
    const values = byPath.size ? inModules(graph, byPath) : new Float64Array(graph.count).fill(Number.NaN);
    for (const [node, value] of nodes) values[node] = number(value);
    return { name: `overlay:${title}`, title, format: finiteOrNot, values, combine: "max", modules: byPath };
  });
}

/** The number of the innermost module around each op that has one: an opened module keeps its colour. */
function inModules(graph: Graph, byPath: ReadonlyMap<string, number>): Float64Array {
  const { call, callModule, callParent, tables } = graph;
  const ofCall = new Float64Array(callModule.length);
  for (let one = 0; one < ofCall.length; one++) {
    const around = callParent[one]! < 0 ? Number.NaN : ofCall[callParent[one]!]!; // calls come after those around them
    ofCall[one] = byPath.get(tables.modules[callModule[one]!]!.path) ?? around;
  }
  return Float64Array.from({ length: graph.count }, (_, node) =>
    graph.isOp(node) && call[node]! >= 0 ? ofCall[call[node]!]! : Number.NaN,
  );
}
