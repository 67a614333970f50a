/** All that is known of what is selected. */

import type { App } from "../app";
import type { Item } from "../model/outline";
import { formatBytes, formatCount, formatInteger } from "../model/units";
import { changed } from "../state/store";
import { h, replace } from "./dom";
import type { Pane } from "./pane";

export function details(app: App): Pane {
  const element = h("div", { class: "details" });
  app.store.subscribe((state, before) => {
    if (!changed(state, before, "selection", "rounds")) return;
    const { selection } = state;
    if (!selection) replace(element, ...aboutGraph(app));
    else if (selection.kind === "node") replace(element, ...aboutNode(app, selection.node));
    else {
      const item = app.itemWithKey(selection.key);
      replace(element, ...(item ? aboutGroup(app, item) : []));
    }
  });
  return { name: "details", title: "Details", place: "right", element };
}

function aboutGraph(app: App): HTMLElement[] {
  const { info } = app.graph,
    { totals } = info;
  return [
    h("h2", {}, "graph"),
    h("h3", {}, info.title),
    facts([
      ["ops", formatInteger(totals.ops)],
      ["parameters", totals.parameters ? formatCount(totals.parameters) : ""],
      ["peak memory", totals.peak_bytes === null ? "" : formatBytes(totals.peak_bytes)],
    ]),
    ...info.notes.map((note) => h("p", { class: "soft" }, note)),
    ...info.left_out.map((note) => h("p", { class: "soft" }, note)),
    h("p", { class: "soft" }, "Click a box. Press ? for the keys."),
  ];
}

function aboutGroup(app: App, item: Item): HTMLElement[] {
  return [
    h("h2", {}, item.kind === "module" ? "selected module" : "selected group"),
    h("h3", {}, item.title),
    h("p", { class: "soft" }, item.subtitle),
    facts([
      ["path", app.outline.path(item, app.state.rounds)],
      ["ops", formatInteger(item.length)],
      ["rounds", item.repeat > 1 ? String(item.repeat) : ""],
      ...measured(app, item),
    ]),
  ];
}

function aboutNode(app: App, node: number): HTMLElement[] {
  const { graph } = app;
  return [
    h("h2", {}, "selected op"),
    h("h3", {}, graph.nodeName(node)),
    h("p", { class: "soft" }, `${graph.operationName(node)} · ${graph.category(node)} · ${graph.phaseName(node)}`),
  ];
}

function measured(app: App, item: Item): [string, string][] {
  return [...app.measures.values()].map((measure) => {
    const value = app.itemValues(measure.name)!.of(item);
    return [measure.title, Number.isNaN(value) ? "" : measure.format(value)];
  });
}

export function facts(rows: [string, string | Node][]): HTMLElement {
  return h(
    "dl",
    {},
    ...rows.filter(([, value]) => value !== "").flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}
