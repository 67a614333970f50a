/** Groups that were laid over a graph: the subgraphs of a partition, the stages of a pipeline. */

import type { Graph } from "./graph";
import type { Item, Outline } from "./outline";

export interface Groups {
  readonly name: string; // stands in links
  readonly title: string;
  readonly names: string[];
  readonly of: ArrayLike<number>; // node -> its group, -1 for none
  readonly facts: Record<string, (number | string | null)[]>; // more of each group, by what it is
}

const KNOWN = { partition: "viewer/node_partition", stages: "viewer/node_stage" } as const;

export function groupsOf(graph: Graph): Groups[] {
  return Object.entries(KNOWN).flatMap(([name, column]) => {
    const about = graph.document.json<{ title: string; names: string[] } & Record<string, unknown>>(
      `viewer/groups/${name}.json`,
    );
    const of = graph.document.column(column);
    if (!about || !of) return [];
    const { title, names, ...rest } = about;
    return [{ name, title, names, of, facts: rest as Groups["facts"] }];
  });
}

/** The group of an item, all its rounds together: its number, -1 if it has none, -2 if it holds several. */
export function groupOfItems(outline: Outline, groups: Groups): (item: Item) => number {
  const leaves = outline.leafNode.length,
    end = new Int32Array(leaves); // where the run of equal groups around a leaf ends
  const of = (leaf: number) => groups.of[outline.leafNode[leaf]!]!;
  for (let leaf = leaves - 1; leaf >= 0; leaf--)
    end[leaf] = leaf + 1 < leaves && of(leaf + 1) === of(leaf) ? end[leaf + 1]! : leaf + 1;
  return (item) => (item.start >= leaves ? -1 : end[item.start]! >= item.end ? of(item.start) : -2);
}

/** Colours that can be told apart, again and again. */
export function groupColor(group: number, colors: readonly string[]): string {
  return colors[group % colors.length]!;
}
