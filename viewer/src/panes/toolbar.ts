/** The bar above: where one is, search, colours, phases; and the buttons on the graph. */

import type { App } from "../app";
import type { Item } from "../model/outline";
import { changed, type State } from "../state/store";
import { h, replace } from "./dom";
import type { GraphCanvas } from "./graph_canvas";
import { KEYS } from "./keys";

export function toolbar(app: App, crumbs: HTMLElement, menu: HTMLElement): HTMLElement {
  const search = h("div", { class: "search-slot", id: "search-slot" });
  return h(
    "header",
    { class: "toolbar" },
    crumbs,
    h("div", { class: "grow" }),
    search,
    heatChoice(app),
    laneChoice(app),
    themeButton(app),
    menu,
    helpDialog(),
  );
}

/** torchatlas > model > block > op */
export function breadcrumbs(app: App): HTMLElement {
  const element = h("nav", { class: "crumbs", "aria-label": "where the selection is" });
  app.store.subscribe((state, before) => {
    if (!changed(state, before, "selection", "rounds")) return;
    const item = app.itemOf(state.selection),
      way = [];
    for (let one = item; one?.parent; one = one.parent) way.unshift(one);
    const home = h(
      "button",
      { class: "crumb home", onclick: () => app.store.update({ selection: null, view: null }) },
      app.beside ? `${app.graph.info.title} → ${app.beside.graph.info.title}` : app.graph.info.title || "graph",
    );
    replace(
      element,
      home,
      ...way.flatMap((one) => {
        const shown = state.rounds.get(one.key);
        const words = `${one.name || one.title}${one.repeat > 1 ? ` (${typeof shown === "number" ? `${shown + 1} of ` : "×"}${one.repeat})` : ""}`;
        return [
          h("span", { class: "soft" }, "›"),
          h("button", { class: "crumb", onclick: () => app.select(app.selectionOf(one), { fly: true }) }, words),
        ];
      }),
    );
  });
  return element;
}

const HEATS: [name: string, title: string][] = [
  ["type", "type"],
  ["time", "time"],
  ["memory", "memory"],
  ["flops", "FLOPs"],
  ["intensity", "FLOPs/byte"],
  ["gradient", "gradient"],
  ["saved", "kept for backward"],
];

function heatChoice(app: App): HTMLElement {
  const own = [...app.measures.values()]
    .filter((one) => one.name.startsWith("overlay:"))
    .map((one): [string, string] => [one.name, one.title]);
  const choices = [...(app.side ? [["difference", "difference"] as [string, string]] : []), ...HEATS, ...own].filter(
    ([name]) => name === "type" || name === "difference" || app.measures.has(name),
  );
  const select = h(
    "select",
    { "aria-label": "colour boxes by", onchange: () => app.store.update({ heat: select.value }) },
    ...choices.map(([name, title]) => h("option", { value: name }, title)),
  );
  app.store.subscribe((state) => {
    select.value = state.heat;
  });
  return h("label", { class: "choice" }, "colour by ", select);
}

function laneChoice(app: App): HTMLElement | null {
  const inside = (item: Item) => app.outline.children(item, new Map());
  // Of a script the phases lie in its iterations.
  const lanes = inside(app.outline.root)
    .flatMap((item) => (item.kind === "iteration" ? inside(item) : [item]))
    .filter((item) => item.kind === "lane");
  const names = [...new Set(lanes.map((lane) => lane.title))];
  if (names.length < 2) return h("span");
  const buttons = names.map((name) =>
    h(
      "button",
      {
        "aria-pressed": "true",
        title: `show or hide ${name}`,
        onclick: () => {
          const hidden = new Set(app.state.hidden);
          if (!hidden.delete(name)) hidden.add(name);
          if (hidden.size < names.length) app.store.update({ hidden, view: null });
        },
      },
      name,
    ),
  );
  app.store.subscribe((state) =>
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(!state.hidden.has(names[i]!)))),
  );
  return h("div", { class: "toggles", role: "group", "aria-label": "phases" }, ...buttons);
}

function themeButton(app: App): HTMLElement {
  return h(
    "button",
    {
      class: "icon",
      title: "light or dark",
      "aria-label": "light or dark",
      onclick: () => app.store.update({ theme: app.theme.name === "dark" ? "light" : "dark" }),
    },
    "◐",
  );
}

const KEY_NAMES: Record<string, string> = {
  " ": "space",
  ArrowDown: "↓",
  ArrowUp: "↑",
  ArrowRight: "→",
  ArrowLeft: "←",
  Escape: "Esc",
};

function helpDialog(): HTMLElement {
  const dialog = h(
    "dialog",
    { id: "help", "aria-label": "keys" },
    h("h2", {}, "Keys"),
    h(
      "dl",
      {},
      ...KEYS.flatMap((key) => [
        h("dt", {}, ...key.keys.flatMap((one, i) => [i ? " " : null, h("kbd", {}, KEY_NAMES[one] ?? one)])),
        h("dd", {}, key.what),
      ]),
    ),
    h(
      "p",
      { class: "soft" },
      "Click a closed group to open it, the − of an open one to close it, ×12 to show all rounds of a repeat. Shift-click a second box for the ways between two. Drag to move, turn the wheel to zoom.",
    ),
    h("form", { method: "dialog" }, h("button", {}, "close")),
  );
  return h(
    "span",
    {},
    h("button", { class: "icon", title: "help (?)", "aria-label": "help", onclick: () => dialog.showModal() }, "?"),
    dialog,
  );
}

/** The buttons on the canvas. */
export function graphControls(app: App, graph: GraphCanvas): HTMLElement {
  const button = (text: string, title: string, run: () => void, pressed?: (state: State) => boolean) => {
    const element = h("button", { title, onclick: run }, text);
    if (pressed) app.store.subscribe((state) => element.setAttribute("aria-pressed", String(pressed(state))));
    return element;
  };
  const turn = button(
    "left to right",
    "draw from left to right instead of from top to bottom",
    () => app.store.update({ direction: app.state.direction === "down" ? "right" : "down", view: null }),
    (state) => state.direction === "right",
  );
  return h(
    "div",
    { class: "controls", role: "group", "aria-label": "the picture" },
    named(
      "zoom out",
      button("−", "zoom out (-)", () => graph.zoom(0.8)),
    ),
    named(
      "zoom in",
      button("+", "zoom in (+)", () => graph.zoom(1.25)),
    ),
    button("fit", "fit the graph to the window (f)", () => graph.fit()),
    button("open a level", "open every closed group that is shown", () => openLevel(app)),
    button("open all", "open every group", () => openAll(app)),
    button("close all", "close every group", () => app.store.update({ open: new Set(), view: null })),
    turn,
    app.outline.leafNode.length <= MOST_UNGROUPED
      ? button(
          "by module",
          "ops in the groups of their modules, or all side by side",
          () => app.store.update({ grouping: !app.state.grouping, view: null }),
          (state) => state.grouping,
        )
      : null,
    app.graph.document.column("viewer/node_critical")
      ? button(
          "critical path",
          "mark the longest chain of ops that wait for each other (c)",
          () => app.store.update({ critical: !app.state.critical }),
          (state) => state.critical,
        )
      : null,
  );
}

function named(name: string, button: HTMLElement): HTMLElement {
  button.setAttribute("aria-label", name);
  return button;
}

const MOST_UNGROUPED = 2000; // ops side by side; more cannot be laid out, nor looked at
const MOST_BOXES = 60_000;

/** Every group, repeats folded; as long as the boxes can be drawn. */
export function openAll(app: App): void {
  const open = new Set<string>(),
    waiting = [app.outline.root];
  let boxes = 0;
  for (let group = waiting.pop(); group; group = waiting.pop()) {
    for (const child of app.outline.children(group, app.state.rounds)) {
      if (++boxes > MOST_BOXES) return app.store.update({ open, view: null });
      if (child.isLeaf) continue;
      open.add(child.key);
      waiting.push(child);
    }
  }
  app.store.update({ open, view: null });
}

function openLevel(app: App): void {
  const open = new Set(app.state.open);
  for (const frame of app.scene.frames) if (!frame.open && !frame.item.isLeaf) open.add(frame.item.key);
  app.store.update({ open });
}
