/** A Document as a graph: what one asks of a node, a value, a module. Columns stay columns; objects are made when asked for. */

import type { Document, Info, Layout, Module, SourceLine } from "../document/document";
import type { Column } from "../document/npy";
import { PHASES, ROLES } from "../document/words";

export type Phase = (typeof PHASES)[number];
export const NONE = -1;

/** Rows of numbers by owner: those of i are items[first[i]] to items[first[i + 1] - 1]. */
export interface Rows {
  first: Column;
  items: Int32Array;
}

export class Graph {
  readonly count: number;
  readonly info: Info;
  readonly kind: Column;
  readonly phase: Column;
  readonly operation: Column;
  readonly call: Column; // node -> module call
  readonly time: Column; // ns, -1 unknown
  readonly callModule: Column;
  readonly callParent: Column;
  private readonly lazy = new Map<string, unknown>();

  constructor(readonly document: Document) {
    this.kind = document.need("node_kind");
    this.phase = document.need("node_phase");
    this.operation = document.need("node_operation");
    this.call = document.need("node_call");
    this.time = document.need("node_time_ns");
    this.callModule = document.need("call_module");
    this.callParent = document.need("call_parent");
    this.count = this.kind.length;
    this.info = document.json<Info>("viewer/info.json") ?? plainInfo(this);
  }

  get tables() {
    return this.document.header.tables;
  }

  // -- nodes ---------------------------------------------------------------------------------------------------

  isOp(node: number): boolean {
    return this.kind[node] === 1;
  }

  /** aten.convolution.default */
  operationName(node: number): string {
    return this.tables.operations[this.operation[node]!]!.name;
  }

  /** convolution */
  shortOperation(node: number): string {
    const name = this.operationName(node);
    if (!this.isOp(node)) return this.nodeName(node);
    const parts = name.split(".");
    return parts.length > 2 && parts[0] === "aten" ? parts[1]! : parts.length === 3 ? parts[1]! : name;
  }

  category(node: number): string {
    return this.tables.operations[this.operation[node]!]!.type;
  }

  phaseName(node: number): Phase {
    return PHASES[this.phase[node]!]!;
  }

  /** Unique and the same from run to run, as in Python: graph[name]. */
  nodeName(node: number): string {
    const names = this.document.json<string[]>("viewer/names.json");
    const given = names?.[node];
    if (given !== undefined) return given;
    const row = this.document.need("node_name")[node]!;
    if (row >= 0) return this.tables.names[row]!;
    return `${this.modulePath(node) || "op"}.${this.operationName(node)} (${node})`;
  }

  /** ns, undefined if it was not timed. */
  timeOf(node: number): number | undefined {
    return known(this.time, node);
  }

  source(node: number): SourceLine | undefined {
    const row = this.document.need("node_source")[node]!;
    return row >= 0 ? this.tables.sources[row] : undefined;
  }

  iteration(node: number): number {
    return this.document.column("node_iteration")?.[node] ?? NONE;
  }

  thread(node: number): string {
    return this.tables.threads[this.document.need("node_thread")[node]!] ?? "";
  }

  /** The composite operators that called it, outermost first; empty where there is none, or nobody knows. */
  composites(node: number): string {
    return this.tables.names[this.document.column("node_composites")?.[node] ?? NONE] ?? "";
  }

  /** The forward op that a backward op belongs to, or undefined. */
  forwardOf(node: number): number | undefined {
    return known(this.document.need("node_forward"), node);
  }

  /** The backward ops of a forward op. */
  backwardOf(node: number): Int32Array {
    return rowOf(
      this.keep("backward", () => inverted(this.document.need("node_forward"), this.count)),
      node,
    );
  }

  // -- modules -------------------------------------------------------------------------------------------------

  /** The module that a node ran in, or undefined. */
  module(node: number): Module | undefined {
    const call = this.call[node]!;
    return call >= 0 ? this.tables.modules[this.callModule[call]!] : undefined;
  }

  modulePath(node: number): string {
    return this.module(node)?.path ?? "";
  }

  // -- values --------------------------------------------------------------------------------------------------

  inputs(node: number): Int32Array {
    return slice(this.document.need("input_ptr"), this.ints("input_value"), node);
  }

  outputs(node: number): Int32Array {
    return slice(this.document.need("output_ptr"), this.ints("output_value"), node);
  }

  layout(value: number): Layout | undefined {
    return this.tables.layouts[this.document.need("value_layout")[value]!];
  }

  role(value: number): string {
    return ROLES[this.document.need("value_role")[value]!] ?? "";
  }

  /** The name of a parameter or buffer, "" for others. */
  parameterName(value: number): string {
    return this.tables.names[this.document.need("value_parameter")[value]!] ?? "";
  }

  producer(value: number): number | undefined {
    return known(this.document.need("value_producer"), value);
  }

  storage(value: number): number {
    return this.document.need("value_storage")[value]!;
  }

  storageBytes(storage: number): number {
    return this.document.need("storage_bytes")[storage]!;
  }

  /** 2×64×56×56; "scalar" for one without dimensions, "" for -1, as an output that was None. */
  shape(value: number): string {
    return this.shapeOf(this.document.need("value_layout")[value] ?? NONE);
  }

  /** The same of a row of the table of layouts. */
  shapeOf(layout: number): string {
    const texts = this.keep("shapes", () =>
      this.tables.layouts.map(({ shape }) => (shape.length ? shape.join("×") : "scalar")),
    );
    return texts[layout] ?? "";
  }

  /** The nodes that read a value. */
  readers(value: number): Int32Array {
    const rows = this.keep("readers", () => {
      const pointer = this.document.need("input_ptr"),
        items = this.ints("input_value");
      const owner = new Int32Array(items.length);
      for (let node = 0; node < this.count; node++) owner.fill(node, pointer[node]!, pointer[node + 1]!);
      return gathered(items, owner, this.document.need("value_layout").length);
    });
    return new Int32Array(new Set(rowOf(rows, value)));
  }

  // -- edges between nodes ---------------------------------------------------------------------------------------

  /** The nodes whose tensors a node reads (data edges only). */
  before(node: number): Int32Array {
    return rowOf(this.neighbours("before", "edge_target", "edge_source"), node);
  }

  /** The nodes that read a node's tensors. */
  after(node: number): Int32Array {
    return rowOf(this.neighbours("after", "edge_source", "edge_target"), node);
  }

  private neighbours(key: string, from: string, to: string): Rows {
    return this.keep(key, () => {
      const kind = this.document.need("edge_kind"),
        own = this.document.need(from);
      const owner = new Int32Array(own.length);
      for (let edge = 0; edge < own.length; edge++) owner[edge] = kind[edge] === 0 ? own[edge]! : NONE;
      return gathered(owner, this.document.need(to), this.count);
    });
  }

  /** What is computed once per graph. */
  keep<T>(key: string, make: () => T): T {
    if (!this.lazy.has(key)) this.lazy.set(key, make());
    return this.lazy.get(key) as T;
  }

  private ints(name: string): Int32Array {
    return this.document.need(name) as Int32Array;
  }
}

export function known(column: Column, row: number): number | undefined {
  const value = column[row]!;
  return value < 0 || Number.isNaN(value) ? undefined : value;
}

export function rowOf(rows: Rows, owner: number): Int32Array {
  return slice(rows.first, rows.items, owner);
}

function slice(first: Column, items: Int32Array, owner: number): Int32Array {
  return items.subarray(first[owner]!, first[owner + 1]!);
}

/** Items by owner, in order. Those of owner -1 are left out. */
export function gathered(owner: Column, items: Column, count: number): Rows {
  const first = new Int32Array(count + 1);
  for (let i = 0; i < owner.length; i++) if (owner[i]! >= 0) first[owner[i]! + 1]!++;
  for (let i = 0; i < count; i++) first[i + 1]! += first[i]!;
  const next = first.slice(),
    found = new Int32Array(first[count]!);
  for (let i = 0; i < owner.length; i++) if (owner[i]! >= 0) found[next[owner[i]!]!++] = items[i]!;
  return { first, items: found };
}

function inverted(column: Column, count: number): Rows {
  return gathered(column, Int32Array.from(column.keys()), count);
}

/** For files that hold a graph only: what can be counted here. */
function plainInfo(graph: Graph): Info {
  let time = 0,
    timed = false,
    ops = 0;
  for (let node = 0; node < graph.count; node++) {
    if (graph.isOp(node)) ops++;
    const one = known(graph.time, node);
    if (one !== undefined) {
      time += one;
      timed = true;
    }
  }
  return {
    version: 1,
    title: graph.document.name,
    time: null,
    program: "",
    device: null,
    totals: { ops, parameters: 0, flops: null, peak_bytes: null, time_ns: timed ? time : null, at_least: [] },
    notes: graph.document.header.notes,
    failed: null,
    left_out: [],
  };
}
