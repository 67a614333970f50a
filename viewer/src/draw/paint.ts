/** A scene and how it is to look -> shapes. */

import type { Frame, Geometry, Line, Scene } from "../layout/scene";
import type { Item } from "../model/outline";
import type { Painter } from "./painter";
import type { Theme } from "./theme";

export interface Rect {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

/** How boxes and lines are to look. All functions are asked for what is visible only. */
export interface Look {
  theme: Theme;
  geometry: Geometry;
  category(item: Item): string; // type of op of a box
  heat(item: Item): [fill: string, ink: string] | null; // null: by category
  mark(item: Item): "selected" | "second" | "near" | "failed" | "finding" | "dim" | ""; // what is to be seen of a box
  lineMark(line: Line): "traced" | "critical" | "dim" | "";
  lineText(line: Line): { text: string; isWrong: boolean }; // what stands on a line, such as the norm of a gradient; mostly nothing
  round(item: Item): string; // "3 of 12" for an open repeat, "" else
  textWidth: (text: string, size: number, bold: boolean) => number;
  tag(item: Item): { text: string; color: string } | null; // a corner label: subgraph, stage, finding
}

const SHORTEST = 1.5; // pixels: a line that is shorter cannot be seen between its boxes
const BOUNDS = new WeakMap<readonly Line[], Float64Array>();
const SIDES = 6; // beside the text of a box
const WIDEST_TAG = 160;
const LONGEST = 400; // letters of a text; no box is as wide
const TINY = 3.5; // pixels: text that is smaller cannot be read, so that it is not drawn

/** Paint what is visible, at a scale that decides how much detail makes sense. */
export function paint(painter: Painter, scene: Scene, look: Look, visible: Rect, scale: number): void {
  const { frames, lines } = scene;
  for (const frame of frames) if (frame.open && meets(frame, visible)) paintGroup(painter, frame, look, scale);
  const around = boundsOf(lines);
  lines.forEach((line, i) => {
    if ((scale > 0.08 || line.source < 0) && lineMeets(around, i, visible, SHORTEST / scale))
      paintLine(painter, line, look, scale);
  });
  for (const frame of frames) if (!frame.open && meets(frame, visible)) paintBox(painter, frame, look, scale);
  const { small_text } = look.geometry;
  if (small_text * scale < TINY + 2) return;
  // A dot has no piece that a text could stand on.
  const told = lines.filter(
    (line, i) => line.points.length > 2 && lineMeets(around, i, visible, 0) && look.lineText(line).text,
  );
  if (told.length) {
    // What stands on lines takes the place of their shapes; what is wrong lies on top.
    for (const isWrong of [false, true])
      for (const line of told) if (look.lineText(line).isWrong === isWrong) paintLineText(painter, line, look);
    return;
  }
  for (const label of scene.labels) {
    if (
      label.x > visible.right ||
      label.y < visible.top ||
      label.y - 12 > visible.bottom ||
      label.x + 300 < visible.left
    )
      continue;
    painter.text(label.x, label.y, label.text, small_text, false, look.theme.soft);
  }
}

function paintGroup(painter: Painter, frame: Frame, look: Look, scale: number): void {
  const { theme, geometry: g } = look,
    { x, y, width, height, item } = frame;
  const tint = theme.tints[Math.min(item.depth, theme.tints.length - 1)]!,
    head = theme.tints[Math.min(item.depth + 1, theme.tints.length - 1)]!;
  if (item.repeat > 1) {
    painter.rect(x + g.stack, y + g.stack, width, height, g.group_corner, tint, theme.line);
    painter.rect(x + g.stack / 2, y + g.stack / 2, width, height, g.group_corner, tint, theme.line);
  }
  const isTiny = Math.min(width, height) * scale < 4;
  painter.rect(
    x,
    y,
    width,
    height,
    isTiny ? 0 : g.group_corner,
    tint,
    isTiny && !marked(look, item) ? null : outline(look, item, theme.line),
    marked(look, item) ? 2 / Math.min(scale, 1) : 1,
  );
  if (g.heading * scale < 3) return;
  painter.rect(x + 1, y + 1, width - 2, g.heading - 2, g.group_corner - 1, head, null);
  if (g.small_text * scale < TINY) return;
  const base = y + g.heading - 7,
    ink = look.mark(item) === "dim" ? theme.soft : theme.ink;
  paintMark(painter, x + 12, y + g.heading / 2, false, ink);
  const right = item.repeat > 1 ? 70 : 8,
    title = fitted(item.title, width - 22 - right, g.title_text, true, look);
  painter.text(x + 22, base, title, g.title_text, true, ink);
  const used = look.textWidth(title, g.title_text, true) + 32,
    room = width - used - right;
  const words = look.round(item) || item.heading || item.subtitle;
  if (room > 40)
    painter.text(x + used, base, fitted(words, room, g.small_text, false, look), g.small_text, false, theme.soft);
  if (item.repeat > 1) paintBadge(painter, x + width - 6, y + g.heading / 2, item.repeat, look);
  paintTag(painter, frame, look);
}

function paintBox(painter: Painter, frame: Frame, look: Look, scale: number): void {
  const { theme, geometry: g } = look,
    { x, y, width, height, item } = frame;
  const [fill, stroke, ink] = colours(item, look);
  const corner = item.isMarker ? height / 2 : g.box_corner;
  if (item.repeat > 1) {
    painter.rect(x + g.stack, y + g.stack, width, height, corner, fill, stroke);
    painter.rect(x + g.stack / 2, y + g.stack / 2, width, height, corner, fill, stroke);
  }
  const isTiny = height * scale < 4;
  painter.rect(
    x,
    y,
    width,
    height,
    isTiny ? 0 : corner,
    fill,
    isTiny && !marked(look, item) ? null : outline(look, item, stroke),
    marked(look, item) ? 2.5 / Math.min(scale, 1) : 1.1,
  );
  if (g.small_text * scale < TINY) return;
  const badge = item.repeat > 1 ? 34 : 0,
    sign = item.isLeaf ? 0 : g.plus;
  const middle = x + (width - badge) / 2 + (sign ? sign / 2 : 0);
  const titleY = item.subtitle ? y + height / 2 - 2 : y + height / 2 + 4.5;
  const title = fitted(item.title, width - badge - sign - SIDES, g.title_text, true, look);
  if (sign) paintMark(painter, middle - look.textWidth(title, g.title_text, true) / 2 - 9, titleY - 4.5, true, ink);
  painter.text(middle, titleY, title, g.title_text, true, ink, "middle");
  if (item.subtitle)
    painter.text(
      x + width / 2,
      y + height / 2 + 12,
      fitted(item.subtitle, width - SIDES, g.small_text, false, look),
      g.small_text,
      false,
      ink === theme.ink ? theme.soft : ink,
      "middle",
    );
  if (item.repeat > 1) paintBadge(painter, x + width - 5, y + 11, item.repeat, look);
  paintTag(painter, frame, look);
}

function paintLine(painter: Painter, line: Line, look: Look, scale: number): void {
  const { theme, geometry: g } = look,
    mark = look.lineMark(line),
    points = line.points;
  const colour =
    mark === "traced"
      ? theme.fills["matmul"]![1]
      : mark === "critical"
        ? theme.accent
        : mark === "dim"
          ? theme.line
          : theme.edge;
  const wide =
    (mark === "traced" || mark === "critical" ? 2.4 : g.line_width) *
    (line.many > 1 ? 1.6 : 1) *
    (scale < 0.35 ? 0.35 / scale : 1) *
    (mark ? 1 : scale < 0.35 ? 0.6 : 1);
  if (points.length < 4) return painter.circle(points[0]!, points[1]!, g.dot, colour);
  painter.line(points, colour, wide, scale < 0.3 ? 0 : g.line_corner, line.dashed);
  if (!line.arrow || scale < 0.2) return;
  const last = points.length - 2;
  painter.arrow(
    points[last]!,
    points[last + 1]!,
    points[last]! - points[last - 2]!,
    points[last + 1]! - points[last - 1]!,
    g.arrow,
    colour,
  );
}

/** On the longest piece of a line. */
function paintLineText(painter: Painter, line: Line, look: Look): void {
  const { text, isWrong } = look.lineText(line),
    { points } = line,
    size = look.geometry.small_text,
    { theme } = look;
  const lengths = points
    .slice(2)
    .map((at, i) => (i % 2 ? 0 : Math.abs(at - points[i]!) + Math.abs(points[i + 3]! - points[i + 1]!)));
  const longest = lengths.indexOf(Math.max(...lengths));
  const [x, y] = [(points[longest]! + points[longest + 2]!) / 2, (points[longest + 1]! + points[longest + 3]!) / 2];
  const width = look.textWidth(text, size, true) + 8;
  painter.rect(x - width / 2, y - 8, width, 15, 4, isWrong ? theme.accent : theme.background, theme.line);
  painter.text(x, y + 4, text, size, true, isWrong ? theme.background : theme.ink, "middle");
}

/** The sign of a group: + of a closed one, − of an open one. */
function paintMark(painter: Painter, x: number, y: number, closed: boolean, ink: string): void {
  painter.line([x - 4, y, x + 4, y], ink, 1.4, 0);
  if (closed) painter.line([x, y - 4, x, y + 4], ink, 1.4, 0);
}

function paintBadge(painter: Painter, right: number, middle: number, repeat: number, look: Look): void {
  const text = `×${repeat.toLocaleString("en-US")}`,
    width = look.textWidth(text, look.geometry.small_text, true) + 10;
  painter.rect(right - width, middle - 7.5, width, 15, 7.5, look.theme.terminal[0], null);
  painter.text(right - width / 2, middle + 4, text, look.geometry.small_text, true, look.theme.terminal[1], "middle");
}

function paintTag(painter: Painter, frame: Frame, look: Look): void {
  const tag = look.tag(frame.item);
  if (!tag) return;
  const text = fitted(tag.text, WIDEST_TAG, 10, true, look),
    width = look.textWidth(text, 10, true) + 10;
  painter.rect(frame.x + frame.width - width + 4, frame.y - 9, width, 16, 8, tag.color, look.theme.background);
  painter.text(frame.x + frame.width - width / 2 + 4, frame.y + 3, text, 10, true, "#FFFFFF", "middle");
}

function colours(item: Item, look: Look): [fill: string, stroke: string, ink: string] {
  const { theme } = look;
  if (item.isMarker) return [theme.terminal[0], theme.terminal[0], theme.terminal[1]];
  const warm = look.heat(item);
  const [fill, stroke] = theme.fills[item.isLeaf ? look.category(item) : "module"] ?? theme.fills["unknown"]!;
  const faint = look.mark(item) === "dim";
  if (warm && !faint) return [warm[0], stroke, warm[1]];
  return [
    faint ? theme.background : item.isLeaf ? fill : theme.background,
    faint ? theme.line : stroke,
    faint ? theme.soft : theme.ink,
  ];
}

function marked(look: Look, item: Item): boolean {
  return !["", "dim"].includes(look.mark(item));
}

function outline(look: Look, item: Item, usual: string): string {
  switch (look.mark(item)) {
    case "selected":
      return look.theme.fills["matmul"]![1];
    case "second":
      return look.theme.fills["attention"]![1];
    case "near":
      return look.theme.fills["pooling"]![1];
    case "failed":
    case "finding":
      return look.theme.accent;
  }
  return usual;
}

/** A text, or as much of it as there is room for: names of models may be as long as they like. */
function fitted(text: string, room: number, size: number, bold: boolean, look: Look): string {
  if (text.length > LONGEST) text = text.slice(0, LONGEST); // measuring takes as long as drawing
  const width = look.textWidth(text, size, bold);
  if (width <= room) return text;
  const start = text.slice(0, Math.max(Math.floor((text.length * room) / width) - 1, 0));
  return `${start.replace(/[\ud800-\udbff]$/, "")}…`; // half a pair is no character
}

function meets(frame: Frame, rect: Rect): boolean {
  return (
    frame.x < rect.right &&
    frame.x + frame.width + 8 > rect.left &&
    frame.y < rect.bottom &&
    frame.y + frame.height + 8 > rect.top
  );
}

/** Left, top, right and bottom of every line, made once for the lines of a scene: there are many, and it is moved often. */
function boundsOf(lines: readonly Line[]): Float64Array {
  let found = BOUNDS.get(lines);
  if (!found) {
    found = new Float64Array(4 * lines.length);
    for (const [i, { points }] of lines.entries()) {
      let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
      for (let at = 0; at < points.length; at += 2) {
        left = Math.min(left, points[at]!);
        right = Math.max(right, points[at]!);
        top = Math.min(top, points[at + 1]!);
        bottom = Math.max(bottom, points[at + 1]!);
      }
      found.set([left, top, right, bottom], 4 * i);
    }
    BOUNDS.set(lines, found);
  }
  return found;
}

/** Whether a line, unless it is a dot, is long enough to be seen, and some of it is visible. */
function lineMeets(bounds: Float64Array, line: number, rect: Rect, shortest: number): boolean {
  const left = bounds[4 * line]!,
    top = bounds[4 * line + 1]!,
    right = bounds[4 * line + 2]!,
    bottom = bounds[4 * line + 3]!;
  const isSeen = right - left > shortest || bottom - top > shortest || (left === right && top === bottom);
  return isSeen && left < rect.right && right > rect.left && top < rect.bottom && bottom > rect.top;
}
