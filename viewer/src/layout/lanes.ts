/** Lanes (forward, backward, optimizer) -> a row in which they stand side by side, placed as one box. The tensors that
 * one takes from another are one line from side to side, over those that stand between. */

import type { Box, Route, Spot } from "./box";
import type { Geometry } from "./scene";
import type { WiredLine } from "./wiring";

const FIRST_LINE = 20; // from the top of a lane to the first line at its side
const BETWEEN_LINES = 18; // a text fits between two
const AROUND = 12; // left and right of what stands between two lanes

export interface LaneRow {
  members: number[]; // children, in order
  x: Map<number, number>; // child -> its place in the row
  top: number; // of all lanes; above it run the lines that pass over others
  width: number;
  height: number;
  routes: Route[];
  spots: Spot[];
}

/** `labelSize` is what the label of a line takes, along and across. */
export function laneRow(
  members: number[],
  boxes: readonly Box[],
  lines: readonly WiredLine[],
  geometry: Geometry,
  labelSize: (line: number) => readonly [number, number],
): LaneRow {
  const position = new Map(members.map((child, at) => [child, at]));
  const links = lines.flatMap(({ from, to }, line) =>
    position.has(from) && position.has(to)
      ? [{ line, from: position.get(from)!, to: position.get(to)!, y: 0, slot: 0 }]
      : [],
  );
  const isNear = (link: { from: number; to: number }) => link.to === link.from + 1;
  const over = links.filter((link) => !isNear(link));
  const used = { right: members.map(() => 0), left: members.map(() => 0) }; // lines at the sides of lanes
  for (const link of [...links.filter(isNear), ...over]) {
    const [start, end] = link.from < link.to ? [used.right, used.left] : [used.left, used.right];
    const slot = Math.max(start[link.from]!, end[link.to]!);
    start[link.from] = end[link.to] = slot + 1;
    link.slot = slot;
  }
  const labelTop = over.length ? Math.max(...over.map(({ line }) => labelSize(line)[1])) + 6 : 0;
  const top = over.length ? labelTop + over.length * geometry.track + geometry.box_to_track : 0;
  const gaps = members.slice(1).map((_, at) => {
    const labels = links.filter((link) => isNear(link) && link.from === at).map(({ line }) => labelSize(line)[0]);
    return Math.max(3 * geometry.box_gap, Math.max(0, ...labels) + 2 * AROUND) + over.length * geometry.lane;
  });
  const x = new Map<number, number>();
  let width = 0;
  members.forEach((child, at) => {
    x.set(child, width);
    width += boxes[child]!.width + (gaps[at] ?? 0);
  });
  const row: LaneRow = {
    members,
    x,
    top,
    width,
    routes: [],
    spots: [],
    height: top + members.reduce((most, child) => Math.max(most, boxes[child]!.height), 0),
  };
  const sideY = (child: number, slot: number) =>
    top + Math.min(FIRST_LINE + slot * BETWEEN_LINES, boxes[child]!.height - 6);
  const right = (child: number) => x.get(child)! + boxes[child]!.width;
  links.forEach((link) => {
    const [from, to] = [members[link.from]!, members[link.to]!];
    const [wide, tall] = labelSize(link.line);
    const add = (points: number[], labelX: number, labelY: number) => {
      row.routes.push({ line: link.line, points, from, to, arrow: true });
      row.spots.push({ line: link.line, x: labelX - wide / 2, y: labelY - tall - 3 });
    };
    if (isNear(link)) {
      const y = Math.min(sideY(from, link.slot), sideY(to, link.slot));
      add([right(from), y, x.get(to)!, y], (right(from) + x.get(to)!) / 2, y);
      return;
    }
    const at = over.indexOf(link);
    const track = labelTop + at * geometry.track;
    const aside = AROUND / 2 + at * geometry.lane;
    const isOnward = link.from < link.to;
    const [start, end] = isOnward ? [right(from), x.get(to)!] : [x.get(from)!, right(to)];
    const [up, down] = isOnward ? [start + aside, end - aside] : [start - aside, end + aside];
    const [first, last] = [sideY(from, link.slot), sideY(to, link.slot)];
    add(
      [start, first, up, first, up, track, down, track, down, last, end, last],
      (up + down) / 2,
      track - at * geometry.track,
    );
  });
  return row;
}
