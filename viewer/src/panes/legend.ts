/** What the colours of the boxes mean: the types of op that are shown, or from how much to how much. */

import type { App } from "../app";
import { changed } from "../state/store";
import { h, replace } from "./dom";

const MOST = 12; // types

export function legend(app: App): HTMLElement {
  const element = h("div", { class: "legend" });
  app.store.subscribe((state, before) => {
    if (changed(state, before, "heat", "open", "rounds", "hidden", "theme", "grouping"))
      replace(element, ...entries(app));
  });
  return element;
}

function entries(app: App): HTMLElement[] {
  const { theme, scene, state } = app,
    values = app.itemValues(state.heat);
  if (state.heat === "difference" && app.side) {
    return [
      swatch(theme.fills["activation"]![0], "changed"),
      swatch(theme.fills["loss"]![0], "only before"),
      swatch(theme.fills["norm"]![0], "only after"),
    ];
  }
  if (values) {
    const shown = scene.frames
      .filter((frame) => !frame.open)
      .map((frame) => values.of(frame.item))
      .filter(Number.isFinite);
    const ramp = h("span", { class: "ramp" });
    ramp.style.background = `linear-gradient(to right, ${theme.ramp.join(", ")})`;
    return [
      h("span", {}, `${values.measure.title}: 0`),
      ramp,
      h("span", {}, shown.length ? values.measure.format(Math.max(...shown, 0)) : "none"),
    ];
  }
  const counts = new Map<string, number>();
  for (const frame of scene.frames) {
    if (frame.open || !frame.item.isLeaf || frame.item.isMarker) continue;
    const type = app.graph.category(app.outline.leafNode[frame.item.start]!);
    counts.set(type, (counts.get(type) ?? 0) + 1);
  }
  const types = [...counts]
    .sort((a, b) => b[1] - a[1])
    .slice(0, MOST)
    .map(([type]) => type);
  return types.map((type) =>
    swatch((theme.fills[type] ?? theme.fills["unknown"]!)[0], type, (theme.fills[type] ?? theme.fills["unknown"]!)[1]),
  );
}

function swatch(fill: string, words: string, stroke = fill): HTMLElement {
  const box = h("i", {});
  box.style.background = fill;
  box.style.borderColor = stroke;
  return h("span", { class: "entry" }, box, words);
}
