import { describe, expect, it } from "vitest";
import { axesOf, holding, panned, spanOn, zoomed } from "../../src/model/axis";
import { roundTicks } from "../../src/model/ticks";
import { graphOf } from "./graphs";

const timed = graphOf({
  nodes: 4,
  columns: { node_time_ns: [10, -1, 30, 60], node_start_ns: [100, -1, 150, 200] },
});

describe("axes", () => {
  it("has only the order where nothing was timed", () => {
    expect([...axesOf(graphOf({ nodes: 3 })).keys()]).toEqual(["order"]);
  });

  it("gives ops the room of their time, and none to those without", () => {
    const axis = axesOf(timed).get("time")!;
    expect([...axis.edges]).toEqual([0, 10, 10, 40, 100]);
    expect(axis.node(9)).toBe(0);
    expect(axis.node(10)).toBe(2);
    expect(axis.node(1e9)).toBe(3);
  });

  it("turns places into positions and back, on every axis", () => {
    for (const axis of axesOf(timed).values())
      for (const share of [0, 0.07, 0.5, 0.99, 1]) {
        const place = axis.first + share * (axis.last - axis.first);
        expect(axis.at(axis.position(place))).toBeCloseTo(place);
      }
  });

  it("writes times so that neighbours differ", () => {
    const axis = axesOf(timed).get("time")!;
    expect([2.48e9, 2.485e9].map((value) => axis.format(value, 5e6))).toEqual(["2.480 s", "2.485 s"]);
    expect([0, 200_000, 1e6].map((value) => axis.format(value, 200_000))).toEqual(["0 ns", "200 µs", "1.0 ms"]);
  });

  it("counts the clock from the first op and keeps the pauses", () => {
    const axis = axesOf(timed).get("clock")!;
    expect([...(axis.start as Float64Array)]).toEqual([0, 0, 50, 100]);
    expect([...(axis.stop as Float64Array)]).toEqual([10, 0, 80, 160]);
    expect(axis.last).toBe(160);
  });
});

describe("spans", () => {
  const axis = axesOf(graphOf({ nodes: 1000 })).get("order")!;

  it("keeps the place under the pointer where it is", () => {
    const span = zoomed(axis, [200, 600], 0.5, 0.25)!;
    expect(span[1] - span[0]).toBeCloseTo(200);
    expect(span[0] + 0.25 * (span[1] - span[0])).toBeCloseTo(300);
  });

  it("is null when all is in sight, and never leaves the graph", () => {
    expect(zoomed(axis, [100, 900], 2, 0.5)).toBeNull();
    expect(panned(axis, [100, 300], -5)).toEqual([0, 200]);
    expect(panned(axis, [100, 300], 50)![1]).toBeCloseTo(1000);
  });

  it("does not zoom nearer than a few ops", () => {
    const [low, high] = zoomed(axis, [500, 505], 1e-9, 0.5)!;
    expect(high - low).toBeCloseTo(4);
  });

  it("moves to a node that is out of sight, and stays for one that is in sight", () => {
    expect(holding(axis, [100, 200], 150)).toEqual([100, 200]);
    const [low, high] = holding(axis, [100, 200], 700)!;
    expect([low, high]).toEqual([650.5, 750.5]);
  });

  it("shows all for a span that cannot be, as of a wrong link", () => {
    for (const wrong of [
      [5, 5],
      [-1, 3],
      [10, 2000],
      [Number.NaN, 4],
    ] as const)
      expect(spanOn(axis, wrong)).toEqual([0, 1000]);
  });
});

it("ticks are round, within the range, and few", () => {
  expect(roundTicks(0, 2.4 * 2 ** 30, 4, 1024)).toEqual([0, 2 ** 30, 2 ** 31]);
  expect(roundTicks(130, 980, 4)).toEqual([500]);
  expect(roundTicks(0, 1000, 5)).toEqual([0, 200, 400, 600, 800, 1000]);
  expect(Object.is(roundTicks(0, 10, 5)[0], 0)).toBe(true);
  expect(roundTicks(3, 3, 5)).toEqual([3]);
});
