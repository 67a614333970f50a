/** What differs between two graphs: a sentence, the modules with their deltas, the ops that changed. */

import type { App } from "../app";
import type { ModuleChange } from "../model/alignment";
import { formatBytes, formatCount, formatFlops, formatNumber, formatTime } from "../model/units";
import { shortFile } from "./details";
import { h } from "./dom";
import type { Pane } from "./pane";

const MOST = 300; // rows of a list
/** What a column is called here, in the order in which columns stand; other figures come behind. */
const NAMES: Record<string, string> = {
  time_ns: "time",
  peak_bytes: "peak memory",
  allocated_bytes: "allocated",
  macs: "multiply-adds",
  elementwise_flops: "elementwise FLOPs",
  bytes: "bytes moved",
  operations: "ops",
  parameters: "parameters",
};

const FORMATS: [part: string, format: (value: number) => string][] = [
  ["time", formatTime],
  ["_ns", formatTime],
  ["flops", formatFlops],
  ["bytes", formatBytes],
  ["memory", formatBytes],
  ["parameters", formatCount],
  ["macs", formatCount],
  ["operations", formatCount],
];

export function compare(app: App): Pane {
  const side = app.side;
  const missing =
    'This page holds one graph. Compare two: atlas.compare(before, after).save("x.html"), or torchatlas view before.atlas after.atlas.';
  if (!side) return { name: "compare", title: "Compare", place: "bottom", element: h("div"), missing };
  const { stored } = side,
    isTimed = stored.modules.some((one) => stored.times[one.path] !== "not compared"),
    figures = [...new Set(stored.modules.flatMap((one) => Object.keys(one.a)))]
      .filter((name) => name !== "time_ns" || isTimed)
      .sort((a, b) => order(a) - order(b));
  const differs = (one: ModuleChange, name: string) =>
    name === "time_ns" ? isTimeChanged(stored.times[one.path]) : one.a[name] !== one.b[name];
  const rows = stored.modules.filter((one) => figures.some((name) => differs(one, name))).slice(0, MOST);
  const modules = h(
    "table",
    {},
    h("thead", {}, h("tr", {}, h("th", {}, "module"), ...figures.map((name) => h("th", {}, words(name))))),
    h(
      "tbody",
      {},
      ...rows.map((one) =>
        h(
          "tr",
          {
            tabindex: 0,
            onclick: () => selectModule(app, one.path),
            onkeydown: (event: KeyboardEvent) => {
              if (event.key === "Enter") selectModule(app, one.path);
            },
          },
          h("td", {}, one.path || "(all)"),
          ...figures.map((name) => cell(one, name, name === "time_ns" ? stored.times[one.path] : undefined)),
        ),
      ),
    ),
  );
  const ops = [
    ...stored.changed.map(([a, , what]) =>
      row(
        app,
        a,
        "changed",
        Object.entries(what)
          .map(([name, [before, after]]) => `${name}: ${before} → ${after}`)
          .join(", "),
      ),
    ),
    ...stored.only_a.map((node) => row(app, node, "removed", "")),
    ...stored.only_b.map((node) => otherRow(app, node)),
  ];
  const element = h(
    "div",
    { class: "compare" },
    h("p", {}, stored.sentence),
    stored.time ? h("p", { class: "soft" }, `time in ops: ${stored.time}`) : null,
    h(
      "div",
      { class: "columns" },
      h("div", {}, h("h2", {}, "modules that differ"), rows.length ? modules : h("p", { class: "soft" }, "none")),
      h(
        "div",
        {},
        h("h2", {}, "ops that differ"),
        h(
          "ul",
          {},
          ...ops.slice(0, MOST),
          ops.length > MOST ? h("li", { class: "soft" }, `and ${ops.length - MOST} more`) : null,
        ),
      ),
    ),
  );
  return { name: "compare", title: "Compare", place: "bottom", element };
}

function order(name: string): number {
  const at = Object.keys(NAMES).indexOf(name);
  return at < 0 ? Number.MAX_SAFE_INTEGER : at;
}

function words(name: string): string {
  if (NAMES[name]) return NAMES[name];
  return name.replace(/_/g, " ").replace(/ ns$/, "");
}

function isTimeChanged(verdict: string | undefined): boolean {
  return verdict === "longer" || verdict === "shorter";
}

/** Before, after, and by how much. Of a time, `verdict` says whether it differs by more than its spread. */
function cell(one: ModuleChange, name: string, verdict?: string): HTMLElement {
  const a = one.a[name] ?? null,
    b = one.b[name] ?? null,
    format = FORMATS.find(([part]) => name.includes(part))?.[1] ?? formatNumber;
  const text = (value: number | null) => (value === null ? "–" : format(value));
  if (a === b) return h("td", { class: "soft" }, text(a));
  if (verdict && !isTimeChanged(verdict))
    return h("td", { class: "soft", title: `${text(a)} → ${text(b)}` }, `${text(b)} ${verdict}`);
  const change =
    a && b !== null
      ? `${b > a ? "+" : "−"}${formatNumber(Math.abs((100 * (b - a)) / a))} %`
      : a === null || a === 0
        ? "new"
        : "gone";
  return h(
    "td",
    { title: `${text(a)} → ${text(b)}` },
    `${text(b)} `,
    h("b", { class: (b ?? 0) > (a ?? 0) ? "more" : "less" }, change),
  );
}

function row(app: App, node: number, verdict: string, what: string): HTMLElement {
  return h(
    "li",
    {},
    h("span", { class: `verdict ${verdict}` }, verdict),
    h(
      "button",
      { class: "link", onclick: () => app.select({ kind: "node", node }, { fly: true }) },
      app.graph.nodeName(node),
    ),
    h("span", { class: "soft" }, [what, place(app, node)].filter(Boolean).join(" · ")),
  );
}

/** The line of code that an op comes from. */
function place(app: App, node: number): string {
  const source = app.graph.source(node);
  return source ? `${shortFile(source.file)}:${source.line}` : "";
}

function otherRow(app: App, node: number): HTMLElement {
  return app.beside
    ? row(app.beside, node, "added", "")
    : h("li", {}, h("span", { class: "verdict added" }, "added"), `node ${node}`);
}

function selectModule(app: App, path: string): void {
  const { graph } = app,
    call = [...graph.callModule].findIndex((module) => graph.tables.modules[module]!.path === path);
  const key = call < 0 ? null : app.groupOfCall(call);
  if (key) app.select({ kind: "group", key }, { fly: true });
}
