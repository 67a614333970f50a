/** The colours of the page: render/theme.py's, which the page carries, so that viewer and still picture look alike. */

import type { Geometry } from "../layout/scene";

export interface Theme {
  name: string;
  background: string;
  ink: string;
  soft: string;
  line: string;
  edge: string;
  accent: string;
  terminal: [fill: string, ink: string];
  tints: string[]; // the grounds of modules, by how deep they are nested
  fills: Record<string, [fill: string, stroke: string]>; // by type of op
  memory: Record<string, string>;
  ramp: string[]; // from little to much
}

export interface PageStyle {
  themes: { light: Theme; dark: Theme };
  geometry: Geometry;
}

// The luminance on which black and white are equally well read: (EVEN + 0.05) / 0.05 = 1.05 / (EVEN + 0.05).
const EVEN = Math.sqrt(1.05 * 0.05) - 0.05;

/** The fill for a share of the largest value (0 to 1) and the ink that can be read on it; NaN is unknown. */
export function heat(theme: Theme, share: number): [fill: string, ink: string] {
  if (Number.isNaN(share)) return [theme.fills["unknown"]![0], theme.ink];
  const place = Math.min(Math.max(share, 0), 1) * (theme.ramp.length - 1);
  const below = Math.min(Math.floor(place), theme.ramp.length - 2);
  const fill = mixed(theme.ramp[below]!, theme.ramp[below + 1]!, place - below);
  return [fill, luminance(fill) > EVEN ? "#000000" : "#FFFFFF"];
}

export function mixed(first: string, second: string, share: number): string {
  const [a, b] = [channels(first), channels(second)];
  return `#${a
    .map((one, i) =>
      Math.round(one + (b[i]! - one) * share)
        .toString(16)
        .toUpperCase()
        .padStart(2, "0"),
    )
    .join("")}`;
}

function channels(colour: string): number[] {
  return [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16));
}

function luminance(colour: string): number {
  const [red, green, blue] = channels(colour).map((c) =>
    c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * red! + 0.7152 * green! + 0.0722 * blue!;
}
