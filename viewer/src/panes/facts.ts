/** Small parts of the details: names with values, buttons that copy, histograms. */

import { formatNumber } from "../model/units";
import { h } from "./dom";

export function facts(rows: [string, string | Node][]): HTMLElement {
  return h(
    "dl",
    {},
    ...rows.filter(([, value]) => value !== "").flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

/** Copy as the Python expression that reaches it, or as JSON. */
export function copyButtons(expression: string, object: () => unknown): HTMLElement {
  return h(
    "div",
    { class: "buttons" },
    expression ? copyButton("copy Python", () => expression, expression) : null,
    copyButton("copy JSON", () => JSON.stringify(object(), null, 2), "all of this as JSON"),
  );
}

export function copyButton(words: string, text: () => string, title: string): HTMLElement {
  const button = h(
    "button",
    {
      title,
      onclick: async () => {
        const isDone = await copy(text());
        button.textContent = isDone ? "copied" : "not allowed";
        setTimeout(() => {
          button.textContent = words;
        }, 1200);
      },
    },
    words,
  );
  return button;
}

/** Pages that are opened as a file may have no clipboard: the old way works there. */
async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { class: "offscreen" });
    area.value = text;
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    return isDone;
  }
}

/** viewer/values.json, one value. Null is what was not recorded. */
export interface Statistics {
  mean: number | null;
  std: number | null;
  min: number | null;
  max: number | null;
  finite: number | null;
  zeros: number | null;
  histogram: number[] | null;
  low: number | null;
  high: number | null;
}

export function histogram(statistics: Statistics): HTMLElement {
  const { finite, zeros } = statistics,
    counts = statistics.histogram ?? [];
  const most = Math.max(...counts, 1);
  const bars = counts.map((count) => {
    const bar = h("span", {});
    bar.style.height = `${(100 * count) / most}%`;
    return bar;
  });
  const number = (value: number | null) => (value === null ? "unknown" : formatNumber(value));
  const words = [
    `mean ${number(statistics.mean)}`,
    `std ${number(statistics.std)}`,
    `min ${number(statistics.min)}`,
    `max ${number(statistics.max)}`,
    finite === null ? "" : finite < 1 ? `${formatNumber(100 * (1 - finite))} % not finite` : "finite",
    zeros ? `${formatNumber(100 * zeros)} % zeros` : "",
  ];
  return h(
    "figure",
    {},
    bars.length
      ? h(
          "div",
          {
            class: "histogram",
            role: "img",
            "aria-label": `histogram from ${number(statistics.low)} to ${number(statistics.high)}`,
          },
          ...bars,
        )
      : null,
    h("figcaption", { class: finite !== null && finite < 1 ? "alert" : "soft" }, words.filter(Boolean).join(" · ")),
  );
}
