import { describe, expect, test } from "vitest";
import { Graph, gathered, known, rowOf } from "../../src/model/graph";
import { smallDocument, smallGraph } from "../small_graph";

const graph = smallGraph();

describe("a graph", () => {
  test("names its ops, and inputs by what they are called", () => {
    expect([0, 1, 8].map((node) => graph.shortOperation(node))).toEqual(["x", "addmm", "output"]);
    expect([0, 1].map((node) => graph.nodeName(node))).toEqual(["x", "blocks.0.linear.aten.addmm.default (1)"]);
    expect(smallGraph({ json: { "viewer/names.json": ["a", "b"] } }).nodeName(1)).toBe("b");
  });

  test.each([
    ["category", graph.category(1), "matmul"],
    ["phase", graph.phaseName(7), "backward"],
    ["module", graph.modulePath(1), "blocks.0.linear"],
    ["no module", graph.module(0), undefined],
    ["thread", graph.thread(7), "autograd"],
    ["source", graph.source(2)?.line, 8],
    ["no source", graph.source(7), undefined],
    ["time", graph.timeOf(2), 500],
    ["no time", graph.timeOf(7), undefined],
    ["forward op", graph.forwardOf(7), 4],
    ["no forward op", graph.forwardOf(4), undefined],
    ["shape", graph.shape(0), "2×3"],
    ["shape of a scalar", graph.shape(8), "scalar"],
    ["role", graph.role(9), "gradient"],
    ["parameter", graph.parameterName(4), "blocks.1.linear.weight"],
    ["producer", graph.producer(2), 1],
    ["no producer", graph.producer(1), undefined],
    ["bytes", graph.storageBytes(graph.storage(1)), 36],
  ])("knows of a node or value its %s", (_, found, expected) => {
    expect(found).toBe(expected);
  });

  test("has outputs that were None, and says nothing of them", () => {
    expect([...graph.outputs(7)]).toEqual([9, -1]);
    expect([graph.shape(-1), graph.role(-1), graph.parameterName(-1)]).toEqual(["", "", ""]);
    expect([graph.layout(-1), graph.producer(-1)]).toEqual([undefined, undefined]);
    expect([...graph.readers(-1)]).toEqual([]);
  });

  test("tells neighbours along data edges only, and readers once each", () => {
    expect([...graph.inputs(1)]).toEqual([0, 1]);
    expect([...graph.after(4)]).toEqual([5]); // 4 -> 7 is an edge of order
    expect([...graph.before(7)]).toEqual([6]);
    expect([...graph.after(8)]).toEqual([]);
    expect([...graph.backwardOf(4)]).toEqual([7]);
    expect([...graph.readers(8)]).toEqual([7, 8]);
    const twice = smallGraph({ columns: { input_value: [0, 0, 2, 3, 4, 5, 6, 7, 8, 8] } });
    expect([...twice.readers(0)]).toEqual([1]);
  });

  test("counts for itself what a plain file does not tell", () => {
    expect(graph.info).toMatchObject({ title: "small.atlas", notes: ["a note"], failed: null });
    expect(graph.info.totals).toMatchObject({ ops: 7, time_ns: 3_002_200, flops: null });
    expect(smallGraph({ columns: { node_time_ns: Array(9).fill(-1) } }).info.totals.time_ns).toBeNull();
    const stored = { title: "GPT-2", totals: {} };
    expect(smallGraph({ json: { "viewer/info.json": stored } }).info).toBe(stored);
  });

  test("computes once what it keeps", () => {
    let times = 0;
    const make = () => ++times;
    expect([graph.keep("k", make), graph.keep("k", make)]).toEqual([1, 1]);
  });

  test("without a column that every graph has is refused", () => {
    const document = smallDocument();
    const lacking = Object.create(document, {
      need: { value: (name: string) => document.need(name === "call_parent" ? "call_grandparent" : name) },
    });
    expect(() => new Graph(lacking)).toThrow("lacks the column call_grandparent");
  });
});

test("numbers are gathered by owner, in order, without those of nobody", () => {
  const rows = gathered(Int32Array.of(2, -1, 0, 2), Int32Array.of(10, 11, 12, 13), 3);
  expect([0, 1, 2].map((owner) => [...rowOf(rows, owner)])).toEqual([[12], [], [10, 13]]);
});

test("what is negative or no number is unknown, zero is not", () => {
  const column = Float64Array.of(-1, Number.NaN, 0, 5);
  expect([0, 1, 2, 3].map((row) => known(column, row))).toEqual([undefined, undefined, 0, 5]);
});
