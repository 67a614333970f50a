/** What the keyboard does, in one table: the help lists it. */

import type { App } from "../app";
import type { Item } from "../model/outline";
import { jumpToGradient } from "./details_node";
import type { GraphCanvas } from "./graph_canvas";

interface Key {
  keys: string[];
  what: string;
  run: (app: App, graph: GraphCanvas) => void;
}

export const KEYS: readonly Key[] = [
  { keys: ["/"], what: "search", run: () => document.querySelector<HTMLInputElement>("#search")?.focus() },
  {
    keys: ["Enter", " "],
    what: "open or close what is selected",
    run: (app) => {
      const item = app.itemOf(app.state.selection);
      if (item) app.toggle(item);
    },
  },
  { keys: ["ArrowDown"], what: "go to what reads it", run: (app) => step(app, "after") },
  { keys: ["ArrowUp"], what: "go to what it reads", run: (app) => step(app, "before") },
  { keys: ["ArrowRight"], what: "go to the next box of its group", run: (app) => sibling(app, 1) },
  { keys: ["ArrowLeft"], what: "go to the box before it", run: (app) => sibling(app, -1) },
  {
    keys: ["Backspace"],
    what: "go to the group around it",
    run: (app) => {
      const parent = app.itemOf(app.state.selection)?.parent;
      if (parent?.parent) app.select(app.selectionOf(parent), { fly: true });
    },
  },
  { keys: ["g"], what: "jump from an op to its gradient and back", run: (app) => jumpToGradient(app) },
  { keys: ["t"], what: "follow its tensors", run: (app) => relate(app, "tensor") },
  { keys: ["a"], what: "show what it depends on", run: (app) => relate(app, "ancestors") },
  { keys: ["d"], what: "show what depends on it", run: (app) => relate(app, "descendants") },
  { keys: ["c"], what: "show the critical path", run: (app) => app.store.update({ critical: !app.state.critical }) },
  { keys: ["]"], what: "show the next round of a repeat", run: (app) => turn(app, 1) },
  { keys: ["["], what: "show the round before", run: (app) => turn(app, -1) },
  { keys: ["f", "0"], what: "fit the graph to the window", run: (_, graph) => graph.fit() },
  { keys: ["+", "="], what: "zoom in", run: (_, graph) => graph.zoom(1.25) },
  { keys: ["-"], what: "zoom out", run: (_, graph) => graph.zoom(0.8) },
  {
    keys: ["Escape"],
    what: "let go: first of what is marked, then of what is selected",
    run: (app) => {
      const { relation, second, critical } = app.state;
      if (relation !== "none" || second || critical)
        app.store.update({ second: null, relation: "none", critical: false });
      else app.store.update({ selection: null });
    },
  },
  { keys: ["?"], what: "show this list", run: () => document.querySelector<HTMLDialogElement>("#help")?.showModal() },
];

export function listenToKeys(app: App, graph: GraphCanvas): void {
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, select, textarea, dialog")) return;
    // Panes have keys of their own; the arrows and Enter belong to what has the focus there.
    if (target !== graph.canvas && target !== document.body && /^(Arrow|Enter| |Backspace)/.test(event.key)) return;
    const key = KEYS.find((one) => one.keys.includes(event.key));
    if (!key) return;
    event.preventDefault();
    key.run(app, graph);
  });
}

function relate(app: App, relation: "tensor" | "ancestors" | "descendants"): void {
  app.store.update({ relation: app.state.relation === relation ? "none" : relation });
}

/** Along a line of the scene. */
function step(app: App, way: "before" | "after"): void {
  const { frames, lines, frameOf } = app.scene,
    item = app.itemOf(app.state.selection);
  const at = item ? frameOf.get(item.key) : undefined;
  if (at === undefined) return select(app, frames.find((frame) => frame.parent < 0)?.item);
  const next = lines.find(
    (line) =>
      !line.dashed &&
      (way === "after" ? line.source === at && line.target >= 0 : line.target === at && line.source >= 0),
  );
  const inside = way === "after" ? frames.find((frame) => frame.parent === at) : frames[frames[at]!.parent];
  select(app, next ? frames[way === "after" ? next.target : next.source]!.item : inside?.item);
}

function sibling(app: App, by: number): void {
  const { frames, frameOf } = app.scene,
    item = app.itemOf(app.state.selection);
  const at = item ? frameOf.get(item.key) : undefined;
  if (at === undefined) return;
  const siblings = frames.filter((frame) => frame.parent === frames[at]!.parent);
  select(app, siblings[siblings.indexOf(frames[at]!) + by]?.item);
}

function select(app: App, item: Item | undefined): void {
  if (!item) return;
  app.select(app.selectionOf(item));
  app.flyTo(item.key);
}

function turn(app: App, by: number): void {
  for (let item = app.itemOf(app.state.selection); item; item = item.parent) {
    const repeat = item.folded ?? item;
    if (repeat.repeat < 2) continue;
    const shown = app.state.rounds.get(repeat.key);
    return app.showRound(repeat, (typeof shown === "number" ? shown : Math.max(item.round, 0)) + by);
  }
}
