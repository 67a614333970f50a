/** What the memory and the execution timeline share: an axis of nodes, zooming, the moment, marks of selection and hover.
 *
 * Both show `state.span`, so zooming one zooms the other. Turn the wheel to zoom, with shift to move; drag the axis to move.
 */

import type { App } from "../app";
import { PHASES } from "../document/words";
import { type Axis, type AxisName, axesOf, holding, panned, type Span, spanOn, zoomed } from "../model/axis";
import { stretches } from "../model/flame";
import { roundTicks } from "../model/ticks";
import { changed, type Selection, type State, sameSelection } from "../state/store";
import { Chart } from "./chart";
import { h } from "./dom";
import { markedNodes, runs } from "./marks";

export interface TimelineParts {
  label: string;
  axis: AxisName; // the one to begin with, where the graph has it
  left: number; // room for words beside the plot
  dragsMoment: boolean; // dragging the plot moves the moment; else it moves the span
  paint: (line: Timeline) => void;
  /** What stands at a point: words to show there, and what a click there does. */
  hit: (
    line: Timeline,
    node: number,
    y: number,
  ) => { words: readonly string[]; choose: () => void; hover?: Selection } | null;
  scrolls?: (line: Timeline, by: number) => void; // dragged up or down
}

export const BAND = 18; // height of the words above and below the plot
const RIGHT = 12;
const WORDS: Record<AxisName, [title: string, hint: string]> = {
  order: ["order", "ops in the order in which they ran, each as wide as the next"],
  time: ["time", "ops as wide as the time they took, without the pauses between them"],
  clock: ["clock", "when each op ran, with the pauses between them (the recorder's work is in those)"],
};

export class Timeline {
  readonly chart: Chart;
  axis: Axis;
  private readonly marked = new Map<string, { of: State; nodes: readonly number[] }>();
  private readonly fingers = new Map<number, number>(); // where each pointer is that is down, across
  private dragged: { x: number; y: number; moved: boolean; pans: boolean } | null = null;

  constructor(
    readonly app: App,
    private readonly parts: TimelineParts,
  ) {
    const axes = axesOf(app.graph);
    this.axis = axes.get(parts.axis) ?? axes.get("order")!;
    this.chart = new Chart(app, parts.label, () => parts.paint(this));
    this.listen();
    app.store.subscribe((state, before) => {
      if (changed(state, before, "span", "moment", "selection", "hover", "rounds")) this.chart.redraw();
    });
  }

  // -- where things are ----------------------------------------------------------------------------------------

  get left(): number {
    return this.parts.left;
  }
  get right(): number {
    return this.chart.width - RIGHT;
  }
  get span(): Span {
    return spanOn(this.axis, this.app.state.span);
  }
  /** The part of the axis that is shown. */
  get range(): [number, number] {
    const [low, high] = this.span;
    return [this.axis.at(low), this.axis.at(high)];
  }

  /** Axis -> pixels. Ask once per drawing: it is a closure over the span. */
  scale(): (value: number) => number {
    const [low, high] = this.range,
      { left, right } = this;
    const factor = high > low ? (right - left) / (high - low) : 0;
    return (value) => left + (value - low) * factor;
  }

  nodeAt(x: number): number {
    const [low, high] = this.range;
    const share = Math.min(Math.max((x - this.left) / Math.max(this.right - this.left, 1), 0), 1);
    return this.axis.node(low + share * (high - low));
  }

  // -- what both draw ------------------------------------------------------------------------------------------

  /** Numbers along the axis, at a height; lines from there on down to another. */
  drawAxis(y: number, from: number, to: number): void {
    const { chart, axis } = this,
      { pen, theme } = chart,
      [low, high] = this.range,
      at = this.scale();
    const ticks = roundTicks(low, high, Math.max(Math.floor((this.right - this.left) / 110), 2));
    for (const tick of ticks) {
      const x = at(tick);
      if (x < this.left - 1 || x > this.right + 1) continue;
      pen.fillStyle = theme.line;
      pen.fillRect(Math.round(x), from, 1, to - from);
      chart.write(
        axis.format(tick, ticks[1] === undefined ? high - low : ticks[1] - ticks[0]!),
        Math.min(Math.max(x, this.left + 14), this.right - 14),
        y,
        {
          color: theme.soft,
          align: "center",
          size: 10.5,
        },
      );
    }
  }

  /** The names of phases at a height, a dashed line where one begins, down to another height. */
  drawPhases(y: number, to: number): void {
    const { chart } = this,
      { pen, theme } = chart,
      at = this.scale();
    pen.save();
    pen.setLineDash([3, 3]);
    pen.strokeStyle = theme.edge;
    let free = this.left;
    for (const [i, one] of phasesOf(this.app).entries()) {
      const x0 = Math.max(at(this.axis.edges[one.from]!), this.left),
        x1 = Math.min(at(this.axis.edges[one.to]!), this.right);
      if (x1 - x0 < 4) continue;
      if (i && x0 > this.left) {
        pen.beginPath();
        pen.moveTo(Math.round(x0) + 0.5, y - BAND / 2);
        pen.lineTo(Math.round(x0) + 0.5, to);
        pen.stroke();
      }
      const from = Math.max(x0 + 5, free);
      const width = chart.write(PHASES[one.value] ?? "", from, y, { color: theme.soft, most: x1 - from });
      if (width) free = from + width + 8;
    }
    pen.restore();
  }

  /** Shade the nodes of the selection and of what the pointer is on, and draw the moment. */
  drawMarks(from: number, to: number): void {
    const { pen, theme } = this.chart,
      blue = theme.fills["matmul"]![1];
    this.shade(this.nodes("selection"), blue, from, to, 0.22);
    if (!sameSelection(this.app.state.hover, this.app.state.selection))
      this.shade(this.nodes("hover"), theme.edge, from, to, 0.18);
    const { moment } = this.app.state;
    if (moment === null || moment >= this.axis.count) return;
    const x = this.scale()((this.axis.start[moment]! + this.axis.stop[moment]!) / 2);
    if (x < this.left || x > this.right) return;
    pen.fillStyle = theme.accent;
    pen.fillRect(x - 0.75, from, 1.5, to - from);
    pen.beginPath();
    pen.moveTo(x - 5, from);
    pen.lineTo(x + 5, from);
    pen.lineTo(x, from + 7);
    pen.fill();
  }

  private shade(nodes: readonly number[], color: string, from: number, to: number, alpha: number): void {
    const { pen } = this.chart,
      at = this.scale();
    let drawn = this.left;
    for (const [first, after] of runs(nodes)) {
      const x0 = Math.max(at(this.axis.edges[first]!), drawn),
        x1 = Math.min(Math.max(at(this.axis.edges[after]!), x0 + 1), this.right);
      if (x1 <= drawn || x0 >= this.right) continue;
      pen.globalAlpha = alpha;
      pen.fillStyle = color;
      pen.fillRect(x0, from, x1 - x0, to - from);
      pen.globalAlpha = 1;
      pen.fillRect(x0, to - 3, x1 - x0, 3);
      drawn = x1;
    }
  }

  /** The nodes of a field of the state; looked up once per change. */
  nodes(field: "selection" | "hover"): readonly number[] {
    const { state } = this.app,
      known = this.marked.get(field);
    if (known && known.of[field] === state[field] && known.of.rounds === state.rounds) return known.nodes;
    const nodes = markedNodes(this.app, state[field]);
    this.marked.set(field, { of: state, nodes });
    return nodes;
  }

  // -- what people do ------------------------------------------------------------------------------------------

  zoom(factor: number, about = 0.5): void {
    this.app.store.update({ span: zoomed(this.axis, this.app.state.span, factor, about) });
  }

  /** Stand at a node, in sight. */
  moveTo(node: number): void {
    const moment = Math.min(Math.max(node, 0), this.axis.count - 1);
    this.app.store.update({ moment, span: holding(this.axis, this.app.state.span, moment) });
  }

  /** Choice of the axis, and buttons to zoom with. */
  controls(): HTMLElement {
    const { store } = this.app,
      axes = [...axesOf(this.app.graph).values()];
    const buttons = axes.map((axis) =>
      h(
        "button",
        {
          title: WORDS[axis.name][1],
          "aria-pressed": String(axis === this.axis),
          onclick: () => {
            this.axis = axis;
            buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(axes[i] === axis)));
            this.chart.redraw();
          },
        },
        WORDS[axis.name][0],
      ),
    );
    const all = h("button", { title: "show all nodes", onclick: () => store.update({ span: null }) }, "all");
    store.subscribe((state) => {
      all.disabled = !state.span;
    });
    return h(
      "span",
      { class: "chart-controls" },
      axes.length > 1 ? h("span", { class: "toggles", role: "group", "aria-label": "axis" }, ...buttons) : null,
      h("button", { title: "zoom out", "aria-label": "zoom out", onclick: () => this.zoom(1.6) }, "−"),
      h("button", { title: "zoom in", "aria-label": "zoom in", onclick: () => this.zoom(0.625) }, "+"),
      all,
    );
  }

  private listen(): void {
    const { canvas } = this.chart;
    canvas.addEventListener("wheel", (event) => this.turned(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.pressed(event));
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    canvas.addEventListener("pointerup", (event) => this.released(event));
    canvas.addEventListener("pointercancel", (event) => {
      this.fingers.delete(event.pointerId);
      this.dragged = null;
    });
    canvas.addEventListener("pointerleave", () => {
      this.chart.showTip([]);
      if (this.app.state.hover) this.app.store.update({ hover: null });
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  private turned(event: WheelEvent): void {
    event.preventDefault();
    const width = Math.max(this.right - this.left, 1),
      unit = event.deltaMode === 1 ? 16 : 1;
    const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
      this.app.store.update({ span: panned(this.axis, this.app.state.span, (sideways * unit) / width) });
    else {
      const about = Math.min(Math.max((this.chart.point(event)[0] - this.left) / width, 0), 1);
      this.zoom(Math.exp(event.deltaY * unit * 0.002), about);
    }
  }

  private pressed(event: PointerEvent): void {
    if (event.button) return;
    const [x, y] = this.chart.point(event);
    this.chart.canvas.setPointerCapture(event.pointerId);
    this.fingers.set(event.pointerId, x);
    const onAxis = y > this.chart.height - BAND || y < BAND;
    this.dragged = { x, y, moved: false, pans: !this.parts.dragsMoment || onAxis };
    if (!this.dragged.pans) this.app.store.update({ moment: this.nodeAt(x) });
  }

  private moved(event: PointerEvent): void {
    const [x, y] = this.chart.point(event),
      drag = this.dragged;
    if (this.fingers.size > 1) return this.pinched(event.pointerId, x);
    if (drag && event.buttons) {
      drag.moved ||= Math.hypot(x - drag.x, y - drag.y) > 3;
      if (!drag.moved) return;
      this.chart.showTip([]);
      if (!drag.pans) this.app.store.update({ moment: this.nodeAt(x) });
      else {
        const share = (drag.x - x) / Math.max(this.right - this.left, 1);
        this.app.store.update({ span: panned(this.axis, this.app.state.span, share) });
        this.parts.scrolls?.(this, drag.y - y);
        drag.x = x;
        drag.y = y;
      }
      return;
    }
    const node = this.nodeAt(x),
      hit = x >= this.left && x <= this.right && node >= 0 ? this.parts.hit(this, node, y) : null;
    this.chart.showTip(hit?.words ?? [], x, y);
    this.chart.canvas.style.cursor = hit && !this.parts.dragsMoment ? "pointer" : "";
    const hover = hit ? (hit.hover ?? ({ kind: "node", node } as const)) : null;
    if (!sameSelection(hover, this.app.state.hover)) this.app.store.update({ hover });
  }

  /** Two fingers: what is between them grows as they part, and moves with them. */
  private pinched(id: number, x: number): void {
    const before = [...this.fingers.values()].slice(0, 2);
    this.fingers.set(id, x);
    const now = [...this.fingers.values()].slice(0, 2);
    const [apart, wider] = [before, now].map(([one, other]) => Math.max(Math.abs(one! - other!), 10)) as [
      number,
      number,
    ];
    const width = Math.max(this.right - this.left, 1),
      middle = (now[0]! + now[1]!) / 2;
    const span = zoomed(
      this.axis,
      this.app.state.span,
      apart / wider,
      Math.min(Math.max((middle - this.left) / width, 0), 1),
    );
    this.app.store.update({ span: panned(this.axis, span, ((before[0]! + before[1]!) / 2 - middle) / width) });
    this.dragged = null;
  }

  private released(event: PointerEvent): void {
    const drag = this.dragged;
    this.fingers.delete(event.pointerId);
    this.dragged = null;
    if (!drag || drag.moved || !drag.pans) return;
    const [x, y] = this.chart.point(event),
      node = this.nodeAt(x);
    if (node >= 0) this.parts.hit(this, node, y)?.choose();
  }

  private key(event: KeyboardEvent): void {
    const { moment } = this.app.state,
      [low, high] = this.span;
    const here = moment ?? Math.floor(low),
      page = Math.max(Math.round((high - low) / 20), 1);
    const steps: Record<string, () => void> = {
      ArrowLeft: () => this.moveTo(here - (event.shiftKey ? page : moment === null ? 0 : 1)),
      ArrowRight: () => this.moveTo(here + (event.shiftKey ? page : moment === null ? 0 : 1)),
      Home: () => this.moveTo(0),
      End: () => this.moveTo(this.axis.count - 1),
      "+": () => this.zoom(0.625),
      "=": () => this.zoom(0.625),
      "-": () => this.zoom(1.6),
      "0": () => this.app.store.update({ span: null }),
      Enter: () => moment !== null && this.app.select({ kind: "node", node: moment }, { fly: true }),
    };
    const step = steps[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    step();
  }
}

function phasesOf(app: App): { from: number; to: number; value: number }[] {
  return app.graph.keep("phases", () => stretches(app.graph.phase, app.graph.count));
}
