import { describe, expect, test } from "vitest";
import { checkDocument } from "../../src/document/check";
import { readJson } from "../../src/document/json";
import { DamagedFile } from "../../src/document/zip";
import { Graph } from "../../src/model/graph";

/** docs/format.md's example, with a None among the outputs and two operations of one name. */
const file = () => ({
  format: "torchatlas",
  version: 2,
  source: "run",
  notes: [],
  metadata: {},
  nodes: [
    {
      id: 0,
      name: "x",
      kind: "input",
      operation: "input",
      phase: "forward",
      inputs: [],
      outputs: [0],
      given_name: "x",
    },
    {
      id: 1,
      name: "act.relu",
      kind: "op",
      operation: 2,
      phase: "backward",
      inputs: [0],
      outputs: [null, 1],
      call: 0,
      source: 0,
      time_ns: 5300,
      thread: "b",
    },
  ] as Record<string, unknown>[],
  edges: [{ source: 0, target: 1, kind: "data", output_index: 0, input_index: 0, value: 0 }],
  values: [
    { id: 0, layout: 0, role: "input", storage: 0, producer: 0 },
    { id: 1, layout: 0, role: "optimizer state", storage: 1, producer: 1, parameter: "x" },
  ] as Record<string, unknown>[],
  storages: [
    { id: 0, role: "input", bytes: 24 },
    { id: 1, role: "activation", bytes: 2 ** 40, born: 1 },
  ],
  calls: [{ id: 0, module: 0, index: 0 }],
  operations: [
    { name: "input", type: "unknown" },
    { name: "relu", type: "view" },
    { name: "relu", type: "activation" },
  ],
  arguments: [[[], {}]],
  layouts: [{ shape: [2, "s0"], stride: null, dtype: "float32", device: "cpu", kind: "strided" }],
  sources: [{ file: "model.py", line: 7, function: "forward", text: "" }],
  modules: [{ path: "act", type: "ReLU", kind: "module" }],
  names: ["x"],
  threads: ["a", "b"],
  devices: ["cpu"],
});
const read = (value: unknown) => readJson("g.json", new TextEncoder().encode(JSON.stringify(value)));

describe("a .json file", () => {
  test("becomes the graph that it describes", () => {
    const document = read(file());
    checkDocument(document);
    const graph = new Graph(document);
    expect(graph.nodeName(1)).toBe("act.relu");
    expect([graph.category(1), graph.phaseName(1), graph.thread(1)]).toEqual(["activation", "backward", "b"]);
    expect([graph.isOp(0), graph.isOp(1)]).toEqual([false, true]);
    expect([graph.timeOf(0), graph.timeOf(1)]).toEqual([undefined, 5300]);
    expect([...graph.outputs(1)]).toEqual([-1, 1]);
    expect([graph.shape(1), graph.role(1), graph.parameterName(1)]).toEqual(["2×s0", "optimizer state", "x"]);
    expect(graph.storageBytes(graph.storage(1))).toBe(2 ** 40);
    expect([graph.modulePath(0), graph.modulePath(1)]).toEqual(["", "act"]);
    expect([...graph.after(0)]).toEqual([1]);
  });

  test("names the first of equal rows by its text", () => {
    const named = file();
    named.nodes[1]!["operation"] = "relu";
    expect(new Graph(read(named)).category(1)).toBe("view");
  });

  test("of a newer version is told as such, whatever its lists are", () => {
    expect(() => read({ format: "torchatlas", version: 9 })).toThrow("g.json was written by a newer torchatlas");
  });

  type File = ReturnType<typeof file>;
  test.each<[string, (broken: File) => unknown, string]>([
    ["a number", () => 3, "not a graph of torchatlas"],
    ["null", () => null, "not a graph of torchatlas"],
    ["a list less", ({ calls, ...rest }) => rest, "no list of calls"],
    ["a row that is no object", (one) => ({ ...one, edges: [null] }), "edges[0] is no object"],
    ["an unknown phase", (one) => set(one.nodes[1]!, "phase", "sideways", one), 'phase of row 1 is "sideways"'],
    ["no kind", (one) => set(one.nodes[0]!, "kind", undefined, one), "kind of row 0 is undefined"],
    ["an unknown thread", (one) => set(one.nodes[1]!, "thread", "c", one), 'thread of row 1 is "c"'],
    ["half a call", (one) => set(one.nodes[1]!, "call", 0.5, one), "call of row 1 is 0.5"],
    ["a call of 33 bits", (one) => set(one.nodes[1]!, "call", 2 ** 32, one), "call of row 1 is 4294967296"],
    ["a text for a time", (one) => set(one.nodes[1]!, "time_ns", "5", one), 'time_ns of row 1 is "5"'],
    ["a text among inputs", (one) => set(one.nodes[1]!, "inputs", ["0"], one), 'inputs of row 1 is "0"'],
    ["inputs that are no list", (one) => set(one.nodes[1]!, "inputs", 0, one), "inputs of row 1 is 0"],
  ])("with %s is refused", (_, broken, message) => {
    expect(() => read(broken(file()))).toThrow(DamagedFile);
    expect(() => read(broken(file()))).toThrow(message);
  });

  test("that is cut off is refused", () => {
    expect(() => readJson("g.json", new TextEncoder().encode('{"format": '))).toThrow("g.json is damaged, or no JSON");
  });
});

function set<T>(row: Record<string, unknown>, key: string, value: unknown, whole: T): T {
  row[key] = value;
  return whole;
}
