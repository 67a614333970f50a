/** Ordered ranks -> where each node stands from left to right: long lines made straight first, then each block of nodes
 * that stand in one column moved where its lines pull it. */

import { isPart, isPoint, type Layering, type Segment } from "./layering";

const DESCENTS = 24;
const NOTICEABLE = 0.1;

export function placeNodes(layering: Layering): void {
  const count = layering.rank.length;
  if (!count) return;
  const blocks = makeBlocks(layering);
  const apart = constraints(layering, blocks);
  const at = spread(apart);
  descend(layering, blocks, apart, at);
  const x = Array.from({ length: count }, (_, node) => at[blocks.of[node]!]! + blocks.offset[node]!);
  const left = x.reduce((least, one) => Math.min(least, one), Number.POSITIVE_INFINITY);
  layering.x = x.map((value) => value - left);
}

/** Where on its upper node a segment begins, from the left side, as far as that is known. */
function leaves({ width }: Layering, { a, leave }: Segment): number {
  return Number.isNaN(leave) || width[a] === 0 ? width[a]! / 2 : leave;
}

function enters({ width }: Layering, { b, enter }: Segment): number {
  return Number.isNaN(enter) ? width[b]! / 2 : enter;
}

interface Blocks {
  of: Int32Array;
  offset: Float64Array;
  count: number;
}

/** Nodes joined by straight lines. Straight lines never cross each other. */
function makeBlocks(layering: Layering): Blocks {
  const { segments, rank, rows } = layering;
  const place = new Int32Array(rank.length);
  for (const row of rows)
    row.forEach((node, position) => {
      place[node] = position;
    });
  const following = new Int32Array(rank.length).fill(-1); // node -> segment
  const isFollowing = new Uint8Array(rank.length);
  const straight: { at: number; to: number }[][] = rows.map(() => []); // in order at both ends
  for (const number of byPriority(layering, place)) {
    const { a, b } = segments[number]!;
    if (following[a]! >= 0 || isFollowing[b]) continue;
    const row = straight[rank[a]!]!;
    const [at, to] = [place[a]!, place[b]!];
    const here = firstFrom(row, at);
    const isCrossed = (other: { at: number; to: number } | undefined) =>
      other && (at - other.at) * (to - other.to) <= 0;
    if (isCrossed(row[here - 1]) || isCrossed(row[here])) continue;
    row.splice(here, 0, { at, to });
    following[a] = number;
    isFollowing[b] = 1;
  }
  const blocks: Blocks = { of: new Int32Array(rank.length), offset: new Float64Array(rank.length), count: 0 };
  for (const row of rows) {
    for (const start of row) {
      if (isFollowing[start]) continue;
      let shift = 0;
      for (let node = start; ; ) {
        blocks.of[node] = blocks.count;
        blocks.offset[node] = shift;
        if (following[node]! < 0) break;
        const segment = segments[following[node]!]!;
        shift += leaves(layering, segment) - enters(layering, segment);
        node = segment.b;
      }
      blocks.count++;
    }
  }
  return blocks;
}

function firstFrom(row: readonly { at: number }[], at: number): number {
  let low = 0;
  let high = row.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row[middle]!.at < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Segments, those first that should rather be straight: within boxes, long lines, lines between lone neighbours. */
function byPriority(layering: Layering, place: Int32Array): number[] {
  const { segments, up, down, count } = layering;
  const fromMiddle = new Float64Array(segments.length);
  const rate = (near: number[][], end: (segment: Segment) => number) => {
    for (const numbers of near) {
      const sorted = numbers.length > 1 ? [...numbers].sort((p, q) => end(segments[p]!) - end(segments[q]!)) : numbers;
      sorted.forEach((number, position) => {
        fromMiddle[number]! += Math.abs(position - (sorted.length - 1) / 2);
      });
    }
  };
  rate(down, ({ b }) => place[b]!);
  rate(up, ({ a }) => place[a]!);
  const weight = Float64Array.from(segments, (segment) => {
    const { a, b } = segment;
    if (isPart(segment)) return 1000;
    const [pointA, pointB] = [isPoint(layering, a) && a >= count, isPoint(layering, b) && b >= count];
    if (pointA && pointB) return 20;
    let found = !pointA && !pointB ? 6 : 0;
    found += down[a]!.length === 1 ? 2 : 0;
    found += up[b]!.length === 1 ? 2 : 0;
    found += Number.isNaN(segment.leave) || isPoint(layering, a) ? 0 : 2;
    return found + (Number.isNaN(segment.enter) ? 0 : 2);
  });
  const order = Array.from(segments, (_, number) => number);
  return order.sort((p, q) => weight[q]! - weight[p]! || fromMiddle[p]! - fromMiddle[q]! || p - q);
}

interface Apart {
  block: number;
  by: number;
}
interface Constraints {
  left: Apart[][];
  right: Apart[][];
  order: number[];
}

/** How far each block lies at least from those left and right of it. */
function constraints(layering: Layering, blocks: Blocks): Constraints {
  const {
    rows,
    width,
    problem: { geometry },
  } = layering;
  const least = new Map<number, number>();
  for (const row of rows) {
    for (let position = 0; position + 1 < row.length; position++) {
      const [a, b] = [row[position]!, row[position + 1]!];
      const gap = width[a] && width[b] ? geometry.box_gap : geometry.line_gap;
      const by = width[a]! + gap + blocks.offset[a]! - blocks.offset[b]!;
      const key = blocks.of[a]! * blocks.count + blocks.of[b]!;
      least.set(key, Math.max(least.get(key) ?? by, by));
    }
  }
  const left: Apart[][] = Array.from({ length: blocks.count }, () => []);
  const right: Apart[][] = Array.from({ length: blocks.count }, () => []);
  for (const [key, by] of least) {
    const [one, other] = [Math.floor(key / blocks.count), key % blocks.count];
    right[one]!.push({ block: other, by });
    left[other]!.push({ block: one, by });
  }
  const waits = Int32Array.from(left, (blocks) => blocks.length);
  const order: number[] = [];
  for (let block = 0; block < blocks.count; block++) if (!waits[block]) order.push(block);
  for (let at = 0; at < order.length; at++) {
    for (const { block } of right[order[at]!]!) if (!--waits[block]!) order.push(block);
  }
  return { left, right, order };
}

/** Half way between as far left and as far right as possible. */
function spread({ left, right, order }: Constraints): Float64Array {
  const low = new Float64Array(left.length);
  for (const block of order)
    for (const { block: other, by } of left[block]!) low[block] = Math.max(low[block]!, low[other]! + by);
  const high = new Float64Array(left.length).fill(low.reduce((most, one) => Math.max(most, one), 0));
  for (let at = order.length - 1; at >= 0; at--) {
    const block = order[at]!;
    for (const { block: other, by } of right[block]!) high[block] = Math.min(high[block]!, high[other]! - by);
  }
  return low.map((value, block) => (value + high[block]!) / 2);
}

/** Move every block where its lines pull it, as far as its neighbours allow, again and again. */
function descend(layering: Layering, blocks: Blocks, { left, right, order }: Constraints, at: Float64Array): void {
  const pulls: { block: number; shift: number; weight: number }[][] = Array.from({ length: blocks.count }, () => []);
  for (const segment of layering.segments) {
    const { a, b } = segment;
    const [one, other] = [blocks.of[a]!, blocks.of[b]!];
    if (one === other) continue;
    const shift = leaves(layering, segment) + blocks.offset[a]! - enters(layering, segment) - blocks.offset[b]!;
    const weight = 1 + (a >= layering.count ? 1 : 0) + (b >= layering.count ? 1 : 0);
    pulls[one]!.push({ block: other, shift: -shift, weight });
    pulls[other]!.push({ block: one, shift, weight });
  }
  for (let turn = 0; turn < DESCENTS; turn++) {
    let moved = 0;
    for (let step = 0; step < order.length; step++) {
      const block = order[turn % 2 ? step : order.length - 1 - step]!;
      if (!pulls[block]!.length) continue;
      let sum = 0;
      let weights = 0;
      for (const { block: other, shift, weight } of pulls[block]!) {
        sum += (at[other]! + shift) * weight;
        weights += weight;
      }
      let low = Number.NEGATIVE_INFINITY;
      let high = Number.POSITIVE_INFINITY;
      for (const { block: other, by } of left[block]!) low = Math.max(low, at[other]! + by);
      for (const { block: other, by } of right[block]!) high = Math.min(high, at[other]! - by);
      const wish = Math.min(Math.max(sum / weights, low), Math.max(low, high));
      moved = Math.max(moved, Math.abs(wish - at[block]!));
      at[block] = wish;
    }
    if (moved < NOTICEABLE) return;
  }
}
