/** Numbers -> shares from 0 to 1, for colours and bars. */

import type { Measure } from "./measures";

const LEAST_DECADES = 2; // of a scale in powers of ten: smaller differences are none
const MOST_DECADES = 12; // what is smaller than that has vanished

export interface Scale {
  readonly low: number; // what has no colour
  readonly high: number; // what has the full one
  readonly isLog: boolean;
  share(value: number): number; // NaN of NaN
}

/** A scale for some values, by the largest of them. Gradients that vanish do so by powers of ten: theirs is one of powers. */
export function scaleOf(measure: Measure, values: Iterable<number>): Scale {
  let high = 0,
    bottom = 0, // numbers of one's own may be negative
    low = Number.POSITIVE_INFINITY;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value > high) high = value;
    if (value < bottom) bottom = value;
    if (value > 0 && value < low) low = value;
  }
  if (measure.name !== "gradient" || !high)
    return {
      low: bottom,
      high,
      isLog: false,
      share: (value) =>
        Number.isNaN(value) ? Number.NaN : high > bottom ? clamped((value - bottom) / (high - bottom)) : 0,
    };
  const least = Math.max(Math.min(low, high / 10 ** LEAST_DECADES), high / 10 ** MOST_DECADES);
  return {
    low: least,
    high,
    isLog: true,
    share: (value) =>
      Number.isNaN(value) ? Number.NaN : value <= least ? 0 : clamped(Math.log(value / least) / Math.log(high / least)),
  };
}

function clamped(share: number): number {
  return Math.min(Math.max(share, 0), 1);
}
