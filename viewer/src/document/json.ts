/** A `.json` file of torchatlas -> a Document, as if it had been an `.atlas` file. docs/format.md describes the rows. */

import { checkFormat, Document, type Header, type Tables } from "./document";
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
  const names = file.nodes.map((node) => node["name"]);
  const known = new Map<string, unknown>([["header.json", header]]);
  if (names.every((one) => typeof one === "string")) known.set("viewer/names.json", names);
  for (const [column, values] of Object.entries(columns(name, file, tables)))
    known.set(`columns/${column}.npy`, values);
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
  checkFormat(name, file as unknown as Header); // before all else: a newer version may have other lists
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
  const lacks = lists.find((list) => !Array.isArray(file[list]));
  if (lacks) throw new DamagedFile(`${name} is damaged: it has no list of ${lacks}.`);
  for (const list of ["nodes", "edges", "values", "storages", "calls"] as const) {
    const row = file[list].findIndex((one) => typeof one !== "object" || !one);
    if (row >= 0) throw new DamagedFile(`${name} is damaged: ${list}[${row}] is no object.`);
  }
  return file;
}

/** The columns that the viewer reads. What a row lacks is unknown: -1. */
function columns(fileName: string, file: File, tables: Tables): Record<string, Column> {
  const { nodes, edges, values, storages, calls } = file;
  const damaged = (key: string, at: number, value: unknown): never => {
    throw new DamagedFile(`${fileName} is damaged: ${key} of row ${at} is ${JSON.stringify(value)}.`);
  };
  const long = (rows: Row[], key: string) =>
    Float64Array.from(rows, (row, at) => {
      const value = row[key] ?? -1;
      return typeof value === "number" ? value : damaged(key, at, value);
    });
  // A typed array would cut off what is no whole number of 32 bits, and make another number of it.
  const whole = (value: unknown, key: string, at: number): number =>
    typeof value === "number" && (value | 0) === value ? value : damaged(key, at, value);
  const short = (rows: Row[], key: string) => Int32Array.from(rows, (row, at) => whole(row[key] ?? -1, key, at));
  const word = (rows: Row[], key: string, words: readonly string[]) =>
    Uint8Array.from(rows, (row, at) => {
      const place = words.indexOf(row[key] as string);
      return place < 0 ? damaged(key, at, row[key]) : place;
    });
  // A table's row is named by its text, or by its number where an earlier row has the same text.
  const row = (rows: Row[], key: string, texts: string[]) => {
    const place = new Map(texts.map((text, i) => [text, i] as const).reverse());
    return Int32Array.from(rows, (one, at) => {
      const value = one[key] ?? -1;
      return typeof value === "string" ? (place.get(value) ?? damaged(key, at, value)) : whole(value, key, at);
    });
  };
  const lists = (key: string) =>
    nodes.map((node, at) => {
      const list = node[key] ?? [];
      return Array.isArray(list) ? list.map((one) => whole(one ?? -1, key, at)) : damaged(key, at, list);
    });
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
    node_call: short(nodes, "call"),
    node_source: short(nodes, "source"),
    node_name: row(nodes, "given_name", tables.names),
    node_start_ns: long(nodes, "start_ns"),
    node_time_ns: long(nodes, "time_ns"),
    node_time_spread_ns: long(nodes, "time_spread_ns"),
    node_memory_bytes: long(nodes, "memory_bytes"),
    node_sequence_nr: long(nodes, "sequence_nr"),
    node_iteration: short(nodes, "iteration"),
    node_thread: row(nodes, "thread", tables.threads),
    node_forward: short(nodes, "forward"),
    node_composites: row(nodes, "composites", tables.names),
    input_ptr: starts(inputs),
    input_value: Int32Array.from(inputs.flat()),
    output_ptr: starts(outputs),
    output_value: Int32Array.from(outputs.flat()),
    value_storage: short(values, "storage"),
    value_layout: short(values, "layout"),
    value_producer: short(values, "producer"),
    value_view_of: short(values, "view_of"),
    value_role: word(values, "role", ROLES),
    value_parameter: row(values, "parameter", tables.names),
    storage_bytes: long(storages, "bytes"),
    storage_born: short(storages, "born"),
    storage_died: short(storages, "died"),
    storage_role: word(storages, "role", ROLES),
    edge_source: short(edges, "source"),
    edge_target: short(edges, "target"),
    edge_output_index: short(edges, "output_index"),
    edge_input_index: short(edges, "input_index"),
    edge_value: short(edges, "value"),
    edge_kind: word(edges, "kind", ["data", "order"]),
    call_module: short(calls, "module"),
    call_parent: short(calls, "parent"),
    call_index: short(calls, "index"),
  };
}

function starts(lists: unknown[][]): Int32Array {
  const found = new Int32Array(lists.length + 1);
  lists.forEach((list, i) => {
    found[i + 1] = found[i]! + list.length;
  });
  return found;
}
