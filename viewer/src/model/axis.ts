/** Graph -> where nodes stand along a timeline: in order, by the time they took, or by the clock.
 *
 * Timelines show a span of positions: node 3 takes up the positions from 3 to 4. An axis turns positions into its own
 * unit and back, so that one span means the same nodes in every timeline, whichever axis it has.
 */

import type { Graph } from "./graph";
import { formatInteger } from "./units";

export const AXES = ["order", "time", "clock"] as const;
export type AxisName = (typeof AXES)[number];
/** From a position to another: [0, number of nodes] is all. */
export type Span = readonly [number, number];

export class Axis {
  readonly count: number;

  constructor(
    readonly name: AxisName,
    readonly edges: Float64Array, // where each node's share of the axis begins, and the end; never falling
    readonly start: ArrayLike<number>, // where a node is drawn from and to
    readonly stop: ArrayLike<number>,
  ) {
    this.count = edges.length - 1;
  }

  get first(): number {
    return this.edges[0]!;
  }
  get last(): number {
    return this.edges[this.count]!;
  }

  /** Position -> where that is on the axis. */
  at(position: number): number {
    const node = Math.min(Math.max(Math.floor(position), 0), Math.max(this.count - 1, 0));
    const from = this.edges[node]!;
    return this.count ? from + (position - node) * (this.edges[node + 1]! - from) : 0;
  }

  /** Where on the axis -> position. */
  position(value: number): number {
    const node = this.node(value);
    if (node < 0) return 0;
    const from = this.edges[node]!,
      width = this.edges[node + 1]! - from;
    return node + (width > 0 ? Math.min(Math.max((value - from) / width, 0), 1) : 0);
  }

  /** The node that has a place of the axis; the nearest beyond the ends, -1 if there are no nodes. */
  node(value: number): number {
    return Math.min(Math.max(lastAtMost(this.edges, value), 0), this.count - 1);
  }

  /** A number of the axis, exact enough to tell it from one that is a step away. */
  format(value: number, step: number): string {
    if (this.name === "order") return formatInteger(Math.round(value));
    const unit = [1e9, 1e6, 1e3].find((one) => value >= one) ?? 1;
    const digits = Math.min(Math.max(Math.ceil(-Math.log10(step / unit) - 1e-9), 0), 9);
    return `${(value / unit).toFixed(digits)} ${{ 1e9: "s", 1e6: "ms", 1e3: "µs", 1: "ns" }[unit]}`;
  }
}

/** The axes that a graph has numbers for: the order always, the others where something was timed. */
export function axesOf(graph: Graph): Map<AxisName, Axis> {
  return graph.keep("axes", () => {
    const order = new Float64Array(graph.count + 1);
    for (let node = 0; node <= graph.count; node++) order[node] = node;
    const found = new Map<AxisName, Axis>([["order", contiguous("order", order)]]);
    const sums = new Float64Array(graph.count + 1);
    for (let node = 0; node < graph.count; node++) sums[node + 1] = sums[node]! + Math.max(graph.time[node]!, 0);
    if (sums[graph.count]! > 0) {
      found.set("time", contiguous("time", sums));
      const clock = clockOf(graph);
      if (clock) found.set("clock", clock);
    }
    return found;
  });
}

function contiguous(name: AxisName, edges: Float64Array): Axis {
  return new Axis(name, edges, edges.subarray(0, edges.length - 1), edges.subarray(1));
}

/** Nodes where the clock stood when they ran, from the first one on. Those without a time of their own take no room. */
function clockOf(graph: Graph): Axis | null {
  const began = graph.document.column("node_start_ns");
  let origin = Number.POSITIVE_INFINITY,
    latest = 0,
    end = 0;
  for (let node = 0; began && node < graph.count; node++)
    if (began[node]! >= 0 && began[node]! < origin) origin = began[node]!;
  if (!began || origin === Number.POSITIVE_INFINITY) return null;
  const edges = new Float64Array(graph.count + 1),
    start = new Float64Array(graph.count),
    stop = new Float64Array(graph.count);
  for (let node = 0; node < graph.count; node++) {
    const at = began[node]! >= 0 ? began[node]! - origin : latest;
    latest = Math.max(latest, at);
    edges[node] = latest;
    start[node] = at;
    stop[node] = at + (began[node]! >= 0 ? Math.max(graph.time[node]!, 0) : 0);
    end = Math.max(end, stop[node]!);
  }
  edges[graph.count] = end;
  return new Axis("clock", edges, start, stop);
}

// -- spans ---------------------------------------------------------------------------------------------------------

/** The span that an axis shows, whole if it is null or wrong (it may come from a link). */
export function spanOn(axis: Axis, span: Span | null): Span {
  const [low, high] = span ?? [0, axis.count];
  return high > low && low >= 0 && high <= axis.count ? [low, high] : [0, axis.count];
}

/** Zoom by a factor (below 1: nearer) about a place between the left (0) and the right (1) of what is shown. */
export function zoomed(axis: Axis, span: Span | null, factor: number, about: number): Span | null {
  const [low, high] = spanOn(axis, span).map((position) => axis.at(position)) as [number, number];
  const fixed = low + about * (high - low),
    whole = axis.last - axis.first;
  const width = Math.max((high - low) * factor, leastWidth(axis));
  if (width >= whole) return null;
  return placed(axis, fixed - about * width, width);
}

/** Move by a share of what is shown. */
export function panned(axis: Axis, span: Span | null, share: number): Span | null {
  if (!span) return null;
  const [low, high] = spanOn(axis, span).map((position) => axis.at(position)) as [number, number];
  return placed(axis, low + share * (high - low), high - low);
}

/** A span of the same width that holds a node, in its middle unless it holds it already. */
export function holding(axis: Axis, span: Span | null, node: number): Span | null {
  if (!span || (node >= span[0] && node + 1 <= span[1])) return span;
  const [low, high] = spanOn(axis, span).map((position) => axis.at(position)) as [number, number];
  return placed(axis, axis.at(node + 0.5) - (high - low) / 2, high - low);
}

function placed(axis: Axis, low: number, width: number): Span {
  const from = Math.min(Math.max(low, axis.first), Math.max(axis.last - width, axis.first));
  const first = axis.position(from);
  return [first, Math.max(axis.position(from + width), first + 1e-6)];
}

/** Nearer than a few ops, or than a billionth of the time, there is nothing to see. */
function leastWidth(axis: Axis): number {
  return axis.name === "order" ? Math.min(4, axis.count) : (axis.last - axis.first) * 1e-7;
}

// -- search --------------------------------------------------------------------------------------------------------

/** The last of rising numbers that is at most a value; -1 if none is. */
export function lastAtMost(numbers: ArrayLike<number>, value: number): number {
  let low = 0,
    high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle]! <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
