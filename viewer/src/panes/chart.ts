/** A canvas that fills its element, sharp on every screen, and the words beside the pointer. What panes with many marks draw on. */

import type { App } from "../app";
import type { Theme } from "../draw/theme";
import { changed } from "../state/store";
import { h, replace } from "./dom";

export class Chart {
  readonly canvas: HTMLCanvasElement;
  readonly element: HTMLElement;
  readonly pen: CanvasRenderingContext2D;
  width = 0;
  height = 0;
  private waits = false;
  private readonly tip = h("div", { class: "tip hidden", role: "status" });

  constructor(
    readonly app: App,
    label: string,
    private readonly paint: (chart: Chart) => void,
  ) {
    this.canvas = h("canvas", { tabindex: 0, role: "img", "aria-label": label });
    this.element = h("div", { class: "chart" }, this.canvas, this.tip);
    this.pen = this.canvas.getContext("2d")!;
    new ResizeObserver(() => this.draw()).observe(this.element);
    app.store.subscribe((state, before) => {
      if (changed(state, before, "theme")) this.redraw();
    });
  }

  get theme(): Theme {
    return this.app.theme;
  }

  /** Draw in the next frame, once, and only if it is on the page. */
  redraw(): void {
    if (this.waits || !this.element.isConnected) return;
    this.waits = true;
    requestAnimationFrame(() => this.draw());
  }

  draw(): void {
    this.waits = false;
    const { clientWidth, clientHeight } = this.element,
      scale = window.devicePixelRatio || 1;
    if (!clientWidth || !clientHeight) return;
    this.width = clientWidth;
    this.height = clientHeight;
    const [wide, high] = [Math.round(clientWidth * scale), Math.round(clientHeight * scale)];
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      this.canvas.width = wide;
      this.canvas.height = high;
    }
    this.pen.setTransform(scale, 0, 0, scale, 0, 0);
    this.pen.fillStyle = this.theme.background;
    this.pen.fillRect(0, 0, clientWidth, clientHeight);
    this.paint(this);
  }

  /** One line of text, cut to a width with an ellipsis; nothing if not even two letters fit. Returns its width. */
  write(text: string, x: number, y: number, options: TextOptions = {}): number {
    const {
      size = 11,
      color = this.theme.ink,
      align = "left",
      most = Number.POSITIVE_INFINITY,
      bold = false,
    } = options;
    const words = this.cut(text, most, size, bold);
    if (!words) return 0;
    this.pen.font = `${bold ? 600 : 400} ${size}px Inter, sans-serif`;
    this.pen.textAlign = align;
    this.pen.textBaseline = "middle";
    this.pen.fillStyle = color;
    this.pen.fillText(words, x, y);
    return this.app.textWidth(words, size, bold);
  }

  /** As much of a text as a width has room for. */
  private cut(text: string, most: number, size: number, bold: boolean): string {
    const { textWidth } = this.app;
    const short = text.length > 200 ? text.slice(0, 200) : text; // nothing here is wider; names may be endless
    if (most < size || !short) return "";
    if (textWidth(short, size, bold) <= most) return short;
    let low = 0,
      high = short.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (textWidth(`${short.slice(0, middle)}…`, size, bold) <= most) low = middle;
      else high = middle - 1;
    }
    return low >= 2 ? `${short.slice(0, low)}…` : "";
  }

  /** Where the pointer is, in the units of the drawing. */
  point(event: MouseEvent): [x: number, y: number] {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  /** Lines beside a point, the first one bold. None: hide them. */
  showTip(lines: readonly string[], x = 0, y = 0): void {
    const { tip } = this;
    tip.classList.toggle("hidden", !lines.length);
    if (!lines.length) return;
    replace(tip, ...lines.map((line, i) => h(i ? "div" : "b", i ? { class: "soft" } : {}, cutName(line, 300))));
    const left = x + 14 + tip.offsetWidth > this.width ? x - 14 - tip.offsetWidth : x + 14;
    tip.style.left = `${Math.max(left, 2)}px`;
    tip.style.top = `${Math.max(Math.min(y + 12, this.height - tip.offsetHeight - 2), 2)}px`;
  }
}

/** A name that may be endless, for a place where it is read. */
export function cutName(name: string, most = 120): string {
  return name.length > most ? `${name.slice(0, most)}…` : name;
}

/** The content of a pane that takes a moment to make: made when the pane is first seen, not when the page opens. */
export function whenSeen(make: () => HTMLElement): HTMLElement {
  const element = h("div", { class: "when-seen" });
  const observer = new ResizeObserver(() => {
    if (!element.isConnected) return;
    observer.disconnect();
    replace(element, make());
  });
  observer.observe(element);
  return element;
}

export interface TextOptions {
  size?: number;
  color?: string;
  align?: CanvasTextAlign;
  most?: number;
  bold?: boolean;
}
