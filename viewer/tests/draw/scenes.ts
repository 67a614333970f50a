/** A scene made by hand, a look that changes nothing, and a painter that writes down what it is asked for. */

import type { Look } from "../../src/draw/paint";
import type { Painter } from "../../src/draw/painter";
import type { Theme } from "../../src/draw/theme";
import type { Frame, Line, Scene } from "../../src/layout/scene";
import { Item } from "../../src/model/outline";
import { GEOMETRY } from "../layout/geometry";

export const THEME: Theme = {
  name: "light",
  background: "#FFFFFF",
  ink: "#111111",
  soft: "#777777",
  line: "#CCCCCC",
  edge: "#555555",
  accent: "#FF0000",
  terminal: ["#222222", "#EEEEEE"],
  tints: ["#FAFAFA", "#F0F0F0"],
  fills: {
    matmul: ["#0000AA", "#0000BB"],
    attention: ["#AA00AA", "#BB00BB"],
    pooling: ["#00AAAA", "#00BBBB"],
    module: ["#EEEEEE", "#DDDDDD"],
    unknown: ["#999999", "#888888"],
  },
  memory: {},
  ramp: ["#000000", "#808080", "#FFFFFF"],
};

export function look(change: Partial<Look> = {}): Look {
  return {
    theme: THEME,
    geometry: GEOMETRY,
    category: () => "matmul",
    heat: () => null,
    mark: () => "",
    lineMark: () => "",
    lineText: () => ({ text: "", isWrong: false }),
    round: () => "",
    textWidth: (text, size, bold) => text.length * size * (bold ? 0.58 : 0.53),
    tag: () => null,
    ...change,
  };
}

export function item(
  title: string,
  { leaf = true, repeat = 1, subtitle = "", depth = 1, start = 0, flags = 0 } = {},
): Item {
  const kind = leaf ? "leaf" : "module";
  return new Item(kind, start, start + 1, repeat, leaf ? -1 : 0, title, subtitle, "", "", "", -1, flags, depth, null);
}

export function frame(one: Item, x: number, y: number, width = 100, height = 36, open = false, parent = -1): Frame {
  return { item: one, x, y, width, height, open, parent };
}

export function line(points: number[], change: Partial<Line> = {}): Line {
  return { net: 0, value: -1, points, arrow: true, dashed: false, many: 1, source: 0, target: 1, ...change };
}

export function scene(frames: Frame[], lines: Line[] = [], labels: Scene["labels"] = []): Scene {
  const frameOf = new Map(frames.map((one, i) => [one.item.key, i]));
  return { width: 1000, height: 1000, frames, lines, labels, frameOf, leftOut: 0 };
}

export type Call = [shape: keyof Painter, ...rest: unknown[]];

export class Recorder implements Painter {
  readonly calls: Call[] = [];
  rect = (...rest: unknown[]) => void this.calls.push(["rect", ...rest]);
  line = (...rest: unknown[]) => void this.calls.push(["line", ...rest]);
  arrow = (...rest: unknown[]) => void this.calls.push(["arrow", ...rest]);
  circle = (...rest: unknown[]) => void this.calls.push(["circle", ...rest]);
  text = (...rest: unknown[]) => void this.calls.push(["text", ...rest]);

  /** The texts that were painted. */
  get texts(): string[] {
    return this.calls.filter(([shape]) => shape === "text").map((call) => call[3] as string);
  }
  of(shape: keyof Painter): Call[] {
    return this.calls.filter((call) => call[0] === shape);
  }
}
