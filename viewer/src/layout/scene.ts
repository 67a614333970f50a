/** What is drawn: boxes and lines at their places, in units of the layout (at scale 1 one unit is one pixel). */

import type { Item, Outline, Rounds } from "../model/outline";

/** A box, closed or open, at its place. Outer frames come before inner ones. */
export interface Frame {
  item: Item;
  x: number;
  y: number;
  width: number; // without what looks out behind a repeat
  height: number;
  open: boolean;
  parent: number; // frame it lies in; -1 for the outermost
}

/** One line of one tensor, at right angles. */
export interface Line {
  net: number; // equal for all lines of one tensor, at all depths
  value: number; // of the graph, as it arrives; -1 for a bundle
  points: number[]; // x, y, x, y ...
  arrow: boolean;
  dashed: boolean; // leads back to the beginning of a repeat
  many: number; // how many tensors it stands for
  source: number; // frames that it joins; -1 for the border of its group
  target: number;
}

export interface Label {
  x: number;
  y: number;
  text: string;
  net: number;
}

export interface Scene {
  width: number;
  height: number;
  frames: Frame[];
  lines: Line[];
  labels: Label[]; // shapes beside lines, where there is room
  frameOf: Map<string, number>; // key of an item -> its frame
  leftOut: number; // lines that are not drawn, since a group has far too many long ones
}

/** Sizes and distances: render/layout/style.py, which the page carries. */
export type Geometry = Readonly<
  Record<
    | "title_text"
    | "small_text"
    | "widest_title"
    | "widest_text"
    | "least_width"
    | "least_height"
    | "usual_height"
    | "spanning_height"
    | "text_margins"
    | "plus"
    | "box_corner"
    | "stack"
    | "heading"
    | "group_corner"
    | "padding"
    | "beside_heading"
    | "box_gap"
    | "rank_gap"
    | "gutter"
    | "line_gap"
    | "lane"
    | "track"
    | "box_to_track"
    | "track_to_box"
    | "track_to_border"
    | "port_gap"
    | "line_ends_apart"
    | "line_end"
    | "jog"
    | "label_gap"
    | "line_width"
    | "arrow"
    | "line_corner"
    | "dot",
    number
  >
>;

export interface LayoutOptions {
  open: ReadonlySet<string>; // keys of open groups; the root is always open
  rounds: Rounds;
  direction: "down" | "right";
  grouping: boolean; // false: all ops side by side, without modules
  hidden: ReadonlySet<string>; // names of lanes that are not shown
  geometry: Geometry;
  textWidth: (text: string, size: number, bold: boolean) => number;
}

export type Layouter = (outline: Outline, options: LayoutOptions) => Scene;
