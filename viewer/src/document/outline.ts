/** Document -> the tables of the outline, as Python wrote them, or for a plain `.atlas` file as module calls tell. */

import type { Graph } from "../model/graph";
import type { Kind } from "../model/outline";
import { plainOutline } from "./plain_outline";

/** kind, start, stop, repeat, template, title, subtitle, heading, class, name, level, flags: see docs/format.md */
export type ChildRow = [Kind, number, number, number, number, number, number, number, number, number, number, number];

export interface OutlineTable {
  templates: ChildRow[][];
  root: number;
  texts: string[];
  classes: string[];
  open: [start: number, stop: number, depth: number][];
  leafNode: Int32Array;
  nodeLeaf: Int32Array;
  /** Lines between leaves, in order of their targets; firstEdge[leaf] is the first that enters a leaf. */
  edges: { source: Int32Array; output: Int32Array; target: Int32Array; value: Int32Array; first: Int32Array };
  /** Tensors that one lane takes from another. */
  kept: { source: Int32Array; output: Int32Array; target: Int32Array };
}

type Stored = Pick<OutlineTable, "templates" | "root" | "texts" | "classes" | "open">;

export function outlineOf(graph: Graph): OutlineTable {
  const document = graph.document;
  const stored = document.json<Stored>("viewer/outline.json");
  if (!stored) return plainOutline(graph);
  const ints = (name: string) => Int32Array.from(document.column(`viewer/${name}`) ?? []);
  const leafNode = ints("leaf_node"),
    target = ints("edge_target");
  return {
    ...stored,
    leafNode,
    nodeLeaf: ints("node_leaf"),
    edges: {
      source: ints("edge_source"),
      output: ints("edge_output"),
      target,
      value: ints("edge_value"),
      first: firstEdges(target, leafNode.length),
    },
    kept: { source: ints("kept_source"), output: ints("kept_output"), target: ints("kept_target") },
  };
}

/** For every leaf the first of the edges that enter it; one more at the end. */
export function firstEdges(target: Int32Array, leaves: number): Int32Array {
  const first = new Int32Array(leaves + 1);
  for (const one of target) first[one + 1]!++;
  for (let leaf = 0; leaf < leaves; leaf++) first[leaf + 1]! += first[leaf]!;
  return first;
}
