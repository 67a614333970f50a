/** The groups as a tree with bars: what the canvas shows, for eyes and for screen readers (ARIA tree). */

import type { App } from "../app";
import type { ItemValues } from "../model/measures";
import type { Item } from "../model/outline";
import { scaleOf } from "../model/scale";
import { changed, type Selection } from "../state/store";
import { h, replace } from "./dom";
import type { Pane } from "./pane";

const MOST_ROWS = 400; // of one group; a tree that is longer is scrolled, not read
const MOST_IN_ALL = 1500; // rows; groups that come after stay closed here

export function tree(app: App): Pane {
  const list = h("ul", { role: "tree", "aria-label": "modules and ops" });
  const title = h("h2", {});
  const element = h("div", { class: "tree" }, title, list);
  const draw = () => {
    const name = app.itemValues(app.state.heat) ? app.state.heat : app.measures.has("time") ? "time" : "flops";
    const measure = app.measures.get(name);
    title.textContent = `modules${measure ? ` · ${measure.title}` : ""}`;
    const focused = list.contains(document.activeElement) ? document.activeElement?.getAttribute("data-key") : null;
    const values = app.itemValues(name);
    replace(list, ...rowsOf(app, app.outline.root, { values, share: values && shareOf(values), left: MOST_IN_ALL }));
    if (focused) list.querySelector<HTMLElement>(`[data-key="${CSS.escape(focused)}"]`)?.focus(); // the row is a new one
  };
  app.store.subscribe((state, before) => {
    if (changed(state, before, "open", "rounds", "hidden", "heat")) draw();
    if (changed(state, before, "selection", "open", "rounds", "heat")) mark(app, list, state.selection);
  });
  list.addEventListener("keydown", (event) => moveFocus(list, event));
  return { name: "tree", title: "Modules", place: "left", element };
}

/** What the rows show, and how many may still be made. */
interface Rows {
  readonly values: ItemValues | undefined;
  readonly share: ((value: number) => number) | undefined;
  left: number;
}

function rowsOf(app: App, group: Item, all: Rows): HTMLElement[] {
  const { values, share } = all;
  const children = app.outline.children(group, app.state.rounds).filter((item) => !item.isMarker);
  const shown = Math.min(MOST_ROWS, children.length);
  all.left -= shown;
  const rows = children.slice(0, shown).map((item) => {
    const isOpen = !item.isLeaf && app.state.open.has(item.key),
      value = values?.of(item) ?? Number.NaN;
    const bar = h("span", { class: "bar" });
    const filled = h("span", { class: "share" });
    filled.style.width = `${100 * (share?.(value) || 0)}%`; // unknown: none
    bar.append(filled);
    const row = h(
      "div",
      { class: "row", onclick: () => choose(app, item), ondblclick: () => app.toggle(item) },
      h(
        "button",
        {
          class: "twist",
          tabindex: -1,
          "aria-hidden": "true",
          onclick: (event: MouseEvent) => {
            event.stopPropagation();
            app.toggle(item);
          },
        },
        item.isLeaf ? "" : isOpen ? "▾" : "▸",
      ),
      h(
        "span",
        { class: "name", title: `${item.title} ${item.subtitle}` },
        h("b", {}, rangeName(item.name || item.title)),
        item.name && item.name !== item.title && item.kind !== "loop" ? ` ${rangeName(item.title)}` : "",
        item.repeat > 1 ? ` ×${item.repeat}` : "",
      ),
      values ? bar : null,
      values
        ? h("span", { class: "number" }, Number.isNaN(value) ? "–" : shortened(values.measure.format(value)))
        : null,
    );
    const element = h(
      "li",
      {
        role: "treeitem",
        tabindex: -1,
        "data-key": item.key,
        "aria-expanded": item.isLeaf ? undefined : String(isOpen),
        "aria-level": item.depth,
      },
      row,
    );
    row.style.paddingLeft = `${(item.depth - 1) * 12}px`;
    element.addEventListener("keydown", (event) => {
      if (event.target !== element) return;
      const isGroup = !item.isLeaf;
      if (event.key === "Enter" || event.key === " ") choose(app, item);
      else if (isGroup && ((event.key === "ArrowRight" && !isOpen) || (event.key === "ArrowLeft" && isOpen)))
        app.toggle(item);
      else if (event.key === "ArrowRight") element.querySelector<HTMLElement>("li")?.focus();
      else if (event.key === "ArrowLeft") element.parentElement?.closest<HTMLElement>("li")?.focus();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    if (isOpen && all.left > 0) element.append(h("ul", { role: "group" }, ...rowsOf(app, item, all)));
    return element;
  });
  if (children.length > MOST_ROWS) rows.push(h("li", { class: "soft" }, `… and ${children.length - MOST_ROWS} more`));
  return rows;
}

/** "layers.0 … 11" as "layers.0–11": a row that is too narrow ends in dots of its own, and two would stand together. */
export function rangeName(name: string): string {
  return name.replaceAll(" … ", "–");
}

/** A bar's length: of sums the share of all, else by the largest box. */
function shareOf(values: ItemValues): (value: number) => number {
  const { measure, outline } = values,
    leaves = outline.leafNode.length,
    whole = values.between(0, leaves);
  if (measure.combine === "sum") return (value) => (whole ? Math.min(value / whole, 1) : 0);
  const scale = scaleOf(
    measure,
    Array.from({ length: leaves }, (_, leaf) => values.between(leaf, leaf + 1)),
  );
  return (value) => scale.share(value);
}

function choose(app: App, item: Item): void {
  app.select(app.selectionOf(item), { fly: true });
}

function mark(app: App, list: HTMLElement, selection: Selection | null): void {
  const key = app.itemOf(selection)?.key;
  for (const old of list.querySelectorAll('[aria-selected="true"]')) {
    old.setAttribute("aria-selected", "false");
    old.setAttribute("tabindex", "-1");
  }
  const row = key === undefined ? null : list.querySelector<HTMLElement>(`[data-key="${key}"]`);
  row?.setAttribute("aria-selected", "true");
  row?.querySelector(".row")?.scrollIntoView({ block: "nearest" });
  (row ?? list.querySelector<HTMLElement>("li"))?.setAttribute("tabindex", "0");
}

function moveFocus(list: HTMLElement, event: KeyboardEvent): void {
  const rows = [...list.querySelectorAll<HTMLElement>('li[role="treeitem"]')],
    at = rows.indexOf(document.activeElement as HTMLElement);
  const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
  if (next === undefined) return;
  rows[next]?.focus();
  event.preventDefault();
  event.stopPropagation();
}

/** The heading says what is counted: the column needs the number only. */
function shortened(text: string): string {
  return text.replace(/FLOPs$/, "").trim();
}
