import { expect, test } from "vitest";
import { heat, mixed } from "../../src/draw/theme";
import { THEME } from "./scenes";

test.each([
  ["nothing", 0, "#000000", "#FFFFFF"],
  ["a quarter", 0.25, "#404040", "#FFFFFF"],
  ["half", 0.5, "#808080", "#000000"],
  ["all", 1, "#FFFFFF", "#000000"],
  ["more than all", 7, "#FFFFFF", "#000000"],
  ["less than nothing", -1, "#000000", "#FFFFFF"],
  ["unknown", Number.NaN, "#999999", THEME.ink],
])("the heat of %s", (_, share, fill, ink) => {
  expect(heat(THEME, share)).toEqual([fill, ink]);
});

// The doctest of render/theme.py, and its rounding.
test.each([
  ["#000000", "#FFFFFF", 0.5, "#808080"],
  ["#F9F8E1", "#642043", 0, "#F9F8E1"],
  ["#F9F8E1", "#642043", 1, "#642043"],
  ["#0A0000", "#000000", 0.9, "#010000"],
])("between %s and %s at %d lies %s", (first, second, share, colour) => {
  expect(mixed(first, second, share)).toBe(colour);
});
