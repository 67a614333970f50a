import { describe, expect, test } from "vitest";
import type { ChildRow } from "../../src/document/outline";
import { lastBefore, Outline, type Rounds } from "../../src/model/outline";
import { makeOutline, type Tree } from "../layout/outlines";
import { smallGraph } from "../small_graph";

const NONE: Rounds = new Map();
const keys = (items: { key: string }[]) => items.map((item) => item.key);

/** x, then three rounds of [a, two rounds of [b, c], d], then y: leaves 0, 1 to 18, 19. */
const INNER: Tree = { title: "inner", repeat: 2, children: ["b", "c"] };
const nested = () => makeOutline(["x", { title: "outer", repeat: 3, children: ["a", INNER, "d"] }, "y"], []);

describe("an outline with a repeat in a repeat", () => {
  test("shows one round of each, whose keys are where it lies", () => {
    const outline = nested();
    const [x, outer, y] = outline.children(outline.root, NONE);
    expect(keys([x!, outer!, y!])).toEqual(["0-1-1", "1-7-1", "19-20-1"]);
    expect([outer!.length, outer!.end, outer!.depth]).toEqual([6, 19, 1]);
    expect(keys(outline.children(outer!, NONE))).toEqual(["1-2-2", "2-4-2", "6-7-2"]);
    expect(keys(outline.children(outer!, new Map([["1-7-1", 2]])))).toEqual(["13-14-2", "14-16-2", "18-19-2"]);
    expect(keys(outline.children(x!, NONE))).toEqual([]);
  });

  test("makes items once, so that they can be keys", () => {
    const outline = nested();
    const outer = outline.children(outline.root, NONE)[1]!;
    expect(outline.children(outer, NONE)).toBe(outline.children(outer, NONE));
    const all: Rounds = new Map([["1-7-1", "all"]]);
    expect(outline.children(outline.root, all)[2]).toBe(outline.children(outline.root, all)[2]);
  });

  test("unfolded shows each round, with keys of their own, and as many as there are", () => {
    const outline = nested();
    const all: Rounds = new Map([
      ["1-7-1", "all"],
      ["8-10-2", "all"], // the inner repeat of the second round only
    ]);
    const shown = outline.children(outline.root, all);
    expect(keys(shown)).toEqual(["0-1-1", "1-7-1r", "7-13-1r", "13-19-1r", "19-20-1"]);
    expect(shown.map((item) => item.repeat)).toEqual([1, 1, 1, 1, 1]);
    expect(shown[1]!.subtitle).toBe("round 1 of 3");
    expect([shown[2]!.round, shown[2]!.folded]).toEqual([1, outline.children(outline.root, NONE)[1]]); // the way back
    expect(keys(outline.children(shown[1]!, all))).toEqual(["1-2-2", "2-4-2", "6-7-2"]);
    expect(keys(outline.children(shown[2]!, all))).toEqual(["7-8-2", "8-10-2r", "10-12-2r", "12-13-2"]);
  });

  test.each<[string, number, Rounds, string[]]>([
    ["in the first rounds", 3, NONE, ["1-7-1", "2-4-2", "3-4-3"]],
    ["in rounds that are not shown", 16, NONE, ["1-7-1", "2-4-2", "2-3-3"]],
    ["in the shown round", 16, new Map([["1-7-1", 2]]), ["1-7-1", "14-16-2", "14-15-3"]],
    ["in the second round of both", 11, new Map([["1-7-1", 1], ["8-10-2", 1]]), ["1-7-1", "8-10-2", "11-12-3"]], // biome-ignore format: one row
    ["in an unfolded round", 9, new Map([["1-7-1", "all"]]), ["7-13-1r", "8-10-2", "9-10-3"]],
    ["behind the repeat", 19, NONE, ["19-20-1"]],
    ["that is none", 20, NONE, []],
    ["before all", -1, NONE, []],
  ])("finds the way to a leaf %s", (_, leaf, rounds, way) => {
    const outline = nested();
    expect(keys(outline.around(leaf, rounds))).toEqual(way);
  });

  test("shows the last round if a link asks for one beyond it", () => {
    const outline = nested();
    const outer = outline.children(outline.root, NONE)[1]!;
    expect(outline.shownStart(outer, new Map([["1-7-1", 99]]))).toBe(13);
    expect(outline.shownStart(outer, new Map([["1-7-1", "all"]]))).toBe(1);
    expect(outline.shownStart(outline.root, new Map([[outline.root.key, 5]]))).toBe(0);
  });
});

test("a leaf that repeats can be unfolded, but has nothing inside", () => {
  const outline = makeOutline([{ title: "adds", children: ["a", "a", "a"] }], []);
  const row: ChildRow = ["leaf", 0, 1, 3, -1, 0, -1, -1, -1, -1, -1, 2];
  outline.table.templates[outline.table.templates[0]![0]![4]] = [row];
  const [group] = outline.children(outline.root, NONE);
  const [leaf] = outline.children(group!, NONE);
  expect([leaf!.isLeaf, leaf!.repeat, leaf!.end, leaf!.handsOn]).toEqual([true, 3, 3, true]);
  expect(outline.children(leaf!, NONE)).toEqual([]);
  const rounds = outline.children(group!, new Map([["0-1-2", "all"]]));
  expect(keys(rounds)).toEqual(["0-1-2r", "1-2-2r", "2-3-2r"]);
  expect(rounds.map((one) => one.handsOn)).toEqual([false, false, false]);
  expect(keys(outline.around(2, NONE))).toEqual(["0-3-1", "0-1-2"]);
});

describe("the outline of a plain file", () => {
  const outline = new Outline(smallGraph());
  const lanes = outline.children(outline.root, NONE);
  const net = outline.children(lanes[1]!, NONE)[0]!;
  const [blocks, view] = outline.children(net, NONE);

  test("has lanes, module calls and equal neighbours folded", () => {
    expect(lanes.map((item) => [item.kind, item.title])).toEqual([
      ["leaf", "x"],
      ["lane", "forward"],
      ["lane", "backward"],
    ]);
    expect([lanes[0]!.isMarker, net.title, net.level]).toEqual([true, "Net", 0]);
    expect([blocks!.type, blocks!.repeat, blocks!.length, blocks!.level]).toEqual(["Block", 2, 2, 1]);
    expect([view!.title, view!.subtitle]).toEqual(["view", "6"]);
    expect(outline.children(blocks!, NONE).map((item) => item.title)).toEqual(["Linear", "relu"]);
  });

  test("knows the module of each round, and names rounds by it", () => {
    const linear = outline.children(blocks!, NONE)[0]!;
    expect(outline.path(linear, NONE)).toBe("blocks.0.linear");
    expect([outline.path(net, NONE), outline.call(net, NONE)]).toEqual(["", 0]);
    expect(outline.path(blocks!, NONE)).toBe("blocks.0");
    expect(outline.path(blocks!, new Map([[blocks!.key, 1]]))).toBe("blocks.1");
    expect(outline.rounds(blocks!).map((item) => item.name)).toEqual(["blocks.0", "blocks.1"]);
    expect([outline.path(view!, NONE), outline.call(view!, NONE)]).toEqual(["", -1]);
  });

  test("knows the nodes of an item, in all its rounds", () => {
    expect(outline.nodes(blocks!)).toEqual([1, 2, 3, 4]);
    expect(outline.nodes(outline.rounds(blocks!)[1]!)).toEqual([3, 4]);
  });

  test("shows of a box the first output that was not None", () => {
    const none = smallGraph({ columns: { output_value: [0, 2, 3, 5, 6, 7, 8, -1, 9] } });
    const plain = new Outline(none);
    expect(plain.around(plain.nodeLeaf[7]!, NONE).at(-1)!.subtitle).toBe("2×3");
  });

  test("has its lines in order of the leaves that they enter", () => {
    const { edges } = outline.table;
    expect([...edges.target]).toEqual([...edges.target].sort((a, b) => a - b));
    for (let leaf = 0; leaf < 9; leaf++)
      for (let edge = edges.first[leaf]!; edge < edges.first[leaf + 1]!; edge++) expect(edges.target[edge]).toBe(leaf);
    expect(edges.source.length).toBe(8); // without the edge of order
  });

  test("is open from the outside in", () => {
    expect(outline.table.open[0]).toEqual([1, 8, 1]);
    const open = outline.table.open.map(([start, stop, depth]) => `${start}-${stop}-${depth}`);
    expect(open).toContain(blocks!.key);
  });

  test("is refused nothing when there is nothing", () => {
    const nothing = new Outline(makeEmpty());
    expect(nothing.children(nothing.root, NONE)).toEqual([]);
    expect(nothing.around(0, NONE)).toEqual([]);
  });
});

function makeEmpty() {
  const none: Record<string, number[]> = {};
  for (const name of ["kind", "phase", "operation", "call", "source", "name", "thread", "forward", "time_ns"])
    none[`node_${name}`] = [];
  for (const name of ["source", "target", "value", "output_index", "input_index", "kind"]) none[`edge_${name}`] = [];
  return smallGraph({ columns: { ...none, input_ptr: [0], output_ptr: [0] } });
}

test("an outline that Python wrote is taken as it is", () => {
  const leaf = (start: number): ChildRow => ["leaf", start, start + 1, 1, -1, 0, -1, 1, 0, -1, -1, 4];
  const table = { templates: [[leaf(0), leaf(1)]], root: 0, texts: ["relu", "heading"], classes: ["ReLU"], open: [] };
  const outline = new Outline(
    smallGraph({
      json: { "viewer/outline.json": table },
      columns: { "viewer/leaf_node": [1, 4], "viewer/node_leaf": [-1, 0, -1, 0, 1, -1, -1, -1, -1] },
    }),
  );
  const [, second] = outline.children(outline.root, NONE);
  expect(second).toMatchObject({ title: "relu", subtitle: "", heading: "heading", type: "ReLU", isMarker: true });
  expect(outline.nodes(outline.root)).toEqual([1, 3, 4]); // nodes without a box are no one's
  expect([...outline.table.edges.first]).toEqual([0, 0, 0]);
});

test("the last item that begins at or before a leaf is found", () => {
  const items = nested().children(nested().root, NONE);
  expect([-1, 0, 1, 18, 19, 99].map((leaf) => lastBefore(items, leaf))).toEqual([-1, 0, 1, 1, 2, 2]);
});
