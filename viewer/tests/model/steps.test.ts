import { expect, test } from "vitest";
import { changeAt, columnOf, extremes, placeOf, rowsOf, type Steps } from "../../src/model/steps";

const STEPS: Steps = {
  shown: 7,
  changes: [[7, "batch 8 -> 4"]],
  numbers: [5, 6, 7, 8],
  rows: [
    { name: "wall_ns", unit: "ns", values: [10, 30, 20, null] },
    { name: "loss", unit: "", values: [2, "nan", 1, "inf"] },
    { name: "empty", unit: "", values: ["nan", null, null, null] },
  ],
};

test("rows have bounds, and know what is no number and what is not known", () => {
  const [time, loss, empty] = rowsOf(STEPS);
  expect([time!.low, time!.high, time!.odd]).toEqual([0, 30, []]);
  expect([...time!.values]).toEqual([10, 30, 20, Number.NaN]);
  expect([loss!.low, loss!.high, loss!.odd]).toEqual([1, 2, [1, 3]]);
  expect([empty!.low, empty!.high, empty!.odd]).toEqual([0, 0, [0]]);
});

test("many steps share a column, which keeps the least and the largest", () => {
  const values = Float64Array.from([1, 5, 2, Number.NaN, 9, 3]);
  const { least, most } = extremes(values, 2);
  expect([[...least], [...most]]).toEqual([
    [1, 3],
    [5, 9],
  ]);
  expect(Number.isNaN(extremes(values.subarray(3, 4), 2).least[0]!)).toBe(true);
});

test("a column leads back to its step", () => {
  for (const [count, columns] of [
    [4, 100],
    [1, 50],
    [1000, 10],
  ] as const)
    for (const place of [0, count - 1]) expect(placeOf(columnOf(place, count, columns), count, columns)).toBe(place);
  expect(placeOf(-5, 4, 100)).toBe(0);
  expect(placeOf(500, 4, 100)).toBe(3);
});

test("a change of structure is told at its step", () => {
  expect([0, 1, 2, 3].map((place) => changeAt(STEPS, place))).toEqual([
    undefined,
    undefined,
    "batch 8 -> 4",
    undefined,
  ]);
});
