/** What is typed into the search box -> the modules and ops that are meant.
 *
 * Words must all occur, anywhere: in the name, the operation, the module's class or path, a shape, a dtype, the source file.
 * `op:`, `module:`, `class:`, `shape:`, `dtype:`, `file:`, `phase:` look in one place only; `/…/` is a regular expression;
 * `time > 1ms` compares a measure; `grad is nan` finds gradients that are not finite.
 */

import type { Graph } from "./graph";
import type { Measure } from "./measures";

export interface Found {
  modules: number[]; // first call of each module that fits
  nodes: number[];
}

export class QueryError extends Error {}

type Test = (node: number) => boolean;
type Field = "op" | "module" | "class" | "shape" | "dtype" | "file" | "phase" | "name";
const FIELDS: readonly Field[] = ["op", "module", "class", "shape", "dtype", "file", "phase", "name"];
const COMPARISON = /^([a-z/ ]+?)\s*(>=|<=|>|<|=)\s*([\d.]+(?:e[+-]?\d+)?)\s*([a-z\u00b5]*)$/i;
const SCALES: Record<string, Record<string, number>> = {
  time: { "": 1, ns: 1, us: 1e3, µs: 1e3, ms: 1e6, s: 1e9 },
  memory: { "": 1, b: 1, kb: 1e3, mb: 1e6, gb: 1e9, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, k: 1e3, m: 1e6, g: 1e9 },
  flops: { "": 1, k: 1e3, m: 1e6, g: 1e9, t: 1e12, kflops: 1e3, mflops: 1e6, gflops: 1e9, tflops: 1e12 },
};
const OTHER_NAMES: Record<string, string> = { grad: "gradient", bytes: "memory", mem: "memory", flop: "flops" };

export function search(graph: Graph, measures: ReadonlyMap<string, Measure>, query: string): Found {
  const parts = split(query.trim());
  if (!parts.length) return { modules: [], nodes: [] };
  const tests = parts.map((part) => testOf(graph, measures, part));
  const nodes: number[] = [];
  for (let node = 0; node < graph.count; node++) if (tests.every((test) => test(node))) nodes.push(node);
  const words = parts.filter(
    (part) => !COMPARISON.test(part) && !part.includes(" is ") && !/^(?!class|module)[a-z]+:/.test(part),
  );
  const modules = words.length === parts.length ? modulesOf(graph, words) : [];
  return { modules, nodes };
}

/** Words, but "time > 1ms" and "grad is nan" are one part each. */
function split(query: string): string[] {
  const found: string[] = [];
  const pattern =
    /\/[^/]+\/|[a-z]+(?: is (?:not )?(?:nan|inf|finite|zero))|[a-z/]+\s*(?:>=|<=|>|<|=)\s*[\d.]+(?:e[+-]?\d+)?\s*[a-z\u00b5]*|\S+/gi;
  for (const match of query.matchAll(pattern)) found.push(match[0]);
  return found;
}

function testOf(graph: Graph, measures: ReadonlyMap<string, Measure>, part: string): Test {
  const compared = COMPARISON.exec(part);
  if (compared) return comparison(measures, compared[1]!.trim(), compared[2]!, compared[3]!, compared[4]!);
  const state = /^([a-z]+) is (not )?(nan|inf|finite|zero)$/i.exec(part);
  if (state) return isIn(measures, state[1]!, Boolean(state[2]), state[3]!.toLowerCase());
  const [field, text] = fieldOf(part);
  const fits = matcher(text);
  return (node) => fits(field ? textOf(graph, node, field) : allText(graph, node));
}

function fieldOf(part: string): [Field | null, string] {
  const colon = part.indexOf(":"),
    name = part.slice(0, colon).toLowerCase();
  return colon > 0 && (FIELDS as readonly string[]).includes(name)
    ? [name as Field, part.slice(colon + 1)]
    : [null, part];
}

function matcher(text: string): (where: string) => boolean {
  if (text.length > 2 && text.startsWith("/") && text.endsWith("/")) {
    try {
      const pattern = new RegExp(text.slice(1, -1), "i");
      return (where) => pattern.test(where);
    } catch (error) {
      throw new QueryError(`${text} is no regular expression: ${error instanceof Error ? error.message : ""}`);
    }
  }
  const words = text.toLowerCase().replace(/(\d)[x*](?=\d)/g, "$1×");
  return (where) => where.includes(words);
}

function textOf(graph: Graph, node: number, field: Field): string {
  switch (field) {
    case "op":
      return `${graph.operationName(node)} ${graph.category(node)}`.toLowerCase();
    case "module":
      return graph.modulePath(node).toLowerCase();
    case "class":
      return (graph.module(node)?.type ?? "").toLowerCase();
    case "shape":
      return [...graph.outputs(node), ...graph.inputs(node)].map((value) => graph.shape(value)).join(" ");
    case "dtype":
      return [...graph.outputs(node)].map((value) => graph.layout(value)?.dtype ?? "").join(" ");
    case "file":
      return sourceText(graph, node);
    case "phase":
      return graph.phaseName(node);
    case "name":
      return graph.nodeName(node).toLowerCase();
  }
}

/** Everything that words are looked for in. Shapes and dtypes of what a node makes only: what it reads others make. */
function allText(graph: Graph, node: number): string {
  const texts = graph.keep("searchTexts", () => new Array<string | undefined>(graph.count));
  texts[node] ??= [
    graph.nodeName(node),
    graph.operationName(node),
    graph.category(node),
    graph.modulePath(node),
    graph.module(node)?.type ?? "",
    ...[...graph.outputs(node)].flatMap((value) => [
      graph.shape(value),
      graph.layout(value)?.dtype ?? "",
      graph.parameterName(value),
    ]),
    ...[...graph.inputs(node)].map((value) => graph.parameterName(value)),
    sourceText(graph, node),
  ]
    .join("\n")
    .toLowerCase();
  return texts[node]!;
}

function sourceText(graph: Graph, node: number): string {
  const source = graph.source(node);
  return source ? `${source.file}:${source.line} ${source.function}`.toLowerCase() : "";
}

function comparison(
  measures: ReadonlyMap<string, Measure>,
  name: string,
  sign: string,
  digits: string,
  unit: string,
): Test {
  const measure = measureNamed(measures, name);
  const scale = (SCALES[measure.name] ?? { "": 1 })[unit.toLowerCase()];
  if (scale === undefined)
    throw new QueryError(
      `${unit} is no unit of ${name}: try ${
        Object.keys(SCALES[measure.name] ?? {})
          .filter(Boolean)
          .join(", ") || "a plain number"
      }.`,
    );
  const bound = Number(digits) * scale;
  const value = (node: number) =>
    measure.below ? measure.values[node]! / measure.below[node]! : measure.values[node]!;
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

function isIn(measures: ReadonlyMap<string, Measure>, name: string, not: boolean, state: string): Test {
  const { values } = measureNamed(measures, name);
  const tests: Record<string, (value: number) => boolean> = {
    // A gradient that is not finite is kept as infinity; NaN means that there is none.
    nan: (value) => value === Number.POSITIVE_INFINITY,
    inf: (value) => value === Number.POSITIVE_INFINITY,
    finite: (value) => Number.isFinite(value),
    zero: (value) => value === 0,
  };
  return (node) => !Number.isNaN(values[node]!) && tests[state]!(values[node]!) !== not;
}

function measureNamed(measures: ReadonlyMap<string, Measure>, name: string): Measure {
  const wanted = OTHER_NAMES[name.toLowerCase()] ?? name.toLowerCase();
  const found = measures.get(wanted) ?? [...measures.values()].find((one) => one.title.toLowerCase() === wanted);
  if (!found) throw new QueryError(`This graph has no ${name}. It has: ${[...measures.keys()].join(", ")}.`);
  return found;
}

/** The first call of each module whose path or class holds all words. */
function modulesOf(graph: Graph, words: string[]): number[] {
  const fits = words.map((word) => matcher(fieldOf(word)[1]));
  const seen = new Set<number>(),
    found: number[] = [];
  graph.callModule.forEach((module, call) => {
    if (seen.has(module)) return;
    seen.add(module);
    const { path, type } = graph.tables.modules[module]!;
    const text = `${path}\n${type}`.toLowerCase();
    if (fits.every((matches) => matches(text))) found.push(call);
  });
  return found;
}
