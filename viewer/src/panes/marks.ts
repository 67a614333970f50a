/** What the selection is for panes that show nodes: which nodes it marks, and how a place of the outline is selected. */

import type { App } from "../app";
import type { Item } from "../model/outline";
import type { Selection } from "../state/store";

/** The nodes of a selection, in order. Of a repeat that shows one of its rounds: that round. */
export function markedNodes(app: App, selection: Selection | null): readonly number[] {
  if (!selection) return [];
  if (selection.kind === "node") return [selection.node];
  const item = app.itemWithKey(selection.key);
  if (!item) return [];
  const round = app.state.rounds.get(item.key);
  if (item.repeat < 2 || typeof round !== "number") return app.outline.nodes(item);
  const start = app.outline.shownStart(item, app.state.rounds),
    { nodeLeaf } = app.outline;
  const found: number[] = [];
  for (let node = 0; node < nodeLeaf.length; node++) {
    if (nodeLeaf[node]! >= start && nodeLeaf[node]! < start + item.length) found.push(node);
  }
  return found;
}

/** Nodes in order -> stretches of neighbours. */
export function runs(nodes: readonly number[]): [from: number, to: number][] {
  const found: [number, number][] = [];
  for (const node of nodes) {
    const last = found.at(-1);
    if (last && last[1] === node) last[1] = node + 1;
    else found.push([node, node + 1]);
  }
  return found;
}

/** Select the group around a leaf that `isMeant` says is it (the leaf itself if none is), in the round that the leaf lies in. */
export function selectAround(app: App, leaf: number, isMeant: (item: Item) => boolean): void {
  const rounds = new Map(app.state.rounds);
  let item = app.outline.root;
  while (!item.isLeaf) {
    const child = app.outline.children(item, rounds).find((one) => leaf >= one.start && leaf < one.end);
    if (!child) break;
    if (child.repeat > 1) rounds.set(child.key, Math.floor((leaf - child.start) / child.length));
    item = child;
    if (isMeant(item)) break;
  }
  if (!item.parent) return;
  app.store.update({ rounds });
  app.select(app.selectionOf(item), { fly: true });
}
