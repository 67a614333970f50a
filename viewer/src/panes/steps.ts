/** All steps of a run, of which the page shows one: time, memory and what was logged, step by step. */

import type { App } from "../app";
import { changeAt, columnOf, extremes, placeOf, rowsOf, type StepRow, type Steps, stepsOf } from "../model/steps";
import { roundTicks } from "../model/ticks";
import { formatBytes, formatInteger, formatNumber, formatTime } from "../model/units";
import { Chart, whenSeen } from "./chart";
import { h, replace } from "./dom";
import type { Pane } from "./pane";

const MARGIN = { left: 96, right: 14, top: 6, bottom: 20 };
const GAP = 10; // between rows
const LEAST_HEIGHT = 38; // of a row
const TITLES: Record<string, string> = {
  wall_ns: "time",
  unrecorded_ns: "unrecorded",
  device_ns: "on device",
  peak_bytes: "peak memory",
  process_bytes: "process",
  device_bytes: "device",
  device_peak_bytes: "device peak",
  gradient_norm: "gradients",
};

export function stepsPane(app: App): Pane {
  const found = stepsOf(app.graph.document);
  return {
    name: "steps",
    title: "Steps",
    place: "bottom",
    element: whenSeen(() => (found ? new StepsPane(app, found).element : h("p"))),
    missing: found ? "" : 'This page is of one graph. A recorded run has steps: run.save("run.html") makes its page.',
  };
}

class StepsPane {
  readonly element: HTMLElement;
  private readonly chart: Chart;
  private readonly rows: StepRow[];
  private readonly words = h("span", { class: "headline" });
  private chosen: number; // place

  constructor(
    app: App,
    private readonly steps: Steps,
  ) {
    this.rows = rowsOf(steps);
    this.chosen = Math.max(steps.numbers.indexOf(steps.shown ?? -1), 0);
    this.chart = new Chart(
      app,
      "steps of the run: time, memory and what was logged. Arrow keys go from step to step.",
      () => this.paint(),
    );
    this.element = h(
      "div",
      { class: "chart-pane steps" },
      h("div", { class: "chart-head" }, this.words),
      h("div", { class: "chart-body wide" }, h("div", { class: "chart-scroll" }, this.chart.element)),
    );
    this.chart.element.style.minHeight = `${this.rows.length * (LEAST_HEIGHT + GAP) + MARGIN.top + MARGIN.bottom}px`;
    this.listen();
    this.tell();
  }

  // -- words ---------------------------------------------------------------------------------------------------

  /** step 1,200, one of 10,000 · 12.3 ms · 4.0 MB · loss 0.31, and how to open it */
  private tell(): void {
    const { steps } = this,
      number = steps.numbers[this.chosen]!,
      isShown = number === steps.shown;
    replace(
      this.words,
      h("b", {}, `step ${formatInteger(number)}`),
      `, one of ${formatInteger(steps.numbers.length)} · ${this.figures(this.chosen).join(" · ")}`,
      h("span", { class: "soft" }, isShown ? " · the graph above is of this step" : " · its graph: "),
      isShown ? null : h("code", {}, `run.graph(${number}).show()`),
      h("span", { class: "soft" }, this.changeWords(this.chosen)),
    );
  }

  private figures(place: number): string[] {
    return this.rows.flatMap((row) => {
      const odd = row.odd.includes(place),
        value = row.values[place]!;
      if (!odd && Number.isNaN(value)) return [];
      const raw = this.steps.rows.find((one) => one.name === row.name)!.values[place];
      const title = row.name === "wall_ns" ? "" : `${TITLES[row.name] ?? row.name} `;
      return [title + (odd ? String(raw) : formatted(row, value))];
    });
  }

  private changeWords(place: number): string {
    const change = changeAt(this.steps, place);
    return change === undefined ? "" : ` · another structure than before: ${change || "see run.structures"}`;
  }

  // -- drawing -------------------------------------------------------------------------------------------------

  private get room(): { left: number; columns: number; height: number } {
    const { width, height } = this.chart;
    const columns = Math.max(Math.floor(width - MARGIN.left - MARGIN.right), 2);
    const each = (height - MARGIN.top - MARGIN.bottom) / Math.max(this.rows.length, 1) - GAP;
    return { left: MARGIN.left, columns, height: Math.max(each, LEAST_HEIGHT) };
  }

  private paint(): void {
    const { height } = this.room;
    this.paintSteps();
    this.rows.forEach((row, i) => this.paintRow(row, MARGIN.top + i * (height + GAP), height));
  }

  /** What all rows share: numbers of steps, where the structure changed, the chosen step. */
  private paintSteps(): void {
    const { chart, steps } = this,
      { pen, theme } = chart,
      { left, columns } = this.room,
      count = steps.numbers.length,
      bottom = chart.height - MARGIN.bottom;
    const x = (place: number) => left + columnOf(place, count, columns);
    for (const tick of roundTicks(0, count - 1, Math.max(Math.floor(columns / 110), 1))) {
      if (!Number.isInteger(tick)) continue;
      chart.write(formatInteger(steps.numbers[tick]!), x(tick), bottom + 11, {
        color: theme.soft,
        align: "center",
        size: 10.5,
      });
    }
    pen.fillStyle = theme.soft;
    const places = new Map(steps.numbers.map((number, place) => [number, place]));
    for (const [number] of steps.changes) {
      const place = places.get(number);
      if (place === undefined) continue;
      for (let y = MARGIN.top; y < bottom; y += 6) pen.fillRect(x(place), y, 1, 3);
    }
    pen.fillStyle = theme.accent;
    pen.fillRect(x(this.chosen), MARGIN.top, 1, bottom - MARGIN.top);
  }

  private paintRow(row: StepRow, top: number, height: number): void {
    const { chart } = this,
      { pen, theme } = chart,
      { left, columns } = this.room,
      count = row.values.length,
      span = row.high - row.low || 1;
    const y = (value: number) => top + height - ((value - row.low) / span) * height;
    pen.fillStyle = theme.line;
    pen.fillRect(left, top + height, columns, 1);
    chart.write(TITLES[row.name] ?? row.name, 8, top + 7, { bold: true, most: MARGIN.left - 16 });
    chart.write(formatted(row, row.high), 8, top + 21, { color: theme.soft, size: 10.5, most: MARGIN.left - 16 });
    if (!row.unit && height > 44)
      chart.write(formatted(row, row.low), 8, top + height - 5, {
        color: theme.soft,
        size: 10.5,
        most: MARGIN.left - 16,
      });
    const { least, most } = extremes(row.values, columns),
      [, stroke] = theme.fills["matmul"]!;
    pen.strokeStyle = stroke;
    pen.lineWidth = 1.25;
    pen.beginPath();
    let isDown = false;
    for (let column = 0; column < columns; column++) {
      if (Number.isNaN(least[column]!)) continue; // a line leads over what is not known
      const at = left + column + 0.5;
      if (isDown) pen.lineTo(at, y(most[column]!));
      else pen.moveTo(at, y(most[column]!));
      pen.lineTo(at, y(least[column]!) + 0.01);
      isDown = true;
    }
    pen.stroke();
    if (count <= columns / 6) {
      pen.fillStyle = stroke;
      for (let place = 0; place < count; place++) {
        if (Number.isNaN(row.values[place]!)) continue;
        pen.beginPath();
        pen.arc(left + columnOf(place, count, columns) + 0.5, y(row.values[place]!), 2, 0, 2 * Math.PI);
        pen.fill();
      }
    }
    for (const place of row.odd)
      chart.write("×", left + columnOf(place, count, columns), top + 6, {
        color: theme.accent,
        align: "center",
        bold: true,
      });
  }

  // -- pointing ------------------------------------------------------------------------------------------------

  private listen(): void {
    const { chart, steps } = this,
      { canvas } = chart,
      count = steps.numbers.length;
    const placeAt = (x: number) => placeOf(x - MARGIN.left, count, this.room.columns);
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = chart.point(event),
        place = placeAt(x);
      const change = this.changeWords(place).replace(" · ", "");
      chart.showTip(
        [`step ${formatInteger(steps.numbers[place]!)}`, ...this.figures(place), ...(change ? [change] : [])],
        x,
        y,
      );
    });
    canvas.addEventListener("pointerleave", () => chart.showTip([]));
    canvas.addEventListener("click", (event) => this.choose(placeAt(chart.point(event)[0])));
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, PageDown: 100, PageUp: -100, Home: -count, End: count }[event.key];
      if (!by) return;
      this.choose(Math.min(Math.max(this.chosen + by, 0), count - 1));
      event.preventDefault();
      event.stopPropagation();
    });
  }

  private choose(place: number): void {
    this.chosen = place;
    this.tell();
    this.chart.redraw();
  }
}

function formatted(row: StepRow, value: number): string {
  return row.unit === "ns" ? formatTime(value) : row.unit === "bytes" ? formatBytes(value) : formatNumber(value);
}
