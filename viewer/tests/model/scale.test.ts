import { describe, expect, it } from "vitest";
import type { Measure } from "../../src/model/measures";
import { scaleOf } from "../../src/model/scale";

const measure = (name: string): Measure => ({
  name,
  title: name,
  format: String,
  values: new Float64Array(),
  combine: "max",
});

describe("scales", () => {
  it("of times begin at zero", () => {
    const scale = scaleOf(measure("time"), [1, Number.NaN, 4]);
    expect([scale.low, scale.high, scale.isLog]).toEqual([0, 4, false]);
    expect([scale.share(0), scale.share(1), scale.share(9)]).toEqual([0, 0.25, 1]);
    expect(scale.share(Number.NaN)).toBeNaN(); // unknown is not zero
  });

  it("of gradients go by powers of ten, so that layers between 1e-8 and 1 differ", () => {
    const scale = scaleOf(measure("gradient"), [1e-8, 1e-4, 1]);
    expect(scale.share(1e-8)).toBe(0);
    expect(scale.share(1e-4)).toBeCloseTo(0.5);
    expect(scale.share(1)).toBe(1);
    expect(scale.share(0)).toBe(0); // vanished, or never there
  });

  it("of gradients that are nearly equal do not make them look different", () => {
    const scale = scaleOf(measure("gradient"), [0.9, 1]);
    expect(scale.share(0.9)).toBeGreaterThan(0.95);
  });

  it("has something to say of nothing", () => {
    expect(scaleOf(measure("gradient"), [0, Number.NaN]).share(0)).toBe(0);
    expect(scaleOf(measure("time"), []).share(0)).toBe(0);
  });
});
