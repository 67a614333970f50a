/** Memory over the run, stacked by category, and what is alive at a moment, largest first, with where it was made. */

import type { App } from "../app";
import { type Alive, type AliveList, CATEGORIES, type Category, Memory, originOf } from "../model/memory";
import { roundTicks } from "../model/ticks";
import { formatBytes, formatInteger } from "../model/units";
import { changed } from "../state/store";
import { cutName, whenSeen } from "./chart";
import { link } from "./details_node";
import { h, replace } from "./dom";
import type { Pane } from "./pane";
import { BAND, Timeline } from "./timeline";

const OWNED: Partial<Record<Category, string>> = { gradients: "gradient of", optimizer_state: "state of" };
const MOST_ROWS = 60; // of what is alive; the rest is one line

export function memory(app: App): Pane {
  const isFollowed = app.graph.document.column("node_memory_bytes")?.some((bytes) => bytes >= 0);
  return {
    name: "memory",
    title: "Memory",
    place: "bottom",
    element: whenSeen(() => new MemoryPane(app, Memory.of(app.graph)!).element),
    missing: isFollowed ? "" : missingWords(app),
  };
}

function missingWords(app: App): string {
  if (!app.graph.count) return "Nothing was recorded in this graph, so nothing filled memory.";
  return app.graph.document.header.source === "run"
    ? "Memory was not followed in this graph. Record it again with track_memory=True, the default."
    : "This graph says what would run, not when memory is taken and freed. Record a run: atlas.capture(model, *args), with fake=True to allocate nothing.";
}

class MemoryPane {
  readonly element: HTMLElement;
  private readonly line: Timeline;
  private readonly layers: { key: Category; bytes: Float64Array }[];
  private readonly list = h("div", { class: "alive" });
  private readonly chips = h("div", { class: "categories", role: "group", "aria-label": "categories" });
  private only: Category | null = null;
  private isStale = true; // the list is of another moment
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
      this.chips,
      h("div", { class: "chart-body" }, this.line.chart.element, this.list),
    );
    this.listen();
    app.store.subscribe((state, before) => {
      if (changed(state, before, "moment", "theme")) {
        this.isStale = true;
        this.line.chart.redraw();
      } else if (changed(state, before, "selection")) this.markRows();
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
      link(app, { kind: "node", node }, cutName(app.graph.nodeName(node))),
      " ",
      h("button", { title: "stand at the peak", onclick: () => this.line.moveTo(node) }, "jump to the peak"),
    );
  }

  private get atLeast(): string {
    return this.memory.unknown || this.app.graph.info.totals.at_least.includes("peak_bytes") ? "at least " : "";
  }

  // -- the plot ------------------------------------------------------------------------------------------------

  private paint(): void {
    if (this.isStale) this.showAlive(); // only where it is seen
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
    const alive = memory.alive(moment, MOST_ROWS, this.only),
      live = memory.live[moment]!;
    const where = app.state.moment === null || moment === memory.peakNode ? "at the peak, after " : "alive after ";
    this.isStale = false;
    this.pointed = null;
    replace(this.chips, ...this.legend(moment, alive));
    replace(
      this.list,
      h(
        "p",
        { class: "alive-title" },
        h("b", {}, live < 0 ? "unknown" : `${this.atLeast}${formatBytes(live)}`),
        ` ${where}`,
        link(app, { kind: "node", node: moment }, cutName(app.graph.nodeName(moment))),
      ),
      h("ul", {}, ...alive.rows.map((one) => this.row(one, moment))),
      alive.others.count ? h("p", { class: "soft" }, restWords(alive.others)) : null,
    );
    this.markRows();
  }

  /** The categories with their bytes; a click lists only that one. */
  private legend(node: number, alive: AliveList): HTMLElement[] {
    const held = this.layers.filter(({ key, bytes }) => bytes[node]! > 0 || key === this.only);
    return held.reverse().map(({ key, bytes }) => {
      const unknown = alive.unknown.get(key);
      return h(
        "button",
        {
          class: "category",
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
  }

  private row({ storage, bytes, category }: Alive, moment: number): HTMLElement {
    const { app } = this,
      { graph } = app,
      { value, born, name } = originOf(graph, storage);
    const maker = value >= 0 ? (graph.producer(value) ?? born) : born;
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
          "data-node": maker,
          "data-storage": storage,
          title: cutName(source ? `${source.file}:${source.line}  ${source.text}` : title, 500),
        },
        swatch(app.theme.memory[category] ?? app.theme.edge),
        h("span", { class: "alive-name" }, cutName(title)),
        h("span", { class: "alive-bytes" }, Number.isNaN(bytes) ? "unknown" : formatBytes(bytes)),
        h("span", { class: "alive-facts soft" }, facts.filter(Boolean).join(" · ")),
      ),
    );
  }

  /** One listener for all rows: they are made anew at every moment. */
  private listen(): void {
    const storageOf = (event: Event) => {
      const row = (event.target as HTMLElement).closest<HTMLElement>(".alive-row");
      return row ? Number(row.dataset["storage"]) : null;
    };
    for (const enters of ["mouseover", "focusin"])
      this.list.addEventListener(enters, (event) => this.point(storageOf(event)));
    for (const leaves of ["mouseleave", "focusout"]) this.list.addEventListener(leaves, () => this.point(null));
    this.list.addEventListener("click", (event) => {
      const storage = storageOf(event);
      if (storage === null) return;
      const { graph } = this.app,
        { value, born } = originOf(graph, storage);
      // What was there before was made by no op: go to the first that reads it.
      const node = value < 0 ? known(born) : (graph.producer(value) ?? known(born) ?? graph.readers(value)[0]);
      if (node !== undefined) this.app.select({ kind: "node", node }, { fly: true });
    });
  }

  private point(storage: number | null): void {
    if (storage === this.pointed) return;
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

function restWords({ count, bytes, unknown }: AliveList["others"]): string {
  return `… and ${formatInteger(count)} more, ${unknown ? "at least " : ""}${formatBytes(bytes)} together`;
}

function known(node: number): number | undefined {
  return node < 0 ? undefined : node;
}

function fileName(path: string): string {
  return path.split(/[\\/]/).at(-1) ?? path;
}

/** 1.00 GiB -> 1 GiB */
function shortBytes(bytes: number): string {
  return formatBytes(bytes).replace(/\.0+(?= )/, "");
}

function swatch(color: string): HTMLElement {
  const element = h("span", { class: "category-color" });
  element.style.background = color;
  return element;
}
