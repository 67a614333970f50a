/** What the colours of the boxes mean: the types of op that are shown, or from how much to how much. */

import type { App } from "../app";
import { formatInteger } from "../model/units";
import { changed } from "../state/store";
import { h, replace } from "./dom";

const MOST = 12; // types

export function legend(app: App): HTMLElement {
  const element = h("div", { class: "legend" });
  app.store.subscribe((state, before) => {
    if (changed(state, before, "heat", "open", "rounds", "hidden", "theme", "grouping", "direction"))
      replace(element, ...entries(app), leftOut(app));
  });
  return element;
}

/** Lines that were too many to draw: a picture must not look complete when it is not. */
function leftOut(app: App): HTMLElement | null {
  const count = app.scene.leftOut;
  if (!count) return null;
  return h(
    "p",
    { class: "left-out", role: "status" },
    count === 1
      ? "1 long line is not drawn: there are too many here. Close groups to see it."
      : `${formatInteger(count)} long lines are not drawn: there are too many here. Close groups to see them.`,
  );
}

function entries(app: App): (HTMLElement | null)[] {
  if (!app.scene.frames.length) return [h("span", {}, "This graph is empty: 0 ops.")];
  const { theme, state } = app,
    values = app.itemValues(state.heat);
  if (state.heat === "difference" && app.side) {
    return [
      swatch(app.differenceFill("activation"), "changed"),
      swatch(app.differenceFill("loss"), "only before"),
      swatch(app.differenceFill("norm"), "only after"),
    ];
  }
  if (values) {
    const scale = app.shownScale(values),
      boxes = app.scene.frames.filter((frame) => !frame.open && !frame.item.isMarker),
      { format, title } = values.measure;
    if (!scale.high) return [h("span", {}, `${title}: none here`)];
    const ramp = h("span", { class: "ramp" });
    ramp.style.background = `linear-gradient(to right, ${theme.ramp.join(", ")})`;
    return [
      h("span", {}, title),
      h("span", { class: "entry" }, scale.low ? format(scale.low) : "0", ramp, format(scale.high)),
      scale.isLog ? h("span", {}, "in powers of ten") : null,
      boxes.some((frame) => Number.isNaN(values.of(frame.item)))
        ? swatch(theme.fills["unknown"]![0], "unknown", theme.line)
        : null,
    ];
  }
  const counts = new Map<string, number>();
  for (const frame of app.scene.frames) {
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
