import { expect, test, vi } from "vitest";
import { layoutScene } from "../../src/layout/layout";
import { options } from "./geometry";
import { allGroups, chain, type EdgeRow, HANDS_ON, makeOutline, randomNumbers } from "./outlines";
import { faultsOf } from "./verify";

vi.setConfig({ testTimeout: 60_000 }); // machines may be busy

const NONE = { overlaps: 0, outside: 0, slanted: 0, throughBoxes: 0, onEachOther: 0, missing: 0, labels: 0 };

test("an empty graph", () => {
  const outline = makeOutline([], []);
  for (const grouping of [true, false]) {
    expect(layoutScene(outline, options({ grouping }))).toMatchObject({
      width: 0,
      height: 0,
      frames: [],
      lines: [],
      labels: [],
    });
  }
});

test("one node, alone and reading itself", () => {
  for (const edges of [[], [[0, 0]]] as EdgeRow[][]) {
    const scene = layoutScene(makeOutline(["only"], edges), options());
    expect(scene.frames).toHaveLength(1);
    expect(scene.lines).toHaveLength(0);
    expect(scene.width).toBeGreaterThan(0);
  }
});

test("a group without children, and one whose leaves no item shows", () => {
  const outline = makeOutline([{ title: "empty", children: [] }, "a"], []);
  const scene = layoutScene(outline, options({ open: allGroups(outline) }));
  expect(scene.frames).toHaveLength(2);
  expect(faultsOf(scene, outline)).toEqual(NONE);
});

test("groups that wait for each other: the line that leads back is drawn too", () => {
  const outline = makeOutline(
    [
      { title: "A", children: ["a1", "a2"] },
      { title: "B", children: ["b1", "b2"] },
    ],
    [
      [0, 2],
      [2, 1],
      [1, 3],
    ],
  );
  for (const open of [new Set<string>(), allGroups(outline)]) {
    const scene = layoutScene(outline, options({ open }));
    expect(faultsOf(scene, outline)).toEqual(NONE);
    const between = scene.lines.map(({ source, target }) =>
      [source, target].map((at) => scene.frames[at]?.item.title ?? ""),
    );
    expect(between).toEqual(
      expect.arrayContaining([
        ["A", "B"],
        ["B", "A"],
      ]),
    );
  }
});

test("ops in a cycle", () => {
  const outline = makeOutline(
    ["a", "b", "c", "d"],
    [
      [0, 1],
      [1, 2],
      [2, 0],
      [3, 3],
      [2, 3],
      [3, 1],
    ],
  );
  const scene = layoutScene(outline, options());
  expect(scene.lines).toHaveLength(5);
  expect(faultsOf(scene, outline)).toEqual(NONE);
});

test("a repeat that hands nothing on though its flag says so, and rounds that read later ones", () => {
  const children = [{ title: "Block", repeat: 3, flags: HANDS_ON, children: ["a", "b"] }];
  for (const edges of [
    [[0, 1]],
    [
      [0, 1],
      [4, 0],
      [3, 1],
    ],
  ] as EdgeRow[][]) {
    const outline = makeOutline(children, edges);
    const scene = layoutScene(outline, options({ open: allGroups(outline) }));
    expect(scene.frames).toHaveLength(3);
    expect(scene.lines.filter((line) => !line.dashed)).toHaveLength(1);
  }
});

test("1,000 inputs of one box, and 1,000 outputs of one, share a trunk", () => {
  const many = 1000;
  const names = Array.from({ length: many }, (_, at) => `t${at}`);
  const into = makeOutline(
    [...names, "cat"],
    names.map((_, at): EdgeRow => [at, many]),
  );
  const out = makeOutline(
    ["split", ...names],
    names.map((_, at): EdgeRow => [0, at + 1, at]),
  );
  for (const outline of [into, out]) {
    const scene = layoutScene(outline, options());
    expect(faultsOf(scene, outline)).toEqual(NONE);
    expect(scene.lines).toHaveLength(many);
    expect(scene.width).toBeLessThan(2500);
  }
});

test("1,000 tensors that enter and leave an open group", () => {
  const many = 1000;
  const edges = Array.from({ length: many }, (_, at): EdgeRow[] => [
    [0, at + 1, at],
    [at + 1, many + 1],
  ]).flat();
  const outline = makeOutline(
    ["split", { title: "Heads", children: Array.from({ length: many }, (_, at) => `head${at}`) }, "cat"],
    edges,
  );
  const scene = layoutScene(outline, options({ open: allGroups(outline) }));
  expect(scene.frames).toHaveLength(many + 3);
  expect(scene.lines).toHaveLength(4 * many);
  const { overlaps, throughBoxes, missing } = faultsOf(scene, outline);
  expect({ overlaps, throughBoxes, missing }).toEqual({ overlaps: 0, throughBoxes: 0, missing: 0 });
});

test.each([
  ["in a row", chain(5000).edges],
  ["side by side", []],
  ["each reading the first", Array.from({ length: 4999 }, (_, at): EdgeRow => [0, at + 1])],
])("5,000 children %s", (_, edges) => {
  const outline = makeOutline(chain(5000).leaves, edges);
  const scene = layoutScene(outline, options());
  expect(scene.leftOut).toBe(0);
  expect(scene.lines).toHaveLength(edges.length);
  expect(faultsOf(scene, outline)).toEqual(NONE);
});

test("5,000 children in a row with long lines between them: the longest are left out, and counted", () => {
  const random = randomNumbers(3);
  const { leaves, edges } = chain(5000);
  for (let at = 0; at < 3000; at++) edges.push([Math.floor(random() * 1000), 4000 + Math.floor(random() * 1000), 1]);
  const scene = layoutScene(makeOutline(leaves, edges), options());
  expect(scene.leftOut).toBeGreaterThan(0);
  expect(scene.frames).toHaveLength(5000);
});

test("a title of 100,000 characters makes no box wider than others with long titles", () => {
  const scene = layoutScene(makeOutline(["x".repeat(100_000)], []), options());
  expect(scene.width).toBeLessThan(300);
});

test("groups 200 deep", () => {
  let inner: Parameters<typeof makeOutline>[0] = ["a", "b"];
  for (let depth = 0; depth < 200; depth++) inner = [{ title: `G${depth}`, children: inner }];
  const outline = makeOutline(inner, [[0, 1]]);
  const scene = layoutScene(outline, options({ open: allGroups(outline) }));
  expect(scene.frames).toHaveLength(202);
  expect(faultsOf(scene, outline)).toEqual(NONE);
});
