/** A Document from a stranger's file -> an error that names the first number that leads nowhere, or to where it came from.
 *
 * Everybody else here follows these numbers without looking. Python checks more (graph/consistency.py) before it writes a
 * page, so that only dropped files have to be checked here.
 */

import type { Document, Tables } from "./document";
import { DamagedFile } from "./zip";

type Count = "node" | "input" | "output" | "value" | "storage" | "edge" | "call";
type Limit = Count | keyof Tables | number;

/** Columns by what their rows are counted in, with the number of rows in what they point into. As graph/columns.py. */
const COLUMNS: Record<Count, Record<string, Limit>> = {
  node: {
    node_kind: 3,
    node_phase: 5,
    node_operation: "operations",
    node_call: "call",
    node_source: "sources",
    node_name: "names",
    node_thread: "threads",
    node_forward: "node",
    node_composites: "names",
    node_time_ns: Number.POSITIVE_INFINITY,
  },
  input: { input_value: "value" },
  output: { output_value: "value" },
  value: {
    value_producer: "node",
    value_storage: "storage",
    value_layout: "layouts",
    value_view_of: "value",
    value_parameter: "names",
    value_role: 8,
  },
  storage: { storage_bytes: Number.POSITIVE_INFINITY, storage_born: "node", storage_died: "node" },
  edge: { edge_source: "node", edge_target: "node", edge_value: "value" },
  call: { call_module: "modules", call_parent: "call" },
};
/** Rows of their own kind that come first: following them ends. */
const BACKWARD = ["call_parent", "value_view_of", "node_forward"];
const REQUIRED = ["node_operation", "input_value", "value_layout", "edge_source", "edge_target", "call_module"];

/** What every row of a table has. Other fields are nobody's business. */
const ROWS: Record<keyof Tables, Record<string, "string" | "number" | "list"> | "string"> = {
  operations: { name: "string", type: "string" },
  layouts: { shape: "list", dtype: "string", device: "string" },
  arguments: "string",
  sources: { file: "string", line: "number", function: "string" },
  modules: { path: "string", type: "string" },
  names: "string",
  threads: "string",
  devices: "string",
};

/** Check a document that was dropped or chosen. */
export function checkDocument(document: Document): void {
  checkTables(document);
  checkColumns(document);
}

function checkTables(document: Document): void {
  for (const [name, fields] of Object.entries(ROWS) as [keyof Tables, (typeof ROWS)[keyof Tables]][]) {
    const table: unknown = document.header.tables[name];
    if (!Array.isArray(table)) return damaged(document, `it has no table of ${name}`);
    const isFine = (row: unknown): boolean =>
      fields === "string"
        ? typeof row === "string"
        : typeof row === "object" &&
          row !== null &&
          Object.entries(fields).every(([field, kind]) => {
            const value = (row as Record<string, unknown>)[field];
            return kind === "list" ? Array.isArray(value) : typeof value === kind;
          });
    const bad = table.findIndex((row) => !isFine(row));
    if (bad >= 0) damaged(document, `${name}[${bad}] is not what such a row is`);
  }
}

function checkColumns(document: Document): void {
  const { tables } = document.header;
  const count = (unit: Count) => document.need(Object.keys(COLUMNS[unit])[0]!).length;
  const rowsOf = (limit: Limit) =>
    typeof limit === "number" ? limit : limit in COLUMNS ? count(limit as Count) : tables[limit as keyof Tables].length;
  for (const [unit, columns] of Object.entries(COLUMNS) as [Count, Record<string, Limit>][]) {
    const length = count(unit);
    for (const [name, limit] of Object.entries(columns)) {
      const column = document.column(name); // of a .json file, those that nobody reads are not made
      if (!column) continue;
      const most = rowsOf(limit),
        least = REQUIRED.includes(name) ? 0 : -1;
      if (column.length !== length) damaged(document, `${name} has ${column.length} rows, not ${length}`);
      const points = BACKWARD.includes(name);
      for (let row = 0; row < length; row++) {
        const number = column[row]!;
        if (!(number >= least && number < most) || (points && number >= row))
          damaged(document, `${name}[${row}] is ${number}`);
      }
    }
  }
  checkOrder(document);
}

/** Pointers divide inputs and outputs among the nodes, and no node reads what a later one makes. */
function checkOrder(document: Document): void {
  const nodes = document.need("node_kind").length;
  for (const unit of ["input", "output"] as const) {
    const first = document.need(`${unit}_ptr`);
    let isFine = first.length === nodes + 1 && first[0] === 0 && first[nodes] === document.need(`${unit}_value`).length;
    for (let node = 0; node < nodes; node++) isFine &&= first[node]! <= first[node + 1]!;
    if (!isFine) damaged(document, `${unit}_ptr does not divide the ${unit}s among the nodes`);
  }
  const first = document.need("input_ptr"),
    values = document.need("input_value"),
    producer = document.need("value_producer");
  for (let node = 0; node < nodes; node++) {
    for (let at = first[node]!; at < first[node + 1]!; at++) {
      const maker = producer[values[at]!]!;
      if (maker >= node) damaged(document, `op ${node} reads what op ${maker} makes, which does not run before it`);
    }
  }
  const source = document.need("edge_source"),
    target = document.need("edge_target");
  for (let edge = 0; edge < source.length; edge++)
    if (source[edge]! >= target[edge]!) damaged(document, `edge ${edge} points backward`);
}

function damaged(document: Document, what: string): never {
  throw new DamagedFile(`${document.name} is damaged: ${what}.`);
}
