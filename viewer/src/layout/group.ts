/** One open group, with the boxes of its children -> its own box: the layered problem is set up, solved and read back. */

import { type Area, type Box, closedBox, RETURN, type Route, tidy } from "./box";
import { solveInColumns } from "./columns";
import { placeLabels, type Wish } from "./labels";
import { type LaneRow, laneRow } from "./lanes";
import { getOrMake } from "./maps";
import { type Edge, FREE, makeAcyclic, type Problem } from "./problem";
import { type Ranks, ranksOf } from "./ranks";
import { type Handed, returnRoutes } from "./returns";
import type { Placed } from "./routing";
import type { Geometry } from "./scene";
import type { Wiring } from "./wiring";

const MOST_ENDS = 40; // a closed box that more lines meet has one end for all
const FEWEST_JOINED = 8; // lines from rows of branches to one box; so many share a trunk
const BESIDE_ROOT = 90; // how far labels of the outermost group may stand out

/** What a group is laid out with. All sizes are of the layout, in which lines run downwards. */
export interface Group {
  wiring: Wiring;
  children: Box[]; // closed ones as large as their texts want
  frame: Frame;
  repeats: boolean;
  isRoot: boolean;
  geometry: Geometry;
  labelSize: (text: string) => readonly [number, number];
  labelsLeft: boolean; // rather left of lines than right: if the picture runs to the right, above them
  forEnds: (box: Box, ends: number) => Box; // a closed box with room for the ends of so many lines
}

/** What the frame of an open group takes around its boxes. */
export interface Frame {
  left: number;
  top: number;
  right: number;
  bottom: number;
  leastWidth: number;
  leastHeight: number;
}

export function layoutGroup(group: Group): Box {
  return new GroupLayout(group).box();
}

class GroupLayout {
  private readonly boxes: Box[];
  private readonly lanes: LaneRow | null;
  private readonly numbers: number[]; // child -> its box in the problem; lanes share one
  private readonly sources: number; // first of the points where tensors enter
  private readonly sinks: number[]; // output -> point; -1 if what makes it is not shown
  private readonly problem: Problem;
  private readonly ranks: Ranks;

  constructor(private readonly group: Group) {
    const { wiring, geometry } = group;
    this.boxes = group.children.slice();
    const lanes = wiring.children.flatMap((child, at) => (child.kind === "lane" ? [at] : []));
    const inLanes = new Set(lanes.length > 1 ? lanes : []);
    let boxes = 0;
    let row = -1;
    this.numbers = this.boxes.map((_, child) => {
      if (!inLanes.has(child)) return boxes++;
      if (row < 0) row = boxes++;
      return row;
    });
    this.sources = boxes;
    let next = boxes + wiring.inputs.length;
    this.sinks = wiring.makers.map((maker) => (maker < 0 ? -1 : next++));
    const edges = this.makeEdges();
    const joined = this.makeRoomForEnds(edges);
    this.lanes = inLanes.size
      ? laneRow(lanes, this.boxes, wiring.lines, geometry, (line) => this.labelSize(line))
      : null;
    this.problem = {
      boxes,
      sources: wiring.inputs.length,
      sinks: next - boxes - wiring.inputs.length,
      width: new Array<number>(next).fill(0),
      height: new Array<number>(next).fill(0),
      edges: [],
      nets: 0,
      geometry,
    };
    this.numbers.forEach((number, child) => {
      const box = number === row ? this.lanes! : this.boxes[child]!;
      this.problem.width[number] = box.width;
      this.problem.height[number] = box.height;
    });
    this.setEdges(edges, joined);
    makeAcyclic(this.problem);
    this.ranks = ranksOf(this.problem);
    this.joinBranches();
  }

  private labelSize(line: number): readonly [number, number] {
    return this.group.labelSize(this.group.wiring.lines[line]!.label);
  }

  // -- the problem ---------------------------------------------------------------------------------------------------

  /** Lines as (from, to, tensor) between children, sources and sinks. Parallel tensors between closed boxes are one. */
  private makeEdges(): { from: number; to: number; tensor: number; line: number }[] {
    const { wiring } = this.group;
    const port = new Map(wiring.inputs.map((tensor, at) => [tensor, at]));
    const found: { from: number; to: number; tensor: number; line: number }[] = [];
    const bundled = new Set<number>();
    wiring.lines.forEach(({ from, to, tensor }, line) => {
      if (from >= 0 && this.numbers[from] === this.numbers[to]) return; // between lanes
      if (from >= 0 && !this.boxes[from]!.open && !this.boxes[to]!.open) {
        const pair = from * this.boxes.length + to;
        if (bundled.has(pair)) return;
        bundled.add(pair);
      }
      found.push({ from: from >= 0 ? from : -1 - port.get(tensor)!, to, tensor, line });
    });
    wiring.makers.forEach((maker, output) => {
      if (maker >= 0) found.push({ from: maker, to: -1, tensor: wiring.outputs[output]!, line: -1 - output });
    });
    return found;
  }

  /** Widen closed boxes for the ends of their lines. Returns those with far too many, at which lines are joined. */
  private makeRoomForEnds(edges: readonly { from: number; to: number; tensor: number }[]): {
    into: Set<number>;
    out: Set<number>;
  } {
    const enter = new Int32Array(this.boxes.length);
    const leave: Set<number>[] = this.boxes.map(() => new Set());
    for (const { from, to, tensor } of edges) {
      if (to >= 0) enter[to]!++;
      if (from >= 0) leave[from]!.add(tensor);
    }
    const joined = { into: new Set<number>(), out: new Set<number>() };
    this.boxes.forEach((box, child) => {
      if (box.open) return;
      if (enter[child]! > MOST_ENDS) joined.into.add(child);
      if (leave[child]!.size > MOST_ENDS) joined.out.add(child);
      const ends = [enter[child]!, leave[child]!.size].map((many) => (many > MOST_ENDS ? 1 : many));
      this.boxes[child] = this.group.forEnds(box, Math.max(...ends));
    });
    return joined;
  }

  private setEdges(
    edges: readonly { from: number; to: number; tensor: number; line: number }[],
    joined: { into: Set<number>; out: Set<number> },
  ): void {
    const { problem } = this;
    const { entering, leaving } = this.group.wiring;
    const enters = this.ends(entering, (box) => box.enters);
    const leaves = this.ends(leaving, (box) => box.leaves);
    const nets = new Map<string, number>();
    const net = (key: string) => {
      return getOrMake(nets, key, () => nets.size);
    };
    problem.edges = edges.map(({ from, to, tensor, line }): Edge => {
      const isJoined = to >= 0 && joined.into.has(to);
      const name = isJoined ? `into ${to}` : joined.out.has(from) ? `out of ${from}` : `${tensor}`;
      return {
        from: from >= 0 ? this.numbers[from]! : this.sources - 1 - from,
        to: to >= 0 ? this.numbers[to]! : this.sinks[-1 - line]!,
        net: net(name),
        leave: from >= 0 && !isJoined ? leaves(from, tensor) : FREE,
        enter: to >= 0 ? enters(to, tensor) : FREE,
        line,
        turned: false,
        joined: isJoined,
      };
    });
    problem.nets = nets.size;
  }

  /** Where a tensor meets a child, from the left side of its box in the problem; FREE for a closed box. */
  private ends(tensors: readonly number[][], side: (box: Box) => number[]): (child: number, tensor: number) => number {
    const known = new Map<number, Map<number, number>>();
    return (child, tensor) => {
      const box = this.boxes[child]!;
      const inRow = this.lanes?.x.get(child);
      if (!box.open && inRow === undefined) return FREE;
      const places = getOrMake(known, child, () => new Map(tensors[child]!.map((one, at) => [one, at])));
      const at = places.get(tensor)!;
      return (inRow ?? 0) + (side(box)[at] ?? (box.width * (at + 1)) / (tensors[child]!.length + 1));
    };
  }

  /** Lines from rows of branches to one closed box share a trunk. */
  private joinBranches(): void {
    const { problem, ranks } = this;
    const isOpen = new Map(
      this.numbers.map((number, child) => [number, this.boxes[child]!.open || this.lanes?.x.has(child)]),
    );
    const byTarget = new Map<number, Edge[]>();
    for (const edge of problem.edges) {
      if (edge.turned || edge.joined || edge.to >= problem.boxes || isOpen.get(edge.to)) continue;
      if ((ranks.row[edge.from] ?? -1) < 0 || isOpen.get(edge.from)) continue;
      getOrMake(byTarget, edge.to, () => []).push(edge);
    }
    for (const edges of byTarget.values()) {
      if (edges.length < FEWEST_JOINED) continue;
      for (const edge of edges) {
        edge.net = problem.nets;
        edge.joined = true;
      }
      problem.nets++;
    }
  }

  // -- the box ---------------------------------------------------------------------------------------------------------

  box(): Box {
    const { group, lanes } = this;
    const { frame, wiring } = group;
    const placed = solveInColumns(this.problem, this.ranks);
    const behind = group.repeats ? group.geometry.stack : 0;
    const body = placed.width + frame.left + frame.right;
    const width = Math.max(body, frame.leastWidth);
    const left = frame.left + (width - body) / 2;
    const top = frame.top;
    const height = Math.max(placed.height + top + frame.bottom, frame.leastHeight);
    const found = closedBox(width + behind, height + behind);
    found.open = true;
    found.inner = this.boxes;
    this.numbers.forEach((number, child) => {
      found.x.push(placed.x[number]! + left + (lanes?.x.get(child) ?? 0));
      found.y.push(placed.y[number]! + top + (lanes?.x.has(child) ? lanes.top : 0));
    });
    found.enters = wiring.inputs.map((_, input) => placed.x[this.sources + input]! + left);
    found.leaves = this.sinks.map((sink) => (sink < 0 ? width / 2 : placed.x[sink]! + left));
    found.routes = this.routes(placed, left, top, found);
    found.leftOut = placed.leftOut + this.boxes.reduce((sum, box) => sum + box.leftOut, 0);
    found.spots = this.spots(found, left, top, placed);
    if (wiring.handed.length) this.addReturn(found, width, height);
    return found;
  }

  private routes(placed: Placed, left: number, top: number, box: Box): Route[] {
    const { wiring } = this.group;
    const found: Route[] = [];
    this.problem.edges.forEach(({ line, turned }, at) => {
      const points = placed.points[at]!;
      if (!points.length) return;
      const moved = points.map((value, place) => value + (place % 2 ? top : left));
      if (turned) reverse(moved);
      const isLeaving = line < 0;
      const from = isLeaving ? wiring.makers[-1 - line]! : wiring.lines[line]!.from;
      const to = isLeaving ? -1 : wiring.lines[line]!.to;
      if (this.lanes?.x.has(from)) moved.unshift(moved[0]!, box.y[from]! + this.boxes[from]!.height);
      if (this.lanes?.x.has(to)) moved.push(moved[moved.length - 2]!, box.y[to]!);
      if (isLeaving) moved.push(moved[moved.length - 2]!, box.height);
      found.push({ line, points: tidy(moved), from, to, arrow: !isLeaving });
    });
    if (this.lanes) {
      const row = this.numbers[this.lanes.members[0]!]!;
      const [dx, dy] = [placed.x[row]! + left, placed.y[row]! + top];
      for (const route of this.lanes.routes) {
        found.push({ ...route, points: route.points.map((value, place) => value + (place % 2 ? dy : dx)) });
      }
    }
    return found;
  }

  private spots(box: Box, left: number, top: number, placed: Placed): Box["spots"] {
    const { group, lanes } = this;
    const { wiring } = group;
    const byTensor = new Map<number, Route[]>();
    const joined = new Set(this.problem.edges.filter((edge) => edge.joined).map(({ line }) => line)); // trunks of many
    for (const route of box.routes) {
      if (route.line < 0 || joined.has(route.line)) continue;
      const { tensor } = wiring.lines[route.line]!;
      getOrMake(byTensor, tensor, () => []).push(route);
    }
    const wishes: Wish[] = [];
    for (const [tensor, routes] of byTensor) {
      if (tensor < 0) continue;
      const label = (route: Route) => wiring.lines[route.line]!.label;
      for (const text of new Set(routes.map(label))) {
        if (!text) continue;
        const own = routes.filter((route) => label(route) === text);
        const others = routes.filter((route) => label(route) !== text);
        wishes.push({ line: own[0]!.line, size: group.labelSize(text), routes: own, others });
      }
    }
    const room: [number, number] = group.isRoot ? [-BESIDE_ROOT, box.width + BESIDE_ROOT] : [2, box.width - 2];
    const solid = [...this.areas(box), ...this.heading(box)];
    const found = placeLabels(wishes, box.routes, solid, room, group.geometry.label_gap, group.labelsLeft);
    if (lanes) {
      const row = this.numbers[lanes.members[0]!]!;
      const [dx, dy] = [placed.x[row]! + left, placed.y[row]! + top];
      found.push(...lanes.spots.map(({ line, x, y }) => ({ line, x: x + dx, y: y + dy })));
    }
    return found;
  }

  private areas(box: Box): Area[] {
    return this.boxes.map((inner, child) => [
      box.x[child]!,
      box.y[child]!,
      box.x[child]! + inner.width,
      box.y[child]! + inner.height,
    ]);
  }

  /** What the frame of the group covers itself. */
  private heading(box: Box): Area[] {
    if (this.group.isRoot) return [];
    const { top, left } = this.group.frame;
    const { heading } = this.group.geometry;
    return top >= heading ? [[0, 0, box.width, heading]] : left >= heading ? [[0, 0, heading, box.height]] : [];
  }

  private addReturn(box: Box, width: number, height: number): void {
    const { wiring, frame, geometry, labelSize, labelsLeft } = this.group;
    const output = new Map(wiring.outputs.map((tensor, at) => [tensor, at]));
    const handed = wiring.handed.map(({ child, tensor }): Handed => {
      const at = output.get(tensor);
      return { child, open: this.boxes[child]!.open, leaves: at === undefined ? Number.NaN : box.leaves[at]! };
    });
    const head = frame.top >= geometry.heading ? geometry.heading : 0;
    const { routes, allJoin } = returnRoutes(handed, this.areas(box), box.routes, head, width, height);
    box.routes.push(...routes);
    if (allJoin) return;
    const placed = box.spots.map(({ line, x, y }): Area => {
      const [wide, tall] = this.labelSize(line);
      return [x, y, x + wide, y + tall];
    });
    const wish: Wish = { line: RETURN, size: labelSize(handedLabel(wiring)), routes: routes.slice(-1), others: [] };
    const solid = [...this.areas(box), ...this.heading(box), ...placed];
    box.spots.push(...placeLabels([wish], box.routes, solid, [2, width], geometry.label_gap, labelsLeft));
  }
}

/** What stands beside the dashed line of a repeat if not all that is handed on is seen to join it. */
export function handedLabel({ handed }: Wiring): string {
  return `${handed.length.toLocaleString("en-US")} tensors`;
}

function reverse(points: number[]): void {
  points.reverse();
  for (let at = 0; at < points.length; at += 2) [points[at], points[at + 1]] = [points[at + 1]!, points[at]!];
}
