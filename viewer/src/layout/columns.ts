/** A problem of very many ranks -> columns side by side, as in a newspaper. Each column is a problem of its own: what
 * crosses a cut leaves the one column at its foot and enters the next at its head. In between it runs below the column, up
 * in the gutter and down again. Where columns are cut depends on ranks only, not on what is open. */

import { trunkOf } from "./layering";
import { type Edge, FREE, isSink, isSource, type Problem } from "./problem";
import type { Ranks } from "./ranks";
import { type Placed, solve } from "./routing";

const MOST_RANKS = 24; // in one column
const LOOK_AROUND = 5; // ranks before and after, of which the one is cut at that fewest lines pass
const MOST_CROSSING = 10; // lines from one column to the next; with more it would be a thicket
const BELOW_COLUMN = 4;
const ABOVE_COLUMN = 6;

export function solveInColumns(problem: Problem, ranks: Ranks): Placed {
  const cuts = cutsOf(problem, ranks);
  return cuts.length > 2 ? new Columns(problem, ranks, cuts).placed() : solve(problem, ranks);
}

/** The first rank of every column, and one after the last; nothing between them if one column is best. */
function cutsOf(problem: Problem, { rank, row }: Ranks): number[] {
  const levels = rank.reduce((most, one) => Math.max(most, one), -1) + 1;
  const whole = [0, levels];
  if (levels <= MOST_RANKS + LOOK_AROUND || row.some((one) => one >= 0)) return whole;
  const crossing = crossings(problem, rank, levels);
  const columns = Math.ceil(levels / MOST_RANKS);
  const cuts = [0];
  for (let column = 1; column < columns; column++) {
    const wish = Math.round((column * levels) / columns);
    const first = Math.max(cuts[cuts.length - 1]! + LOOK_AROUND, wish - LOOK_AROUND);
    const last = Math.min(levels - LOOK_AROUND, wish + LOOK_AROUND);
    let best = -1;
    for (let level = first; level <= last; level++) {
      const isFewer = best < 0 || crossing[level]! < crossing[best]!;
      const isNearer = crossing[level] === crossing[best] && Math.abs(level - wish) < Math.abs(best - wish);
      if (isFewer || isNearer) best = level;
    }
    if (best < 0 || crossing[best]! > MOST_CROSSING) return whole;
    cuts.push(best);
  }
  return [...cuts, levels];
}

/** How many trunks pass from above each rank into it or further. */
function crossings(problem: Problem, rank: readonly number[], levels: number): Int32Array {
  const spans = new Map<number, [first: number, last: number]>();
  for (const edge of problem.edges) {
    const known = spans.get(trunkOf(problem, edge));
    const [first, last] = [rank[edge.from]!, rank[edge.to]!];
    if (!known) spans.set(trunkOf(problem, edge), [first, last]);
    else [known[0], known[1]] = [Math.min(known[0], first), Math.max(known[1], last)];
  }
  const change = new Int32Array(levels + 1);
  for (const [first, last] of spans.values()) {
    change[first + 1]!++;
    change[last + 1]!--;
  }
  for (let level = 1; level <= levels; level++) change[level]! += change[level - 1]!;
  return change;
}

interface Column {
  nodes: number[]; // boxes, sources and sinks of the whole problem
  heads: Map<number, number>; // trunk -> which of the points where it enters
  feet: Map<number, number>;
  pieces: Map<string, Piece>;
}

/** A part of an edge in one column: from a node, or from where its trunk enters, to a node or to where it leaves. */
interface Piece {
  edge: Edge;
  trunk: number;
  begins: boolean;
  ends: boolean;
  at: number; // its number in the problem of the column
}

class Columns {
  private readonly columns: Column[];
  private readonly ways: { column: number; piece: Piece }[][] = []; // edge -> its pieces

  constructor(
    private readonly problem: Problem,
    private readonly ranks: Ranks,
    private readonly cuts: number[],
  ) {
    this.columns = cuts.slice(1).map(() => ({ nodes: [], heads: new Map(), feet: new Map(), pieces: new Map() }));
    for (let node = 0; node < problem.width.length; node++) this.columns[this.columnOf(node)]!.nodes.push(node);
    for (const edge of problem.edges) this.ways.push(this.cut(edge));
  }

  private columnOf(node: number): number {
    let column = 0;
    while (this.cuts[column + 1]! <= this.ranks.rank[node]!) column++;
    return column;
  }

  private cut(edge: Edge): { column: number; piece: Piece }[] {
    const [first, last] = [this.columnOf(edge.from), this.columnOf(edge.to)];
    const trunk = trunkOf(this.problem, edge);
    const way: { column: number; piece: Piece }[] = [];
    for (let column = first; column <= last; column++) {
      const { heads, feet, pieces } = this.columns[column]!;
      const [begins, ends] = [column === first, column === last];
      if (!begins && !heads.has(trunk)) heads.set(trunk, heads.size);
      if (!ends && !feet.has(trunk)) feet.set(trunk, feet.size);
      const key = `${begins ? edge.from : "head"} ${ends ? edge.to : "foot"} ${trunk}`;
      let piece = pieces.get(key);
      if (!piece) {
        piece = { edge, trunk, begins, ends, at: pieces.size };
        pieces.set(key, piece);
      }
      way.push({ column, piece });
    }
    return way;
  }

  /** One column as a problem, with its ranks, and the number of every node in it. */
  private solve(number: number): { placed: Placed; local: Map<number, number>; heads: number; feet: number } {
    const { problem, ranks } = this;
    const column = this.columns[number]!;
    const own = (is: (node: number) => boolean) => column.nodes.filter(is);
    const boxes = own((node) => node < problem.boxes);
    const sources = own((node) => isSource(problem, node));
    const sinks = own((node) => isSink(problem, node));
    const heads = boxes.length + sources.length;
    const feet = heads + column.heads.size + sinks.length;
    const count = feet + column.feet.size;
    const local = new Map<number, number>();
    [...boxes, ...sources].forEach((node, at) => {
      local.set(node, at);
    });
    sinks.forEach((node, at) => {
      local.set(node, heads + column.heads.size + at);
    });
    const width = new Array<number>(count).fill(0);
    const height = new Array<number>(count).fill(0);
    const rank = new Array<number>(count).fill(0);
    const below = column.heads.size ? 1 : 0; // heads come before all others
    for (const [node, at] of local) {
      [width[at], height[at]] = [problem.width[node]!, problem.height[node]!];
      rank[at] = ranks.rank[node]! - this.cuts[number]! + below;
    }
    for (let foot = feet; foot < count; foot++) rank[foot] = this.cuts[number + 1]! - this.cuts[number]! + below;
    const edges = [...column.pieces.values()].map(({ edge, trunk, begins, ends }): Edge => {
      const from = begins ? local.get(edge.from)! : heads + column.heads.get(trunk)!;
      const to = ends ? local.get(edge.to)! : feet + column.feet.get(trunk)!;
      const [leave, enter] = [begins ? edge.leave : FREE, ends ? edge.enter : FREE];
      return { from, to, net: edge.net, leave, enter, line: edge.line, turned: false, joined: edge.joined };
    });
    const order = ranks.order.flatMap((node) => local.get(node) ?? []);
    for (let head = heads; head < heads + column.heads.size; head++) order.unshift(head);
    for (let foot = feet; foot < count; foot++) order.push(foot);
    const whole: Problem = {
      boxes: boxes.length,
      sources: sources.length + column.heads.size,
      sinks: sinks.length + column.feet.size,
      width,
      height,
      edges,
      nets: problem.nets,
      geometry: problem.geometry,
    };
    const placed = solve(whole, { rank, order, row: new Int32Array(count).fill(-1) });
    return { placed, local, heads, feet };
  }

  placed(): Placed {
    const { problem, columns } = this;
    const { gutter, lane, track } = problem.geometry;
    const solved = columns.map((_, number) => this.solve(number));
    const found: Placed = {
      width: 0,
      height: 0,
      x: new Array<number>(problem.width.length).fill(0),
      y: new Array<number>(problem.width.length).fill(0),
      points: [],
      crossings: 0,
      leftOut: 0,
    };
    const left: number[] = [];
    const top: number[] = [];
    const between: Map<number, number[]>[] = []; // by column: trunk -> the points from its foot to the next head
    let x = 0;
    solved.forEach(({ placed, local, feet }, number) => {
      const { heads, feet: leaving } = columns[number]!;
      left.push(x);
      top.push(heads.size ? ABOVE_COLUMN + heads.size * track : 0);
      for (const [node, at] of local) {
        found.x[node] = placed.x[at]! + x;
        found.y[node] = placed.y[at]! + top[number]!;
      }
      found.crossings += placed.crossings;
      found.leftOut += placed.leftOut;
      const bottom = top[number]! + placed.height;
      found.height = Math.max(found.height, bottom + (leaving.size ? BELOW_COLUMN + leaving.size * track : 0));
      const footOf = (trunk: number) => placed.x[feet + leaving.get(trunk)!]! + left[number]!;
      x += placed.width;
      // From the right on: each runs around those before it, and crosses none of them.
      const turns = new Map<number, number[]>();
      const trunks = [...leaving.keys()].sort((one, other) => footOf(other) - footOf(one));
      trunks.forEach((trunk, at) => {
        const foot = footOf(trunk);
        const low = bottom + BELOW_COLUMN + at * track;
        const up = x + gutter / 2 + at * lane;
        turns.set(trunk, [foot, low, up, low, up, ABOVE_COLUMN / 2 + at * track]);
      });
      between.push(turns);
      x += number + 1 < columns.length ? gutter + Math.max(0, trunks.length - 1) * lane : 0;
    });
    found.width = x;
    found.points = this.ways.map((way) => {
      const points: number[] = [];
      for (const { column, piece } of way) {
        const own = solved[column]!.placed.points[piece.at]!;
        if (!own.length) return [];
        const moved = own.map((value, at) => value + (at % 2 ? top[column]! : left[column]!));
        if (points.length) points.push(moved[0]!, points[points.length - 1]!); // along the track above the column
        points.push(...moved);
        if (!piece.ends) points.push(...between[column]!.get(piece.trunk)!);
      }
      return points;
    });
    return found;
  }
}
