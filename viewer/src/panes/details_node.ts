/** All that is known of one op. */

import type { App } from "../app";
import { ONLY_HERE } from "../model/alignment";
import { followed } from "../model/relations";
import { formatBytes, formatFlops, formatInteger, formatNumber, formatTime } from "../model/units";
import type { Selection } from "../state/store";
import { h } from "./dom";
import { copyButtons, facts, histogram, type Statistics } from "./facts";
import { roundButtons } from "./rounds";

const MOST = 12; // tensors and readers that are listed

export function aboutNode(app: App, node: number): (HTMLElement | null)[] {
  const { graph } = app,
    name = graph.nodeName(node),
    measured = measures(app, node);
  const iteration = graph.iteration(node),
    item = app.itemOf({ kind: "node", node }),
    isOp = graph.isOp(node);
  return [
    h("h2", {}, isOp ? "selected op" : `selected ${graph.kind[node] === 0 ? "input" : "output"}`),
    h("h3", {}, name),
    isOp
      ? h(
          "p",
          { class: "soft" },
          [
            graph.operationName(node),
            graph.category(node),
            graph.phaseName(node),
            iteration > 0 ? `iteration ${iteration}` : "",
          ]
            .filter(Boolean)
            .join(" · "),
        )
      : null,
    graph.info.failed?.node === node ? h("p", { class: "alert" }, graph.info.failed.message) : null,
    difference(app, node),
    relationButtons(app),
    item ? roundButtons(app, item) : null,
    facts([
      ["takes", tensors(app, graph.inputs(node))],
      ["makes", tensors(app, graph.outputs(node))],
      ...measured,
      ["module", moduleLink(app, node)],
      ["called by", graph.composites(node)],
      ["thread", graph.tables.threads.length > 1 ? graph.thread(node) : ""],
      ["gradient", gradientLinks(app, node)],
      ["last read by", lastReader(app, node)],
      ["kept for", keptFor(app, node)],
    ]),
    code(app, node),
    attributes(app, node),
    ...statistics(app, node),
    readers(app, node),
    copyButtons(`graph[${JSON.stringify(name)}]`, () => asJson(app, node)),
  ];
}

const RELATIONS = [
  ["tensor", "follow its tensors", "mark all that read what it makes, also through views (t)"],
  ["ancestors", "what it needs", "mark all that it depends on (a)"],
  ["descendants", "what needs it", "mark all that depends on it (d)"],
] as const;

/** Buttons that mark what has to do with the selection. */
export function relationButtons(app: App): HTMLElement {
  const { selection } = app.state,
    hasGradient = selection?.kind === "node" && gradientsOf(app, selection.node).length > 0;
  return h(
    "div",
    { class: "buttons" },
    ...RELATIONS.map(([relation, words, title]) =>
      h(
        "button",
        {
          title,
          "aria-pressed": String(app.state.relation === relation),
          onclick: () => app.store.update({ relation: app.state.relation === relation ? "none" : relation }),
        },
        words,
      ),
    ),
    hasGradient
      ? h(
          "button",
          { title: "from an op to its gradient and back (g)", onclick: () => jumpToGradient(app) },
          "gradient",
        )
      : null,
  );
}

/** The backward ops of a forward op, or the forward op of a backward one. Those that compute come before views. */
export function gradientsOf(app: App, node: number): number[] {
  const { graph } = app,
    forward = graph.forwardOf(node);
  if (forward !== undefined) return [forward];
  const found = [...graph.backwardOf(node)],
    isView = (one: number) => graph.category(one) === "view";
  return [...found.filter((one) => !isView(one)), ...found.filter(isView)];
}

export function jumpToGradient(app: App): void {
  const { selection } = app.state;
  const other = selection?.kind === "node" ? gradientsOf(app, selection.node)[0] : undefined;
  if (other !== undefined) app.select({ kind: "node", node: other }, { fly: true });
}

export function link(app: App, selection: Selection, words: string): HTMLElement {
  return h("button", { class: "link", onclick: () => app.select(selection, { fly: true }) }, words);
}

function measures(app: App, node: number): [string, string][] {
  const { graph } = app,
    spread = graph.document.column("node_time_spread_ns")?.[node] ?? -1;
  const value = (name: string) => app.measures.get(name)?.values[node] ?? Number.NaN;
  const time = value("time"),
    flops = value("flops"),
    moved = graph.document.column("viewer/node_moved")?.[node] ?? -1,
    memory = value("memory");
  const work = app.measures.get("intensity");
  const intensity = work ? work.values[node]! / work.below![node]! : Number.NaN;
  return [
    [
      "time",
      Number.isNaN(time)
        ? ""
        : `${formatTime(time)}${spread >= 0 ? ` ± ${formatTime(spread)}` : ""}${graph.info.time ? ` (${spread >= 0 ? graph.info.time.split(" ±")[0] : graph.info.time})` : ""}`,
    ],
    [
      "arithmetic",
      Number.isNaN(flops)
        ? ""
        : `${formatFlops(flops)}${Number.isFinite(intensity) ? ` · ${formatNumber(intensity)} FLOPs per byte` : ""}`,
    ],
    ["moves", moved >= 0 ? formatBytes(moved) : ""],
    ["allocates", memory > 0 ? formatBytes(memory) : ""],
    ...[...app.measures.values()]
      .filter((one) => one.name.startsWith("overlay:") && !Number.isNaN(one.values[node]!))
      .map((one): [string, string] => [one.title, one.format(one.values[node]!)]),
  ];
}

/** Tensors as chips: shape and dtype; a click goes to what made one. */
function tensors(app: App, values: Int32Array): HTMLElement | "" {
  if (!values.length) return "";
  const { graph } = app;
  const chips = [...values].slice(0, MOST).map((value) => {
    const layout = graph.layout(value),
      maker = graph.producer(value),
      named = graph.parameterName(value);
    const bytes = graph.storageBytes(graph.storage(value));
    const words = `${named ? `${named} ` : ""}${graph.shape(value)}${layout && layout.dtype !== "float32" ? ` ${layout.dtype}` : ""}`;
    const title = `${named || graph.role(value)} · ${graph.shape(value)} · ${layout?.dtype ?? ""} · ${layout?.device ?? ""} · ${bytes >= 0 ? formatBytes(bytes) : ""}${maker === undefined ? "" : ` · made by ${graph.nodeName(maker)}`}`;
    return h(
      "button",
      {
        class: "chip",
        title,
        disabled: maker === undefined,
        onclick: () => {
          if (maker !== undefined) app.select({ kind: "node", node: maker }, { fly: true });
        },
      },
      words,
    );
  });
  return h(
    "div",
    { class: "chips" },
    ...chips,
    values.length > MOST ? h("span", { class: "soft" }, `and ${values.length - MOST} more`) : null,
  );
}

function moduleLink(app: App, node: number): HTMLElement | "" {
  const module = app.graph.module(node),
    key = module && app.groupOfCall(app.graph.call[node]!);
  if (!module) return "";
  const words = `${module.path || "the model"} (${module.type})`;
  return key ? link(app, { kind: "group", key }, words) : h("span", {}, words);
}

function gradientLinks(app: App, node: number): HTMLElement | "" {
  const { graph } = app,
    forward = graph.forwardOf(node),
    others = gradientsOf(app, node);
  if (!others.length) return "";
  return h(
    "span",
    {},
    forward === undefined ? "" : "of ",
    ...others
      .slice(0, MOST)
      .flatMap((other, i) => [i ? ", " : "", link(app, { kind: "node", node: other }, graph.nodeName(other))]),
  );
}

/** The last op that reads what this op makes, also through views: where its tensor's way ends. */
function lastReader(app: App, node: number): HTMLElement | "" {
  const last = Math.max(...followed(app.graph, [node]));
  if (last <= node) return "";
  return h(
    "span",
    {},
    link(app, { kind: "node", node: last }, app.graph.nodeName(last)),
    `, ${formatInteger(last - node)} ${last - node === 1 ? "op" : "ops"} later`,
  );
}

/** The backward ops for which autograd keeps what this op makes. */
function keptFor(app: App, node: number): HTMLElement | "" {
  const saved = app.graph.document.json<Record<string, number[]>>("viewer/saved.json");
  const nodes = [...new Set([...app.graph.outputs(node)].flatMap((value) => saved?.[value] ?? []))];
  if (!nodes.length) return "";
  return h(
    "span",
    {},
    "backward until ",
    link(app, { kind: "node", node: nodes.at(-1)! }, app.graph.nodeName(nodes.at(-1)!)),
  );
}

function attributes(app: App, node: number): HTMLElement | null {
  const stored = app.graph.document.json<{ rows: string[]; node: number[] }>("viewer/attributes.json");
  const text = stored?.rows[stored.node[node] ?? -1];
  if (!text) return null;
  const rows = Object.entries(JSON.parse(text) as Record<string, unknown>);
  if (!rows.length) return null;
  return h(
    "details",
    { open: rows.length <= 8 },
    h("summary", {}, "arguments"),
    facts(rows.map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)])),
  );
}

/** viewer/sources.json: ranges of lines per file. */
interface Range {
  first: number;
  lines: string[];
}

function code(app: App, node: number): HTMLElement | null {
  const source = app.graph.source(node);
  if (!source) return null;
  const ranges = app.graph.document.json<Record<string, Range[]>>("viewer/sources.json")?.[source.file] ?? [];
  const range = ranges.find(({ first, lines }) => source.line >= first && source.line < first + lines.length);
  const place = `${source.file.split(/[\\/]/).slice(-2).join("/")}:${source.line}`;
  const shown = range ? around(range, source.line) : [{ line: source.line, text: source.text }];
  return h(
    "div",
    { class: "code" },
    h("p", { class: "soft", title: source.file }, `made at ${place} in ${source.function}`),
    h(
      "pre",
      {},
      ...shown.map(({ line, text }) =>
        h("span", { class: line === source.line ? "here" : "" }, `${String(line).padStart(4)}  ${text}`),
      ),
    ),
  );
}

function around({ first, lines }: Range, line: number): { line: number; text: string }[] {
  const from = Math.max(line - 3, first),
    to = Math.min(line + 3, first + lines.length - 1);
  return Array.from({ length: to - from + 1 }, (_, i) => ({ line: from + i, text: lines[from + i - first]! }));
}

function statistics(app: App, node: number): HTMLElement[] {
  const stored = app.graph.document.json<Record<string, Statistics>>("viewer/values.json");
  if (!stored) return [];
  return [...app.graph.outputs(node)].flatMap((value) => {
    const one = stored[value];
    return one ? [h("div", {}, h("h2", {}, `values ${app.graph.shape(value)}`), histogram(one))] : [];
  });
}

function readers(app: App, node: number): HTMLElement | null {
  const nodes = [...new Set([...app.graph.outputs(node)].flatMap((value) => [...app.graph.readers(value)]))];
  if (!nodes.length) return null;
  return h(
    "div",
    {},
    h("h2", {}, "read by"),
    h(
      "div",
      { class: "chips" },
      ...nodes.slice(0, MOST).map((reader) =>
        h(
          "button",
          {
            class: "chip",
            title: app.graph.operationName(reader),
            onclick: () => app.select({ kind: "node", node: reader }, { fly: true }),
          },
          app.graph.nodeName(reader),
        ),
      ),
      nodes.length > MOST ? h("span", { class: "soft" }, `and ${nodes.length - MOST} more`) : null,
    ),
  );
}

function asJson(app: App, node: number): unknown {
  const { graph } = app;
  const tensor = (value: number) => ({
    value,
    shape: graph.layout(value)?.shape,
    dtype: graph.layout(value)?.dtype,
    role: graph.role(value),
    parameter: graph.parameterName(value) || undefined,
  });
  return {
    id: node,
    name: graph.nodeName(node),
    operation: graph.operationName(node),
    type: graph.category(node),
    phase: graph.phaseName(node),
    module: graph.modulePath(node),
    time_ns: graph.timeOf(node),
    inputs: [...graph.inputs(node)].map(tensor),
    outputs: [...graph.outputs(node)].map(tensor),
    source: graph.source(node),
  };
}

/** Of a comparison: what changed of an op. */
function difference(app: App, node: number): HTMLElement | null {
  const { side } = app;
  if (!side) return null;
  const what = Object.entries(side.what.get(node) ?? {});
  if (side.status[node] === ONLY_HERE)
    return h(
      "p",
      { class: "alert" },
      side.name === "a" ? "Only the first graph has it." : "Only the second graph has it.",
    );
  return what.length
    ? h(
        "div",
        {},
        h("p", { class: "alert" }, "It changed:"),
        facts(what.map(([name, [before, after]]) => [name, `${before} → ${after}`])),
      )
    : h("p", { class: "soft" }, "The same in both graphs.");
}
