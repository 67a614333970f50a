/** Memory over the run, stacked by category, and what is alive at a moment, largest first, with where it was made. */

import type { App } from "../app";
import { type Alive, CATEGORIES, type Category, Memory, originOf } from "../model/memory";
import { roundTicks } from "../model/ticks";
import { formatBytes, formatInteger } from "../model/units";
import { changed } from "../state/store";
import { h, replace } from "./dom";
import type { Pane } from "./pane";
import { BAND, Timeline } from "./timeline";

const OWNED: Partial<Record<Category, string>> = { gradients: "gradient of", optimizer_state: "state of" };
const MOST_ROWS = 100; // of what is alive; the rest is one line

export function memory(app: App): Pane {
  const found = Memory.of(app.graph);
  const base = { name: "memory", title: "Memory", place: "bottom" } as const;
  if (!found) return { ...base, element: h("div"), missing: missingWords(app) };
  return { ...base, element: new MemoryPane(app, found).element };
}

function missingWords(app: App): string {
  return app.graph.document.header.source === "run"
    ? "Memory was not followed in this graph. Record it again with track_memory=True, the default."
    : "This graph says what would run, not when memory is taken and freed. Record a run: atlas.capture(model, *args), with fake=True to allocate nothing.";
}

class MemoryPane {
  readonly element: HTMLElement;
  private readonly line: Timeline;
  private readonly layers: { key: Category; bytes: Float64Array }[];
  private readonly list = h("div", { class: "alive" });
  private only: Category | null = null;
  private pointed: number | null = null; // the storage whose lifetime is drawn

  constructor(
    private readonly app: App,
    private readonly memory: Memory,
  ) {
    const { timeline } = memory;
    // From the bottom of the stack to its top, as in the still picture.
    this.layers = (Object.keys(app.theme.memory) as Category[])
      .filter((key) => timeline.get(key)?.some((bytes) => bytes > 0))
      .map((key) => ({ key, bytes: timeline.get(key)! }));
    this.line = new Timeline(app, {
      label: "memory timeline: bytes alive after each op, by category. Arrow keys move the moment.",
      axis: "order",
      left: 62,
      dragsMoment: true,
      paint: () => this.paint(),
      hit: (_, node) => ({
        words: this.wordsAt(node),
        choose: () => app.select({ kind: "node", node }, { fly: true }),
      }),
    });
    this.element = h(
      "div",
      { class: "chart-pane" },
      h("div", { class: "chart-head" }, this.headline(), h("span", { class: "grow" }), this.line.controls()),
      h("div", { class: "chart-body" }, this.line.chart.element, this.list),
    );
    app.store.subscribe((state, before) => {
      if (changed(state, before, "moment", "theme")) this.showAlive();
      else if (changed(state, before, "selection")) this.markRows();
    });
  }

  private get moment(): number {
    return Math.min(this.app.state.moment ?? this.memory.peakNode, this.app.graph.count - 1);
  }

  /** 2.17 GiB at the peak, in AdamW.div */
  private headline(): HTMLElement {
    const { app, memory } = this,
      node = memory.peakNode;
    return h(
      "span",
      { class: "headline" },
      h("b", {}, `${this.atLeast}${formatBytes(memory.peakBytes)}`),
      " at the peak, in ",
      link(app.graph.nodeName(node), () => app.select({ kind: "node", node }, { fly: true })),
      " ",
      h("button", { title: "stand at the peak", onclick: () => this.line.moveTo(node) }, "jump to the peak"),
    );
  }

  private get atLeast(): string {
    return this.memory.unknown || this.app.graph.info.totals.at_least.includes("peak_bytes") ? "at least " : "";
  }

  // -- the plot ------------------------------------------------------------------------------------------------

  private paint(): void {
    const { line, memory } = this,
      { chart } = line,
      { pen, theme } = chart;
    const top = BAND,
      bottom = chart.height - BAND;
    const most = Math.max(memory.peakBytes, 1) * 1.12;
    const y = (bytes: number) => bottom - (bytes / most) * (bottom - top);
    const ticks = roundTicks(0, most, Math.max(Math.floor((bottom - top) / 32), 2), 1024);
    line.drawAxis(chart.height - BAND / 2 + 1, bottom, bottom + 4);
    for (const tick of ticks) {
      pen.fillStyle = theme.line;
      pen.fillRect(line.left, Math.round(y(tick)), line.right - line.left, 1);
      chart.write(shortBytes(tick), line.left - 8, Math.min(Math.max(y(tick), 8), chart.height - 8), {
        color: theme.soft,
        align: "right",
        size: 10.5,
      });
    }
    this.paintStack(y);
    line.drawPhases(top / 2 + 1, bottom);
    this.paintLifetime(bottom);
    line.drawMarks(top, bottom);
    this.paintPeak(y(memory.peakBytes));
  }

  /** With more nodes than pixels a column shows the fullest of its nodes. */
  private paintStack(y: (bytes: number) => number): void {
    const { line, memory, app } = this,
      { pen, theme } = line.chart,
      steps = columnsOf(line, memory.live);
    const below = new Float64Array(steps.length);
    for (const { key, bytes } of this.layers) {
      pen.beginPath();
      steps.forEach(({ x, node }, i) => {
        const top = y(below[i]! + Math.max(bytes[node]!, 0));
        if (i) pen.lineTo(x, top);
        else pen.moveTo(x, top);
        pen.lineTo(steps[i + 1]?.x ?? line.right, top);
      });
      for (let i = steps.length - 1; i >= 0; i--) {
        const base = y(below[i]!);
        pen.lineTo(steps[i + 1]?.x ?? line.right, base);
        pen.lineTo(steps[i]!.x, base);
        below[i]! += Math.max(bytes[steps[i]!.node]!, 0);
      }
      pen.fillStyle = app.theme.memory[key] ?? theme.edge;
      pen.globalAlpha = this.only && this.only !== key ? 0.25 : 1;
      pen.fill();
      pen.globalAlpha = 1;
    }
  }

  private paintPeak(y: number): void {
    const { line, memory, app } = this,
      { chart } = line,
      { pen, theme } = chart,
      node = memory.peakNode;
    const x = line.scale()((line.axis.edges[node]! + line.axis.edges[node + 1]!) / 2);
    if (x < line.left - 1 || x > line.right + 1) return;
    pen.fillStyle = theme.accent;
    pen.strokeStyle = theme.background;
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.arc(x, y, 4, 0, 2 * Math.PI);
    pen.fill();
    pen.stroke();
    const words = `peak ${this.atLeast}${formatBytes(memory.peakBytes)}, ${app.graph.nodeName(node)}`;
    const isLeft = x > (line.left + line.right) / 2;
    const most = (isLeft ? x - line.left : line.right - x) - 12;
    const width = Math.min(app.textWidth(words, 11, true), most),
      from = isLeft ? x - 9 - width : x + 9;
    pen.globalAlpha = 0.85;
    pen.fillStyle = theme.background;
    pen.fillRect(from - 3, y - 8, width + 6, 16);
    pen.globalAlpha = 1;
    chart.write(words, from, y + 0.5, { color: theme.accent, bold: true, most });
  }

  /** From where to where the tensor lives whose row the pointer is on. */
  private paintLifetime(bottom: number): void {
    const { line, memory, pointed } = this,
      { pen, theme } = line.chart;
    if (pointed === null) return;
    const at = line.scale();
    const x0 = Math.max(at(line.axis.edges[memory.start[pointed]!]!), line.left),
      x1 = Math.min(at(line.axis.edges[memory.end[pointed]! + 1]!), line.right);
    if (x1 < x0) return;
    pen.fillStyle = theme.ink;
    pen.fillRect(x0, bottom - 9, Math.max(x1 - x0, 2), 4);
    for (const x of [x0, x1]) pen.fillRect(x - 1, bottom - 14, 2, 14);
  }

  private wordsAt(node: number): string[] {
    const { graph } = this.app,
      live = this.memory.live[node]!;
    const parts = this.layers
      .map(({ key, bytes }): [string, number] => [CATEGORIES[key], bytes[node]!])
      .filter(([, bytes]) => bytes > 0)
      .sort((a, b) => b[1] - a[1]);
    return [
      `${live < 0 ? "unknown" : this.atLeast + formatBytes(live)} after ${graph.nodeName(node)}`,
      ...parts.slice(0, 4).map(([words, bytes]) => `${formatBytes(bytes)} ${words}`),
    ];
  }

  // -- what is alive -------------------------------------------------------------------------------------------

  private showAlive(): void {
    const { app, memory, moment } = this;
    if (!app.graph.count) return;
    const alive = memory.alive(moment),
      live = memory.live[moment]!;
    const chosen = this.only ? alive.filter((one) => one.category === this.only) : alive;
    const rest = chosen.slice(MOST_ROWS);
    const where = app.state.moment === null || moment === memory.peakNode ? "at the peak, after " : "alive after ";
    this.pointed = null;
    replace(
      this.list,
      h(
        "p",
        { class: "alive-title" },
        h("b", {}, live < 0 ? "unknown" : `${this.atLeast}${formatBytes(live)}`),
        ` ${where}`,
        link(app.graph.nodeName(moment), () => app.select({ kind: "node", node: moment }, { fly: true })),
      ),
      this.legend(moment, alive),
      h("ul", {}, ...chosen.slice(0, MOST_ROWS).map((one) => this.row(one, moment))),
      rest.length ? h("p", { class: "soft" }, restWords(rest)) : null,
    );
    this.markRows();
  }

  /** The categories with their bytes; a click lists only that one. */
  private legend(node: number, alive: Alive[]): HTMLElement {
    const held = this.layers.filter(({ key, bytes }) => bytes[node]! > 0 || key === this.only);
    const chips = held.reverse().map(({ key, bytes }) => {
      const unknown = alive.filter((one) => one.category === key && Number.isNaN(one.bytes)).length;
      return h(
        "button",
        {
          class: "chip",
          "aria-pressed": String(this.only === key),
          title: `list only ${CATEGORIES[key]}`,
          onclick: () => {
            this.only = this.only === key ? null : key;
            this.showAlive();
            this.line.chart.redraw();
          },
        },
        swatch(this.app.theme.memory[key]!),
        `${CATEGORIES[key]} `,
        h("span", { class: "soft" }, `${unknown ? "≥ " : ""}${formatBytes(bytes[node]!)}`),
      );
    });
    return h("div", { class: "chips" }, ...chips);
  }

  private row({ storage, bytes, category }: Alive, moment: number): HTMLElement {
    const { app } = this,
      { graph } = app,
      { value, born, name } = originOf(graph, storage);
    const maker = value >= 0 ? (graph.producer(value) ?? born) : born;
    // What was there before was made by no op: a click goes to the first that reads it.
    const node = maker >= 0 ? maker : value >= 0 ? (graph.readers(value)[0] ?? -1) : -1;
    const title =
      (name && OWNED[category] ? `${OWNED[category]} ${name}` : name) ||
      (maker >= 0 ? graph.nodeName(maker) : value >= 0 ? "given from outside" : `storage ${storage}`);
    const layout = value >= 0 ? graph.layout(value) : undefined,
      source = maker >= 0 ? graph.source(maker) : undefined;
    const made =
      maker >= 0
        ? [graph.modulePath(maker), source ? `${fileName(source.file)}:${source.line}` : ""]
        : ["there before"];
    const held = this.memory.end[storage]! - moment;
    const facts = [
      layout ? `${graph.shape(value)} ${layout.dtype}` : "",
      ...made,
      held > 0 ? `for ${formatInteger(held)} more ${held > 1 ? "ops" : "op"}` : "",
    ];
    return h(
      "li",
      {},
      h(
        "button",
        {
          class: "alive-row",
          "data-node": node,
          title: source ? `${title}\n${source.file}:${source.line}  ${source.text}` : title,
          disabled: node < 0,
          onclick: () => app.select({ kind: "node", node }, { fly: true }),
          onmouseenter: () => this.point(storage),
          onmouseleave: () => this.point(null),
          onfocus: () => this.point(storage),
          onblur: () => this.point(null),
        },
        swatch(app.theme.memory[category] ?? app.theme.edge),
        h("span", { class: "alive-name" }, title),
        h("span", { class: "alive-bytes" }, Number.isNaN(bytes) ? "unknown" : formatBytes(bytes)),
        h("span", { class: "alive-facts soft" }, facts.filter(Boolean).join(" · ")),
      ),
    );
  }

  private point(storage: number | null): void {
    this.pointed = storage;
    this.line.chart.redraw();
  }

  private markRows(): void {
    const { selection } = this.app.state;
    const node = selection?.kind === "node" ? String(selection.node) : "";
    for (const row of this.list.querySelectorAll<HTMLElement>(".alive-row"))
      row.classList.toggle("selected", node !== "" && row.dataset["node"] === node);
  }
}

/** Where a step of the stack begins, and the node it shows: every node, or the fullest of each pixel. */
function columnsOf(line: Timeline, live: ArrayLike<number>): { x: number; node: number }[] {
  const { axis } = line,
    at = line.scale(),
    [low, high] = line.span;
  const first = Math.floor(low),
    last = Math.min(Math.ceil(high), axis.count);
  const found: { x: number; node: number }[] = [];
  for (let node = first; node < last; node++) {
    const x = Math.max(at(axis.edges[node]!), line.left),
      previous = found.at(-1);
    if (previous && x - previous.x < 1) {
      if (live[node]! > live[previous.node]!) previous.node = node;
    } else found.push({ x, node });
  }
  return found;
}

function restWords(rest: Alive[]): string {
  const unknown = rest.filter((one) => Number.isNaN(one.bytes)).length;
  const bytes = rest.reduce((sum, one) => sum + (Number.isNaN(one.bytes) ? 0 : one.bytes), 0);
  return `… and ${formatInteger(rest.length)} more, ${unknown ? "at least " : ""}${formatBytes(bytes)} together`;
}

function fileName(path: string): string {
  return path.split(/[\\/]/).at(-1) ?? path;
}

/** 1.00 GiB -> 1 GiB */
function shortBytes(bytes: number): string {
  return formatBytes(bytes).replace(/\.0+(?= )/, "");
}

function swatch(color: string): HTMLElement {
  const element = h("span", { class: "swatch" });
  element.style.background = color;
  return element;
}

export function link(text: string, run: () => void): HTMLElement {
  return h("button", { class: "link", onclick: run }, text);
}
