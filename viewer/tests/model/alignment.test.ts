import { expect, test } from "vitest";
import { CHANGED, ONLY_HERE, SAME, sidesOf } from "../../src/model/alignment";
import { Outline } from "../../src/model/outline";
import { smallDocument, smallGraph } from "../small_graph";

const what = { shape: ["2×3", "2×4"] as [string, string] };
const alignment = {
  pairs: [[0, 0], [1, 1], [3, 2]], // biome-ignore format: one row
  changed: [[4, 3, what]],
  only_a: [2, 7],
  only_b: [4],
  modules: [],
  sentence: "2 ops fewer",
};
const document = smallDocument({ json: { "viewer/alignment.json": alignment } });

test("both sides know what is the same, what changed and what only they have", () => {
  const [a, b] = sidesOf(document, [9, 5])!;
  expect([...a.status]).toEqual([SAME, SAME, ONLY_HERE, SAME, CHANGED, SAME, SAME, ONLY_HERE, SAME]);
  expect([...b.status]).toEqual([SAME, SAME, SAME, CHANGED, ONLY_HERE]);
  expect([a.other(3), a.other(4), a.other(2)]).toEqual([2, 3, undefined]);
  expect([b.other(2), b.other(3), b.other(4)]).toEqual([3, 4, undefined]);
  expect([a.what.get(4), b.what.get(3), a.what.get(3)]).toEqual([what, what, undefined]);
});

test("differences are counted in all rounds of an item", () => {
  const outline = new Outline(smallGraph());
  const [a] = sidesOf(document, [9, 5])!;
  const blocks = outline.around(outline.nodeLeaf[1]!, new Map()).find((item) => item.repeat > 1)!;
  expect(a.differences(outline, outline.root)).toBe(3);
  expect(a.differences(outline, blocks)).toBe(2);
  expect(outline.rounds(blocks).map((item) => a.differences(outline, item))).toEqual([1, 1]);
});

test("two graphs that nobody aligned have no sides", () => {
  expect(sidesOf(smallDocument(), [9, 9])).toBeNull();
});
