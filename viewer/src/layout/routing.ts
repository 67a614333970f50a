/** A placed layering -> heights, and lines at right angles: where they meet boxes, and on which tracks they run. */

import { isPart, isPoint, type Layering, layeringOf } from "./layering";
import { getOrMake } from "./maps";
import { orderRows, putTrunksAside, spansAreCrossed } from "./ordering";
import { placeNodes } from "./placing";
import { isSink, isSource, type Problem } from "./problem";
import type { Ranks } from "./ranks";
import { assignTracks, freePlace, makePiece, type Piece } from "./tracks";

const SAME = 0.5; // closer than this is straight

/** A solved problem: the upper left corner of every box and port, and the points of every edge; empty if left out. */
export interface Placed {
  width: number;
  height: number;
  x: number[];
  y: number[];
  points: number[][];
  crossings: number;
  leftOut: number;
}

export function solve(problem: Problem, ranks: Ranks, spans = true): Placed {
  const layering = layeringOf(problem, ranks, spans);
  const crossings = orderRows(layering);
  if (layering.spans && spansAreCrossed(layering)) return solve(problem, ranks, false); // nothing may run through a box
  putTrunksAside(layering, ranks.row);
  placeNodes(layering);
  return new Router(layering).placed(crossings);
}

class Router {
  private readonly enter: Float64Array; // segment -> where it ends
  private readonly leave: Float64Array;
  private readonly y: number[];
  private readonly tracks: Map<number, { trunk: number; y: number }[]>[] = []; // by rank and trunk: where a line turns
  private height = 0;

  constructor(private readonly layering: Layering) {
    this.enter = new Float64Array(layering.segments.length);
    this.leave = new Float64Array(layering.segments.length);
    this.y = new Array<number>(layering.rank.length).fill(0);
    this.meetBoxes();
    this.straightenPorts();
    this.meetPoints();
    this.snap();
    this.setHeights();
  }

  // -- where lines meet boxes ------------------------------------------------------------------------------------

  private meetBoxes(): void {
    const { layering } = this;
    const { x, width, up, down, segments, tail } = layering;
    for (let box = 0; box < layering.problem.boxes; box++) {
      const above = up[box]!.filter((number) => !isPart(segments[number]!));
      this.spread(
        box,
        above,
        this.enter,
        (number) => segments[number]!.enter,
        (numbers) => mean(numbers.map((number) => this.comesFrom(number))),
      );
      const below = down[tail[box]!]!.filter((number) => !isPart(segments[number]!));
      const nets = new Set(below.map((number) => segments[number]!.net)).size;
      this.spread(
        box,
        below,
        this.leave,
        (number) => segments[number]!.leave,
        (numbers) =>
          nets < 2
            ? x[box]! + width[box]! / 2
            : mean(numbers.map((number) => x[segments[number]!.b]! + width[segments[number]!.b]! / 2)),
      );
    }
  }

  /** Where a segment begins, before ends are spread. */
  private comesFrom(number: number): number {
    const { x, width, segments } = this.layering;
    const { a, leave } = segments[number]!;
    return isPoint(this.layering, a) ? x[a]! : x[a]! + (Number.isNaN(leave) ? width[a]! / 2 : leave);
  }

  /** Ends of segments on one side of a box: where they must lie, or as near to their wishes as the others allow. */
  private spread(
    box: number,
    numbers: number[],
    ends: Float64Array,
    fixed: (number: number) => number,
    wish: (numbers: number[]) => number,
  ): void {
    const {
      x,
      width,
      segments,
      problem: { geometry },
    } = this.layering;
    const taken: number[] = [];
    const nets = new Map<number, number[]>(); // what shares an end
    for (const number of numbers) {
      const at = fixed(number);
      if (!Number.isNaN(at)) {
        ends[number] = x[box]! + at;
        taken.push(x[box]! + at);
        continue;
      }
      getOrMake(nets, segments[number]!.net, () => []).push(number);
    }
    const margin = Math.min(12, width[box]! / 4);
    const [low, high] = [x[box]! + margin, x[box]! + width[box]! - margin];
    const wishes = [...nets.values()]
      .map((shared) => ({ shared, at: wish(shared) }))
      .sort((one, other) => one.at - other.at);
    const many = wishes.length;
    const [only] = wishes;
    if (only && many === 1 && (only.at < low || only.at > high)) only.at = (low + high) / 2; // from the side anyway
    const gap = Math.min(geometry.port_gap, (high - low) / Math.max(1, many - 1));
    let least = low;
    wishes.forEach(({ shared, at }, position) => {
      const place = Math.min(Math.max(at, least), high - (many - 1 - position) * gap);
      const free = taken.length ? freePlace(place, taken, low, high, geometry.line_ends_apart) : place;
      for (const number of shared) ends[number] = free;
      least = place + gap;
    });
  }

  /** Move the points at which lines enter and leave the group over the other ends of the lines, if there is room. */
  private straightenPorts(): void {
    const { layering } = this;
    const { x, width, rows, segments, up, down, problem } = layering;
    const { line_gap, port_gap } = problem.geometry;
    for (const row of new Set([rows[0], rows[rows.length - 1]])) {
      row?.forEach((node, position) => {
        const isTop = isSource(problem, node);
        if (!isTop && !isSink(problem, node)) return;
        const lines = isTop ? down[node]! : up[node]!;
        const number = lines[0];
        if (number === undefined || lines.length > 1) return;
        const other = isTop ? segments[number]!.b : segments[number]!.a;
        if (isPoint(layering, other)) return;
        const end = isTop ? this.enter[number]! : this.leave[number]!;
        const left = row[position - 1];
        const right = row[position + 1];
        const low = left === undefined ? Number.NEGATIVE_INFINITY : x[left]! + width[left]! + line_gap;
        const high = right === undefined ? Number.POSITIVE_INFINITY : x[right]! - line_gap;
        if (Math.abs(end - x[node]!) <= port_gap && low <= end && end <= high) x[node] = end;
      });
    }
  }

  private meetPoints(): void {
    const { layering } = this;
    layering.segments.forEach(({ a, b }, number) => {
      if (isPoint(layering, a)) this.leave[number] = layering.x[a]!;
      if (isPoint(layering, b)) this.enter[number] = layering.x[b]!;
    });
  }

  /** Let lines that would turn aside by a hair, just before a box, meet it straight where no other end is near. */
  private snap(): void {
    const { x, width, up, segments, problem } = this.layering;
    const { jog, line_ends_apart } = problem.geometry;
    for (let box = 0; box < problem.boxes; box++) {
      const lines = up[box]!;
      for (const number of lines) {
        const { net, enter, joined } = segments[number]!;
        const straight = this.leave[number]!;
        const aside = Math.abs(straight - this.enter[number]!);
        if (aside <= SAME || aside > jog || !Number.isNaN(enter) || joined) continue;
        const isInside = x[box]! + line_ends_apart <= straight && straight <= x[box]! + width[box]! - line_ends_apart;
        const isFree = lines.every(
          (other) => segments[other]!.net === net || Math.abs(straight - this.enter[other]!) >= line_ends_apart,
        );
        if (isInside && isFree) this.enter[number] = straight;
      }
    }
  }

  // -- heights -----------------------------------------------------------------------------------------------------

  /** Which segments below one rank share their horizontal piece. */
  private trunkOf(number: number): number {
    const { a, b, net, joined } = this.layering.segments[number]!;
    return (joined ? b : a) * (2 * this.layering.problem.nets) + 2 * net + (joined ? 1 : 0);
  }

  private setHeights(): void {
    const { layering } = this;
    const { rows, height, rank, owner, tail, problem } = layering;
    const { geometry } = problem;
    const tall = rows.map((row) => row.reduce((most, node) => Math.max(most, height[node]!), 0));
    const tops: number[] = [];
    let top = 0;
    rows.forEach((row, level) => {
      tops.push(top);
      for (const node of row) this.y[node] = top + (tall[level]! - height[node]!) / 2;
      const below = rows[level + 1];
      top += tall[level]!;
      if (!below) return;
      const used = this.setTracks(row, top + geometry.box_to_track);
      const arePorts = (nodes: number[]) => nodes.every((node) => isPoint(layering, node));
      const foot = arePorts(below) ? 8 : geometry.track_to_box;
      const least = arePorts(below)
        ? geometry.track_to_border
        : arePorts(row)
          ? geometry.track_to_box
          : geometry.rank_gap;
      top += Math.max(least, used ? geometry.box_to_track + (used - 1) * geometry.track + foot : 0);
    });
    for (let box = 0; box < problem.boxes; box++) {
      const last = tail[box]!;
      if (last === box || owner[last] !== box) continue;
      const end = tops[rank[last]!]! + tall[rank[last]!]!; // centred in the ranks it spans
      this.y[box] = tops[rank[box]!]! + (end - tops[rank[box]!]! - problem.height[box]!) / 2;
    }
    this.height = top;
  }

  /** The horizontal pieces below one rank. Returns how many tracks they take. */
  private setTracks(row: readonly number[], first: number): number {
    const {
      down,
      segments,
      problem: { geometry },
    } = this.layering;
    const trunks = new Map<number, { trunks: Set<number>; drops: Set<number> }>();
    const taken: number[] = [];
    for (const node of row) {
      for (const number of down[node]!) {
        if (isPart(segments[number]!)) continue;
        const key = this.trunkOf(number);
        const known = getOrMake(trunks, key, () => ({ trunks: new Set(), drops: new Set() }));
        known.trunks.add(this.leave[number]!);
        known.drops.add(this.enter[number]!);
      }
    }
    const pieces: Piece[] = [];
    for (const [key, { trunks: from, drops: to }] of trunks) {
      const piece = makePiece(key, 0, [...from], [...to]);
      if (piece.high - piece.low > SAME) pieces.push(piece);
      taken.push(...from, ...to);
    }
    const found = assignTracks(pieces, taken, geometry.line_ends_apart);
    const turns = new Map<number, { trunk: number; y: number }[]>();
    let used = 0;
    found.pieces.forEach(({ key, part, trunks: from }, at) => {
      const y = first + found.track[at]! * geometry.track;
      used = Math.max(used, found.track[at]! + 1);
      const known = turns.get(key) ?? [];
      known[part] = { trunk: from[0]!, y };
      turns.set(key, known);
    });
    this.tracks.push(turns);
    return used;
  }

  // -- lines ---------------------------------------------------------------------------------------------------------

  placed(crossings: number): Placed {
    const { layering } = this;
    const { problem, segments, rank, x, width } = layering;
    const points = layering.chains.map((chain, at) => {
      const edge = problem.edges[at]!;
      if (!chain.length) return [];
      let from = this.leave[chain[0]!]!;
      let y = this.y[edge.from]! + problem.height[edge.from]!;
      const found = [from, y];
      for (const number of chain) {
        const { a, b } = segments[number]!;
        const to = this.enter[number]!;
        if (Math.abs(to - from) > SAME) {
          const turns = this.tracks[rank[a]!]!.get(this.trunkOf(number))!;
          turns.forEach((turn, part) => {
            if (part) found.push(turn.trunk, y);
            y = turn.y;
            found.push(part ? turn.trunk : from, y);
          });
        }
        if (to !== from) found.push(to, y);
        y = this.y[b]!;
        found.push(to, y);
        from = to;
      }
      return found;
    });
    let left = 0;
    let right = 0;
    for (let node = 0; node < x.length; node++) {
      left = Math.min(left, x[node]!);
      right = Math.max(right, x[node]! + width[node]!);
    }
    for (const line of points) {
      for (let at = 0; at < line.length; at += 2) {
        left = Math.min(left, line[at]!);
        right = Math.max(right, line[at]!);
      }
    }
    if (left < 0) for (const line of points) for (let at = 0; at < line.length; at += 2) line[at]! -= left;
    return {
      width: right - left,
      height: this.height,
      crossings,
      leftOut: layering.leftOut,
      points,
      x: x.slice(0, layering.count).map((at) => at - left),
      y: this.y.slice(0, layering.count),
    };
  }
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
