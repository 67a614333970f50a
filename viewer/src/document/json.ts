/** A `.json` file of torchatlas -> a Document, as if it had been an `.atlas` file. docs/format.md describes the rows. */

import { Document, type Header, type Tables } from "./document";
import type { Column } from "./npy";
import { KINDS, PHASES, ROLES } from "./words";
import { DamagedFile } from "./zip";

type Row = Record<string, unknown>;
interface File extends Omit<Header, "tables" | "columns">, Omit<Tables, "arguments"> {
  nodes: Row[];
  edges: Row[];
  values: Row[];
  storages: Row[];
  calls: Row[];
  arguments: unknown[];
}

export function readJson(name: string, bytes: Uint8Array): Document {
  const file = parsed(name, bytes);
  const tables: Tables = { ...file, arguments: file.arguments.map((one) => JSON.stringify(one)) };
  const { format, version, source, notes, metadata, timing } = file;
  const header: Header = { format, version, source, notes, metadata, timing: timing ?? null, columns: [], tables };
  const known = new Map<string, unknown>([
    ["header.json", header],
    ["viewer/names.json", file.nodes.map((node) => node["name"])],
  ]);
  for (const [column, values] of Object.entries(columns(file, tables))) known.set(`columns/${column}.npy`, values);
  return new Document(name, new Map(), known);
}

function parsed(name: string, bytes: Uint8Array): File {
  let found: unknown;
  try {
    found = JSON.parse(new TextDecoder().decode(bytes));
  } catch (error) {
    throw new DamagedFile(`${name} is damaged, or no JSON: ${error instanceof Error ? error.message : ""}`);
  }
  const file = found as File;
  const lists = [
    "nodes",
    "edges",
    "values",
    "storages",
    "calls",
    "operations",
    "arguments",
    "layouts",
    "sources",
    "modules",
    "names",
    "threads",
    "devices",
  ] as const;
  if (typeof found !== "object" || !found || lists.some((list) => !Array.isArray(file[list])))
    throw new DamagedFile(`${name} is not a graph of torchatlas.`);
  return file;
}

/** The columns that the viewer reads. What a row lacks is unknown: -1. */
function columns(file: File, tables: Tables): Record<string, Column> {
  const { nodes, edges, values, storages, calls } = file;
  const whole = (rows: Row[], key: string) => Int32Array.from(rows, (row) => number(row[key]));
  const long = (rows: Row[], key: string) => Float64Array.from(rows, (row) => number(row[key]));
  const word = (rows: Row[], key: string, words: readonly string[]) =>
    Uint8Array.from(rows, (row) => Math.max(words.indexOf(String(row[key])), 0));
  // A table's row is named by its text, or by its number where an earlier row has the same text.
  const row = (rows: Row[], key: string, texts: string[]) => {
    const place = new Map(texts.map((text, i) => [text, i] as const).reverse());
    return Int32Array.from(rows, (one) =>
      typeof one[key] === "string" ? (place.get(one[key]) ?? -1) : number(one[key]),
    );
  };
  const lists = (key: string) =>
    nodes.map((node) => (Array.isArray(node[key]) ? (node[key] as (number | null)[]) : []));
  const inputs = lists("inputs"),
    outputs = lists("outputs");
  return {
    node_kind: word(nodes, "kind", KINDS),
    node_operation: row(
      nodes,
      "operation",
      tables.operations.map((one) => one.name),
    ),
    node_phase: word(nodes, "phase", PHASES),
    node_call: whole(nodes, "call"),
    node_source: whole(nodes, "source"),
    node_name: row(nodes, "given_name", tables.names),
    node_start_ns: long(nodes, "start_ns"),
    node_time_ns: long(nodes, "time_ns"),
    node_time_spread_ns: long(nodes, "time_spread_ns"),
    node_memory_bytes: long(nodes, "memory_bytes"),
    node_sequence_nr: long(nodes, "sequence_nr"),
    node_iteration: whole(nodes, "iteration"),
    node_thread: row(nodes, "thread", tables.threads),
    node_forward: whole(nodes, "forward"),
    input_ptr: starts(inputs),
    input_value: flat(inputs),
    output_ptr: starts(outputs),
    output_value: flat(outputs),
    value_storage: whole(values, "storage"),
    value_layout: whole(values, "layout"),
    value_producer: whole(values, "producer"),
    value_view_of: whole(values, "view_of"),
    value_role: word(values, "role", ROLES),
    value_parameter: row(values, "parameter", tables.names),
    storage_bytes: long(storages, "bytes"),
    storage_born: whole(storages, "born"),
    storage_died: whole(storages, "died"),
    storage_role: word(storages, "role", ROLES),
    edge_source: whole(edges, "source"),
    edge_target: whole(edges, "target"),
    edge_output_index: whole(edges, "output_index"),
    edge_input_index: whole(edges, "input_index"),
    edge_value: whole(edges, "value"),
    edge_kind: word(edges, "kind", ["data", "order"]),
    call_module: whole(calls, "module"),
    call_parent: whole(calls, "parent"),
    call_index: whole(calls, "index"),
  };
}

function number(value: unknown): number {
  return typeof value === "number" ? value : -1;
}

function flat(lists: (number | null)[][]): Int32Array {
  return Int32Array.from(lists.flat(), (one) => one ?? -1);
}

function starts(lists: unknown[][]): Int32Array {
  const found = new Int32Array(lists.length + 1);
  lists.forEach((list, i) => {
    found[i + 1] = found[i]! + list.length;
  });
  return found;
}
