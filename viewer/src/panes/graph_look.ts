/** State -> how boxes and lines look: what is selected, near, traced, dimmed; colours by kind or by a measure. */

import type { App } from "../app";
import type { Look } from "../draw/paint";
import type { Line } from "../layout/scene";
import type { Item } from "../model/outline";
import { tracedNodes } from "../model/relations";
import { formatNumber } from "../model/units";
import { tags } from "./overlays";

export function lookOf(app: App): Look {
  const { state, outline, graph, theme } = app;
  const selected = app.itemOf(state.selection),
    second = app.itemOf(state.second),
    hover = app.itemOf(state.hover);
  const traced = tracedNodes(app);
  const leaves = traced && leafMarks(app, traced);
  const critical = state.critical ? criticalLeaves(app) : null;
  const played = readyItems(app);
  const failed = graph.info.failed ? (outline.nodeLeaf[graph.info.failed.node] ?? -1) : -1;
  const inside = (marks: Int32Array, item: Item) => marks[item.end]! > marks[item.start]!;
  return {
    theme,
    geometry: app.style.geometry,
    textWidth: app.textWidth,
    heat: app.heatScale(),
    category: (item) => graph.category(outline.leafNode[item.start]!),
    mark(item) {
      if (selected && item.key === selected.key) return "selected";
      if (second && item.key === second.key) return "second";
      if (failed >= item.start && failed < item.end) return "failed";
      if (hover && item.key === hover.key) return "near";
      if (played?.has(item)) return "near";
      if (leaves) return inside(leaves, item) ? "" : "dim";
      return critical && item.isLeaf && !inside(critical, item) ? "dim" : "";
    },
    lineMark(line) {
      const [from, to] = endsOf(app, line);
      if (leaves) return from && to && inside(leaves, from) && inside(leaves, to) ? "traced" : "dim";
      if (critical) return from && to && inside(critical, from) && inside(critical, to) ? "critical" : "dim";
      return selected && (from?.key === selected.key || to?.key === selected.key) ? "traced" : "";
    },
    lineText: normsOnLines(app),
    round(item) {
      const shown = state.rounds.get(item.key);
      return item.repeat > 1 && typeof shown === "number" ? `round ${shown + 1} of ${item.repeat}` : "";
    },
    tag: tags(app),
  };
}

function endsOf(app: App, line: Line): [Item | null, Item | null] {
  const { frames } = app.scene;
  // A line from the border of a group is part of one that comes from outside: what it ends at tells where it belongs.
  const from = frames[line.source]?.item ?? frames[frames[line.target]?.parent ?? -1]?.item ?? null;
  const to = frames[line.target]?.item ?? frames[frames[line.source]?.parent ?? -1]?.item ?? null;
  return [from, to];
}

/** How many traced leaves come before each leaf: an interval holds one if the numbers at its ends differ. */
export function leafMarks(app: App, nodes: Iterable<number>): Int32Array {
  const { outline } = app;
  const marks = new Int32Array(outline.leafNode.length + 1);
  for (const node of nodes) {
    const leaf = outline.nodeLeaf[node]!;
    if (leaf >= 0) marks[leaf + 1] = 1;
  }
  for (let leaf = 0; leaf < outline.leafNode.length; leaf++) marks[leaf + 1]! += marks[leaf]!;
  return marks;
}

function criticalLeaves(app: App): Int32Array | null {
  return app.graph.keep("criticalLeaves", () => {
    const column = app.graph.document.column("viewer/node_critical");
    return column
      ? leafMarks(
          app,
          [...column.keys()].filter((node) => column[node]),
        )
      : null;
  });
}

/** While a backward pass is played: the boxes whose steps are ready. */
function readyItems(app: App): { has(item: Item): boolean } | null {
  if (!app.played) return null;
  const { playback, now } = app.played;
  const marks = leafMarks(
    app,
    playback
      .ready(now)
      .map((step) => playback.nodes[step]!)
      .filter((node) => node >= 0),
  );
  return { has: (item) => !app.state.open.has(item.key) && marks[item.end]! > marks[item.start]! };
}

/** While a backward pass is played: the norms of the gradients that were made so far, on the lines between two ops. */
function normsOnLines(app: App): (line: Line) => { text: string; isWrong: boolean } {
  const nothing = { text: "", isWrong: false };
  if (!app.played?.playback.hasNorms) return () => nothing;
  const { playback, now } = app.played,
    { frames } = app.scene;
  const nodeOf = (frame: number) => {
    const item = frames[frame]?.item;
    return item?.isLeaf ? app.outline.leafNode[item.start]! : -1;
  };
  return (line) => {
    const from = playback.stepOfNode.get(nodeOf(line.source)),
      to = playback.stepOfNode.get(nodeOf(line.target));
    if (from === undefined || to === undefined || from > now) return nothing;
    const edge = playback.outOf[from]!.find((one) => one.target === to);
    if (edge?.notFinite) return { text: "not finite", isWrong: true };
    return edge && edge.norm !== null ? { text: formatNumber(edge.norm), isWrong: false } : nothing;
  };
}
