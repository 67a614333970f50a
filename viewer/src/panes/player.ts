/** The backward player: play, step and scrub through a backward pass, as document 002's engine runs it. */

import type { App } from "../app";
import type { Edge, Playback } from "../model/playback";
import { playbackOf } from "../model/playback";
import { formatBytes, formatNumber } from "../model/units";
import { changed } from "../state/store";
import { h, replace } from "./dom";
import type { Pane } from "./pane";

const MOST = 40; // rows of a list
const PLAYED_MS = [600, 200, 60, 16] as const; // between two steps

export function player(app: App): Pane {
  const playback = playbackOf(app.graph);
  if (!playback) {
    const missing =
      "There is no backward pass in this graph. Record one: atlas.capture(model, x, backward=True), or atlas.record_backward(loss) for the engine's own steps.";
    return { name: "backward", title: "Backward", place: "bottom", element: h("div"), missing };
  }
  return { name: "backward", title: "Backward", place: "bottom", element: new Player(app, playback).element };
}

class Player {
  readonly element: HTMLElement;
  private readonly slider: HTMLInputElement;
  private readonly chart = h("canvas", {
    class: "chart",
    role: "img",
    "aria-label": "bytes of gradients that wait, by step",
  });
  private readonly words = h("span", { class: "soft", role: "status" });
  private readonly lists = h("div", { class: "columns" });
  private readonly playButton: HTMLButtonElement;
  private readonly speed: HTMLSelectElement;
  private timer = 0;

  constructor(
    private readonly app: App,
    private readonly playback: Playback,
  ) {
    const last = playback.count - 1,
      bad = playback.firstNotFinite();
    this.slider = h("input", {
      type: "range",
      min: 0,
      max: last,
      value: 0,
      "aria-label": "step",
      oninput: () => this.go(Number(this.slider.value)),
    });
    const button = (text: string, title: string, run: () => void) =>
      h("button", { title, "aria-label": title, onclick: run }, text);
    this.playButton = button("▶", "play", () => this.toggle());
    this.speed = h(
      "select",
      { "aria-label": "speed" },
      ...PLAYED_MS.map((ms, i) =>
        h("option", { value: ms, selected: i === 1 }, ["slow", "normal", "fast", "fastest"][i]!),
      ),
    );
    this.element = h(
      "div",
      { class: "player", tabindex: 0, onkeydown: (event: KeyboardEvent) => this.key(event) },
      h(
        "div",
        { class: "buttons" },
        button("|◂", "first step", () => this.go(0)),
        button("◂", "step back", () => this.go(this.now - 1)),
        this.playButton,
        button("▸", "step", () => this.go(this.now + 1)),
        button("▸|", "last step", () => this.go(last)),
        this.speed,
        playback.hasNorms
          ? h(
              "button",
              { disabled: bad < 0, onclick: () => this.go(bad) },
              bad < 0 ? "every gradient is finite" : "first NaN or infinity",
            )
          : null,
        this.words,
      ),
      this.slider,
      this.chart,
      this.lists,
    );
    app.store.subscribe((state, before) => {
      const isShown = state.pane === "backward";
      if (!isShown) this.stop();
      app.played = isShown ? { playback, now: this.now } : null;
      if (isShown && changed(state, before, "moment", "pane", "theme")) this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  /** The step at which the state stands. */
  private get now(): number {
    const { moment } = this.app.state;
    return moment === null ? 0 : this.step(moment);
  }

  /** A moment is a node; steps that stand for no node of the graph are counted behind all nodes. */
  private step(moment: number): number {
    const { count } = this.app.graph;
    if (moment >= count) return Math.min(moment - count, this.playback.count - 1);
    return this.playback.stepOfNode.get(moment) ?? 0;
  }

  private go(step: number): void {
    const { playback, app } = this,
      next = Math.min(Math.max(step, 0), playback.count - 1),
      node = playback.nodes[next]!;
    const isOwn = node >= 0 && playback.stepOfNode.get(node) === next;
    app.store.update({
      moment: isOwn ? node : app.graph.count + next,
      ...(node >= 0 ? { selection: { kind: "node", node } as const } : {}),
    });
  }

  private toggle(): void {
    if (this.timer) return this.stop();
    if (this.now >= this.playback.count - 1) this.go(0);
    this.playButton.textContent = "pause";
    const next = () => {
      if (this.now >= this.playback.count - 1) return this.stop();
      this.go(this.now + 1);
      this.timer = window.setTimeout(next, Number(this.speed.value));
    };
    this.timer = window.setTimeout(next, 0);
  }

  private stop(): void {
    clearTimeout(this.timer);
    this.timer = 0;
    this.playButton.textContent = "▶";
  }

  private key(event: KeyboardEvent): void {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.target === this.slider || (by === undefined && event.key !== " ")) return;
    if (by === undefined) this.toggle();
    else this.go(this.now + by);
    event.preventDefault();
    event.stopPropagation();
  }

  private draw(): void {
    const { playback, now } = this,
      bytes = playback.bytes[now];
    this.slider.value = String(now);
    this.words.textContent = `step ${(now + 1).toLocaleString("en-US")} of ${playback.count.toLocaleString("en-US")}${bytes === null || bytes === undefined ? "" : ` · ${formatBytes(bytes)} ${playback.isRecorded ? "of gradients wait" : "live"}`}${playback.error ? ` · it ended with ${playback.error}` : ""}`;
    const ready = playback.ready(now),
      filling = playback.filling(now);
    replace(
      this.lists,
      column("runs now", 1, [
        h(
          "li",
          {},
          h("b", {}, playback.names[now]!),
          h("div", { class: "soft" }, [playback.operations[now], playback.modules[now]].filter(Boolean).join(" · ")),
          ...gradients("takes", playback.into[now]!, "source", playback),
          ...gradients("makes", playback.outOf[now]!, "target", playback),
        ),
      ]),
      column(
        "ready",
        ready.length,
        ready.slice(0, MOST).map((step) => this.row(step, "")),
      ),
      column(
        "buffers that fill",
        filling.length,
        filling
          .slice(0, MOST)
          .map((one) => this.row(one.step, `${one.arrived} of ${one.needed}`, one.arrived / one.needed)),
      ),
    );
    this.drawChart(now);
  }

  private row(step: number, beside: string, share?: number): HTMLElement {
    const bar = h("span", {});
    if (share !== undefined) bar.style.width = `${100 * share}%`;
    return h(
      "li",
      {},
      h("button", { class: "link", onclick: () => this.go(step) }, this.playback.names[step]!),
      share === undefined ? null : h("span", { class: "fill" }, bar),
      h("span", { class: "soft" }, beside),
    );
  }

  /** How many bytes there are after each step; what is done is filled. */
  private drawChart(now: number): void {
    const { playback, chart, app } = this,
      width = chart.clientWidth,
      height = chart.clientHeight,
      ratio = devicePixelRatio || 1;
    if (!width) return;
    chart.width = width * ratio;
    chart.height = height * ratio;
    const pen = chart.getContext("2d")!,
      { theme } = app,
      most = Math.max(...playback.bytes.map((one) => one ?? 0), 1);
    pen.scale(ratio, ratio);
    const area = (to: number, fill: string) => {
      pen.beginPath();
      pen.moveTo(0, height);
      for (let x = 0; x <= to; x++) {
        const step = Math.round((x / width) * (playback.count - 1));
        pen.lineTo(x, height - ((playback.bytes[step] ?? 0) / most) * (height - 4));
      }
      pen.lineTo(to, height);
      pen.fillStyle = fill;
      pen.fill();
    };
    const at = (now / Math.max(playback.count - 1, 1)) * width;
    area(width, theme.tints[3]!);
    area(at, theme.memory["gradients"]!);
    pen.fillStyle = theme.accent;
    pen.fillRect(at - 1, 0, 2, height);
  }
}

function column(title: string, count: number, rows: HTMLElement[]): HTMLElement {
  return h(
    "div",
    {},
    h("h2", {}, count > 1 ? `${title} (${count})` : title),
    h("ul", {}, ...rows, count > rows.length ? h("li", { class: "soft" }, `and ${count - rows.length} more`) : null),
  );
}

function gradients(words: string, edges: Edge[], end: "source" | "target", playback: Playback): HTMLElement[] {
  if (!edges.length) return [];
  const rows = edges.slice(0, 6).map((edge) => {
    const norm = edge.notFinite
      ? `${edge.notFinite} not finite`
      : edge.norm === null
        ? ""
        : `norm ${formatNumber(edge.norm)}`;
    return h(
      "div",
      { class: edge.notFinite ? "alert" : "" },
      `${end === "source" ? "from" : "to"} ${playback.names[edge[end]]} ${norm}`,
    );
  });
  return [h("div", { class: "soft" }, words), ...rows];
}
