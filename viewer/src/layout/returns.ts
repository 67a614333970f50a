/** The dashed line to the beginning of a repeat, which gathers what each round hands to the next. */

import { type Area, RETURN, type Route } from "./box";

const LOW = [0.9, 0.8, 0.7, 0.6, 0.5]; // where it may leave an open box, as shares of its side
const MIDDLE = [0.5, 0.7, 0.3]; // or a closed one
const SIDES = [0.8, 0.2, 0.65, 0.35]; // and where it may leave one downwards
const FROM_RIGHT = 9;
const FROM_BOTTOM = 5;
const NEAR = 4;

export interface Handed {
  child: number;
  open: boolean;
  leaves: number;
} // leaves: where it leaves the repeat, or NaN

/** `areas` are those of the children, `head` is where the line ends, `width` and `height` those of the frame. */
export function returnRoutes(
  handed: readonly Handed[],
  areas: readonly Area[],
  routes: readonly Route[],
  head: number,
  width: number,
  height: number,
): { routes: Route[]; allJoin: boolean } {
  const right = width - FROM_RIGHT;
  const low = height - FROM_BOTTOM;
  const joins: { child: number; points: number[] }[] = [];
  const waiting: Handed[] = [];
  const seen = new Set<number>();
  for (const one of handed) {
    if (!Number.isNaN(one.leaves)) joins.push({ child: one.child, points: [one.leaves, low] });
    else if (one.open || !seen.has(one.child)) waiting.push(one);
    if (!one.open) seen.add(one.child);
  }
  const uprights = piecesAlong(routes, 0);
  const levels = piecesAlong(routes, 1);
  let missing = 0;
  for (const { child, open } of waiting) {
    const area = areas[child]!;
    const taken = joins.map(({ points }) => points);
    const y = freeShare(1, area, areas, child, right, open ? LOW : MIDDLE, taken, levels);
    const x = y === null ? freeShare(0, area, areas, child, low, SIDES, taken, uprights) : null;
    if (y !== null) joins.push({ child, points: [area[2], y, right, y] });
    else if (x !== null) joins.push({ child, points: [x, area[3], x, low] });
    else missing++;
  }
  if (!joins.length) {
    const child = handed[handed.length - 1]?.child;
    if (child === undefined) return { routes: [], allJoin: true };
    const area = areas[child]!;
    joins.push({ child, points: [(area[0] + area[2]) / 2, low] });
  }
  const found: Route[] = [];
  const add = (points: number[], from: number, arrow: boolean) =>
    found.push({ line: RETURN, points, from, to: -1, arrow });
  const end = ({ points }: { points: number[] }) => points.slice(-2) as [number, number];
  const stops = joins.map(end).sort((one, other) => other[1] - one[1] || one[0] - other[0]);
  const [only] = joins;
  if (only && joins.length === 1) {
    add([...only.points, right, end(only)[1], right, head], only.child, true);
  } else {
    for (const { child, points } of joins) if (points.length > 2) add(points, child, false);
    stops.push([right, head]);
    for (let at = 0; at + 1 < stops.length; at++) {
      const [[x, y], [nextX, nextY]] = [stops[at]!, stops[at + 1]!];
      add([x, y, nextX, y, nextX, nextY], -1, at + 2 === stops.length);
    }
  }
  return { routes: found, allJoin: !missing || handed.length < 2 };
}

type Along = { at: number; from: number; to: number }[];

/** The upright (axis 0) or level (1) pieces of some routes. */
function piecesAlong(routes: readonly Route[], axis: 0 | 1): Along {
  const found: Along = [];
  for (const { points } of routes) {
    for (let at = 0; at + 3 < points.length; at += 2) {
      if (points[at + axis] !== points[at + 2 + axis]) continue;
      const [one, other] = [points[at + 1 - axis]!, points[at + 3 - axis]!];
      found.push({ at: points[at + axis]!, from: Math.min(one, other), to: Math.max(one, other) });
    }
  }
  return found;
}

/** Where a line can leave a box to end further off, past other boxes and along no line, and where none is taken: at one
 * of some shares of its side. Along x (axis 0) for one straight down, along y (1) for one to the right. */
function freeShare(
  axis: 0 | 1,
  area: Area,
  areas: readonly Area[],
  own: number,
  end: number,
  shares: readonly number[],
  taken: readonly number[][],
  beside: Along,
): number | null {
  const onward = (1 - axis) as 0 | 1;
  const far = area[(onward + 2) as 2 | 3];
  for (const share of shares) {
    const place = area[axis] + (area[(axis + 2) as 2 | 3] - area[axis]) * share;
    const hitsBox = areas.some(
      (other, child) =>
        child !== own &&
        other[axis] - 3 < place &&
        place < other[(axis + 2) as 2 | 3] + 3 &&
        other[(onward + 2) as 2 | 3] > far,
    );
    const isAlong = beside.some(({ at, from, to }) => Math.abs(place - at) < NEAR && from < end && to > far);
    const isTaken = taken.some((points) =>
      points.some((value, at) => at % 2 === axis && Math.abs(place - value) <= NEAR),
    );
    if (!hitsBox && !isAlong && !isTaken) return place;
  }
  return null;
}
