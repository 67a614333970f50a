/** Outlines made by hand: a tree of names, and edges between leaves. */

import type { ChildRow } from "../../src/document/outline";
import type { Graph } from "../../src/model/graph";
import { type Kind, Outline } from "../../src/model/outline";

/** A leaf by its title, or a group. */
export type Tree = string | { title: string; children: Tree[]; kind?: Kind; repeat?: number; flags?: number };

/** Source and target leaf, counted over all rounds, and which output of the source. */
export type EdgeRow = [source: number, target: number, output?: number];

export const HANDS_ON = 2;

export function makeOutline(children: Tree[], edges: EdgeRow[], kept: EdgeRow[] = []): Outline {
  const texts: string[] = [];
  const templates: ChildRow[][] = [[]];
  const text = (words: string) => texts.push(words) - 1;
  const lengthOf = (tree: Tree): number =>
    typeof tree === "string" ? 1 : tree.children.reduce((sum, child) => sum + lengthOf(child) * repeatOf(child), 0);
  const rows = (trees: Tree[]): ChildRow[] => {
    let at = 0;
    return trees.map((tree): ChildRow => {
      const start = at;
      at += lengthOf(tree) * repeatOf(tree);
      if (typeof tree === "string") return ["leaf", start, start + 1, 1, -1, text(tree), -1, -1, -1, -1, -1, 0];
      const template = templates.push([]) - 1;
      templates[template] = rows(tree.children);
      const { kind = "module", repeat = 1, flags = 0 } = tree;
      return [kind, start, start + lengthOf(tree), repeat, template, text(tree.title), -1, -1, -1, -1, -1, flags];
    });
  };
  templates[0] = rows(children);
  const leaves = children.reduce((sum, child) => sum + lengthOf(child) * repeatOf(child), 0);
  const sorted = [...edges].sort((one, other) => one[1] - other[1]);
  const numbers = Int32Array.from({ length: leaves }, (_, leaf) => leaf);
  const columns: Record<string, Int32Array> = {
    leaf_node: numbers,
    node_leaf: numbers,
    edge_source: Int32Array.from(sorted, ([source]) => source),
    edge_target: Int32Array.from(sorted, ([, target]) => target),
    edge_output: Int32Array.from(sorted, ([, , output]) => output ?? 0),
    edge_value: Int32Array.from(sorted, ([source]) => source),
    kept_source: Int32Array.from(kept, ([source]) => source),
    kept_target: Int32Array.from(kept, ([, target]) => target),
    kept_output: Int32Array.from(kept, ([, , output]) => output ?? 0),
  };
  const none = new Int32Array(leaves).fill(-1);
  const graph = {
    info: { title: "made by hand" },
    document: {
      json: () => ({ templates, root: 0, texts, classes: [], open: [] }),
      column: (name: string) => columns[name.replace("viewer/", "")],
    },
    kind: new Int8Array(leaves).fill(1),
    call: none,
    callParent: none,
    callModule: none,
    shape: (value: number) => (value < 0 ? "" : `${value}×64`), // every leaf makes another shape
    outputs: (node: number) => Int32Array.of(node),
    inputs: () => new Int32Array(0),
    producer: () => undefined,
  };
  return new Outline(graph as unknown as Graph);
}

function repeatOf(tree: Tree): number {
  return typeof tree === "string" ? 1 : (tree.repeat ?? 1);
}

/** So many leaves in a row, each reading the one before. */
export function chain(count: number, first = 0): { leaves: string[]; edges: EdgeRow[] } {
  const leaves = Array.from({ length: count }, (_, at) => `op${first + at}`);
  return { leaves, edges: leaves.slice(1).map((_, at): EdgeRow => [first + at, first + at + 1]) };
}

/** Keys of all groups that are shown when everything is open. */
export function allGroups(outline: Outline): Set<string> {
  const open = new Set<string>();
  const add = (children: ReturnType<Outline["children"]>) => {
    for (const child of children) {
      if (child.isLeaf) continue;
      open.add(child.key);
      add(outline.children(child, new Map()));
    }
  };
  add(outline.children(outline.root, new Map()));
  return open;
}

/** Numbers from 0 to 1 that are the same in every run. */
export function randomNumbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}
