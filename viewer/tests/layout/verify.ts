/** What must hold of every scene, counted: all zero is a good picture. */

import { getOrMake } from "../../src/layout/maps";
import type { Frame, Line, Scene } from "../../src/layout/scene";
import type { Item, Outline, Rounds } from "../../src/model/outline";
import { GEOMETRY, options } from "./geometry";

export interface Faults {
  overlaps: number; // boxes of one group that lie on each other
  outside: number; // boxes that stand out of their group
  slanted: number; // pieces of lines that are neither upright nor level
  throughBoxes: number; // pieces of lines that run through a box
  onEachOther: number; // pieces of lines of different tensors that lie on each other
  missing: number; // edges of the graph that no lines draw
  labels: number; // labels on boxes, lines or labels
}

export function faultsOf(scene: Scene, outline: Outline, rounds: Rounds = new Map()): Faults {
  return {
    overlaps: overlaps(scene),
    outside: scene.frames.filter((frame) => frame.parent >= 0 && !holds(scene.frames[frame.parent]!, frame)).length,
    slanted: pieces(scene).filter(({ ax, ay, bx, by }) => ax !== bx && ay !== by).length,
    throughBoxes: throughBoxes(scene),
    onEachOther: onEachOther(scene),
    missing: missing(scene, outline, rounds),
    labels: crowdedLabels(scene),
  };
}

interface Piece {
  line: Line;
  ax: number;
  ay: number;
  bx: number;
  by: number;
}

function pieces(scene: Scene): Piece[] {
  const found: Piece[] = [];
  for (const line of scene.lines) {
    for (let at = 0; at + 3 < line.points.length; at += 2) {
      const [ax, ay, bx, by] = line.points.slice(at, at + 4) as [number, number, number, number];
      found.push({ line, ax, ay, bx, by });
    }
  }
  return found;
}

function holds(outer: Frame, inner: Frame): boolean {
  const slack = 0.01;
  return (
    inner.x >= outer.x - slack &&
    inner.y >= outer.y - slack &&
    inner.x + inner.width <= outer.x + outer.width + slack &&
    inner.y + inner.height <= outer.y + outer.height + slack
  );
}

function byParent(scene: Scene): Map<number, number[]> {
  const found = new Map<number, number[]>();
  scene.frames.forEach(({ parent }, at) => {
    getOrMake(found, parent, () => []).push(at);
  });
  for (const numbers of found.values()) numbers.sort((one, other) => scene.frames[one]!.y - scene.frames[other]!.y);
  return found;
}

function overlaps(scene: Scene): number {
  let found = 0;
  for (const numbers of byParent(scene).values()) {
    numbers.forEach((number, at) => {
      const one = scene.frames[number]!;
      for (let next = at + 1; next < numbers.length; next++) {
        const other = scene.frames[numbers[next]!]!;
        if (other.y >= one.y + one.height) break;
        if (other.x < one.x + one.width && one.x < other.x + other.width) found++;
      }
    });
  }
  return found;
}

/** The group that a line is drawn in. */
function groupOf(scene: Scene, line: Line): number {
  if (line.dashed) return line.target;
  return scene.frames[line.source >= 0 ? line.source : line.target]?.parent ?? -1;
}

function throughBoxes(scene: Scene): number {
  const groups = byParent(scene);
  let found = 0;
  for (const { line, ax, ay, bx, by } of pieces(scene)) {
    const [left, right, top, bottom] = [Math.min(ax, bx), Math.max(ax, bx), Math.min(ay, by), Math.max(ay, by)];
    const siblings = groups.get(groupOf(scene, line)) ?? [];
    for (const number of siblings) {
      const { x, y, width, height } = scene.frames[number]!;
      if (y >= bottom) break;
      if (left < x + width - 0.6 && right > x + 0.6 && top < y + height - 0.6 && bottom > y + 0.6) found++;
    }
  }
  return found;
}

/** Lines that share a trunk since far too many meet one box. */
function areJoined(one: Line, other: Line): boolean {
  const [end, otherEnd] = [one.points.slice(-2), other.points.slice(-2)];
  const ends = one.target >= 0 && one.target === other.target && end[0] === otherEnd[0] && end[1] === otherEnd[1];
  return (
    ends ||
    (one.source >= 0 &&
      one.source === other.source &&
      one.points[0] === other.points[0] &&
      one.points[1] === other.points[1])
  );
}

function onEachOther(scene: Scene): number {
  const all = pieces(scene);
  const spans = (axis: "upright" | "level") =>
    all.flatMap(({ line, ax, ay, bx, by }) => {
      if (axis === "upright" ? ax !== bx : ay !== by) return [];
      const [at, one, other] = axis === "upright" ? [ax, ay, by] : [ay, ax, bx];
      return [{ line, at, low: Math.min(one, other), high: Math.max(one, other) }];
    });
  let found = 0;
  for (const axis of ["upright", "level"] as const) {
    const sorted = spans(axis).sort((one, other) => one.at - other.at || one.low - other.low);
    sorted.forEach((one, number) => {
      for (let next = number + 1; next < sorted.length; next++) {
        const other = sorted[next]!;
        if (other.at - one.at >= 1.5) break;
        if (one.line.net === other.line.net || one.line.dashed || other.line.dashed) continue;
        if (Math.min(one.high, other.high) - Math.max(one.low, other.low) > 1.5 && !areJoined(one.line, other.line))
          found++;
      }
    });
  }
  return found;
}

/** Labels that lie on a closed box, on a line or on another label. */
function crowdedLabels(scene: Scene): number {
  const STRIPE = 100;
  type Area = [left: number, top: number, right: number, bottom: number];
  const stripes = new Map<number, Area[]>();
  const at = (y: number) => Math.floor(y / STRIPE);
  const add = (area: Area) => {
    for (let stripe = at(area[1]); stripe <= at(area[3]); stripe++) getOrMake(stripes, stripe, () => []).push(area);
  };
  const isHit = ([left, top, right, bottom]: Area) => {
    for (let stripe = at(top); stripe <= at(bottom); stripe++) {
      for (const other of stripes.get(stripe) ?? []) {
        if (left < other[2] && right > other[0] && top < other[3] && bottom > other[1]) return true;
      }
    }
    return false;
  };
  for (const { x, y, width, height, open } of scene.frames) if (!open) add([x, y, x + width, y + height]);
  for (const { ax, ay, bx, by } of pieces(scene)) {
    add([Math.min(ax, bx) - 0.5, Math.min(ay, by) - 0.5, Math.max(ax, bx) + 0.5, Math.max(ay, by) + 0.5]);
  }
  let found = 0;
  for (const { x, y, text } of scene.labels) {
    const area: Area = [x, y - 8, x + options().textWidth(text, GEOMETRY.small_text, false), y + 1];
    if (isHit(area)) found++;
    add(area);
  }
  return found;
}

// -- every edge is drawn ---------------------------------------------------------------------------------------------------

const OUTPUTS = 1024;

/** Edges between shown leaves that no lines lead along, from frame to frame. Told from the table, not from wirings. */
function missing(scene: Scene, outline: Outline, rounds: Rounds): number {
  const drawn = new Set<string>();
  const between = new Set<string>();
  for (const line of scene.lines) {
    const group = groupOf(scene, line);
    drawn.add(`${line.net}|${line.source}|${line.target}|${group}`);
    between.add(`${line.source}|${line.target}`);
  }
  const isClosed = (frame: number) => !scene.frames[frame]!.open;
  const { edges } = outline.table;
  const paths = new Map<number, { frames: number[]; items: Item[]; leaf: number }>();
  const pathOf = (leaf: number) => {
    let known = paths.get(leaf);
    if (!known) {
      const items = outline.around(leaf, rounds);
      const frames: number[] = [];
      for (const item of items) {
        const frame = scene.frameOf.get(item.key);
        if (frame === undefined) break;
        frames.push(frame);
      }
      known = { frames, items, leaf: items[items.length - 1]?.start ?? -1 };
      paths.set(leaf, known);
    }
    return known;
  };
  let found = 0;
  for (let edge = 0; edge < edges.source.length; edge++) {
    const to = pathOf(edges.target[edge]!);
    if (to.leaf !== edges.target[edge]) continue; // another round
    const source = edges.source[edge]!;
    const from = pathOf(source);
    if (!from.frames.length || !to.frames.length) continue;
    let common = 0;
    while (common < from.frames.length && common < to.frames.length && from.frames[common] === to.frames[common])
      common++;
    if (common === from.frames.length || common === to.frames.length) continue; // within one box
    const group = from.items[common - 1];
    if (group && (source < group.start || source >= group.stop)) continue; // from another round: dashed
    const net = from.leaf * OUTPUTS + Math.min(edges.output[edge]!, OUTPUTS - 1);
    const outer = common ? from.frames[common - 1]! : -1;
    const [start, end] = [from.frames[common]!, to.frames[common]!];
    const isBundled = isClosed(start) && isClosed(end) && between.has(`${start}|${end}`);
    let isDrawn = isBundled || drawn.has(`${net}|${start}|${end}|${outer}`);
    for (let at = common + 1; at < from.frames.length; at++) {
      isDrawn &&= drawn.has(`${net}|${from.frames[at]}|-1|${from.frames[at - 1]}`);
    }
    for (let at = common + 1; at < to.frames.length; at++) {
      isDrawn &&= drawn.has(`${net}|-1|${to.frames[at]}|${to.frames[at - 1]}`);
    }
    if (!isDrawn) found++;
  }
  return found;
}
