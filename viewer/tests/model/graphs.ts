/** Graphs from a few columns, for tests of what is computed from them. */

import type { Document, Header, Info, Tables } from "../../src/document/document";
import type { Column } from "../../src/document/npy";
import { Graph } from "../../src/model/graph";

export interface Parts {
  nodes: number;
  columns?: Record<string, number[]>;
  tables?: Partial<Tables>;
  metadata?: Record<string, unknown>;
  info?: Partial<Info>;
}

/** Every column that is not named is -1 for all nodes; of values, storages and calls there are none. */
export function graphOf({ nodes, columns = {}, tables = {}, metadata = {}, info = {} }: Parts): Graph {
  const all = new Map<string, Column>();
  const fill = (names: string[], value: number) => {
    for (const name of names) all.set(name, new Float64Array(nodes).fill(value));
  };
  fill(["node_kind"], 1);
  fill(["node_phase", "node_operation", "node_thread"], 0);
  fill(["node_call", "node_time_ns", "node_start_ns", "node_memory_bytes", "node_source", "node_iteration"], -1);
  for (const name of ["input_ptr", "output_ptr"]) all.set(name, new Int32Array(nodes + 1));
  const empty = ["call_module", "call_parent", "input_value", "output_value", "value_storage", "value_parameter"];
  for (const name of [...empty, "value_role", "value_layout", "value_producer"]) all.set(name, new Int32Array(0));
  for (const name of ["bytes", "born", "died", "role"]) all.set(`storage_${name}`, new Int32Array(0));
  for (const [name, numbers] of Object.entries(columns)) all.set(name, Float64Array.from(numbers));
  const header = {
    format: "torchatlas",
    version: 1,
    source: "run",
    notes: [],
    metadata,
    columns: [],
    tables: {
      operations: [{ name: "aten.add.Tensor", type: "pointwise", parameters: [] }],
      layouts: [],
      arguments: [],
      sources: [],
      modules: [],
      names: [],
      threads: ["MainThread"],
      devices: ["cpu"],
      ...tables,
    },
  } as Header;
  const whole: Info = {
    version: 1,
    title: "test",
    time: null,
    program: "",
    totals: { ops: nodes, parameters: 0, flops: null, peak_bytes: null, time_ns: null, at_least: [] },
    device: null,
    notes: [],
    failed: null,
    left_out: [],
    ...info,
  };
  const names = Array.from({ length: nodes }, (_, node) => `n${node}`);
  const json: Record<string, unknown> = { "viewer/info.json": whole, "viewer/names.json": names };
  const document = {
    name: "test",
    header,
    json: (member: string) => json[member],
    column: (name: string) => all.get(name),
    need(name: string) {
      const found = all.get(name);
      if (!found) throw new Error(`the test needs ${name}`);
      return found;
    },
  };
  return new Graph(document as unknown as Document);
}
