/** What is typed into the search box -> the modules and ops that are meant.
 *
 * Words must all occur, anywhere: in the name, the operation, the module's class or path, a shape, a dtype, the source file.
 * `op:`, `module:`, `class:`, `shape:`, `dtype:`, `file:`, `phase:`, `name:` look in one place only; `/…/` is a regular
 * expression; `time > 1ms` compares a measure; `grad is nan` finds gradients that are not finite.
 *
 * Most of a node's texts are rows of tables that many nodes share. Each row is looked at once; for a node only its own
 * name is, which keeps every keystroke quick with 100,000 nodes.
 */

import { PHASES } from "../document/words";
import type { Graph } from "./graph";
import type { Measure } from "./measures";
import { type Field, type Part, partsOf, QueryError } from "./query";

export { QueryError } from "./query";

export interface Found {
  modules: number[]; // first call of each module that fits
  nodes: number[];
}

type Test = (node: number) => boolean;
type Words = Extract<Part, { kind: "words" }>;

const BYTES = { "": 1, b: 1, ...steps("", 1e3), ...steps("b", 1e3), ...steps("ib", 1024) };
const SCALES: Record<string, Record<string, number>> = {
  time: { "": 1, ns: 1, us: 1e3, µs: 1e3, μs: 1e3, ms: 1e6, s: 1e9, min: 60e9 },
  memory: BYTES,
  saved: BYTES,
  flops: { "": 1, flops: 1, ...steps("", 1e3), ...steps("flops", 1e3) },
};
const OTHER_NAMES: Record<string, string> = {
  grad: "gradient",
  bytes: "memory",
  mem: "memory",
  kept: "saved",
  flop: "flops",
};
const WHY_NOT: Record<string, string> = {
  time: "its ops were not timed",
  gradient: "gradients were not recorded",
  saved: "no tensors are kept for backward, or nobody asked",
  flops: "Python counts them, for a page or with “torchatlas view FILE”",
  intensity: "Python counts it, for a page or with “torchatlas view FILE”",
};

export function search(graph: Graph, measures: ReadonlyMap<string, Measure>, query: string): Found {
  const names = [...measures.values()].flatMap((one) => [one.name, one.title]);
  const parts = partsOf(query, [...names, ...Object.keys(OTHER_NAMES)]);
  if (!parts.length) return { modules: [], nodes: [] };
  const tests = parts.map((part) => testOf(graph, measures, part));
  const nodes: number[] = [];
  for (let node = 0; node < graph.count; node++) if (tests.every((test) => test(node))) nodes.push(node);
  const words = parts.filter((part): part is Words => part.kind === "words" && isOfModules(part.field));
  return { modules: words.length === parts.length ? modulesOf(graph, words) : [], nodes };
}

function testOf(graph: Graph, measures: ReadonlyMap<string, Measure>, part: Part): Test {
  switch (part.kind) {
    case "comparison":
      return comparison(measureNamed(measures, part.measure), part.sign, part.digits, part.unit);
    case "state":
      return isIn(measureNamed(measures, part.measure), part.not, part.state);
    case "words":
      return wordsTest(graph, part.field, matcher(part.text));
  }
}

// -- words -----------------------------------------------------------------------------------------------------------

/** Whether a text holds what is looked for; texts are given in small letters. */
type Matcher = (text: string) => boolean;

function matcher(text: string): Matcher {
  if (text.length > 2 && text.startsWith("/") && text.endsWith("/")) {
    try {
      const pattern = new RegExp(text.slice(1, -1), "i");
      return (where) => pattern.test(where);
    } catch (error) {
      throw new QueryError(`${text} is no regular expression: ${error instanceof Error ? error.message : ""}`);
    }
  }
  const words = text.toLowerCase(),
    shape = words.replace(/(\d)[x*](?=\d)/g, "$1×"); // 3x64 is how people type 3×64, but also part of names
  return shape === words ? (where) => where.includes(words) : (where) => where.includes(words) || where.includes(shape);
}

function wordsTest(graph: Graph, field: Field | null, fits: Matcher): Test {
  const { document, tables } = graph;
  const column = (name: string) => document.need(name);
  const matches = <Row>(rows: readonly Row[], text: (row: Row) => string) =>
    Uint8Array.from(rows, (row) => (fits(text(row).toLowerCase()) ? 1 : 0));
  const byOperation = (): Test => {
    const rows = matches(tables.operations, ({ name, type }) => `${name}\n${type}`);
    return (node) => rows[graph.operation[node]!] === 1;
  };
  const byModule = (text: (one: { path: string; type: string }) => string): Test => {
    const rows = matches(tables.modules, text);
    return (node) => {
      const call = graph.call[node]!; // asking an array for its row -1 is slow
      return call >= 0 && rows[graph.callModule[call]!] === 1;
    };
  };
  /** Over the values that a node reads or makes. */
  const byValue = (way: "input" | "output", rows: Uint8Array, of: string): Test => {
    const first = column(`${way}_ptr`),
      values = column(`${way}_value`),
      row = column(of);
    return (node) => {
      for (let at = first[node]!; at < first[node + 1]!; at++) {
        const own = values[at]! < 0 ? -1 : row[values[at]!]!;
        if (own >= 0 && rows[own] === 1) return true;
      }
      return false;
    };
  };
  const byLayout = (ways: readonly ("input" | "output")[], text: (row: number) => string): Test => {
    const rows = matches([...tables.layouts.keys()], text);
    return any(ways.map((way) => byValue(way, rows, "value_layout")));
  };
  const bySource = (): Test => {
    const rows = matches(tables.sources, (one) => `${one.file}:${one.line} ${one.function}`),
      source = column("node_source");
    return (node) => source[node]! >= 0 && rows[source[node]!] === 1;
  };
  const byName = (): Test => {
    const names = graph.keep("namesInSmallLetters", () =>
      Array.from({ length: graph.count }, (_, node) => graph.nodeName(node).toLowerCase()),
    );
    return (node) => fits(names[node]!);
  };
  const dtype = (row: number) => tables.layouts[row]!.dtype;
  switch (field) {
    case "op":
      return byOperation();
    case "module":
      return byModule((one) => one.path);
    case "class":
      return byModule((one) => one.type);
    case "shape":
      return byLayout(["output", "input"], (row) => graph.shapeOf(row));
    case "dtype":
      return byLayout(["output"], dtype);
    case "file":
      return bySource();
    case "phase": {
      const rows = matches(PHASES, (name) => name);
      return (node) => rows[graph.phase[node]!] === 1;
    }
    case "name":
      return byName();
  }
  // Shapes and dtypes of what a node makes only: what it reads others make.
  const parameters = matches(tables.names, (name) => name);
  return any([
    byOperation(),
    byModule(({ path, type }) => `${path}\n${type}`),
    byLayout(["output"], (row) => `${graph.shapeOf(row)}\n${dtype(row)}`),
    byValue("output", parameters, "value_parameter"),
    byValue("input", parameters, "value_parameter"),
    bySource(),
    byName(),
  ]);
}

function any(tests: Test[]): Test {
  return (node) => {
    for (const test of tests) if (test(node)) return true;
    return false;
  };
}

function isOfModules(field: Field | null): boolean {
  return field === null || field === "class" || field === "module";
}

/** The first call of each module whose path or class holds all words. */
function modulesOf(graph: Graph, words: Words[]): number[] {
  const fits = words.map(({ field, text }) => {
    const matches = matcher(text);
    return ({ path, type }: { path: string; type: string }) =>
      (field !== "class" && matches(path.toLowerCase())) || (field !== "module" && matches(type.toLowerCase()));
  });
  const seen = new Set<number>(),
    found: number[] = [];
  graph.callModule.forEach((module, call) => {
    if (seen.has(module)) return;
    seen.add(module);
    if (fits.every((matches) => matches(graph.tables.modules[module]!))) found.push(call);
  });
  return found;
}

// -- measures --------------------------------------------------------------------------------------------------------

function steps(unit: string, step: number): Record<string, number> {
  return Object.fromEntries([..."kmgtp"].map((prefix, i) => [prefix + unit, step ** (i + 1)]));
}

function measureNamed(measures: ReadonlyMap<string, Measure>, name: string): Measure {
  const wanted = OTHER_NAMES[name.toLowerCase()] ?? name.toLowerCase();
  const found = [...measures.values()].find(
    (one) => one.name.toLowerCase() === wanted || one.title.toLowerCase() === wanted,
  );
  if (found) return found;
  const why = WHY_NOT[wanted] ? `: ${WHY_NOT[wanted]}` : "";
  const others = [...measures.values()].map((one) => (one.name.startsWith("overlay:") ? one.title : one.name));
  throw new QueryError(`This graph has no ${name}${why}. It has: ${others.join(", ") || "no numbers"}.`);
}

function comparison(measure: Measure, sign: string, digits: string, unit: string): Test {
  const scales = SCALES[measure.name] ?? { "": 1 };
  const scale = scales[unit.toLowerCase()];
  if (scale === undefined) {
    const known = Object.keys(scales).filter(Boolean);
    throw new QueryError(`${unit} is no unit of ${measure.title}: try ${known.join(", ") || "a plain number"}.`);
  }
  const bound = Number(digits) * scale;
  if (Number.isNaN(bound)) throw new QueryError(`${digits} is no number.`);
  const { values, below } = measure;
  const value = (node: number) => (below ? values[node]! / below[node]! : values[node]!);
  switch (sign) {
    case ">":
      return (node) => value(node) > bound;
    case "<":
      return (node) => value(node) < bound;
    case ">=":
      return (node) => value(node) >= bound;
    case "<=":
      return (node) => value(node) <= bound;
    default:
      return (node) => value(node) === bound;
  }
}

function isIn({ values }: Measure, not: boolean, state: string): Test {
  const tests: Record<string, (value: number) => boolean> = {
    // A gradient that is not finite is kept as infinity; NaN means that there is none.
    nan: (value) => value === Number.POSITIVE_INFINITY,
    inf: (value) => value === Number.POSITIVE_INFINITY,
    finite: (value) => Number.isFinite(value),
    zero: (value) => value === 0,
  };
  return (node) => !Number.isNaN(values[node]!) && tests[state]!(values[node]!) !== not;
}
