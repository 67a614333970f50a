import { describe, expect, test } from "vitest";
import { measuresOf } from "../../src/model/measures";
import { QueryError, search } from "../../src/model/search";
import { type Changes, perNode, smallGraph } from "../small_graph";

const RICH: Changes = {
  columns: {
    "viewer/node_gradient": perNode(Number.NaN, { 1: 0, 3: Number.POSITIVE_INFINITY, 4: 0.5 }),
    "viewer/node_arithmetic": perNode(0, { 1: 100, 2: 6 }),
    "viewer/node_moved": perNode(0, { 1: 10, 2: 60 }),
  },
  json: {
    "viewer/saved.json": { 3: [7] },
    "viewer/names.json": ["x", "Block0.conv3x3", "b", "c", "d", "e", "f", "g", "output"],
    "viewer/overlay.json": [
      { title: "my score (v2)", nodes: [[5, -1.5], [6, 2]] }, // biome-ignore format: one row
      { title: "other", nodes: [[1, null], [2, 1]] }, // biome-ignore format: one row
    ],
  },
};

function find(query: string, changes: Changes = RICH) {
  const graph = smallGraph(changes);
  return search(graph, measuresOf(graph), query);
}

describe("the search box finds", () => {
  test.each<[string, number[]]>([
    ["", []],
    ["   ", []],
    ["RELU", [2, 4]],
    ["activation", [2, 4, 7]],
    ["relu blocks.1", [4]],
    ["op:relu", [2, 4]],
    ["op:blocks", []],
    ["class:linear", [1, 3]],
    ["Class:LINEAR", [1, 3]],
    ["module:blocks.1", [3, 4, 7]],
    ["name:output", [8]],
    ["phase:backward", [7]],
    ["dtype:float32", [0, 1, 2, 3, 4, 5, 6, 7]],
    ["file:net.py:8", [2, 4]],
    ["shape:3x3", [1, 3]], // of what is read
    ["2x3", [0, 1, 2, 3, 4, 7]], // of what is made
    ["2×3", [0, 1, 2, 3, 4, 7]],
    ["scalar", [6]],
    ["conv3x3", [1]], // an x in a name is an x
    ["blocks.0.linear.weight", [1]],
    ["/add(mm)?/", [1, 3]],
    ["/^g$/", [7]],
    ["op:/^aten.(sum|view)/", [5, 6]],
    ["/no such thing/", []],
    ["/src/net.py:20", [5, 6]], // a path is no regular expression
    ["/c/net.py", []],
    ["nothing:at-all", []],
    ["(", []],
  ])("for %j the nodes %j", (query, nodes) => {
    expect(find(query).nodes).toEqual(nodes);
  });

  test.each<[string, number[]]>([
    ["time > 1ms", [1]],
    ["time>=1ms", [1, 3]],
    ["time > 1 ms", [1]],
    ["time < 600", [2, 5]],
    ["time > 0.0005s relu", []],
    ["relu time > 600 ns", [4]],
    ["time = 500ns", [2]],
    ["time > 600 relu", [4]], // a word behind a number is a word
    ["memory > 0", [1, 2, 3, 4, 6, 7]],
    ["mem >= 24b", [1, 2, 3, 4, 7]],
    ["bytes < 1kib", [1, 2, 3, 4, 5, 6, 7]],
    ["intensity > 1", [1]],
    ["saved > 20 B", [2]],
    ["kept for backward > 1kb", []],
    ["kept >= 24", [2]],
    ["grad is nan", [3]],
    ["grad is not nan", [1, 4]],
    ["gradient is zero", [1]],
    ["gradient is finite blocks.1", [4]],
    ["my score (v2) > -2", [5, 6]],
    ["relu other > 0", [2]],
    ["other is nan", [1]],
    ["grad > 1e-1", [3, 4]],
  ])("for the measure in %j the nodes %j", (query, nodes) => {
    expect(find(query).nodes).toEqual(nodes);
  });

  test.each<[string, number[]]>([
    ["block", [1, 2, 3, 4]],
    ["class:block", [1, 3]],
    ["module:linear", [2, 4]],
    ["class:blocks", []], // that is a path
    ["blocks.1 linear", [4]],
    ["blocks op:relu", []], // no module is an op
    ["blocks time > 1", []],
  ])("for %j the calls of modules %j", (query, modules) => {
    expect(find(query).modules).toEqual(modules);
  });
});

describe("the search box says", () => {
  const untimed: Changes = { columns: { node_time_ns: perNode(-1, {}) } };
  test.each<[string, Changes, string]>([
    ["time > 1ms", untimed, "This graph has no time: its ops were not timed. It has: memory."],
    ["grad is nan", untimed, "This graph has no grad: gradients were not recorded. It has: memory."],
    [
      "beauty > 3",
      RICH,
      "This graph has no beauty. It has: time, memory, intensity, gradient, saved, my score (v2), other.",
    ],
    ["time > 1parsec", {}, "parsec is no unit of time: try ns, us"],
    ["other > 1ms", RICH, "ms is no unit of other: try a plain number."],
    ["time > 1.2.3", {}, "1.2.3 is no number."],
    ["time > ", {}, "compares a measure with a number"],
    ["/(/", {}, "/(/ is no regular expression"],
  ])("what is wrong with %j", (query, changes, message) => {
    expect(() => find(query, changes)).toThrow(QueryError);
    expect(() => find(query, changes)).toThrow(message);
  });
});
