import { describe, expect, test } from "vitest";
import { checkDocument } from "../../src/document/check";
import { Document } from "../../src/document/document";

/** x -> relu -> add(x): three nodes, two values, one module that is called in another. */
function small(changes: Record<string, number[]> = {}, tablesChange: Record<string, unknown> = {}): Document {
  const columns: Record<string, number[]> = {
    node_kind: [0, 1, 1],
    node_phase: [0, 0, 0],
    node_operation: [0, 1, 1],
    node_call: [-1, 0, 1],
    node_source: [-1, -1, -1],
    node_arguments: [-1, 0, 0],
    node_name: [0, -1, -1],
    node_thread: [0, 0, 0],
    node_forward: [-1, -1, -1],
    node_time_ns: [-1, 5, 7],
    input_ptr: [0, 0, 1, 3],
    output_ptr: [0, 1, 2, 2],
    input_value: [0, 0, 1],
    output_value: [0, 1],
    value_producer: [0, 1],
    value_storage: [0, 1],
    value_layout: [0, 0],
    value_view_of: [-1, -1],
    value_parameter: [-1, -1],
    value_role: [0, 4],
    storage_bytes: [4, 4],
    storage_born: [-1, 1],
    storage_died: [-1, 2],
    edge_source: [0, 0, 1],
    edge_target: [1, 2, 2],
    edge_value: [0, 0, 1],
    call_module: [0, 1],
    call_parent: [-1, 0],
    ...changes,
  };
  const row = { name: "", type: "", parameters: [], path: "", kind: "", shape: [], dtype: "", device: "" };
  const tables = { operations: [row, row], layouts: [row], arguments: [""], sources: [], modules: [row, row] };
  const header = {
    format: "torchatlas",
    version: 1,
    tables: { ...tables, names: ["x"], threads: ["main"], devices: [], ...tablesChange },
  };
  const known = new Map<string, unknown>([["header.json", header]]);
  for (const [name, numbers] of Object.entries(columns)) known.set(`columns/${name}.npy`, Float64Array.from(numbers));
  return new Document("small.atlas", new Map(), known);
}

test.each([
  ["no list", { names: {} }, "it has no table of names"],
  ["missing", { layouts: undefined }, "it has no table of layouts"],
  ["of rows without a field", { modules: [{ path: "" }, { path: "" }] }, "modules[0] is not what such a row is"],
  ["of a row that is nothing", { operations: [{ name: "", type: "" }, null] }, "operations[1] is not"],
  ["of layouts without sizes", { layouts: [{ shape: 3, dtype: "", device: "" }] }, "layouts[0] is not"],
  ["of numbers for names", { names: [3] }, "names[0] is not"],
])("a table of a stranger that is %s is refused", (_, change, message) => {
  expect(() => checkDocument(small({}, change))).toThrow(`small.atlas is damaged: ${message}`);
});

describe("the columns of a stranger", () => {
  test("are accepted when every number leads somewhere", () => {
    expect(() => checkDocument(small())).not.toThrow();
  });

  test.each([
    ["a row that is not there", { node_operation: [0, 1, 2] }, "node_operation[2] is 2"],
    ["a negative number that is not -1", { node_call: [-2, 0, 0] }, "node_call[0] is -2"],
    ["none where there must be one", { value_layout: [0, -1] }, "value_layout[1] is -1"],
    ["a number that is none", { value_storage: [0, Number.NaN] }, "value_storage[1] is NaN"],
    ["a column that is too short", { node_phase: [0, 0] }, "node_phase has 2 rows, not 3"],
    ["a call within itself", { call_parent: [-1, 1] }, "call_parent[1] is 1"],
    ["a view of a later value", { value_view_of: [1, -1] }, "value_view_of[0] is 1"],
    ["inputs that run backward", { input_ptr: [0, 2, 1, 3] }, "input_ptr does not divide"],
    ["inputs beyond the last", { input_ptr: [0, 0, 1, 4] }, "input_ptr does not divide"],
    ["an op that reads what it makes", { input_value: [1, 0, 1] }, "op 1 reads what op 1 makes"],
    ["an edge that points backward", { edge_source: [0, 2, 1] }, "edge 1 points backward"],
  ] as [string, Record<string, number[]>, string][])("are refused for %s", (_, changes, message) => {
    expect(() => checkDocument(small(changes))).toThrow(`small.atlas is damaged: ${message}`);
  });
});
