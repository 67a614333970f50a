/** The numbers of render/layout/style.py, and a text width that is the same everywhere. */

import type { Geometry, LayoutOptions } from "../../src/layout/scene";

export const GEOMETRY: Geometry = {
  title_text: 12.5,
  small_text: 11,
  widest_title: 260,
  widest_text: 190,
  least_width: 64,
  least_height: 24,
  usual_height: 34,
  spanning_height: 50,
  text_margins: 22,
  plus: 14,
  box_corner: 5,
  stack: 6,
  heading: 22,
  group_corner: 7,
  padding: 12,
  beside_heading: 32,
  box_gap: 18,
  rank_gap: 24,
  gutter: 24,
  line_gap: 11,
  lane: 9,
  track: 8,
  box_to_track: 8,
  track_to_box: 14,
  track_to_border: 10,
  port_gap: 14,
  line_ends_apart: 7,
  line_end: 7,
  jog: 5,
  label_gap: 5,
  line_width: 1.3,
  arrow: 6.5,
  line_corner: 6,
  dot: 2.6,
};

const textWidth = (text: string, size: number, bold: boolean) => text.length * size * (bold ? 0.58 : 0.53);

export function options(change: Partial<LayoutOptions> = {}): LayoutOptions {
  return {
    open: new Set(),
    rounds: new Map(),
    direction: "down",
    grouping: true,
    hidden: new Set(),
    geometry: GEOMETRY,
    textWidth,
    ...change,
  };
}
