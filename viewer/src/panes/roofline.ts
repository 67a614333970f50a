/** Ops under the roof of a device: how fast they ran against how much arithmetic they do per byte moved. */

import type { App } from "../app";
import { mixed } from "../draw/theme";
import { type Dot, logRange, type Roofline, roofAt, rooflineOf } from "../model/roofline";
import { logTicks } from "../model/ticks";
import { formatBytes, formatFlops, formatInteger, formatNumber, formatTime } from "../model/units";
import { changed } from "../state/store";
import { Chart, whenSeen } from "./chart";
import { h } from "./dom";
import { markedNodes } from "./marks";
import type { Pane } from "./pane";

const MARGIN = { left: 88, right: 14, top: 22, bottom: 34 };
const MOST_LABELS = 10;
const LARGEST = 17; // radius

export function roofline(app: App): Pane {
  const { graph } = app;
  const canHave =
    graph.document.column("viewer/node_arithmetic") && (graph.info.device || graph.time.some((one) => one > 0));
  const make = () => {
    const found = rooflineOf(graph);
    return found ? new RooflinePane(app, found).element : h("p", { class: "soft missing" }, NO_DOTS);
  };
  return {
    name: "roofline",
    title: "Roofline",
    place: "bottom",
    element: whenSeen(make),
    missing: canHave ? "" : graph.document.column("viewer/node_arithmetic") ? NO_DOTS : noArithmetic(app),
  };
}

function noArithmetic(app: App): string {
  return app.graph.document.header.source === "autograd"
    ? "Nodes of autograd do not tell their arithmetic. Record a run: atlas.capture(model, *args, backward=True)."
    : 'This file does not tell the arithmetic of its ops. graph.save("page.html") makes a page that does.';
}

const NO_DOTS = "No op of this graph has both known arithmetic and a known time, or a device to compare it with.";

class RooflinePane {
  readonly element: HTMLElement;
  private readonly chart: Chart;
  private readonly x: Log;
  private readonly y: Log;
  private readonly across: [number, number];
  private readonly up: [number, number];
  private readonly dotOf = new Map<number, Dot>();
  private focused = -1; // a dot that was reached with the arrow keys

  constructor(
    private readonly app: App,
    private readonly found: Roofline,
  ) {
    const { device } = app.graph.info,
      { dots } = found;
    const ridge = device ? [device.flops_per_second / device.bytes_per_second] : [];
    this.across = logRange([...dots.map((dot) => dot.intensity), ...ridge]);
    this.up = logRange(
      device
        ? [...dots.map((dot) => dot.rate), device.flops_per_second]
        : dots.map((dot) => dot.time / dot.nodes.length),
    );
    for (const dot of dots) for (const node of dot.nodes) this.dotOf.set(node, dot);
    this.chart = new Chart(
      app,
      "roofline: ops by arithmetic per byte and speed. Arrow keys go through them, Enter selects.",
      () => this.paint(),
    );
    this.x = new Log(this.across, () => [MARGIN.left, this.chart.width - MARGIN.right]);
    this.y = new Log(this.up, () => [this.chart.height - MARGIN.bottom, MARGIN.top]);
    this.element = h(
      "div",
      { class: "chart-pane" },
      h("div", { class: "chart-head" }, h("span", { class: "headline" }, ...this.headline())),
      h("div", { class: "chart-body wide" }, this.chart.element),
    );
    this.listen();
    app.store.subscribe((state, before) => {
      if (changed(state, before, "selection", "hover", "rounds")) this.chart.redraw();
    });
  }

  private headline(): (Node | string)[] {
    const { info } = this.app.graph,
      { device } = info,
      { found } = this;
    const absent: [number, string][] = [
      [found.idle, "without arithmetic"],
      [found.unknown, "without a formula"],
      [found.untimed, "without a time"],
    ];
    const hidden = absent
      .filter(([count]) => count)
      .map(([count, words]) => `${formatInteger(count)} ${count === 1 ? "op" : "ops"} ${words}`);
    const times = found.isTimed
      ? `Circles: equal calls, their area the time of all (${info.time ?? "as recorded"}).`
      : `Nothing was timed: circles lie where ${device!.name} would do them at best.`;
    const roof = device
      ? ` Roof: ${device.name}, ${rate(device.flops_per_second)} and ${formatBytes(device.bytes_per_second)}/s (${device.basis}).`
      : " No device is named, so there is no roof.";
    return [times, h("span", { class: "soft" }, `${roof}${hidden.length ? ` Not shown: ${hidden.join(", ")}.` : ""}`)];
  }

  // -- drawing -------------------------------------------------------------------------------------------------

  private height(dot: Dot): number {
    return this.app.graph.info.device ? dot.rate : dot.time / dot.nodes.length;
  }

  private place(dot: Dot): [x: number, y: number, radius: number] {
    const radius = Math.max(3, LARGEST * Math.sqrt(dot.time / this.found.dots[0]!.time));
    return [this.x.at(dot.intensity), this.y.at(this.height(dot)), radius];
  }

  private paint(): void {
    const { chart, app } = this,
      { pen, theme } = chart;
    this.paintAxes();
    this.paintRoof();
    const marked = this.dotsOf("selection"),
      near = this.dotsOf("hover");
    const taken: Box[] = [];
    for (const dot of this.found.dots) {
      const [x, y, radius] = this.place(dot);
      const stroke = (theme.fills[dot.category] ?? theme.fills["unknown"]!)[1];
      pen.globalAlpha = marked && !marked.has(dot) ? 0.25 : 0.85;
      pen.beginPath();
      pen.arc(x, y, radius, 0, 2 * Math.PI);
      pen.fillStyle = mixed(theme.background, stroke, this.found.isTimed ? 0.55 : 0.2);
      pen.fill();
      pen.strokeStyle = stroke;
      pen.lineWidth = 1.2;
      pen.stroke();
      pen.globalAlpha = 1;
    }
    for (const [dots, color] of [
      [near, theme.ink],
      [marked, theme.accent],
    ] as const) {
      for (const dot of dots ?? []) {
        const [x, y, radius] = this.place(dot);
        pen.beginPath();
        pen.arc(x, y, radius + 2, 0, 2 * Math.PI);
        pen.strokeStyle = color;
        pen.lineWidth = 2;
        pen.stroke();
      }
    }
    for (const dot of this.found.dots.slice(0, MOST_LABELS)) {
      const [x, y, radius] = this.place(dot),
        words = this.nameOf(dot),
        width = app.textWidth(words, 11, false);
      const spots: [number, number][] = [
        [x + radius + 4, y],
        [x - radius - 4 - width, y],
        [x - width / 2, y - radius - 9],
        [x - width / 2, y + radius + 9],
      ];
      const spot = spots.find(([left, middle]) =>
        this.isFree({ left, right: left + width, top: middle - 7, bottom: middle + 7 }, taken),
      );
      if (!spot) continue;
      taken.push({ left: spot[0], right: spot[0] + width, top: spot[1] - 7, bottom: spot[1] + 7 });
      chart.write(words, spot[0], spot[1]);
    }
  }

  private isFree(box: Box, taken: readonly Box[]): boolean {
    const { chart } = this;
    if (
      box.left < MARGIN.left ||
      box.right > chart.width - 4 ||
      box.top < MARGIN.top - 6 ||
      box.bottom > chart.height - MARGIN.bottom
    )
      return false;
    if (
      taken.some((one) => box.left < one.right && box.right > one.left && box.top < one.bottom && box.bottom > one.top)
    )
      return false;
    return !this.found.dots.slice(0, 60).some((dot) => {
      const [x, y, radius] = this.place(dot);
      return x + radius > box.left && x - radius < box.right && y + radius > box.top && y - radius < box.bottom;
    });
  }

  private paintAxes(): void {
    const { chart, app } = this,
      { pen, theme } = chart,
      bottom = chart.height - MARGIN.bottom,
      right = chart.width - MARGIN.right,
      hasRoof = app.graph.info.device !== null;
    for (const tick of logTicks(...this.across, Math.max(Math.floor(chart.width / 90), 2))) {
      const x = Math.round(this.x.at(tick));
      pen.fillStyle = theme.line;
      pen.fillRect(x, MARGIN.top, 1, bottom - MARGIN.top);
      chart.write(formatNumber(tick), x, bottom + 9, { color: theme.soft, align: "center", size: 10.5 });
    }
    for (const tick of logTicks(...this.up, Math.max(Math.floor((bottom - MARGIN.top) / 26), 2))) {
      const y = Math.round(this.y.at(tick));
      pen.fillStyle = theme.line;
      pen.fillRect(MARGIN.left, y, right - MARGIN.left, 1);
      chart.write(short(hasRoof ? rate(tick) : formatTime(tick)), MARGIN.left - 6, y, {
        color: theme.soft,
        align: "right",
        size: 10.5,
      });
    }
    chart.write("FLOPs per byte moved", right, bottom + 24, { color: theme.soft, align: "right", size: 10.5 });
    chart.write(hasRoof ? "FLOPs per second" : "time of one call", 8, 9, { color: theme.soft, size: 10.5 });
  }

  private paintRoof(): void {
    const { chart } = this,
      { pen, theme } = chart,
      { device } = this.app.graph.info;
    if (!device) return;
    const [low, high] = this.across,
      ridge = device.flops_per_second / device.bytes_per_second;
    pen.save();
    pen.beginPath();
    pen.rect(
      MARGIN.left,
      MARGIN.top - 12,
      chart.width - MARGIN.left - MARGIN.right,
      chart.height - MARGIN.bottom - MARGIN.top + 12,
    );
    pen.clip();
    pen.beginPath();
    [low, Math.min(Math.max(ridge, low), high), high].forEach((intensity, i) => {
      const [x, y] = [this.x.at(intensity), this.y.at(roofAt(device, intensity))];
      if (i) pen.lineTo(x, y);
      else pen.moveTo(x, y);
    });
    pen.strokeStyle = theme.ink;
    pen.lineWidth = 1.5;
    pen.stroke();
    pen.restore();
    pen.fillStyle = theme.accent;
    pen.beginPath();
    pen.arc(this.x.at(ridge), this.y.at(device.flops_per_second), 3, 0, 2 * Math.PI);
    pen.fill();
    chart.write(
      `${formatNumber(ridge)} FLOPs per byte: left of it memory limits, right of it arithmetic`,
      Math.max(this.x.at(ridge) - 8, MARGIN.left + 20),
      this.y.at(device.flops_per_second) - 9,
      {
        color: theme.accent,
        align: "right",
        size: 10.5,
        most: Math.max(this.x.at(ridge) - MARGIN.left - 16, 0),
      },
    );
  }

  private nameOf(dot: Dot): string {
    const name = this.app.graph.shortOperation(dot.nodes[0]!);
    return dot.nodes.length > 1 ? `${name} ×${formatInteger(dot.nodes.length)}` : name;
  }

  /** The dots of the selection or of what the pointer is on; null if nothing is. */
  private dotsOf(field: "selection" | "hover"): Set<Dot> | null {
    const selection = this.app.state[field];
    if (!selection) return null;
    const found = new Set<Dot>();
    for (const node of markedNodes(this.app, selection)) {
      const dot = this.dotOf.get(node);
      if (dot) found.add(dot);
    }
    return found.size ? found : null;
  }

  // -- pointing ------------------------------------------------------------------------------------------------

  private listen(): void {
    const { canvas } = this.chart,
      { store } = this.app;
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = this.chart.point(event),
        dot = this.dotAt(x, y);
      this.chart.showTip(dot ? this.wordsOf(dot) : [], x, y);
      canvas.style.cursor = dot ? "pointer" : "default";
      const node = dot?.nodes[0];
      const before = store.state.hover;
      if ((before?.kind === "node" ? before.node : undefined) !== node)
        store.update({ hover: node === undefined ? null : { kind: "node", node } });
    });
    canvas.addEventListener("pointerleave", () => {
      this.chart.showTip([]);
      store.update({ hover: null });
    });
    canvas.addEventListener("click", (event) => {
      const dot = this.dotAt(...this.chart.point(event));
      if (dot) this.choose(dot);
    });
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key],
        { dots } = this.found;
      if (by) {
        this.focused = (Math.max(this.focused, by > 0 ? -1 : 0) + by + dots.length) % dots.length;
        const dot = dots[this.focused]!,
          [x, y] = this.place(dot);
        this.chart.showTip(this.wordsOf(dot), x, y);
        store.update({ hover: { kind: "node", node: dot.nodes[0]! } });
      } else if (event.key === "Enter" && dots[this.focused]) this.choose(dots[this.focused]!);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  /** The slowest call; clicked again the next. */
  private choose(dot: Dot): void {
    const { selection } = this.app.state;
    const at = selection?.kind === "node" ? dot.nodes.indexOf(selection.node) : -1;
    this.app.select({ kind: "node", node: dot.nodes[(at + 1) % dot.nodes.length]! }, { fly: true });
  }

  /** The smallest dot at a point: it lies above the larger ones. */
  private dotAt(x: number, y: number): Dot | null {
    const here = this.found.dots.filter((dot) => {
      const [left, top, radius] = this.place(dot);
      return Math.hypot(left - x, top - y) <= Math.max(radius, 5);
    });
    return here.at(-1) ?? null;
  }

  private wordsOf(dot: Dot): string[] {
    const { graph } = this.app,
      first = dot.nodes[0]!,
      calls = dot.nodes.length,
      { device } = graph.info;
    const each = formatTime(dot.time / calls);
    const share = device ? `${((100 * dot.rate) / roofAt(device, dot.intensity)).toPrecision(2)} % of the roof` : "";
    return [
      `${graph.operationName(first)}${calls > 1 ? ` ×${formatInteger(calls)}` : ""}`,
      `${calls > 1 ? (this.found.isTimed ? "slowest: " : "first: ") : ""}${graph.nodeName(first)}`,
      `${formatFlops(dot.work)} and ${formatBytes(dot.moved)} each: ${formatNumber(dot.intensity)} FLOPs per byte`,
      this.found.isTimed
        ? [`${each} each`, calls > 1 ? `${formatTime(dot.time)} together` : "", rate(dot.rate), share]
            .filter(Boolean)
            .join(" · ")
        : `at best ${each} each · ${rate(dot.rate)}`,
    ];
  }
}

interface Box {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

/** Numbers -> pixels, by powers of ten. */
class Log {
  constructor(
    private readonly range: [number, number],
    private readonly pixels: () => [number, number],
  ) {}

  at(value: number): number {
    const [low, high] = this.range.map(Math.log10) as [number, number],
      [from, to] = this.pixels();
    return from + ((Math.log10(value) - low) / (high - low || 1)) * (to - from);
  }
}

function rate(flops: number): string {
  return formatFlops(flops).replace("FLOPs", "FLOP/s");
}

/** 10.0 GFLOP/s -> 10 GFLOP/s */
function short(words: string): string {
  return words.replace(/\.0+(?= )/, "");
}
