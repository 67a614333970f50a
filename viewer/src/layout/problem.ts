/** One layered problem: the boxes of one group, the points where tensors enter and leave it, and the lines between them. */

import type { Geometry } from "./scene";

export const FREE = Number.NaN; // an end of a line that may lie anywhere on its box

export interface Edge {
  from: number;
  to: number;
  net: number; // lines of one net share a trunk
  leave: number; // where on `from` it begins, from the left side; FREE if that is open
  enter: number;
  line: number; // what it draws: for the caller
  turned: boolean; // it leads back: drawn from its end to its beginning
  joined: boolean; // shares its trunk with all joined lines into `to`, instead of those of its net
}

/** Boxes come first, then `sources` points on the upper border, then `sinks` on the lower one. */
export interface Problem {
  boxes: number;
  sources: number;
  sinks: number;
  width: number[];
  height: number[];
  edges: Edge[];
  nets: number;
  geometry: Geometry;
}

export function isSource(problem: Problem, node: number): boolean {
  return node >= problem.boxes && node < problem.boxes + problem.sources;
}

export function isSink(problem: Problem, node: number): boolean {
  return node >= problem.boxes + problem.sources;
}

/** Turn the lines that lead back: groups can wait for each other, though ops never do. */
export function makeAcyclic(problem: Problem): void {
  const { boxes, edges } = problem;
  const isInner = ({ from, to }: Edge) => from < boxes && to < boxes;
  if (edges.every((edge) => !isInner(edge) || edge.from < edge.to)) return;
  const place = inOrder(boxes, edges.filter(isInner));
  for (const edge of edges) {
    if (!isInner(edge) || place[edge.from]! < place[edge.to]!) continue;
    [edge.from, edge.to] = [edge.to, edge.from];
    edge.net = problem.nets++;
    edge.enter = edge.leave = FREE;
    edge.turned = true;
  }
}

/** The place of each box in an order in which none comes before what it reads; of those that wait for each other the
 * first comes first. A group that began before another may still read what that one made. */
function inOrder(count: number, edges: readonly Edge[]): number[] {
  const after: number[][] = Array.from({ length: count }, () => []);
  const waits = new Int32Array(count);
  for (const { from, to } of edges) {
    after[from]!.push(to);
    waits[to]!++;
  }
  const place = new Array<number>(count).fill(-1);
  const ready = new Heap();
  for (let box = 0; box < count; box++) if (!waits[box]) ready.push(box);
  let next = 0; // the first that may still wait
  for (let turn = 0; turn < count; turn++) {
    while (next < count && place[next]! >= 0) next++;
    const box = ready.pop() ?? next;
    place[box] = turn;
    for (const to of after[box]!) if (!--waits[to]! && place[to]! < 0) ready.push(to);
  }
  return place;
}

/** The least number comes out first. */
class Heap {
  private readonly items: number[] = [];

  push(item: number): void {
    const items = this.items;
    let at = items.push(item) - 1;
    for (let above = (at - 1) >> 1; at && items[above]! > item; above = (at - 1) >> 1) {
      items[at] = items[above]!;
      at = above;
    }
    items[at] = item;
  }

  pop(): number | undefined {
    const items = this.items;
    const least = items[0];
    const last = items.pop();
    if (last === undefined || !items.length) return least;
    let at = 0;
    for (;;) {
      let below = 2 * at + 1;
      if (below + 1 < items.length && items[below + 1]! < items[below]!) below++;
      if (below >= items.length || items[below]! >= last) break;
      items[at] = items[below]!;
      at = below;
    }
    items[at] = last;
    return least;
  }
}
