/** The graph on its canvas: painting, moving, zooming, clicking, and smooth changes when groups open and close. */

import type { App } from "../app";
import { CanvasPainter } from "../draw/canvas_painter";
import { type Look, paint, type Rect } from "../draw/paint";
import type { Frame, Scene } from "../layout/scene";
import type { Item } from "../model/outline";
import { changed, type State, type View } from "../state/store";
import { h } from "./dom";
import { lookOf } from "./graph_look";
import { between, type Morph, morph } from "./morph";
import { unfold } from "./rounds";

const SMALLEST = 0.01,
  LARGEST = 6; // scales
const MARGIN = 28; // pixels around a fitted graph
const BELOW = 34; // and more below it, for the buttons
const BADGE = 40; // units at the right of a repeat's heading, where "×12" stands
const MOVING = 180; // ms that opening and closing take
const MOST_MOVING = 3000; // frames; more change at once

export class GraphCanvas {
  readonly element: HTMLElement;
  readonly canvas: HTMLCanvasElement;
  private readonly pen: CanvasRenderingContext2D;
  private look: Look | null = null;
  private scene: Scene;
  private moving: { morph: Morph; began: number } | null = null;
  private waits = false;
  private size = { width: 0, height: 0 };
  /** Called after every painting; the minimap listens. */
  painted: () => void = () => {};

  constructor(private readonly app: App) {
    this.canvas = h("canvas", {
      tabindex: 0,
      role: "img",
      "aria-label": "the graph; the tree beside it lists the same groups",
    });
    this.element = h("div", { class: "graph" }, this.canvas);
    this.pen = this.canvas.getContext("2d", { alpha: false })!;
    this.scene = app.scene;
    app.flyTo = (key) => this.flyTo(key);
    new ResizeObserver(() => this.resize()).observe(this.element);
    this.listen();
    app.store.subscribe((state, before) => this.update(state, before));
  }

  // -- the view ------------------------------------------------------------------------------------------------

  get view(): View {
    return this.app.state.view ?? this.fitted();
  }

  /** The part of the scene that is seen. */
  get visible(): Rect {
    const { left, top, scale } = this.view;
    return {
      left: -left / scale,
      top: -top / scale,
      right: (this.size.width - left) / scale,
      bottom: (this.size.height - top) / scale,
    };
  }

  fitted(rect: Rect = { left: 0, top: 0, right: this.scene.width, bottom: this.scene.height }, largest = 1.25): View {
    const { width, height } = this.size;
    const across = (width - 2 * MARGIN) / Math.max(rect.right - rect.left, 1),
      down = (height - 2 * MARGIN - BELOW) / Math.max(rect.bottom - rect.top, 1);
    const scale = Math.max(Math.min(across, down, largest), SMALLEST);
    return {
      scale,
      left: (width - (rect.left + rect.right) * scale) / 2,
      top: (height - BELOW - (rect.top + rect.bottom) * scale) / 2,
    };
  }

  fit(): void {
    this.app.store.update({ view: null });
  }

  zoom(factor: number, x = this.size.width / 2, y = this.size.height / 2): void {
    const { left, top, scale } = this.view;
    const next = Math.min(Math.max(scale * factor, SMALLEST), LARGEST);
    this.app.store.update({
      view: { scale: next, left: x - ((x - left) * next) / scale, top: y - ((y - top) * next) / scale },
    });
  }

  pan(dx: number, dy: number): void {
    const { left, top, scale } = this.view;
    this.app.store.update({ view: { scale, left: left + dx, top: top + dy } });
  }

  /** Centre a point of the scene. */
  centre(x: number, y: number): void {
    const { scale } = this.view;
    this.app.store.update({
      view: { scale, left: this.size.width / 2 - x * scale, top: this.size.height / 2 - y * scale },
    });
  }

  /** Bring an item into view, large enough to be read. */
  flyTo(key: string): void {
    const frame = this.frame(key);
    if (!frame) return;
    const { scale } = this.view,
      seen = this.visible;
    const isSeen =
      frame.x >= seen.left &&
      frame.x + frame.width <= seen.right &&
      frame.y >= seen.top &&
      frame.y + frame.height <= seen.bottom;
    if (isSeen && scale >= 0.6) return;
    const around = Math.max(frame.width, frame.height, 400);
    const [x, y] = [frame.x + frame.width / 2, frame.y + frame.height / 2];
    const fitted = this.fitted(
      { left: x - around, right: x + around, top: y - around / 1.6, bottom: y + around / 1.6 },
      1.1,
    );
    this.app.store.update({ view: fitted });
  }

  private frame(key: string): Frame | undefined {
    return this.app.scene.frames[this.app.scene.frameOf.get(key) ?? -1];
  }

  // -- changes -------------------------------------------------------------------------------------------------

  private update(state: State, before: State): void {
    const scene = this.app.scene;
    if (scene !== this.scene) this.changeScene(scene);
    if (state !== before && !changed(state, before, "view")) this.look = null;
    else if (
      changed(
        state,
        before,
        "selection",
        "second",
        "hover",
        "relation",
        "heat",
        "critical",
        "groups",
        "theme",
        "open",
        "rounds",
        "hidden",
        "direction",
        "grouping",
      )
    )
      this.look = null;
    this.schedule();
  }

  /** Keep what was selected, or is in the middle, where it is on the screen, and move the rest there. */
  private changeScene(scene: Scene): void {
    const old = this.scene,
      view = this.app.state.view;
    this.scene = scene;
    this.look = null;
    if (view) {
      const anchor = this.anchor(old, scene);
      if (anchor) {
        const [was, is] = anchor;
        const moved = {
          scale: view.scale,
          left: view.left + (was.x - is.x) * view.scale,
          top: view.top + (was.y - is.y) * view.scale,
        };
        this.app.store.update({ view: moved });
      }
    }
    const still =
      matchMedia("(prefers-reduced-motion: reduce)").matches || old.frames.length + scene.frames.length > MOST_MOVING;
    this.moving = still ? null : { morph: morph(old, scene), began: performance.now() };
  }

  private anchor(old: Scene, scene: Scene): [Frame, Frame] | null {
    const selected = this.app.itemOf(this.app.state.selection);
    for (let item: Item | null = selected; item; item = item.parent) {
      const was = old.frames[old.frameOf.get(item.key) ?? -1],
        is = scene.frames[scene.frameOf.get(item.key) ?? -1];
      if (was && is) return [was, is];
    }
    const seen = this.visible,
      x = (seen.left + seen.right) / 2,
      y = (seen.top + seen.bottom) / 2;
    for (let i = old.frames.length - 1; i >= 0; i--) {
      const was = old.frames[i]!,
        is = scene.frames[scene.frameOf.get(was.item.key) ?? -1];
      if (is && x >= was.x && x <= was.x + was.width && y >= was.y && y <= was.y + was.height) return [was, is];
    }
    return null;
  }

  // -- painting ------------------------------------------------------------------------------------------------

  schedule(): void {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => this.paint());
  }

  paint(): void {
    this.waits = false;
    if (!this.size.width) return;
    const ratio = devicePixelRatio || 1,
      { left, top, scale } = this.view,
      pen = this.pen;
    this.look ??= lookOf(this.app);
    let scene = this.scene;
    if (this.moving) {
      const share = (performance.now() - this.moving.began) / MOVING;
      if (share >= 1) this.moving = null;
      else {
        scene = between(this.moving.morph, 1 - (1 - share) ** 3);
        this.schedule();
      }
    }
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.fillStyle = this.look.theme.background;
    pen.fillRect(0, 0, this.canvas.width, this.canvas.height);
    pen.setTransform(ratio * scale, 0, 0, ratio * scale, left * ratio, top * ratio);
    paint(new CanvasPainter(pen), scene, this.look, this.visible, scale);
    this.painted();
  }

  private resize(): void {
    const { clientWidth: width, clientHeight: height } = this.element,
      ratio = devicePixelRatio || 1;
    if (width === this.size.width && height === this.size.height) return;
    this.size = { width, height };
    this.canvas.width = Math.max(Math.round(width * ratio), 1);
    this.canvas.height = Math.max(Math.round(height * ratio), 1);
    this.paint(); // at once: a canvas that changes its size is black, and a printer does not wait for the next frame
  }

  // -- input ---------------------------------------------------------------------------------------------------

  /** The innermost box at a place on the canvas. */
  hit(clientX: number, clientY: number): { frame: Frame; onMark: boolean; onBadge: boolean } | null {
    const box = this.canvas.getBoundingClientRect(),
      { left, top, scale } = this.view;
    const x = (clientX - box.left - left) / scale,
      y = (clientY - box.top - top) / scale;
    const { frames } = this.scene,
      heading = this.app.style.geometry.heading;
    for (let i = frames.length - 1; i >= 0; i--) {
      const frame = frames[i]!;
      if (x < frame.x || x > frame.x + frame.width || y < frame.y || y > frame.y + frame.height) continue;
      return {
        frame,
        onMark: !frame.item.isLeaf && (frame.open ? y < frame.y + heading && x < frame.x + 24 : true),
        onBadge: frame.item.repeat > 1 && x > frame.x + frame.width - BADGE && y < frame.y + heading,
      };
    }
    return null;
  }

  private listen(): void {
    const canvas = this.canvas,
      store = this.app.store;
    let drag: { x: number; y: number; moved: boolean } | null = null;
    const fingers = new Map<number, PointerEvent>();
    canvas.addEventListener("pointerdown", (event) => {
      fingers.set(event.pointerId, event);
      drag = { x: event.clientX, y: event.clientY, moved: fingers.size > 1 };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const last = fingers.get(event.pointerId);
      if (!drag || !last) return this.hovered(event);
      if (fingers.size === 2) this.pinch(fingers, event);
      else if (drag.moved || Math.hypot(event.clientX - drag.x, event.clientY - drag.y) > 4) {
        this.pan(event.clientX - last.clientX, event.clientY - last.clientY);
        drag.moved = true;
        canvas.classList.add("dragging");
      }
      fingers.set(event.pointerId, event);
    });
    const up = (event: PointerEvent) => {
      fingers.delete(event.pointerId);
      canvas.classList.remove("dragging");
      if (drag && !drag.moved && event.type === "pointerup") this.clicked(event);
      if (!fingers.size) drag = null;
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", () => {
      if (this.app.state.hover) store.update({ hover: null });
    });
    canvas.addEventListener("dblclick", (event) => {
      const hit = this.hit(event.clientX, event.clientY);
      if (hit?.frame.open) this.app.toggle(hit.frame.item);
      else if (!hit) this.fit();
    });
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        const box = canvas.getBoundingClientRect();
        if (event.deltaX && !event.ctrlKey) this.pan(-event.deltaX, -event.deltaY);
        else
          this.zoom(
            Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : event.deltaMode ? 0.05 : 0.0015)),
            event.clientX - box.left,
            event.clientY - box.top,
          );
      },
      { passive: false },
    );
  }

  private hovered(event: PointerEvent): void {
    const hit = this.hit(event.clientX, event.clientY),
      now = this.app.state.hover;
    const hover = hit ? this.app.selectionOf(hit.frame.item) : null;
    this.canvas.style.cursor = hit ? "pointer" : "";
    this.canvas.title = hit?.onBadge ? `show all ${hit.frame.item.repeat} rounds` : "";
    if (JSON.stringify(hover) !== JSON.stringify(now)) this.app.store.update({ hover });
  }

  /** A click selects. On a closed group, or on the sign of an open one, it also opens or closes; on "×12" it shows all
   * twelve; with shift it chooses the other end of a way. */
  private clicked(event: PointerEvent): void {
    this.canvas.focus({ preventScroll: true });
    const hit = this.hit(event.clientX, event.clientY);
    if (!hit) return this.app.store.update({ selection: null, second: null, relation: "none" });
    const selection = this.app.selectionOf(hit.frame.item);
    if (event.shiftKey && this.app.state.selection)
      return this.app.store.update({ second: selection, relation: "path" });
    this.app.store.update({
      view: this.view,
      selection,
      second: null,
      ...(this.app.state.relation === "path" ? { relation: "none" } : {}),
    });
    if (hit.onBadge) unfold(this.app, hit.frame.item);
    else if (hit.onMark) this.app.toggle(hit.frame.item);
  }

  private pinch(fingers: Map<number, PointerEvent>, event: PointerEvent): void {
    const before = [...fingers.values()],
      after = before.map((one) => (one.pointerId === event.pointerId ? event : one));
    const apart = (two: PointerEvent[]) =>
      Math.hypot(two[0]!.clientX - two[1]!.clientX, two[0]!.clientY - two[1]!.clientY);
    const middle = (two: PointerEvent[]) =>
      [(two[0]!.clientX + two[1]!.clientX) / 2, (two[0]!.clientY + two[1]!.clientY) / 2] as const;
    const box = this.canvas.getBoundingClientRect(),
      [x, y] = middle(after),
      [oldX, oldY] = middle(before);
    this.pan(x - oldX, y - oldY);
    this.zoom(apart(after) / Math.max(apart(before), 1), x - box.left, y - box.top);
  }
}
