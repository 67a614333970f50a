/** All that is known of what is selected: the graph, a group, or one op. */

import type { App } from "../app";
import type { Item } from "../model/outline";
import { formatBytes, formatCount, formatFlops, formatInteger, formatTime } from "../model/units";
import { changed, type State } from "../state/store";
import { aboutNode, link, relationButtons } from "./details_node";
import { h, replace } from "./dom";
import { copyButtons, facts } from "./facts";
import type { Pane } from "./pane";
import { roundButtons } from "./rounds";

export function details(app: App): Pane {
  const element = h("div", { class: "details" });
  const draw = (state: State, before: State) => {
    if (!changed(state, before, "selection", "rounds", "relation", "second")) return;
    // Of a comparison: what only the second graph has is selected only there.
    const at = !app.state.selection && app.beside?.state.selection ? app.beside : app,
      { selection } = at.state;
    const item = selection?.kind === "group" ? at.itemWithKey(selection.key) : null;
    if (selection?.kind === "node") replace(element, ...aboutNode(at, selection.node));
    else if (item) replace(element, ...aboutGroup(at, item));
    else replace(element, ...aboutGraph(app), ...(app.beside ? aboutGraph(app.beside) : []));
  };
  app.store.subscribe(draw);
  app.beside?.store.subscribe(draw);
  return { name: "details", title: "Details", place: "right", element };
}

function aboutGraph(app: App): (HTMLElement | null)[] {
  const { info, document } = app.graph,
    { totals } = info;
  const atLeast = (name: string) => (totals.at_least.includes(name) ? "at least " : "");
  return [
    h("h2", {}, app.side ? (app.side.name === "a" ? "first graph" : "second graph") : "graph"),
    h("h3", {}, info.title),
    facts([
      ["ops", formatInteger(totals.ops)],
      ["parameters", totals.parameters ? formatCount(totals.parameters) : ""],
      ["arithmetic", totals.flops === null ? "" : atLeast("flops") + formatFlops(totals.flops)],
      [
        "time",
        totals.time_ns === null
          ? "not timed"
          : `${atLeast("time_ns")}${formatTime(totals.time_ns)}${info.time ? ` (${info.time})` : ""}`,
      ],
      ["peak memory", totals.peak_bytes === null ? "" : atLeast("peak_bytes") + formatBytes(totals.peak_bytes)],
      ["made from", document.header.source],
      ["torch", String(document.header.metadata["torch"] ?? "")],
    ]),
    info.failed &&
      h(
        "p",
        { class: "alert" },
        `It ended with an error: ${info.failed.message} `,
        link(app, { kind: "node", node: info.failed.node }, "show the op"),
      ),
    app.side
      ? null
      : h(
          "ul",
          { class: "hints" },
          ...[
            "Click a box to select it, a closed group (+) to open it.",
            "What is slow: colour by time, or Table, ops.",
            "What fills the memory: Memory, jump to the peak.",
            "? lists the keys.",
          ].map((hint) => h("li", {}, hint)),
        ),
    ...(app.side?.name === "b" ? [] : [...info.left_out, ...info.notes]).map((note) =>
      h("p", { class: "soft" }, sentence(note)),
    ),
  ];
}

function aboutGroup(app: App, item: Item): (HTMLElement | null)[] {
  const { rounds } = app.state,
    path = app.outline.path(item, rounds),
    call = app.outline.call(item, rounds);
  const module = call >= 0 ? app.graph.callModule[call]! : -1,
    phase = phaseOf(item);
  const parameters = module >= 0 ? app.graph.document.column("viewer/module_parameters")?.[module] : undefined;
  const source = app.graph.source(app.outline.leafNode[app.outline.shownStart(item, rounds)]!);
  return [
    h("h2", {}, `selected ${KINDS[item.kind] ?? "group"}${phase && phase !== item ? ` in ${phase.title}` : ""}`),
    h("h3", {}, item.title),
    h("p", { class: "soft" }, item.subtitle),
    roundButtons(app, item),
    relationButtons(app),
    facts([
      ["path", path],
      ["class", item.type],
      ["parameters", parameters ? formatCount(parameters) + (item.repeat > 1 ? " a round" : "") : ""],
      ...measured(app, item),
      ["first line", source ? `${shortFile(source.file)}:${source.line}` : ""],
    ]),
    item.repeat > 1 ? h("p", { class: "soft" }, `Numbers of all ${item.repeat} rounds together.`) : null,
    item.repeat > 1 && item.differs ? h("p", { class: "soft" }, "The rounds do the same on other sizes.") : null,
    copyButtons(path ? `graph[${JSON.stringify(path)}]` : "", () => ({
      title: item.title,
      path,
      class: item.type,
      rounds: item.repeat,
      nodes: app.outline.nodes(item),
    })),
  ];
}

/** The phase that a group lies in; times and bytes of a module are those of one phase. */
function phaseOf(item: Item): Item | null {
  let one: Item | null = item;
  while (one && one.kind !== "lane") one = one.parent;
  return one;
}

const KINDS: Record<string, string> = {
  lane: "phase",
  loop: "loop",
  functional: "ops",
  segment: "segment",
  leaf: "repeat",
  module: "module",
  iteration: "iteration",
  group: "parameter group",
  update: "update",
};

function measured(app: App, item: Item): [string, string][] {
  return [...app.measures.values()].map((measure) => {
    const value = app.itemValues(measure.name)!.of(item);
    return [measure.title, Number.isNaN(value) ? "unknown" : measure.format(value)];
  });
}

function sentence(note: string): string {
  return `${note.charAt(0).toUpperCase()}${note.slice(1)}${/[.!?:]$/.test(note) ? "" : "."}`;
}

export function shortFile(file: string): string {
  return file.split(/[\\/]/).slice(-2).join("/");
}
