/** A little graph in memory: two equal blocks, a loss and a step of its backward pass.
 *
 *   0 x -> 1 addmm (blocks.0.linear) -> 2 relu (blocks.0) -> 3 addmm (blocks.1.linear) -> 4 relu (blocks.1)
 *     -> 5 view (the model) -> 6 sum -> 8 output;   7 threshold_backward, of node 4, reads 6; its second output is None
 */

import { Document } from "../src/document/document";
import { Graph } from "../src/model/graph";

export interface Changes {
  columns?: Record<string, ArrayLike<number>>; // by name, as document.column() takes it
  json?: Record<string, unknown>; // members
  source?: string;
}

const INTS = {
  node_kind: [0, 1, 1, 1, 1, 1, 1, 1, 2],
  node_phase: [0, 0, 0, 0, 0, 0, 0, 1, 0],
  node_operation: [0, 2, 3, 2, 3, 4, 5, 6, 1],
  node_call: [-1, 2, 1, 4, 3, 0, 0, 3, -1],
  node_source: [-1, 0, 1, 0, 1, 2, 2, -1, -1],
  node_name: [0, -1, -1, -1, -1, -1, -1, -1, 3],
  node_thread: [0, 0, 0, 0, 0, 0, 0, 1, 0],
  node_forward: [-1, -1, -1, -1, -1, -1, -1, 4, -1],
  node_iteration: [0, 0, 0, 0, 0, 0, 0, 0, 0],
  input_ptr: [0, 0, 2, 3, 5, 6, 7, 8, 9, 10],
  input_value: [0, 1, 2, 3, 4, 5, 6, 7, 8, 8],
  output_ptr: [0, 1, 2, 3, 4, 5, 6, 7, 9, 9],
  output_value: [0, 2, 3, 5, 6, 7, 8, 9, -1],
  value_storage: [0, 1, 2, 3, 4, 5, 6, 6, 7, 8],
  value_layout: [0, 1, 0, 0, 1, 0, 0, 2, 3, 0],
  value_producer: [0, -1, 1, 2, -1, 3, 4, 5, 6, 7],
  value_view_of: [-1, -1, -1, -1, -1, -1, -1, 6, -1, -1],
  value_role: [0, 1, 4, 4, 1, 4, 4, 4, 4, 5],
  value_parameter: [-1, 1, -1, -1, 2, -1, -1, -1, -1, -1],
  storage_born: [-1, -1, 1, 2, -1, 3, 4, 6, 7],
  storage_died: [-1, -1, 2, 3, -1, 4, -1, -1, -1],
  storage_role: [0, 1, 4, 4, 1, 4, 4, 4, 5],
  edge_source: [0, 1, 2, 3, 4, 5, 6, 6, 4],
  edge_target: [1, 2, 3, 4, 5, 6, 7, 8, 7],
  edge_value: [0, 2, 3, 5, 6, 7, 8, 8, -1],
  edge_output_index: [0, 0, 0, 0, 0, 0, 0, 0, -1],
  edge_input_index: [0, 0, 0, 0, 0, 0, 0, 0, -1],
  edge_kind: [0, 0, 0, 0, 0, 0, 0, 0, 1],
  call_module: [0, 1, 2, 3, 4],
  call_parent: [-1, 0, 1, 0, 3],
};
const LONGS = {
  node_time_ns: [-1, 2_000_000, 500, 1_000_000, 700, 100, 900, -1, -1],
  node_time_spread_ns: [-1, 10, 10, 10, 10, 10, 10, -1, -1],
  node_start_ns: [-1, 0, 2_000_000, 2_000_500, 3_000_500, 3_001_200, 3_001_300, -1, -1],
  node_memory_bytes: [24, 48, 72, 72, 72, 72, 76, 100, 100],
  storage_bytes: [24, 36, 24, 24, 36, 24, 24, 4, 24],
};
const layout = (shape: number[]) => ({ shape, stride: null, dtype: "float32", device: "cpu", kind: "strided" });
const operation = (name: string, type: string) => ({ name, type, parameters: [] });
const module = (path: string, type: string) => ({ path, type, kind: "module" });
const line = (number: number, text: string) => ({ file: "/src/net.py", line: number, function: "forward", text });

export const TABLES = {
  operations: [
    operation("input", "unknown"),
    operation("output", "unknown"),
    operation("aten.addmm.default", "matmul"),
    operation("aten.relu.default", "activation"),
    operation("aten.view.default", "view"),
    operation("aten.sum.default", "reduction"),
    operation("aten.threshold_backward.default", "activation"),
  ],
  layouts: [layout([2, 3]), layout([3, 3]), layout([6]), layout([])],
  arguments: [],
  sources: [line(7, "self.linear(x)"), line(8, "torch.relu(x)"), line(20, "x.view(-1).sum()")],
  modules: [
    module("", "Net"),
    module("blocks.0", "Block"),
    module("blocks.0.linear", "Linear"),
    module("blocks.1", "Block"),
    module("blocks.1.linear", "Linear"),
  ],
  names: ["x", "blocks.0.linear.weight", "blocks.1.linear.weight", "output"],
  threads: ["main", "autograd"],
  devices: ["cpu"],
};

export function smallDocument({ columns = {}, json = {}, source = "run" }: Changes = {}): Document {
  const header = { format: "torchatlas", version: 2, source, notes: ["a note"], metadata: {}, tables: TABLES };
  const known = new Map<string, unknown>([["header.json", header]]);
  const member = (name: string) => (name.includes("/") ? `${name}.npy` : `columns/${name}.npy`);
  for (const [name, numbers] of Object.entries(INTS)) known.set(member(name), Int32Array.from(numbers));
  for (const [name, numbers] of Object.entries(LONGS)) known.set(member(name), Float64Array.from(numbers));
  for (const [name, numbers] of Object.entries(columns)) known.set(member(name), Float64Array.from(numbers));
  for (const [name, value] of Object.entries(json)) known.set(name, value);
  return new Document("small.atlas", new Map(), known);
}

export function smallGraph(changes: Changes = {}): Graph {
  return new Graph(smallDocument(changes));
}

/** One number for each of the nine nodes: the same, but for some. */
export function perNode(usual: number, others: Record<number, number>): number[] {
  return Array.from({ length: 9 }, (_, node) => others[node] ?? usual);
}
