/** A layering -> the order of nodes in each rank, with few crossings. Crossings are counted where lines meet a box, and
 * not at its centre. Sweeps by the mean of neighbours, then exchanges of neighbours while that helps. */

import { addNode, addSegment, isPart, type Layering, PART } from "./layering";
import { getOrMake } from "./maps";
import { FEWEST_BRANCHES } from "./ranks";

const SWEEPS = 8;
const LARGE = 250; // segments; with more, fewer sweeps must do
const HUGE = 4000; // and with more than this, one sweep down and one up
const STARTS: readonly [most: number, starts: number][] = [
  [40, 8],
  [120, 2],
]; // with no more segments, so many other orders

export function orderRows(layering: Layering): number {
  return new Orderer(layering).order();
}

/** Whether a line would run through a spanning box. */
export function spansAreCrossed({ segments, rows, rank }: Layering): boolean {
  const place = new Int32Array(rank.length);
  for (const row of rows)
    row.forEach((node, position) => {
      place[node] = position;
    });
  const byRank = new Map<number, typeof segments>();
  for (const segment of segments) {
    getOrMake(byRank, rank[segment.a]!, () => []).push(segment);
  }
  return segments.some(
    (part) =>
      isPart(part) &&
      byRank.get(rank[part.a]!)!.some(({ a, b }) => (place[a]! - place[part.a]!) * (place[b]! - place[part.b]!) < 0),
  );
}

/** In rows of branches, what they all read comes down on their left and what they make goes down on their right: rows
 * that hang on a trunk in the midst of them would stand further and further aside. */
export function putTrunksAside(layering: Layering, rowOf: Int32Array): void {
  const { problem, rank, rows, segments, chains } = layering;
  const readers = new Int32Array(problem.nets);
  for (const { to, net, joined } of problem.edges) if (!joined && rowOf[to]! >= 0) readers[net]!++;
  const side = new Int8Array(rank.length);
  problem.edges.forEach(({ from, to, net, joined }, edge) => {
    const isRead = !joined && rowOf[to]! >= 0 && readers[net]! >= FEWEST_BRANCHES;
    const isMade = joined && rowOf[from]! >= 0;
    if (!isRead && !isMade) return;
    for (const number of chains[edge]!.slice(0, -1)) side[segments[number]!.b] = isRead ? -1 : 1;
  });
  const isInRows = (node: number) => node < problem.boxes && rowOf[node]! >= 0;
  const levels = rows.flatMap((row, level) => (row.some(isInRows) ? [level] : []));
  for (const level of levels) rows[level]!.sort((one, other) => side[one]! - side[other]!);
  for (const own of [-1, 1]) extend(layering, levels, (node) => side[node] === own, own < 0);
}

/** Let the outermost trunk on one side bound the rows in which it has no point, too, so that all rows keep in line. */
function extend(layering: Layering, levels: number[], isTrunk: (node: number) => boolean, isLeft: boolean): void {
  const { rows } = layering;
  const known = new Map<number, number>();
  for (const level of levels) {
    const row = rows[level]!;
    const node = isLeft ? row[0] : row[row.length - 1];
    if (node !== undefined && isTrunk(node)) known.set(level, node);
  }
  const add = (level: number, neighbour: number | undefined, isAbove: boolean) => {
    if (known.has(level) || neighbour === undefined) return;
    const node = addNode(layering, level, 0, 0, -1);
    if (isLeft) rows[level]!.unshift(node);
    else rows[level]!.push(node);
    const [a, b] = isAbove ? [neighbour, node] : [node, neighbour];
    addSegment(layering, { a, b, net: PART, leave: 0, enter: 0, joined: false });
    known.set(level, node);
  };
  for (const level of levels) add(level, known.get(level - 1), true);
  for (const level of levels.reverse()) add(level, known.get(level + 1), false);
}

class Orderer {
  private readonly place: Int32Array;
  private readonly upper: Float64Array; // segment -> where on its upper node it ends, from 0 to 1
  private readonly lower: Float64Array;

  constructor(private readonly layering: Layering) {
    const { width, segments } = layering;
    const share = (end: number, wide: number) => (wide && !Number.isNaN(end) ? end / wide : 0.5);
    this.place = new Int32Array(layering.rank.length);
    this.upper = Float64Array.from(segments, ({ a, leave }) => share(leave, width[a]!));
    this.lower = Float64Array.from(segments, ({ b, enter }) => share(enter, width[b]!));
    this.index();
  }

  order(): number {
    const { layering } = this;
    let best = this.improve();
    let kept = copied(layering.rows);
    const starts = STARTS.find(([most]) => layering.segments.length <= most)?.[1] ?? 0;
    for (let start = 1; start <= starts && best; start++) {
      const random = randomFrom(start);
      for (const row of layering.rows) shuffle(row, random);
      this.index();
      const total = this.improve();
      if (total < best) {
        best = total;
        kept = copied(layering.rows);
      }
    }
    layering.rows = kept;
    return best;
  }

  private improve(): number {
    const { layering } = this;
    let best = this.crossings();
    let kept = copied(layering.rows);
    const many = layering.segments.length;
    const sweeps = many > HUGE ? 2 : many > LARGE ? SWEEPS / 2 : SWEEPS;
    for (let sweep = 0; sweep < sweeps && best; sweep++) {
      const isDown = sweep % 2 === 0;
      const rows = isDown ? layering.rows.slice(1) : layering.rows.slice(0, -1).reverse();
      for (const row of rows) this.sortRow(row, isDown);
      this.exchange(many > HUGE ? 1 : many > LARGE ? 2 : 6);
      const total = this.crossings();
      if (total < best) {
        best = total;
        kept = copied(layering.rows);
      }
    }
    layering.rows = kept;
    this.index();
    return best;
  }

  private index(): void {
    for (const row of this.layering.rows)
      row.forEach((node, position) => {
        this.place[node] = position;
      });
  }

  private crossings(): number {
    let total = 0;
    for (const row of this.layering.rows) total += this.crossingsBelow(row);
    return total;
  }

  private crossingsBelow(row: readonly number[]): number {
    const { down, segments } = this.layering;
    const lower = (number: number) => this.place[segments[number]!.b]! + 0.99 * this.lower[number]!;
    const ends: number[] = []; // where segments end below, in the order in which they begin
    for (const node of row) {
      const own = down[node]!;
      if (own.length === 1) ends.push(lower(own[0]!));
      else if (own.length) {
        const sorted = [...own].sort((p, q) => this.upper[p]! - this.upper[q]! || lower(p) - lower(q));
        for (const number of sorted) ends.push(lower(number));
      }
    }
    return ends.length < 2 ? 0 : inversions(Float64Array.from(ends));
  }

  private sortRow(row: number[], isDown: boolean): void {
    const { segments, up, down } = this.layering;
    const wish = new Map<number, number>();
    for (const node of row) {
      const near = isDown ? up[node]! : down[node]!;
      let sum = 0;
      for (const number of near) {
        const segment = segments[number]!;
        sum += isDown ? this.place[segment.a]! + this.upper[number]! : this.place[segment.b]! + this.lower[number]!;
      }
      wish.set(node, near.length ? sum / near.length : this.place[node]! + 0.5);
    }
    row.sort((one, other) => wish.get(one)! - wish.get(other)!);
    row.forEach((node, position) => {
      this.place[node] = position;
    });
  }

  private exchange(rounds: number): void {
    for (let round = 0; round < rounds; round++) {
      let better = false;
      for (const row of this.layering.rows) {
        for (let position = 0; position + 1 < row.length; position++) {
          const a = row[position]!;
          const b = row[position + 1]!;
          if (this.gain(a, b, true) + this.gain(a, b, false) <= 0) continue;
          row[position] = b;
          row[position + 1] = a;
          this.place[a] = position + 1;
          this.place[b] = position;
          better = true;
        }
      }
      if (!better) return;
    }
  }

  /** How many crossings fewer there are, above or below, if b comes before a. */
  private gain(a: number, b: number, isUp: boolean): number {
    const near = isUp ? this.layering.up : this.layering.down;
    const { segments } = this.layering;
    const end = (number: number) =>
      isUp
        ? this.place[segments[number]!.a]! + this.upper[number]!
        : this.place[segments[number]!.b]! + this.lower[number]!;
    let gain = 0;
    for (const one of near[a]!) {
      const at = end(one);
      for (const other of near[b]!) gain += Math.sign(at - end(other));
    }
    return gain;
  }
}

function copied(rows: readonly number[][]): number[][] {
  return rows.map((row) => row.slice());
}

/** Pairs of which the first is the greater; sorts them on the way. */
function inversions(values: Float64Array): number {
  let total = 0;
  let from: Float64Array = values;
  let to: Float64Array = new Float64Array(values.length);
  for (let size = 1; size < values.length; size *= 2) {
    for (let start = 0; start < values.length; start += 2 * size) {
      const middle = Math.min(start + size, values.length);
      const end = Math.min(start + 2 * size, values.length);
      let left = start;
      let right = middle;
      for (let at = start; at < end; at++) {
        if (left < middle && (right >= end || from[left]! <= from[right]!)) to[at] = from[left++]!;
        else {
          total += middle - left;
          to[at] = from[right++]!;
        }
      }
    }
    [from, to] = [to, from];
  }
  return total;
}

/** Numbers from 0 to 1, the same for the same seed (mulberry32). */
function randomFrom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

function shuffle(row: number[], random: () => number): void {
  for (let last = row.length - 1; last > 0; last--) {
    const other = Math.floor(random() * (last + 1));
    [row[last], row[other]] = [row[other]!, row[last]!];
  }
}
