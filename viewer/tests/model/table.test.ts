import { describe, expect, it } from "vitest";
import { measuresOf } from "../../src/model/measures";
import { rooflineOf } from "../../src/model/roofline";
import { cellText, delimited, modulesTable, type NumberColumn, opsTable, orderedRows } from "../../src/model/table";
import { graphOf } from "./graphs";

/** a: ops 0 and 1, a.b: op 2, none: op 3. The time of op 1 and the FLOPs of op 3 are unknown. */
const graph = graphOf({
  nodes: 4,
  columns: {
    node_call: [0, 0, 1, -1],
    call_module: [0, 1],
    call_parent: [-1, 0],
    node_time_ns: [10, -1, 60, 30],
    node_memory_bytes: [0, 0, 0, 0],
    storage_bytes: [16, -1],
    storage_born: [0, 1],
    storage_died: [-1, -1],
    storage_role: [4, 4],
    "viewer/node_flops": [4, 0, 8, -1],
    "viewer/node_arithmetic": [4, 0, 8, -1],
    "viewer/node_moved": [2, 2, 8, 4],
    "viewer/module_parameters": [5, 3],
  },
  tables: {
    modules: [
      { path: "a", type: "Net", kind: "module" },
      { path: "a.b", type: 'Lin,"ear', kind: "module" },
    ],
  },
});
const ops = opsTable(graph, measuresOf(graph)),
  modules = modulesTable(graph, measuresOf(graph));
const numbers = (table: typeof ops, name: string) => table.columns.find((one) => one.name === name) as NumberColumn;

describe("tables", () => {
  it("rolls modules up: what ran in one is the sum of its parts", () => {
    expect([...numbers(modules, "time_ns").values]).toEqual([70, 60]);
    expect([...numbers(modules, "ops").values]).toEqual([3, 1]);
    expect([...numbers(modules, "share").values]).toEqual([0.7, 0.6]);
    expect([...numbers(modules, "parameters").values]).toEqual([5, 3]);
    expect(numbers(modules, "flops_per_byte").values[0]).toBe(12 / 12);
  });

  it("marks sums in which something is unknown, and shows unknown as unknown", () => {
    expect(cellText(numbers(modules, "time_ns"), 0)).toBe("≥ 70 ns");
    expect(cellText(numbers(modules, "time_ns"), 1)).toBe("60 ns");
    expect(cellText(numbers(ops, "time_ns"), 1)).toBe("–");
    expect(numbers(ops, "flops_per_byte").values[2]).toBe(1);
  });

  it("does not take bytes that nobody knows for none", () => {
    expect(cellText(numbers(ops, "allocated_bytes"), 0)).toBe("16 B");
    expect(cellText(numbers(ops, "allocated_bytes"), 1)).toBe("–");
    expect(cellText(numbers(ops, "allocated_bytes"), 2)).toBe("0 B");
    expect(cellText(numbers(modules, "allocated_bytes"), 0)).toBe("≥ 16 B");
    const unfollowed = graphOf({ nodes: 2 });
    expect(numbers(opsTable(unfollowed, measuresOf(unfollowed)), "allocated_bytes")).toBeUndefined();
  });

  it("sorts with what is unknown last, whichever way", () => {
    const time = numbers(ops, "time_ns");
    expect([...orderedRows(ops, time, true, "")]).toEqual([2, 3, 0, 1]);
    expect([...orderedRows(ops, time, false, "")]).toEqual([0, 3, 2, 1]);
    expect([...orderedRows(ops, ops.columns[0]!, true, "")]).toEqual([3, 2, 1, 0]);
  });

  it("keeps the order of rows that are equal or unknown", () => {
    const many = graphOf({ nodes: 6, columns: { node_time_ns: [1, -1, 3, -1, 1, 2] } });
    const table = opsTable(many, measuresOf(many));
    expect([...orderedRows(table, numbers(table, "time_ns"), true, "")]).toEqual([2, 5, 0, 4, 1, 3]);
    expect([...orderedRows(table, numbers(table, "time_ns"), false, "")]).toEqual([0, 4, 5, 2, 1, 3]);
  });

  it("filters by all words, in any text", () => {
    expect([...orderedRows(ops, ops.columns[0]!, false, "ATEN n2")]).toEqual([2]);
    expect([...orderedRows(ops, ops.columns[0]!, false, "nothing")]).toEqual([]);
  });

  it("copies numbers as they are, unknown ones empty, and quotes what needs it", () => {
    const [head, , second] = delimited(modules, [0, 1], ",").split("\n");
    expect(head).toBe("module,class,ops,time_ns,share,flops,parameters,allocated_bytes,flops_per_byte");
    expect(second).toBe('a.b,"Lin,""ear",1,60,0.6,8,3,0,1');
    expect(delimited(ops, [1], "\t").split("\n")[1]!.split("\t")[3]).toBe("");
  });
});

describe("roofline", () => {
  it("has a dot for equal calls, and says what has none", () => {
    const found = rooflineOf(graph)!;
    expect(found).toMatchObject({ isTimed: true, idle: 1, unknown: 1, untimed: 0 });
    expect(found.dots.map((dot) => [dot.nodes, dot.intensity, dot.rate])).toEqual([
      [[2], 1, 8 / (60 / 1e9)],
      [[0], 2, 4 / (10 / 1e9)],
    ]);
  });

  it("lies on the roof where nothing was timed, and is absent without a device", () => {
    const columns = { "viewer/node_arithmetic": [4, 4], "viewer/node_moved": [2, 2] };
    expect(rooflineOf(graphOf({ nodes: 2, columns }))).toBeNull();
    const device = { name: "d", flops_per_second: 100, bytes_per_second: 10, basis: "" };
    const found = rooflineOf(graphOf({ nodes: 2, columns, info: { device } }))!;
    expect(found.dots).toMatchObject([{ nodes: [0, 1], rate: 20 }]);
  });
});
