import { expect, test } from "vitest";
import { layoutScene } from "../../src/layout/layout";
import { options } from "./geometry";
import { makeOutline } from "./outlines";

/** `make` (2), a view of it outside (2×4) and, inside of the module, a view of that (4×2). */
function readTwice(inside: boolean): string[] {
  const outline = makeOutline(
    ["make", { title: "Linear", children: ["mm", "sum"] }],
    [
      [0, 1],
      [0, 2],
    ],
  );
  const [expanded, transposed] = [10, 11];
  const viewNode: Record<number, number> = { [expanded]: 3, [transposed]: 4 };
  const call = [-1, 0, 0, -1, inside ? 0 : -1];
  Object.assign(outline.graph, {
    kind: new Int8Array(5).fill(1),
    call: Int32Array.from(call),
    callParent: Int32Array.of(-1),
    shape: (value: number) => ({ [expanded]: "2×4", [transposed]: "4×2" })[value] ?? "2",
    producer: (value: number) => viewNode[value],
    inputs: (node: number) => Int32Array.of(node === 4 ? expanded : 0),
  });
  Object.assign(outline, { nodeLeaf: Int32Array.of(0, 1, 2, 0, 1) }); // views belong to what is drawn
  Object.assign(outline.table.edges, { value: Int32Array.of(transposed, expanded) });
  return layoutScene(outline, options({})).labels.map(({ text }) => text);
}

test("a tensor has the shape in which it comes to a module, whatever views are inside", () => {
  expect(readTwice(true)).toEqual(["2×4"]);
});

test("a tensor that comes in two shapes has the one in which it was made", () => {
  expect(readTwice(false)).toEqual(["2"]);
});
