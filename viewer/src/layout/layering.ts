/** Ranks -> nodes and segments. A line that passes ranks gets a point in each; a tall box may span several ranks, with a
 * part in each. Boxes, points and parts are all called nodes here; a segment joins nodes of neighbouring ranks. */

import { type Edge, FREE, type Problem } from "./problem";
import type { Ranks } from "./ranks";

const MOST_POINTS = 40_000; // where lines pass ranks; a group with more is no picture that anybody reads
export const PART = -1; // net of the segments between the parts of a box

export interface Segment {
  a: number; // in the upper rank
  b: number;
  net: number; // PART within a spanning box
  leave: number; // where on a and b it ends, from their left sides; FREE if that is open
  enter: number;
  joined: boolean;
}

export interface Layering {
  problem: Problem;
  count: number; // nodes below it are boxes and ports
  rank: number[];
  rows: number[][];
  width: number[];
  height: number[]; // of what lies in its rank
  tail: number[]; // box -> its part in the last rank it spans
  owner: number[]; // part of a spanning box -> the box; others -> themselves
  segments: Segment[];
  chains: number[][]; // edge -> the segments it is made of
  up: number[][]; // node -> segments from above
  down: number[][];
  spans: boolean;
  leftOut: number; // longest lines that are not drawn, since there are far too many points
  x: number[];
}

export function isPoint(layering: Layering, node: number): boolean {
  return layering.width[node] === 0;
}

export function isPart(segment: Segment): boolean {
  return segment.net === PART;
}

export function layeringOf(problem: Problem, ranks: Ranks, spans: boolean): Layering {
  const count = problem.width.length;
  const layering: Layering = {
    problem,
    count,
    spans: false,
    leftOut: 0,
    rank: ranks.rank.slice(),
    rows: [],
    width: problem.width.slice(),
    height: problem.height.slice(),
    tail: Array.from({ length: count }, (_, node) => node),
    owner: Array.from({ length: count }, (_, node) => node),
    segments: [],
    chains: [],
    up: Array.from({ length: count }, () => []),
    down: Array.from({ length: count }, () => []),
    x: [],
  };
  if (spans) span(layering);
  chain(layering);
  firstRows(layering, ranks.order);
  return layering;
}

export function addNode(layering: Layering, rank: number, width: number, height: number, owner: number): number {
  const node = layering.rank.push(rank) - 1;
  layering.width.push(width);
  layering.height.push(height);
  layering.owner.push(owner < 0 ? node : owner);
  layering.up.push([]);
  layering.down.push([]);
  return node;
}

export function addSegment(layering: Layering, segment: Segment): number {
  const number = layering.segments.push(segment) - 1;
  layering.down[segment.a]!.push(number);
  layering.up[segment.b]!.push(number);
  return number;
}

/** Let a tall box that nothing below waits for take the height of several ranks. */
function span(layering: Layering): void {
  const { problem, rank, height, width } = layering;
  const { rank_gap, spanning_height, usual_height } = problem.geometry;
  const firstReader = rank.map((own) => own + 1);
  const isRead = new Uint8Array(layering.count);
  for (const { from, to } of problem.edges) {
    firstReader[from] = isRead[from] ? Math.min(firstReader[from]!, rank[to]!) : rank[to]!;
    isRead[from] = 1;
  }
  for (let box = 0; box < problem.boxes; box++) {
    const slack = firstReader[box]! - rank[box]!;
    const tall = height[box]!;
    if (slack < 2 || tall < spanning_height) continue;
    let over = Math.min(slack, Math.max(2, Math.round((tall + rank_gap) / (usual_height + rank_gap))));
    let part = (tall - (over - 1) * rank_gap) / over;
    if (part < 5) [over, part] = [2, (tall - rank_gap) / 2];
    height[box] = part;
    let last = box;
    for (let step = 1; step < over; step++) {
      const node = addNode(layering, rank[box]! + step, width[box]!, part, box);
      const middle = width[box]! / 2;
      addSegment(layering, { a: last, b: node, net: PART, leave: middle, enter: middle, joined: false });
      last = node;
    }
    layering.tail[box] = last;
    layering.spans = true;
  }
}

/** A point in every rank that a line passes. Lines of one net share theirs, and so do joined lines into one box. */
function chain(layering: Layering): void {
  const { problem, rank, tail } = layering;
  const longest = longestDrawn(layering);
  const levels = rank.reduce((most, one) => Math.max(most, one), 0) + 1;
  const points = new Map<number, number>();
  const shared = new Map<number, number>(); // two nodes -> the segment that lines share
  for (const edge of problem.edges) {
    const segments: number[] = [];
    layering.chains.push(segments);
    let at = tail[edge.from]!;
    const last = rank[edge.to]!;
    if (last - rank[at]! > longest) {
      layering.leftOut++;
      continue;
    }
    const trunk = trunkOf(problem, edge) * levels;
    for (let level = rank[at]! + 1; level <= last; level++) {
      const isLast = level === last;
      let node = isLast ? edge.to : points.get(trunk + level);
      if (node === undefined) {
        node = addNode(layering, level, 0, 0, -1);
        points.set(trunk + level, node);
      }
      const pair = at * 2 ** 24 + node;
      let segment = isLast && !edge.joined ? undefined : shared.get(pair);
      if (segment === undefined) {
        const { net, leave, joined } = edge;
        segment = addSegment(layering, { a: at, b: node, net, leave, enter: isLast ? edge.enter : FREE, joined });
        if (!isLast || joined) shared.set(pair, segment);
      }
      segments.push(segment);
      at = node;
    }
  }
}

/** Edges with the same number share a trunk. */
export function trunkOf(problem: Problem, edge: Edge): number {
  return (edge.joined ? edge.to : edge.from) * problem.nets + edge.net;
}

/** The most ranks that a line may pass, so that there are not far too many points. */
function longestDrawn({ problem, rank, tail }: Layering): number {
  const edges = problem.edges.map((edge) => ({
    trunk: trunkOf(problem, edge),
    span: rank[edge.to]! - rank[tail[edge.from]!]!,
  }));
  edges.sort((one, other) => one.span - other.span);
  const reach = new Map<number, number>(); // trunk -> the ranks it passes with the edges so far
  let points = 0;
  for (const { trunk, span } of edges) {
    points += span - (reach.get(trunk) ?? 1);
    reach.set(trunk, span);
    if (points > MOST_POINTS) return span - 1;
  }
  return Number.POSITIVE_INFINITY;
}

/** Depth first, so that what belongs together starts together. */
function firstRows(layering: Layering, order: readonly number[]): void {
  const { rank, count, down, segments } = layering;
  const rows: number[][] = Array.from({ length: rank.reduce((most, one) => Math.max(most, one), -1) + 1 }, () => []);
  const place = new Int32Array(count);
  order.forEach((node, position) => {
    place[node] = position;
  });
  const seen = new Uint8Array(rank.length);
  const stack = Array.from({ length: count }, (_, node) => node);
  stack.sort((one, other) => rank[other]! - rank[one]! || place[other]! - place[one]!);
  while (stack.length) {
    const node = stack.pop()!;
    if (seen[node]) continue;
    seen[node] = 1;
    rows[rank[node]!]!.push(node);
    const below = down[node]!.map((segment) => segments[segment]!.b);
    const following = [...below.filter((other) => other < count), ...below.filter((other) => other >= count)];
    for (const other of following.reverse()) if (!seen[other]) stack.push(other);
  }
  layering.rows = rows;
}
