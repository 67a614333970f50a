/** The steps of a run: what a page of one step holds of all the others. */

import type { Document } from "../document/document";

/** viewer/steps.json. A value is null where it is not known, and a text where JSON has no number: "nan", "inf". */
export interface Steps {
  shown: number | null;
  changes: [number: number, words: string][];
  numbers: number[];
  rows: { name: string; unit: string; values: (number | string | null)[] }[];
}

/** One line of the chart. NaN in `values` is what is not known; `odd` are the places of NaN and infinities. */
export interface StepRow {
  name: string;
  unit: string;
  values: Float64Array;
  odd: number[];
  low: number;
  high: number;
}

export function stepsOf(document: Document): Steps | null {
  const found = document.json<Steps>("viewer/steps.json");
  return found?.numbers.length ? found : null;
}

export function rowsOf(steps: Steps): StepRow[] {
  return steps.rows.map(({ name, unit, values }) => {
    const numbers = Float64Array.from(values, (one) => (typeof one === "number" ? one : Number.NaN));
    const odd = values.flatMap((one, place) => (typeof one === "string" ? [place] : []));
    let low = Number.POSITIVE_INFINITY,
      high = Number.NEGATIVE_INFINITY;
    for (const one of numbers) {
      if (one < low) low = one;
      if (one > high) high = one;
    }
    if (low > high) [low, high] = [0, 0];
    return { name, unit, values: numbers, odd, low: unit ? 0 : low, high };
  });
}

/** For each of `columns` equal stretches of places the least and the largest value; NaN where none is known. */
export function extremes(values: Float64Array, columns: number): { least: Float64Array; most: Float64Array } {
  const least = new Float64Array(columns).fill(Number.NaN),
    most = new Float64Array(columns).fill(Number.NaN);
  for (let place = 0; place < values.length; place++) {
    const one = values[place]!;
    if (Number.isNaN(one)) continue;
    const column = columnOf(place, values.length, columns);
    if (!(least[column]! <= one)) least[column] = one;
    if (!(most[column]! >= one)) most[column] = one;
  }
  return { least, most };
}

/** The place of a step -> its column, and back: the first place of a column. */
export function columnOf(place: number, count: number, columns: number): number {
  return count < 2 ? 0 : Math.round((place * (columns - 1)) / (count - 1));
}

export function placeOf(column: number, count: number, columns: number): number {
  const place = columns < 2 ? 0 : Math.round((column * (count - 1)) / (columns - 1));
  return Math.min(Math.max(place, 0), count - 1);
}

/** What changed in the structure at a step, and the structure before it; undefined if nothing did. */
export function changeAt(steps: Steps, place: number): string | undefined {
  return steps.changes.find(([number]) => number === steps.numbers[place])?.[1];
}
