/** What a pointer that rests on a box is told: name, op, shapes, time. */

import type { App } from "../app";
import { formatTime } from "../model/units";
import { changed, type Selection } from "../state/store";
import { h, replace } from "./dom";
import type { GraphCanvas } from "./graph_canvas";

const WAIT = 350; // ms

export function tooltip(app: App, graph: GraphCanvas): HTMLElement {
  const element = h("div", { class: "tooltip hidden", role: "tooltip" });
  let timer = 0;
  graph.canvas.addEventListener("pointermove", (event) => {
    const box = graph.element.getBoundingClientRect(),
      x = event.clientX - box.left,
      y = event.clientY - box.top;
    element.style.left = `${Math.min(x + 14, box.width - 280)}px`;
    element.style.top = `${y > box.height - 110 ? y - 90 : y + 16}px`;
  });
  app.store.subscribe((state, before) => {
    if (!changed(state, before, "hover")) return;
    clearTimeout(timer);
    element.classList.add("hidden");
    if (!state.hover) return;
    const { hover } = state;
    timer = window.setTimeout(() => {
      replace(element, ...lines(app, hover));
      element.classList.remove("hidden");
    }, WAIT);
  });
  return element;
}

function lines(app: App, hover: Selection): HTMLElement[] {
  const { graph } = app;
  if (hover.kind === "node") {
    const { node } = hover,
      time = graph.timeOf(node);
    const shapes = (values: Int32Array) =>
      [...values]
        .slice(0, 4)
        .map((value) => graph.shape(value))
        .filter(Boolean)
        .join(", ");
    const flow = graph.isOp(node)
      ? `${shapes(graph.inputs(node)) || "nothing"} → ${shapes(graph.outputs(node))}`
      : shapes(graph.outputs(node));
    return [
      h("b", {}, graph.nodeName(node)),
      h("div", {}, graph.operationName(node)),
      h("div", {}, flow),
      time === undefined
        ? h("div")
        : h("div", {}, `${formatTime(time)}${graph.info.time ? ` (${graph.info.time})` : ""}`),
    ];
  }
  const item = app.itemWithKey(hover.key);
  if (!item) return [];
  const values = app.itemValues(app.measures.has(app.state.heat) ? app.state.heat : "time"),
    value = values?.of(item) ?? Number.NaN;
  return [
    h("b", {}, app.outline.path(item, app.state.rounds) || item.title),
    h("div", {}, `${item.title} · ${item.subtitle}`),
    Number.isNaN(value) ? h("div") : h("div", {}, `${values!.measure.title}: ${values!.measure.format(value)}`),
  ];
}
