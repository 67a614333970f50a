/** What a pointer that rests on a box is told: name, op, shapes, time. */

import type { App } from "../app";
import { formatTime } from "../model/units";
import { changed, type Selection } from "../state/store";
import { h, replace } from "./dom";
import type { GraphCanvas } from "./graph_canvas";

const WAIT = 450; // ms

export function tooltip(app: App, graph: GraphCanvas): HTMLElement {
  const element = h("div", { class: "tooltip hidden", role: "tooltip" });
  let timer = 0,
    isOver = false; // other panes hover, too: what they point at may be far away here
  const hide = () => {
    clearTimeout(timer);
    element.classList.add("hidden");
  };
  const leave = () => {
    isOver = false;
    hide();
  };
  graph.canvas.addEventListener("pointerdown", leave); // who clicks reads the details
  graph.canvas.addEventListener("wheel", leave, { passive: true });
  graph.canvas.addEventListener("pointerleave", leave);
  graph.canvas.addEventListener("pointermove", (event) => {
    isOver = event.pointerType === "mouse";
    const box = graph.element.getBoundingClientRect(),
      x = event.clientX - box.left,
      y = event.clientY - box.top;
    element.style.left = `${Math.min(x + 14, box.width - 280)}px`;
    element.style.top = `${y > box.height - 110 ? y - 90 : y + 16}px`;
  });
  app.store.subscribe((state, before) => {
    if (!changed(state, before, "hover")) return;
    hide();
    if (!state.hover || !isOver) return;
    const { hover } = state;
    timer = window.setTimeout(() => {
      if (!isOver) return;
      const words = lines(app, hover);
      replace(element, ...words);
      element.classList.toggle("hidden", words.length === 0); // a click may have taken the box away
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
  const path = app.outline.path(item, app.state.rounds);
  return [
    h("b", {}, path || item.title),
    h("div", {}, [path && path !== item.title ? item.title : "", item.subtitle].filter(Boolean).join(" · ")),
    Number.isNaN(value) ? h("div") : h("div", {}, `${values!.measure.title}: ${values!.measure.format(value)}`),
  ];
}
