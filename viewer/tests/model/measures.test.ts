import { describe, expect, test } from "vitest";
import { ItemValues, measuresOf } from "../../src/model/measures";
import { Outline } from "../../src/model/outline";
import { type Changes, perNode, smallGraph } from "../small_graph";

const NaNs = Number.NaN;

function valuesOf(name: string, changes: Changes) {
  const graph = smallGraph(changes);
  const outline = new Outline(graph);
  const measure = measuresOf(graph).get(name)!;
  const values = new ItemValues(outline, measure);
  const lanes = outline.children(outline.root, new Map());
  const net = outline.children(lanes[1]!, new Map())[0]!;
  const blocks = outline.children(net, new Map())[0]!;
  return { measure, values, outline, root: outline.root, net, blocks, backward: lanes[2]! };
}

describe("measures", () => {
  test("are those that the graph has numbers for", () => {
    expect([...measuresOf(smallGraph()).keys()]).toEqual(["time", "memory"]);
    const untimed = smallGraph({ columns: { node_time_ns: perNode(-1, {}) } });
    expect([...measuresOf(untimed).keys()]).toEqual(["memory"]);
    const all = smallGraph({
      columns: {
        "viewer/node_flops": perNode(-1, { 1: 36 }),
        "viewer/node_arithmetic": perNode(0, { 1: 36 }),
        "viewer/node_moved": perNode(0, { 1: 72 }),
        "viewer/node_gradient": perNode(NaNs, { 1: 0.5 }),
      },
      json: { "viewer/overlay.json": [{ title: "score", nodes: [[1, 3]], modules: [] }] },
    });
    expect([...measuresOf(all).keys()]).toEqual(["time", "memory", "flops", "intensity", "gradient", "overlay:score"]);
  });

  test("are sums over all rounds of a group, and unknown is not zero", () => {
    const { values, root, net, blocks, backward, outline } = valuesOf("time", {});
    expect(values.of(root)).toBe(3_002_200);
    expect(values.of(net)).toBe(3_002_200);
    expect(values.of(blocks)).toBe(3_001_200);
    expect(outline.rounds(blocks).map((item) => values.of(item))).toEqual([2_000_500, 1_000_700]);
    expect(values.of(backward)).toBeNaN();
  });

  test("of memory are what a node allocated, unknown if a size is", () => {
    expect(valuesOf("memory", {}).measure.values).toEqual(
      Float64Array.of(NaNs, 24, 24, 24, 24, 0, 4, 24, NaNs), // a view allocates nothing
    );
    const unknown = { columns: { storage_bytes: [24, 36, -1, 24, 36, 24, 24, 4, 24] } };
    expect(valuesOf("memory", unknown).measure.values[1]).toBeNaN();
  });

  test("of what is kept for backward count memory once, with who made it", () => {
    const kept = { json: { "viewer/saved.json": { 1: [7], 3: [7], 6: [7], 7: [7] } } }; // 7 is a view of 6, 1 a parameter
    expect(valuesOf("saved", kept).measure.values).toEqual(Float64Array.from(perNode(NaNs, { 2: 24, 4: 24 })));
  });

  test("of intensity divide sums, not add ratios", () => {
    const { values, blocks } = valuesOf("intensity", {
      columns: {
        "viewer/node_arithmetic": perNode(-1, { 1: 100, 2: 6, 3: 50 }),
        "viewer/node_moved": perNode(-1, { 1: 10, 2: 40, 3: 0 }),
      },
    });
    expect(values.of(blocks)).toBe(106 / 50); // node 3 moves nothing: it has no intensity
  });

  test("of gradients are the largest, and what is not finite wins", () => {
    const gradient = (one: number) => ({ columns: { "viewer/node_gradient": perNode(NaNs, { 1: 0.25, 3: one }) } });
    expect(valuesOf("gradient", gradient(0.5)).values.of(valuesOf("gradient", gradient(0.5)).blocks)).toBe(0.5);
    const { values, blocks, measure, backward } = valuesOf("gradient", gradient(Number.POSITIVE_INFINITY));
    expect(measure.format(values.of(blocks))).toBe("not finite");
    expect(values.of(backward)).toBeNaN();
  });
});

describe("numbers of one's own", () => {
  const overlay = (nodes: unknown[], modules: unknown[] = []) => ({
    json: { "viewer/overlay.json": [{ title: "score", nodes, modules }] },
  });

  test("that are not finite are no zeros", () => {
    const { measure } = valuesOf("overlay:score", overlay([[1, null], [2, -3]])); // biome-ignore format: one row
    expect([...measure.values.slice(0, 3)]).toEqual([NaNs, Number.POSITIVE_INFINITY, -3]);
  });

  test("of negative sign have a largest", () => {
    const { values, blocks } = valuesOf("overlay:score", overlay([[1, -5], [4, -2]])); // biome-ignore format: one row
    expect(values.of(blocks)).toBe(-2);
  });

  test("of modules are those of their boxes, and of the ops in them", () => {
    const { values, measure, net, blocks, outline } = valuesOf(
      "overlay:score",
      overlay([[2, 9]], [["blocks.0", 3], ["blocks.1.linear", 4], ["", 1]]), // biome-ignore format: one row
    );
    expect([...measure.values]).toEqual([NaNs, 3, 9, 4, 1, 1, 1, 1, NaNs]);
    expect(values.of(net)).toBe(1); // its own, though there are larger ones inside
    expect(outline.rounds(blocks).map((item) => values.of(item))).toEqual([3, 4]);
    expect(values.of(blocks)).toBe(4); // the larger of its rounds
  });
});
