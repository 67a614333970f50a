/** The outline of a graph whose file has none: module calls as groups, in order, without folding. */

import type { Graph } from "../model/graph";
import { type ChildRow, firstEdges, type OutlineTable } from "./outline";

export function plainOutline(graph: Graph): OutlineTable {
  const leaves = Array.from({ length: graph.count }, (_, node) => node);
  const kind = graph.document.need("edge_kind");
  const data = [...kind.keys()].filter((edge) => kind[edge] === 0);
  const from = graph.document.need("edge_source"),
    to = graph.document.need("edge_target");
  const index = graph.document.need("edge_input_index"),
    output = graph.document.need("edge_output_index"),
    value = graph.document.need("edge_value");
  data.sort((a, b) => to[a]! - to[b]! || index[a]! - index[b]!);
  const pick = (column: ArrayLike<number>) => Int32Array.from(data, (edge) => column[edge]!);
  const texts: string[] = [],
    number = new Map<string, number>();
  const text = (words: string) => {
    if (!words) return -1;
    if (!number.has(words)) number.set(words, texts.push(words) - 1);
    return number.get(words)!;
  };
  const rows: ChildRow[] = leaves.map((node) => [
    "leaf",
    node,
    node + 1,
    1,
    -1,
    text(graph.shortOperation(node)),
    text(
      [...graph.outputs(node)]
        .slice(0, 1)
        .map((one) => graph.shape(one))
        .join(),
    ),
    -1,
    -1,
    -1,
    -1,
    graph.isOp(node) ? 0 : 4,
  ]);
  const nodes = Int32Array.from(leaves),
    none = new Int32Array(0),
    target = pick(to);
  return {
    templates: [rows],
    root: 0,
    texts,
    classes: [],
    open: [],
    leafNode: nodes,
    nodeLeaf: nodes,
    edges: {
      source: pick(from),
      output: pick(output),
      target,
      value: pick(value),
      first: firstEdges(target, graph.count),
    },
    kept: { source: none, output: none, target: none },
  };
}
