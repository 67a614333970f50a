/** Graph -> the tables of its ops and of its modules: columns of numbers and texts, sorted, filtered, copied. NaN is unknown. */

import { ROLES } from "../document/words";
import type { Graph } from "./graph";
import type { Measure } from "./measures";
import { formatBytes, formatCount, formatFlops, formatInteger, formatNumber, formatTime } from "./units";

export interface TextColumn {
  kind: "text";
  name: string; // heads the column of a copy
  title: string;
  text: (row: number) => string;
}
export interface NumberColumn {
  kind: "number";
  name: string; // with its unit
  title: string;
  hint: string;
  values: Float64Array;
  /** Whether more may be in it than is known. */
  atLeast?: Uint8Array;
  format: (value: number) => string;
  /** The values are shares of the largest possible one: a bar is drawn. */
  isShare?: boolean;
}
export type TableColumn = TextColumn | NumberColumn;

export interface Table {
  name: "modules" | "ops";
  count: number;
  columns: TableColumn[];
  /** What a row is about: a node, or a node of the module whose path this is. */
  node: (row: number) => number;
  path?: (row: number) => string;
}

// -- ops -----------------------------------------------------------------------------------------------------------

export function opsTable(graph: Graph, measures: Measures): Table {
  const nodes: number[] = [];
  for (let node = 0; node < graph.count; node++) if (graph.isOp(node)) nodes.push(node);
  const pick = (values: Float64Array, below?: Float64Array) => ({
    values: Float64Array.from(nodes, (node) => (below ? values[node]! / below[node]! : values[node]!)),
  });
  const measured = measuredOf(graph, measures, pick, pick(parametersTaken(graph)).values);
  return {
    name: "ops",
    count: nodes.length,
    columns: [
      { kind: "text", name: "name", title: "name", text: (row) => graph.nodeName(nodes[row]!) },
      { kind: "text", name: "operation", title: "op", text: (row) => graph.operationName(nodes[row]!) },
      { kind: "text", name: "phase", title: "phase", text: (row) => graph.phaseName(nodes[row]!) },
      ...measured,
      { kind: "text", name: "shape", title: "shape", text: (row) => shapeOf(graph, nodes[row]!) },
    ],
    node: (row) => nodes[row]!,
  };
}

/** How many elements the parameters have that each node takes, every one once; NaN where a size is symbolic. */
function parametersTaken(graph: Graph): Float64Array {
  const role = graph.document.need("value_role"),
    parameter = ROLES.indexOf("parameter");
  return Float64Array.from({ length: graph.count }, (_, node) => {
    let sum = 0;
    for (const value of new Set(graph.inputs(node))) {
      if (role[value] !== parameter) continue;
      sum += (graph.layout(value)?.shape ?? []).reduce<number>(
        (all, size) => all * (typeof size === "number" ? size : Number.NaN),
        1,
      );
    }
    return sum;
  });
}

/** The shape of the first tensor that an op makes. */
function shapeOf(graph: Graph, node: number): string {
  const value = graph.outputs(node).find((one) => one >= 0);
  return value === undefined ? "" : graph.shape(value);
}

// -- modules -------------------------------------------------------------------------------------------------------

/** One row per module path, with all that ran in it and below, as graph.scopes has it in Python. */
export function modulesTable(graph: Graph, measures: Measures): Table {
  const { paths, types, parents, ownRow } = modulePaths(graph);
  const firstNode = new Int32Array(paths.length).fill(-1),
    ops = new Float64Array(paths.length);
  /** Add up what nodes have, in their module and in all around it. */
  const sums = (values: Float64Array, below?: Float64Array) => {
    const sum = new Float64Array(paths.length),
      divisor = new Float64Array(paths.length),
      knowns = new Int32Array(paths.length),
      unknowns = new Uint8Array(paths.length);
    for (let node = 0; node < graph.count; node++) {
      if (!graph.isOp(node)) continue;
      const value = values[node]!;
      for (let row = ownRow[node]!; row >= 0; row = parents[row]!) {
        if (Number.isNaN(value)) unknowns[row] = 1;
        else {
          sum[row]! += value;
          knowns[row]!++;
          if (below) divisor[row]! += below[node]!;
        }
      }
    }
    return {
      values: sum.map((value, row) => (!knowns[row] ? Number.NaN : below ? value / divisor[row]! : value)),
      ...(below ? {} : { atLeast: unknowns }),
    };
  };
  for (let node = graph.count - 1; node >= 0; node--) {
    for (let row = ownRow[node]!; row >= 0; row = parents[row]!) {
      firstNode[row] = node;
      if (graph.isOp(node)) ops[row]!++;
    }
  }
  const columns: TableColumn[] = [
    { kind: "text", name: "module", title: "module", text: (row) => paths[row]! },
    { kind: "text", name: "class", title: "class", text: (row) => types[row]! },
    { kind: "number", name: "ops", title: "ops", hint: "ops in it and below", values: ops, format: formatInteger },
    ...measuredOf(graph, measures, sums, parametersOf(graph, paths)),
  ];
  return { name: "modules", count: paths.length, columns, node: (row) => firstNode[row]!, path: (row) => paths[row]! };
}

/** The distinct paths of modules, in order; which is around which; and the one that each node ran in (-1: none). */
function modulePaths(graph: Graph) {
  const paths: string[] = [],
    types: string[] = [],
    row = new Map<string, number>();
  const ofModule = graph.tables.modules.map(({ path, type }) => {
    if (!path) return -1;
    if (!row.has(path)) {
      row.set(path, paths.push(path) - 1);
      types.push(type);
    }
    return row.get(path)!;
  });
  const parents = Int32Array.from(paths, (path) => {
    for (let end = path.lastIndexOf("."); end > 0; end = path.lastIndexOf(".", end - 1)) {
      const found = row.get(path.slice(0, end));
      if (found !== undefined) return found;
    }
    return -1;
  });
  const ownRow = Int32Array.from(graph.call as ArrayLike<number>, (call) =>
    call < 0 ? -1 : ofModule[graph.callModule[call]!]!,
  );
  return { paths, types, parents, ownRow };
}

function parametersOf(graph: Graph, paths: string[]): Float64Array | null {
  const column = graph.document.column("viewer/module_parameters");
  if (!column) return null;
  const found = new Map<string, number>();
  graph.tables.modules.forEach(({ path }, i) => found.set(path, Math.max(found.get(path) ?? 0, column[i]!)));
  return Float64Array.from(paths, (path) => found.get(path) ?? Number.NaN);
}

// -- what both have ------------------------------------------------------------------------------------------------

type Measures = ReadonlyMap<string, Measure>;
type Rows = (values: Float64Array, below?: Float64Array) => { values: Float64Array; atLeast?: Uint8Array };

/** Time, share, FLOPs, memory and intensity; what the graph has no numbers for has no column. */
function measuredOf(
  graph: Graph,
  measures: Measures,
  rows: Rows,
  parameters: Float64Array | null = null,
): NumberColumn[] {
  const found: NumberColumn[] = [];
  const add = (name: string, column: Omit<NumberColumn, "kind" | "values" | "atLeast">) => {
    const measure = measures.get(name);
    if (measure) found.push({ kind: "number", ...column, ...rows(measure.values, measure.below) });
  };
  const what = graph.info.time ? ` (${graph.info.time})` : "";
  add("time", { name: "time_ns", title: "time", hint: `time${what}`, format: formatTime });
  const time = found[0];
  if (time) {
    let total = 0;
    for (const one of graph.time) total += Math.max(one, 0);
    const share = time.values.map((value) => (total ? value / total : Number.NaN));
    found.push({
      kind: "number",
      name: "share",
      title: "share",
      hint: "of the time of all ops",
      values: share,
      format: (value) => `${(100 * value).toFixed(1)} %`,
      isShare: true,
    });
  }
  add("flops", { name: "flops", title: "FLOPs", hint: "2 per multiply-add", format: formatFlops });
  if (parameters)
    found.push({
      kind: "number",
      name: "parameters",
      title: "parameters",
      hint: "elements of its parameters, each counted once",
      values: parameters,
      format: formatCount,
    });
  add("memory", { name: "allocated_bytes", title: "memory", hint: "bytes allocated", format: formatBytes });
  add("intensity", {
    name: "flops_per_byte",
    title: "FLOPs/B",
    hint: "arithmetic per byte moved",
    format: formatNumber,
  });
  return found;
}

// -- order, filter, copy -------------------------------------------------------------------------------------------

/** The rows that hold all words of a query in one of their texts, in order of a column. What is unknown comes last. */
export function orderedRows(table: Table, column: TableColumn, falling: boolean, query: string): Uint32Array {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = table.columns.filter((one): one is TextColumn => one.kind === "text");
  let rows = Uint32Array.from({ length: table.count }, (_, row) => row);
  if (words.length) {
    rows = rows.filter((row) => {
      const all = texts.map((one) => one.text(row).toLowerCase()).join("\n");
      return words.every((word) => all.includes(word));
    });
  }
  const sign = falling ? -1 : 1;
  if (column.kind === "text") {
    const text = Array.from({ length: table.count }, () => "");
    for (const row of rows) text[row] = column.text(row);
    return rows.sort((a, b) => (text[a]! < text[b]! ? -sign : text[a]! > text[b]! ? sign : a - b));
  }
  const { values } = column,
    unknown = falling ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
  const key = values.map((value) => (Number.isNaN(value) ? unknown : value));
  return rows.sort((a, b) => sign * (key[a]! - key[b]!)); // equal ones stay in order, unknown ones, too: NaN counts as 0
}

/** How a cell reads. */
export function cellText(column: TableColumn, row: number): string {
  if (column.kind === "text") return column.text(row);
  const value = column.values[row]!;
  return Number.isNaN(value) ? "–" : `${column.atLeast?.[row] ? "≥ " : ""}${column.format(value)}`;
}

/** Rows as text for a spreadsheet: plain numbers, unknown ones empty. */
export function delimited(table: Table, rows: Iterable<number>, separator: "," | "\t"): string {
  const cell = (text: string) =>
    separator === "\t"
      ? text.replaceAll(/[\t\r\n]/g, " ")
      : /[",\r\n]/.test(text)
        ? `"${text.replaceAll('"', '""')}"`
        : text;
  const lines = [table.columns.map((column) => cell(column.name)).join(separator)];
  for (const row of rows) {
    const cells = table.columns.map((column) => {
      if (column.kind === "text") return cell(column.text(row));
      const value = column.values[row]!;
      return Number.isNaN(value) ? "" : String(value);
    });
    lines.push(cells.join(separator));
  }
  return `${lines.join("\n")}\n`;
}
