/** Execution over time: phases, iterations, and per thread the modules, nested as in the outline, down to the ops. */

import type { App } from "../app";
import { mixed } from "../draw/theme";
import { axesOf, lastAtMost } from "../model/axis";
import { childOf, type Flame, flameOf, type Level, levelsOf, pathAt, stretches, titleOf } from "../model/flame";
import { known } from "../model/graph";
import { formatFlops, formatInteger, formatTime } from "../model/units";
import { changed } from "../state/store";
import { whenSeen } from "./chart";
import { h } from "./dom";
import { selectAround } from "./marks";
import type { Pane } from "./pane";
import { BAND, Timeline } from "./timeline";

const ROW = 19; // height of a bar with the gap below it
const LEFT = 12;

/** One line of the chart: a band of stretches with words, or the bars of one depth. */
type Row =
  | { kind: "band"; words: (value: number) => string; stretches: { from: number; to: number; value: number }[] }
  | { kind: "bars"; depth: number; level: Level }
  | { kind: "title"; words: string };

export function time(app: App): Pane {
  return {
    name: "time",
    title: "Time",
    place: "bottom",
    element: whenSeen(() => new TimePane(app).element),
    missing: app.graph.count ? "" : "This graph has no ops.",
  };
}

class TimePane {
  readonly element: HTMLElement;
  private readonly line: Timeline;
  private readonly spacer = h("div", { class: "spacer" });
  private readonly scroller: HTMLElement;
  private readonly content: { rows: Row[]; flame: Flame };

  constructor(private readonly app: App) {
    this.content = contentOf(app);
    this.line = new Timeline(app, {
      label: "execution timeline: modules and ops, nested. Arrow keys move the moment, Enter selects its op.",
      axis: "time",
      left: LEFT,
      dragsMoment: false,
      paint: () => this.paint(),
      hit: (_, node, y) => this.hit(node, y),
      scrolls: (_, by) => {
        this.scroller.scrollTop += by;
      },
    });
    this.scroller = h("div", { class: "chart-scroll" }, this.line.chart.element, this.spacer);
    this.scroller.addEventListener("scroll", () => this.line.chart.redraw());
    this.element = h(
      "div",
      { class: "chart-pane" },
      h("div", { class: "chart-head" }, this.headline(), h("span", { class: "grow" }), this.line.controls()),
      h("div", { class: "chart-body wide" }, this.scroller),
    );
    app.store.subscribe((state, before) => {
      if (state !== before && changed(state, before, "selection")) this.scrollToSelection();
    });
  }

  /** 45.2 ms in 1,816 ops (median of 5 runs) */
  private headline(): HTMLElement {
    const { info } = this.app.graph,
      { totals } = info;
    if (!axesOf(this.app.graph).has("time"))
      return h(
        "span",
        { class: "headline soft" },
        `Nothing was timed in this graph: ops stand in the order ${this.app.graph.document.header.source === "run" ? "in which they ran" : "of the graph"}.`,
      );
    const atLeast = totals.at_least.includes("time_ns") ? "at least " : "";
    const { graph } = this.app;
    let untimed = 0;
    for (let node = 0; node < graph.count; node++) if (graph.isOp(node) && graph.time[node]! < 0) untimed++;
    return h(
      "span",
      { class: "headline" },
      h("b", {}, totals.time_ns === null ? "unknown" : `${atLeast}${formatTime(totals.time_ns)}`),
      ` in ${formatInteger(totals.ops)} ${totals.ops === 1 ? "op" : "ops"}`,
      h(
        "span",
        { class: "soft" },
        `${info.time ? ` · ${info.time}` : ""}${untimed ? ` · ${formatInteger(untimed)} ops have no time and take no room` : ""}`,
      ),
    );
  }

  // -- drawing -------------------------------------------------------------------------------------------------

  private paint(): void {
    const { line } = this,
      { chart } = line,
      { pen, theme } = chart,
      { rows } = this.content;
    this.spacer.style.height = `${Math.max(rows.length * ROW + 2 * BAND + 8 - chart.height, 0)}px`;
    const top = 2 * BAND;
    pen.save();
    pen.beginPath();
    pen.rect(0, top, chart.width, chart.height - top);
    pen.clip();
    rows.forEach((row, i) => {
      const y = top + i * ROW - this.scroller.scrollTop;
      if (y < top - ROW || y > chart.height) return;
      if (row.kind === "title") chart.write(row.words, line.left, y + ROW / 2, { color: theme.soft, size: 10.5 });
      else if (row.kind === "band") this.paintBand(row, y);
      else this.paintBars(row.level, row.depth, y);
    });
    pen.restore();
    line.drawAxis(BAND / 2, BAND - 4, BAND);
    line.drawPhases(BAND * 1.5, chart.height);
    line.drawMarks(top, chart.height);
  }

  private paintBand(row: Row & { kind: "band" }, y: number): void {
    const { line } = this,
      { chart, axis } = line,
      { pen, theme } = chart,
      at = line.scale();
    let free = line.left;
    for (const [i, { from, to, value }] of row.stretches.entries()) {
      const x0 = Math.max(at(axis.edges[from]!), line.left),
        x1 = Math.min(at(axis.edges[to]!), line.right);
      if (x1 - x0 < 1) continue;
      pen.fillStyle = theme.tints[1 + (i % 2) * 2]!;
      pen.fillRect(x0, y, x1 - x0, ROW - 2);
      const words = row.words(value),
        start = Math.max(x0 + 4, free);
      const width = chart.write(words, start, y + ROW / 2, { color: theme.soft, size: 10.5, most: x1 - start });
      if (width) free = start + width + 4;
    }
  }

  /** Bars narrower than a pixel share it: the widest of them gives the colour. */
  private paintBars(level: Level, depth: number, y: number): void {
    const { line, app } = this,
      { chart, axis } = line,
      { pen } = chart,
      at = line.scale(),
      [low, high] = line.span,
      height = ROW - 2;
    const { places } = this.content.flame;
    let column = -1,
      widest = 0,
      bar = -1;
    const flush = () => {
      if (bar >= 0) {
        pen.fillStyle = this.colors(level.place[bar]!, depth)[2];
        pen.fillRect(column, y, 1, height);
      }
      bar = -1;
      widest = 0;
    };
    const selected = this.outlined("selection", depth),
      hovered = this.outlined("hover", depth);
    for (let i = lastAtMost(level.to, low) + 1; i < level.from.length && level.from[i]! < high; i++) {
      const x0 = at(axis.start[level.from[i]!]!),
        x1 = at(axis.stop[level.to[i]! - 1]!);
      const mark = selected?.has(level.from[i]!) ? "selected" : hovered?.has(level.from[i]!) ? "near" : "";
      if (x1 - x0 < 1.5 && !mark) {
        if (!(x1 > x0)) continue;
        const here = Math.floor(x0);
        if (here !== column) flush();
        column = here;
        if (x1 - x0 > widest || bar < 0) {
          widest = x1 - x0;
          bar = i;
        }
        continue;
      }
      flush();
      const from = Math.max(x0, line.left),
        to = Math.min(Math.max(x1, x0 + 1), line.right),
        [fill, stroke] = this.colors(level.place[i]!, depth);
      if (to <= from) continue;
      pen.fillStyle = fill;
      pen.fillRect(from, y, to - from, height);
      if (to - from > 3 || mark) {
        pen.strokeStyle = mark === "selected" ? app.theme.fills["matmul"]![1] : mark ? app.theme.ink : stroke;
        pen.lineWidth = mark === "selected" ? 2 : 1;
        pen.strokeRect(from + 0.5, y + 0.5, to - from - 1, height - 1);
      }
      if (to - from > 16)
        chart.write(titleOf(app.outline, places, level.place[i]!), from + 4, y + height / 2 + 0.5, {
          most: to - from - 8,
        });
    }
    flush();
  }

  /** Fill, border, and what stands for many in one pixel. */
  private colors(place: number, depth: number): [string, string, string] {
    const { app } = this,
      { theme, outline } = app,
      { places } = this.content.flame;
    if (childOf(outline, places, place)[0] !== "leaf") {
      const tint = theme.tints[Math.min(depth + 1, theme.tints.length - 1)]!;
      return [tint, theme.line, theme.line];
    }
    const [fill, stroke] =
      theme.fills[app.graph.category(outline.leafNode[places.start[place]!]!)] ?? theme.fills["unknown"]!;
    return [fill, stroke, mixed(fill, stroke, 0.5)];
  }

  /** The nodes of a selection if its bars lie at this depth. */
  private outlined(field: "selection" | "hover", depth: number): Set<number> | null {
    const item = this.app.itemOf(this.app.state[field]);
    return item && item.depth - 1 === depth ? new Set(this.barStarts(field)) : null;
  }

  /** A bar is marked if its first node is; a selected op marks the bar that it is in. */
  private barStarts(field: "selection" | "hover"): readonly number[] {
    const nodes = this.line.nodes(field),
      selection = this.app.state[field];
    if (selection?.kind !== "node") return nodes;
    const found: number[] = [];
    for (const row of this.content.rows) {
      if (row.kind !== "bars") continue;
      const bar = lastAtMost(row.level.from, selection.node);
      if (bar >= 0 && row.level.to[bar]! > selection.node) found.push(row.level.from[bar]!);
    }
    return found;
  }

  // -- pointing ------------------------------------------------------------------------------------------------

  private hit(node: number, y: number) {
    const { app } = this,
      { rows, flame } = this.content;
    const row = y < 2 * BAND ? undefined : rows[Math.floor((y - 2 * BAND + this.scroller.scrollTop) / ROW)];
    if (!row || row.kind === "title") return null;
    const stretch = row.kind === "band" ? row.stretches.find((one) => node >= one.from && node < one.to) : undefined;
    if (row.kind === "band")
      return stretch
        ? { words: [row.words(stretch.value), ...this.sums(stretch.from, stretch.to)], choose: () => {} }
        : null;
    const bar = lastAtMost(row.level.from, node);
    if (bar < 0 || row.level.to[bar]! <= node) return null;
    const place = row.level.place[bar]!,
      [from, to] = [row.level.from[bar]!, row.level.to[bar]!];
    const choose = () => app.store.update({ moment: node });
    if (childOf(app.outline, flame.places, place)[0] === "leaf")
      return {
        words: this.wordsOf(node),
        choose: () => {
          choose();
          app.select({ kind: "node", node }, { fly: true });
        },
      };
    const title = titleOf(app.outline, flame.places, place),
      level = childOf(app.outline, flame.places, place)[10],
      path = level < 0 ? "" : pathAt(app.outline, flame.places.start[place]!, level);
    return {
      words: [title, ...this.sums(from, to), path].filter(Boolean),
      choose: () => {
        choose();
        selectAround(app, flame.places.start[place]!, (item) => item.depth === row.depth + 1);
      },
    };
  }

  /** Ops, time and share of some nodes in a row. */
  private sums(from: number, to: number): string[] {
    const { graph } = this.app,
      sums = axesOf(graph).get("time")?.edges;
    let ops = 0,
      untimed = 0;
    for (let node = from; node < to; node++) {
      if (!graph.isOp(node)) continue;
      ops++;
      if (graph.time[node]! < 0) untimed++;
    }
    const words = `${formatInteger(ops)} ${ops === 1 ? "op" : "ops"}`;
    if (!sums || untimed === ops) return [words, "time unknown"];
    const time = sums[to]! - sums[from]!;
    const share = ((100 * time) / sums[graph.count]!).toFixed(1);
    return [words, `${untimed ? "at least " : ""}${formatTime(time)} · ${share} % of all ops`];
  }

  private wordsOf(node: number): string[] {
    const { graph } = this.app,
      time = graph.timeOf(node),
      spread = known(graph.document.need("node_time_spread_ns"), node);
    const flops = known(graph.document.column("viewer/node_flops") ?? new Float64Array(graph.count).fill(-1), node);
    const total = axesOf(graph).get("time")?.last;
    const shape = [...graph.outputs(node)].filter((value) => value >= 0).map((value) => graph.shape(value))[0];
    return [
      graph.nodeName(node),
      `${graph.operationName(node)} · ${graph.phaseName(node)}${shape ? ` · ${shape}` : ""}`,
      time === undefined
        ? "time unknown"
        : `${formatTime(time)}${spread === undefined ? "" : ` ± ${formatTime(spread / 2)}`}${total ? ` · ${((100 * time) / total).toFixed(1)} % of all ops` : ""}${graph.info.time ? ` · ${graph.info.time}` : ""}`,
      flops ? formatFlops(flops) : "",
    ].filter(Boolean);
  }

  private scrollToSelection(): void {
    const item = this.app.itemOf(this.app.state.selection);
    if (!item || !this.element.isConnected) return;
    const nodes = this.line.nodes("selection");
    const row = this.content.rows.findIndex((one) => {
      if (one.kind !== "bars" || one.depth !== item.depth - 1) return false;
      const bar = lastAtMost(one.level.from, nodes[0] ?? -1);
      return bar >= 0 && one.level.to[bar]! > nodes[0]!;
    });
    if (row < 0) return;
    const top = row * ROW,
      room = this.line.chart.height - 2 * BAND - ROW;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top > this.scroller.scrollTop + room) this.scroller.scrollTop = top - room;
  }
}

/** The rows of the chart: iterations where there are several, and the bars of every thread. */
function contentOf({ graph, outline }: App): { rows: Row[]; flame: Flame } {
  const flame = flameOf(outline),
    rows: Row[] = [];
  const iteration = graph.document.column("node_iteration"),
    thread = graph.document.need("node_thread");
  const iterations = iteration ? stretches(iteration, graph.count) : [];
  if (iterations.length > 1)
    rows.push({ kind: "band", stretches: iterations, words: (value) => (value < 0 ? "" : `iteration ${value}`) });
  const threads = [...new Set(thread)];
  for (const one of threads) {
    if (threads.length > 1) rows.push({ kind: "title", words: `thread ${graph.tables.threads[one] ?? one}` });
    levelsOf(flame, threads.length > 1 ? (node) => thread[node] === one : undefined).forEach((level, depth) => {
      if (level.from.length) rows.push({ kind: "bars", depth, level });
    });
  }
  return { rows, flame };
}
