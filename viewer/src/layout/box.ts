/** What a layout of one group is: shared by all groups of the same structure, in which the same is open.
 *
 * Everything here is in the space of the layout, where lines run from top to bottom. If the picture runs to the right,
 * layout.ts exchanges x and y at the end; only the sizes of boxes and texts know of it before.
 */

/** A line in a group, from the group's upper left corner. */
export interface Route {
  line: number; // of the wiring; -1 - output for what leaves the group; RETURN for the way back of a repeat
  points: number[];
  from: number; // child; -1 for the border
  to: number;
  arrow: boolean;
}

export const RETURN = Number.NEGATIVE_INFINITY;

/** Where the label of a line stands, from the group's corner: left, top. */
export interface Spot {
  line: number;
  x: number;
  y: number;
}

export interface Box {
  width: number; // with what looks out behind a repeat
  height: number;
  open: boolean;
  inner: Box[];
  x: number[]; // child -> its upper left corner
  y: number[];
  routes: Route[];
  spots: Spot[];
  enters: number[]; // input -> where it meets the upper border
  leaves: number[];
  leftOut: number; // lines that are not drawn, here and inside
}

export function closedBox(width: number, height: number): Box {
  return {
    width,
    height,
    open: false,
    inner: [],
    x: [],
    y: [],
    routes: [],
    spots: [],
    enters: [],
    leaves: [],
    leftOut: 0,
  };
}

/** Left, top, right, bottom. */
export type Area = [left: number, top: number, right: number, bottom: number];

/** Without pieces of no length and corners that are none. */
export function tidy(points: readonly number[]): number[] {
  const found = points.slice(0, 2);
  for (let at = 2; at < points.length; at += 2) {
    const [x, y] = [points[at]!, points[at + 1]!];
    const end = found.length;
    const [lastX, lastY] = [found[end - 2]!, found[end - 1]!];
    if (x === lastX && y === lastY) continue;
    const isCorner =
      end < 4 || !((found[end - 4] === lastX && lastX === x) || (found[end - 3] === lastY && lastY === y));
    if (isCorner) found.push(x, y);
    else found.splice(end - 2, 2, x, y);
  }
  return found;
}
