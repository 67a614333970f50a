/** A problem -> the rank of every box, from top to bottom.
 *
 * As high as the longest way allows, then near what it feeds. Where a rank would be far too wide, its branches go into
 * several rows: a branch is what hangs together when boxes that many others read or feed are taken away.
 */

import { isSink, isSource, type Problem } from "./problem";

const WIDEST_RANK = 1600;
export const FEWEST_BRANCHES = 8; // with fewer, nothing becomes clearer; also the neighbours that make a box a hub
const LONGEST_BRANCH = 12;
const MOST_PASSED = 6000; // rows that lines of single branches pass, all together

export interface Ranks {
  rank: number[];
  order: number[]; // topological
  row: Int32Array; // box -> which row of branches it went into; -1 if none
}

export function ranksOf(problem: Problem): Ranks {
  const count = problem.width.length;
  const after: number[][] = Array.from({ length: count }, () => []);
  const before: number[][] = Array.from({ length: count }, () => []);
  for (const { from, to } of problem.edges) {
    after[from]!.push(to);
    before[to]!.push(from);
  }
  let { rank, order } = longestWays(problem, after);
  let row: Int32Array = new Int32Array(count).fill(-1);
  if (isTooWide(problem, rank)) {
    const rows = rowsOfBranches(problem, rank, after, before);
    const last = rows.reduce((one, other) => Math.max(one, other), -1);
    const ways = last > 0 ? longestWays(problem, after, rows, last) : undefined;
    const lines = linesOfTheirOwn(problem, rows);
    if (ways?.order.length === count + last && lines * last <= MOST_PASSED) {
      // else rows wait for each other (branches feed and read the same hub), or too many lines would pass them
      ({ rank, order } = ways);
      row = rows;
    }
  }
  order = order.filter((node) => node < count);
  placeSinks(problem, rank);
  lower(problem, rank, order, before, after, row);
  return { rank, order, row };
}

/** Ranks as the longest ways allow. Rows of branches wait for each other: between two of them stands a barrier. */
function longestWays(
  problem: Problem,
  after: number[][],
  row?: Int32Array,
  last = 0,
): { rank: number[]; order: number[] } {
  const count = after.length;
  const below: readonly number[][] = row ? withBarriers(after, row, last) : after;
  const waits = new Int32Array(below.length);
  for (const nodes of below) for (const node of nodes) waits[node]!++;
  const rank = new Array<number>(below.length).fill(problem.sources ? 1 : 0);
  for (let node = problem.boxes; node < problem.boxes + problem.sources; node++) rank[node] = 0;
  const order: number[] = [];
  for (let node = 0; node < below.length; node++) if (!waits[node]) order.push(node);
  for (let at = 0; at < order.length; at++) {
    const node = order[at]!;
    const next = rank[node]! + (node < count ? 1 : 0); // a barrier takes no rank
    for (const other of below[node]!) {
      rank[other] = Math.max(rank[other]!, next);
      if (!--waits[other]!) order.push(other);
    }
  }
  return { rank: rank.slice(0, count), order };
}

function withBarriers(after: number[][], row: Int32Array, last: number): number[][] {
  const count = after.length;
  const found = after.map((nodes) => nodes.slice());
  for (let barrier = 0; barrier < last; barrier++) found.push([]);
  for (let node = 0; node < count; node++) {
    const own = row[node]!;
    if (own < 0) continue;
    if (own < last) found[node]!.push(count + own);
    if (own > 0) found[count + own - 1]!.push(node);
  }
  return found;
}

function placeSinks(problem: Problem, rank: number[]): void {
  if (!problem.sinks) return;
  let last = -1;
  for (let node = 0; node < problem.boxes; node++) last = Math.max(last, rank[node]!);
  if (problem.sources) last = Math.max(last, 0);
  for (let node = problem.boxes + problem.sources; node < rank.length; node++) rank[node] = last + 1;
}

/** Lower boxes to what they feed, where that makes more lines shorter than longer. */
function lower(
  problem: Problem,
  rank: number[],
  order: number[],
  before: number[][],
  after: number[][],
  row: Int32Array,
): void {
  const many = (nodes: number[]) => (nodes.length < 2 ? nodes.length : new Set(nodes).size);
  const loose = looseBoxes(problem, order, before, after);
  for (let turn = 0; turn < 2; turn++) {
    for (let at = order.length - 1; at >= 0; at--) {
      const node = order[at]!;
      if (node >= problem.boxes || row[node]! >= 0 || !after[node]!.length) continue;
      if (!loose[node] && many(before[node]!) >= many(after[node]!)) continue;
      let least = Number.POSITIVE_INFINITY;
      for (const other of after[node]!) least = Math.min(least, rank[other]!);
      rank[node] = Math.max(rank[node]!, least - 1);
    }
  }
}

/** Whether each box may lie as low as what it feeds allows: nothing enters it, or only from boxes that feed nothing else
 * and may follow it, as from an input that one embedding reads. */
function looseBoxes(problem: Problem, order: number[], before: number[][], after: number[][]): boolean[] {
  const loose = new Array<boolean>(before.length).fill(false);
  for (const node of order) {
    if (isSource(problem, node) || isSink(problem, node)) continue;
    loose[node] = before[node]!.every((other) => loose[other] && after[other]!.every((reader) => reader === node));
  }
  return loose;
}

function isTooWide(problem: Problem, rank: readonly number[]): boolean {
  const wide = new Map<number, number>();
  for (let box = 0; box < problem.boxes; box++) {
    wide.set(rank[box]!, (wide.get(rank[box]!) ?? 0) + problem.width[box]! + problem.geometry.box_gap);
  }
  return [...wide.values()].some((width) => width > WIDEST_RANK);
}

/** Lines that enter or leave the group at a branch and share no trunk with those of others. */
function linesOfTheirOwn(problem: Problem, row: Int32Array): number {
  const readers = new Int32Array(problem.width.length);
  for (const { from } of problem.edges) readers[from]!++;
  const isOwn = (from: number, to: number) =>
    (isSource(problem, from) && row[to]! >= 0 && readers[from]! < FEWEST_BRANCHES) ||
    (isSink(problem, to) && row[from]! >= 0);
  return problem.edges.reduce((sum, { from, to }) => sum + (isOwn(from, to) ? 1 : 0), 0);
}

/** Small branches side by side, as many in a row as there is room for. Those of higher ranks come first, so that none
 * waits for a row below its own. */
function rowsOfBranches(problem: Problem, rank: number[], after: number[][], before: number[][]): Int32Array {
  const { boxes, width, geometry } = problem;
  const isHub = (box: number) => new Set([...after[box]!, ...before[box]!]).size >= FEWEST_BRANCHES;
  const hub = Array.from({ length: boxes }, (_, box) => isHub(box));
  const seen = hub.slice();
  const branches: number[][] = [];
  for (let start = 0; start < boxes; start++) {
    if (seen[start]) continue;
    seen[start] = true;
    const branch = [start];
    for (let at = 0; at < branch.length; at++) {
      for (const near of [after, before]) {
        for (const other of near[branch[at]!]!) {
          if (other >= boxes || seen[other]) continue;
          seen[other] = true;
          branch.push(other);
        }
      }
    }
    if (branch.length <= LONGEST_BRANCH) branches.push(branch);
  }
  const row = new Int32Array(rank.length).fill(-1);
  if (branches.length < FEWEST_BRANCHES) return row;
  const top = (branch: number[]) =>
    branch.reduce((least, box) => Math.min(least, rank[box]!), Number.POSITIVE_INFINITY);
  const tops = new Map(branches.map((branch) => [branch, top(branch)]));
  branches.sort((one, other) => tops.get(one)! - tops.get(other)! || one[0]! - other[0]!);
  let number = 0;
  let used = 0;
  for (const branch of branches) {
    const across = new Map<number, number>();
    for (const box of branch) across.set(rank[box]!, (across.get(rank[box]!) ?? 0) + width[box]! + geometry.box_gap);
    const wide = Math.max(...across.values());
    if (used && used + wide > WIDEST_RANK) {
      number++;
      used = 0;
    }
    used += wide;
    for (const box of branch) row[box] = number;
  }
  return row;
}
