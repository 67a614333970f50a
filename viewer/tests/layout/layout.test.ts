import { describe, expect, test, vi } from "vitest";
import { layoutScene } from "../../src/layout/layout";
import type { Scene } from "../../src/layout/scene";
import type { Outline } from "../../src/model/outline";
import { GEOMETRY, options } from "./geometry";
import { allGroups, chain, type EdgeRow, HANDS_ON, makeOutline, randomNumbers, type Tree } from "./outlines";
import { faultsOf } from "./verify";

vi.setConfig({ testTimeout: 60_000 }); // machines may be busy

const NONE = { overlaps: 0, outside: 0, slanted: 0, throughBoxes: 0, onEachOther: 0, missing: 0, labels: 0 };

const residual = () =>
  makeOutline(
    ["x", { title: "Block", children: ["norm", "up", "relu", "down", "add"] }, "head"],
    [
      [0, 1],
      [1, 2],
      [2, 3],
      [3, 4],
      [4, 5],
      [0, 5],
      [5, 6],
    ],
  );

/** A block three times in a row, each reading the one before. */
const tower = () =>
  makeOutline(
    ["x", { title: "Block", repeat: 3, flags: HANDS_ON, children: ["up", "down", "add"] }, "head"],
    [
      [0, 1],
      [1, 2],
      [2, 3],
      [0, 3],
      [3, 4],
      [4, 5],
      [5, 6],
      [3, 6],
      [6, 7],
      [7, 8],
      [8, 9],
      [6, 9],
      [9, 10],
    ],
  );

const step = () =>
  makeOutline(
    [
      "x",
      { title: "forward", kind: "lane", children: ["mm", "relu"] },
      { title: "backward", kind: "lane", children: ["relu_backward", "mm_backward"] },
      { title: "optimizer", kind: "lane", children: ["add", "mul"] },
    ],
    [
      [0, 1],
      [1, 2],
      [3, 4],
      [5, 6],
    ],
    [
      [1, 3],
      [1, 4],
      [2, 3],
      [4, 5],
      [1, 6],
    ],
  );

function frame(scene: Scene, title: string) {
  const found = scene.frames.find(({ item }) => item.title === title);
  if (!found) throw new Error(`no box ${title}`);
  return found;
}

const titleAt = (scene: Scene, number: number) => scene.frames[number]?.item.title ?? "border";
const ends = (scene: Scene) =>
  scene.lines.map(({ source, target }) => `${titleAt(scene, source)} > ${titleAt(scene, target)}`);

describe("one group", () => {
  test("closed boxes stand below each other, joined by straight lines", () => {
    const scene = layoutScene(residual(), options());
    expect(ends(scene)).toEqual(["x > Block", "Block > head"]);
    expect(scene.lines.every(({ points }) => points.length === 4)).toBe(true);
    expect(frame(scene, "x").y).toBeLessThan(frame(scene, "Block").y);
    expect(frame(scene, "Block").y).toBeLessThan(frame(scene, "head").y);
  });

  test("an open group: lines enter at its top, go on below its heading, and leave at its bottom", () => {
    const outline = residual();
    const scene = layoutScene(outline, options({ open: allGroups(outline) }));
    expect(faultsOf(scene, outline)).toEqual(NONE);
    const block = frame(scene, "Block");
    const line = (text: string) => scene.lines[ends(scene).indexOf(text)]!;
    expect(line("x > Block").points.at(-1)).toBe(block.y);
    expect(line("border > norm").points[1]).toBe(block.y + GEOMETRY.heading);
    expect(line("border > norm").points[0]).toBe(line("x > Block").points.at(-2));
    expect(line("add > border").points.at(-1)).toBe(block.y + block.height);
    expect(line("add > border").arrow).toBe(false);
    expect(line("Block > head").points[0]).toBe(line("add > border").points.at(-2));
  });

  test("one tensor is one net at all depths, and its lines share a trunk", () => {
    const outline = residual();
    const scene = layoutScene(outline, options({ open: allGroups(outline) }));
    const nets = scene.lines
      .filter((_, at) => /^(x|border) > /.test(ends(scene)[at]!))
      .map(({ net, points }) => [net, points[0]]);
    expect(nets).toHaveLength(3);
    expect(new Set(nets.map(String)).size).toBe(1);
  });

  test("labels tell the shape where it changes, beside a line of the tensor", () => {
    const outline = residual();
    const scene = layoutScene(outline, options({ open: allGroups(outline) }));
    expect(scene.labels.map(({ text }) => text)).toContain("1×64");
    for (const label of scene.labels) {
      const lines = scene.lines.filter(({ net }) => net === label.net);
      const near = lines.some(({ points }) => points.some((x, at) => at % 2 === 0 && Math.abs(x - label.x) < 120));
      expect(near).toBe(true);
    }
  });
});

describe("repeats", () => {
  test("show one round, with a dashed line from its end back to its heading", () => {
    const outline = tower();
    const scene = layoutScene(outline, options({ open: allGroups(outline) }));
    expect(faultsOf(scene, outline)).toEqual(NONE);
    expect(scene.frames.filter(({ item }) => item.title === "add")).toHaveLength(1);
    const dashed = scene.lines.filter((line) => line.dashed);
    expect(dashed).toHaveLength(1);
    expect(dashed[0]!.arrow).toBe(true);
    expect(dashed[0]!.points.at(-1)).toBe(frame(scene, "Block").y + GEOMETRY.heading);
    expect(ends(scene)).toContain("Block > head"); // what the last round makes, drawn as what the first does
  });

  test("another round lies where the first does, and shows its own values", () => {
    const outline = tower();
    const first = layoutScene(outline, options({ open: allGroups(outline) }));
    const block = outline.children(outline.root, new Map())[1]!;
    const third = layoutScene(outline, options({ open: allGroups(outline), rounds: new Map([[block.key, 2]]) }));
    const places = (scene: Scene) => scene.frames.map(({ x, y, width, height }) => [x, y, width, height]);
    expect(places(third)).toEqual(places(first));
    expect(third.lines.map(({ points }) => points)).toEqual(first.lines.map(({ points }) => points));
    const value = (scene: Scene) => scene.lines[ends(scene).indexOf("up > down")]!.value;
    expect([value(first), value(third)]).toEqual([1, 7]);
  });

  test("unfolded, every round is a box of its own that reads the one before", () => {
    const outline = tower();
    const block = outline.children(outline.root, new Map())[1]!;
    const rounds = new Map([[block.key, "all" as const]]);
    const open = new Set(outline.rounds(block).map(({ key }) => key));
    const scene = layoutScene(outline, options({ open, rounds }));
    expect(scene.frames.filter(({ item }) => item.title === "add")).toHaveLength(3);
    expect(scene.lines.some((line) => line.dashed)).toBe(false);
    expect(ends(scene).filter((text) => text === "Block > Block")).toHaveLength(2);
    expect(faultsOf(scene, outline, rounds)).toEqual(NONE);
  });
});

describe("repeats in repeats", () => {
  /** Two stages of three blocks: a stage is 1 + 3 * 2 leaves. */
  const nested = () => {
    const edges: EdgeRow[] = chain(16).edges;
    return makeOutline(
      [
        "x",
        {
          title: "Stage",
          repeat: 2,
          flags: HANDS_ON,
          children: ["down", { title: "Block", repeat: 3, flags: HANDS_ON, children: ["a", "b"] }],
        },
        "head",
      ],
      edges,
    );
  };

  test("each shows the round that was chosen, or all", () => {
    const outline = nested();
    const stage = outline.children(outline.root, new Map())[1]!;
    const second = new Map<string, number | "all">([[stage.key, 1]]);
    const block = outline.children(stage, second)[1]!;
    expect(block.start).toBe(9);
    const open = new Set([stage.key, block.key]);
    const shown = (rounds: Map<string, number | "all">) => {
      const scene = layoutScene(
        outline,
        options({ open: new Set([...open, ...outline.rounds(block).map(({ key }) => key)]), rounds }),
      );
      return scene.frames.filter(({ item }) => item.isLeaf).map(({ item }) => item.start);
    };
    expect(shown(second)).toEqual([0, 8, 9, 10, 15]);
    expect(shown(new Map([...second, [block.key, 2]]))).toEqual([0, 8, 13, 14, 15]);
    expect(shown(new Map([...second, [block.key, "all"]]))).toEqual([0, 8, 9, 10, 11, 12, 13, 14, 15]);
  });

  test("have lines from box to box in every round", () => {
    const outline = nested();
    const stage = outline.children(outline.root, new Map())[1]!;
    const second = new Map<string, number | "all">([[stage.key, 1]]);
    const block = outline.children(stage, second)[1]!;
    const rounds = new Map<string, number | "all">([...second, [block.key, "all"]]);
    const open = new Set([stage.key, ...outline.rounds(block).map(({ key }) => key)]);
    const scene = layoutScene(outline, options({ open, rounds }));
    expect(ends(scene).filter((text) => text === "Block > Block")).toHaveLength(2);
    expect(ends(scene)).toEqual(
      expect.arrayContaining(["x > Stage", "border > down", "down > Block", "a > b", "Block > border", "Stage > head"]),
    );
    const values = scene.lines.filter((_, at) => ends(scene)[at] === "a > b").map(({ value }) => value);
    expect(values).toEqual([9, 11, 13]);
  });
});

describe("lanes", () => {
  test("stand side by side, with one line for what one takes from another", () => {
    const outline = step();
    const scene = layoutScene(outline, options({ open: allGroups(outline) }));
    expect(faultsOf(scene, outline)).toEqual(NONE);
    const lanes = ["forward", "backward", "optimizer"].map((title) => frame(scene, title));
    expect(new Set(lanes.map(({ y }) => y)).size).toBe(1);
    expect(lanes[0]!.x + lanes[0]!.width).toBeLessThan(lanes[1]!.x);
    expect(lanes[1]!.x + lanes[1]!.width).toBeLessThan(lanes[2]!.x);
    const bundles = scene.lines
      .filter(({ net }) => net < 0)
      .map(({ source, target, many }) => [titleAt(scene, source), titleAt(scene, target), many]);
    expect(bundles).toEqual([
      ["forward", "backward", 2],
      ["backward", "optimizer", 1],
      ["forward", "optimizer", 1],
    ]);
    expect(scene.labels.map(({ text }) => text)).toEqual(expect.arrayContaining(["2 tensors", "1 tensor"]));
  });

  test("that are hidden are left out, with their lines", () => {
    const scene = layoutScene(step(), options({ hidden: new Set(["backward"]) }));
    expect(scene.frames.map(({ item }) => item.title)).toEqual(["x", "forward", "optimizer"]);
    expect(ends(scene)).toEqual(["x > forward", "forward > optimizer"]);
  });
});

describe("iterations", () => {
  test("have one line for what one takes from those before, also a repeat of several", () => {
    const iteration = (title: string, repeat = 1): Tree => ({
      title,
      kind: "iteration",
      repeat,
      children: ["forward", "update"],
    });
    const rounds: Tree = { title: "rounds", kind: "loop", repeat: 2, children: [iteration("a"), iteration("b")] };
    const outline = makeOutline(
      [iteration("first", 3), iteration("odd"), rounds],
      [],
      [
        [1, 6],
        [1, 7],
        [7, 8],
      ],
    );
    const scene = layoutScene(outline, options({ open: allGroups(outline) }));
    expect(faultsOf(scene, outline)).toEqual(NONE);
    expect(ends(scene)).toEqual(["first > odd", "odd > rounds"]);
    expect(frame(scene, "odd").y).toBeGreaterThan(frame(scene, "first").y + frame(scene, "first").height);
  });
});

describe("ways to look at it", () => {
  test("to the right, lines run from left to right and headings stay on top", () => {
    const outline = residual();
    const scene = layoutScene(outline, options({ open: allGroups(outline), direction: "right" }));
    expect(faultsOf(scene, outline)).toEqual(NONE);
    expect(frame(scene, "x").x).toBeLessThan(frame(scene, "Block").x);
    expect(frame(scene, "norm").y).toBeGreaterThanOrEqual(frame(scene, "Block").y + GEOMETRY.heading);
    expect(frame(scene, "x").width).toBeGreaterThan(frame(scene, "x").height);
    const [startX, , endX] = scene.lines[ends(scene).indexOf("x > Block")]!.points;
    expect(endX).toBeGreaterThan(startX!);
  });

  test("without grouping, all ops of all rounds are drawn, up to a limit that is named", () => {
    const scene = layoutScene(tower(), options({ grouping: false }));
    expect(scene.frames).toHaveLength(11);
    expect(scene.lines).toHaveLength(13);
    const { leaves, edges } = chain(2001);
    expect(() => layoutScene(makeOutline(leaves, edges), options({ grouping: false }))).toThrow(/at most 2,000 ops/);
  });

  test("a rank that is far too wide goes into several rows", () => {
    const leaves = ["x", ...Array.from({ length: 60 }, (_, at) => `branch${at}`), "cat"];
    const edges = leaves.slice(1, -1).flatMap((_, at): EdgeRow[] => [
      [0, at + 1],
      [at + 1, 61],
    ]);
    const outline = makeOutline(leaves, edges);
    const scene = layoutScene(outline, options());
    expect(scene.width).toBeLessThan(2000);
    expect(new Set(scene.frames.map(({ y }) => y)).size).toBeGreaterThan(4);
    expect(faultsOf(scene, outline)).toEqual(NONE);
  });
});

describe("long chains", () => {
  /** A group of a hundred ops, with skips, that reads two tensors from outside and hands two back. */
  const long = (skips: (at: number) => EdgeRow[]) => {
    const { leaves, edges } = chain(100, 2);
    const inner: EdgeRow[] = edges.flatMap((edge, at) => [edge, ...skips(at + 2)]);
    return makeOutline(
      ["x", "mask", { title: "Deep", children: leaves }, "head"],
      [[0, 2], [1, 2], [1, 60], [1, 101], ...inner, [101, 102], [40, 102]],
    );
  };

  test.each(["down", "right"] as const)("go into columns, and every line is drawn (%s)", (direction) => {
    const outline = long((at) => (at % 9 === 0 && at + 4 < 102 ? [[at, at + 4]] : []));
    const scene = layoutScene(outline, options({ open: allGroups(outline), direction }));
    expect(faultsOf(scene, outline)).toEqual(NONE);
    const deep = frame(scene, "Deep");
    expect(direction === "down" ? deep.height : deep.width).toBeLessThan(direction === "down" ? 2000 : 5000);
    const places = scene.frames.filter(({ item }) => /^op/.test(item.title)).map(({ y }) => y);
    if (direction === "down") expect(places.filter((y, at) => y < (places[at - 1] ?? 0)).length).toBeGreaterThan(2);
  });

  test("stay one column where many lines would pass from one to the next", () => {
    const outline = long((at) => (at < 20 ? [[at, 101 - at]] : []));
    const scene = layoutScene(outline, options({ open: allGroups(outline) }));
    expect(faultsOf(scene, outline)).toEqual(NONE);
    expect(frame(scene, "Deep").height).toBeGreaterThan(4000);
  });
});

describe("what is kept", () => {
  /** A model of many equal blocks that were not folded. */
  const blocks = (count: number): Outline => {
    const size = 5;
    const trees: Tree[] = Array.from({ length: count }, () => ({
      title: "Block",
      children: ["a", "b", "c", "d", "add"],
    }));
    const edges: EdgeRow[] = [];
    for (let start = 0; start < count * size; start += size) {
      if (start) edges.push([start - 1, start], [start - 1, start + 4]);
      edges.push([start, start + 1], [start + 1, start + 2], [start + 2, start + 3], [start + 3, start + 4]);
    }
    return makeOutline(trees, edges);
  };

  test("equal blocks are laid out alike, and opening one leaves the others as they are", () => {
    const outline = blocks(40);
    const open = allGroups(outline);
    const scene = layoutScene(outline, options({ open }));
    expect(faultsOf(scene, outline)).toEqual({ ...NONE, labels: expect.any(Number) });
    const insides = scene.frames.map((one, at) =>
      one.open ? scene.frames.slice(at + 1, at + 6).map(({ x, y }) => [x - one.x, y - one.y]) : null,
    );
    const shapes = new Set(
      insides
        .filter(Boolean)
        .slice(1, -1)
        .map((places) => JSON.stringify(places)),
    );
    expect(shapes.size).toBeLessThan(6); // labels of different widths make some boxes differ
  });

  test("the same state gives the same scene, in any order of asking", () => {
    const outline = blocks(6);
    const open = allGroups(outline);
    const base = options();
    const before = layoutScene(outline, { ...base, open });
    layoutScene(outline, { ...base, open: new Set() });
    const after = layoutScene(outline, { ...base, open });
    expect(after.frames).toEqual(before.frames);
    expect(after.lines).toEqual(before.lines);
    expect(after.labels).toEqual(before.labels);
  });
});

describe("any graph", () => {
  /** Groups within groups, with edges from anywhere before to anywhere after. */
  const randomOutline = (seed: number): Outline => {
    const random = randomNumbers(seed);
    let leaves = 0;
    const trees = (depth: number): Tree[] =>
      Array.from({ length: 2 + Math.floor(random() * 5) }, () => {
        if (depth < 3 && random() < 0.4) return { title: `Group${leaves}`, children: trees(depth + 1) };
        return `op${leaves++}`;
      });
    const tree = trees(0);
    const edges = new Map<string, EdgeRow>();
    for (let target = 1; target < leaves; target++) {
      const many = 1 + Math.floor(random() * 2.2);
      for (let at = 0; at < many; at++) {
        const source = Math.max(0, target - 1 - Math.floor(random() * random() * 8));
        const output = Math.floor(random() * 2);
        edges.set(`${source} ${target} ${output}`, [source, target, output]);
      }
    }
    return makeOutline(tree, [...edges.values()]);
  };

  test.each(["down", "right"] as const)("is drawn without faults (%s)", (direction) => {
    for (let seed = 1; seed <= 60; seed++) {
      const outline = randomOutline(seed);
      for (const open of [new Set<string>(), allGroups(outline)]) {
        expect({ seed, ...faultsOf(layoutScene(outline, options({ open, direction })), outline) }).toEqual({
          seed,
          ...NONE,
        });
      }
    }
  });
});
