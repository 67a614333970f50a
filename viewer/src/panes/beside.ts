/** The second graph of a comparison, on a canvas beside the first. What is selected or opened in one is in the other. */

import type { App } from "../app";
import type { Item } from "../model/outline";
import type { Selection } from "../state/store";
import { h } from "./dom";
import { GraphCanvas } from "./graph_canvas";

export function besideCanvas(app: App, other: App): { element: HTMLElement; canvas: GraphCanvas } {
  const canvas = new GraphCanvas(other);
  join(app, other);
  join(other, app);
  return {
    element: h("div", { class: "second" }, canvas.element, h("div", { class: "caption" }, other.graph.info.title)),
    canvas,
  };
}

/** Changes of one graph's state that the other follows. */
function join(from: App, to: App): void {
  from.differsThere = (item) => {
    const key = counterpartOf(from, to, item),
      there = key && to.itemWithKey(key);
    return Boolean(there && to.side && to.side.differences(to.outline, there) > 0);
  };
  from.store.subscribe((state, before) => {
    if (state === before) return;
    const { heat, theme, direction, hidden, critical, relation } = state;
    for (const [name, value] of Object.entries({ heat, theme, direction, hidden, critical, relation })) {
      if (to.state[name as keyof typeof to.state] !== value) to.store.update({ [name]: value });
    }
    if (state.selection !== before.selection) follow(from, to, state.selection);
    if (state.open !== before.open) open(from, to, state.open, before.open);
  });
}

function follow(from: App, to: App, selection: Selection | null): void {
  const wanted = selection && counterpart(from, to, selection);
  if (JSON.stringify(wanted ?? null) === JSON.stringify(to.state.selection)) return;
  to.select(wanted ?? null);
  const key = wanted && to.itemOf(wanted)?.key;
  if (key) to.flyTo(key);
}

function open(from: App, to: App, now: ReadonlySet<string>, before: ReadonlySet<string>): void {
  const opened = new Set(to.state.open);
  let moved = false;
  for (const [keys, others, isOpen] of [
    [now, before, true],
    [before, now, false],
  ] as const) {
    for (const key of keys) {
      if (others.has(key)) continue;
      const item = from.itemWithKey(key),
        there = item && counterpartOf(from, to, item);
      if (!there || opened.has(there) === isOpen) continue;
      if (isOpen) opened.add(there);
      else opened.delete(there);
      moved = true;
    }
  }
  if (moved) to.store.update({ open: opened });
}

/** What stands for a selection in the other graph; null if nothing does. */
function counterpart(from: App, to: App, selection: Selection): Selection | null {
  if (selection.kind === "node") {
    const node = from.side?.other(selection.node);
    return node === undefined ? null : { kind: "node", node };
  }
  const item = from.itemWithKey(selection.key),
    key = item && counterpartOf(from, to, item);
  return key ? { kind: "group", key } : null;
}

/** The group at the same depth around the partner of the first node in a group that has one. */
function counterpartOf(from: App, to: App, item: Item): string | null {
  const start = from.outline.shownStart(item, from.state.rounds);
  for (let leaf = start; leaf < start + item.length; leaf++) {
    const node = from.side?.other(from.outline.leafNode[leaf]!);
    const there = node === undefined ? -1 : to.outline.nodeLeaf[node]!;
    if (there < 0) continue;
    const way = to.outline.around(there, to.state.rounds);
    // A block that got an op beside it may be a loop in one graph and a module in the other.
    const isLike = (one: Item) => one.depth === item.depth && (one.kind === item.kind || one.title === item.title);
    return way.find(isLike)?.key ?? null;
  }
  return null;
}
