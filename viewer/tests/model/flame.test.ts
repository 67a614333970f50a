import { describe, expect, it } from "vitest";
import { flameOf, levelsOf, stretches, titleOf } from "../../src/model/flame";
import type { Outline } from "../../src/model/outline";
import { makeOutline, type Tree } from "../layout/outlines";

function outlineOf(children: Tree[], nodeLeaf?: number[], leafNode?: number[]): Outline {
  const outline = makeOutline(children, []);
  Object.assign(outline.graph, { keep: <T>(_: string, make: () => T) => make(), phase: new Int8Array(20) });
  if (nodeLeaf) Object.assign(outline, { nodeLeaf: Int32Array.from(nodeLeaf) });
  if (leafNode) Object.assign(outline, { leafNode: Int32Array.from(leafNode) });
  return outline;
}

/** Per depth the bars as [title, first node, node after the last]. */
function barsOf(outline: Outline, isMeant?: (node: number) => boolean) {
  const flame = flameOf(outline);
  return levelsOf(flame, isMeant).map(({ from, to, place }) =>
    Array.from(from, (first, i) => [titleOf(outline, flame.places, place[i]!), first, to[i]!]),
  );
}

const NESTED: Tree[] = ["in", { title: "block", repeat: 2, children: ["mm", "add"] }, "out"];

describe("flame", () => {
  it("has a bar for every group, every round and every op", () => {
    expect(barsOf(outlineOf(NESTED))).toEqual([
      [
        ["in", 0, 1],
        ["block", 1, 3],
        ["block", 3, 5],
        ["out", 5, 6],
      ],
      [
        ["mm", 1, 2],
        ["add", 2, 3],
        ["mm", 3, 4],
        ["add", 4, 5],
      ],
    ]);
  });

  it("draws nodes without a box with the next one that has one", () => {
    // Node 2 has no box; node 4 is a line of the first op, and ran in the second block.
    const outline = outlineOf(NESTED, [0, 1, -1, 2, 1, 3, 4, 5], [0, 1, 3, 5, 6, 7]);
    expect(barsOf(outline)[0]).toEqual([
      ["in", 0, 1],
      ["block", 1, 4],
      ["block", 4, 7],
      ["out", 7, 8],
    ]);
  });

  it("does not let a line of a box elsewhere end a group", () => {
    const outline = outlineOf(NESTED, [0, 1, 2, 3, 1, 4, 5], [0, 1, 2, 3, 5, 6]);
    expect(barsOf(outline)[0]).toEqual([
      ["in", 0, 1],
      ["block", 1, 3],
      ["block", 3, 6],
      ["out", 6, 7],
    ]);
  });

  it("keeps threads apart", () => {
    expect(barsOf(outlineOf(NESTED), (node) => node % 2 === 0)[1]).toEqual([
      ["add", 2, 3],
      ["add", 4, 5],
    ]);
  });
});

it("stretches are neighbours with one number", () => {
  expect(stretches([0, 0, 1, 0], 4)).toEqual([
    { from: 0, to: 2, value: 0 },
    { from: 2, to: 3, value: 1 },
    { from: 3, to: 4, value: 0 },
  ]);
});
