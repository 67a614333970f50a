/** The current view as a file: SVG, PNG, PDF; the graph as .atlas; a link to what is seen. */

import type { App } from "../app";
import { CanvasPainter } from "../draw/canvas_painter";
import { paint, type Rect } from "../draw/paint";
import type { Painter } from "../draw/painter";
import { PdfPainter } from "../draw/pdf_painter";
import { SvgPainter } from "../draw/svg_painter";
import { h } from "./dom";
import { copyButton } from "./facts";
import type { GraphCanvas } from "./graph_canvas";
import { lookOf } from "./graph_look";

const MARGIN = 16;

export function takeAway(app: App, graph: GraphCanvas): HTMLElement {
  const name = (app.graph.info.title || "graph").replace(/[^\w.-]+/g, "_").slice(0, 80);
  const area = (): Rect =>
    whole.checked
      ? { left: -MARGIN, top: -MARGIN, right: app.scene.width + MARGIN, bottom: app.scene.height + MARGIN }
      : graph.visible;
  const whole = h("input", { type: "checkbox" });
  const save = (suffix: string, make: () => BlobPart | Promise<Blob>, type: string) =>
    h(
      "button",
      {
        onclick: async () => {
          const made = await make();
          download(`${name}.${suffix}`, made instanceof Blob ? made : new Blob([made], { type }));
        },
      },
      suffix.toUpperCase(),
    );
  const element = h(
    "details",
    { class: "menu" },
    h("summary", { class: "button", title: "save the picture, copy a link to this view, print" }, "share ▾"),
    h(
      "div",
      { class: "sheet" },
      h("h2", {}, "picture"),
      h(
        "div",
        { class: "buttons" },
        save("svg", () => svg(app, area()), "image/svg+xml"),
        save("png", () => png(app, area()), "image/png"),
        save("pdf", () => pdf(app, area()) as BlobPart, "application/pdf"),
      ),
      h("label", {}, whole, " the whole graph, not only what is seen"),
      h("h2", {}, "link to this view"),
      h(
        "div",
        { class: "buttons" },
        copyButton("copy link", () => location.href, "a link to this file and this view"),
      ),
      h(
        "p",
        { class: "soft" },
        location.protocol === "file:"
          ? "It opens this file. Who has a copy of it puts the part from # on behind the address of theirs."
          : "It shows the same to whoever can open this page.",
      ),
      h("h2", {}, "graph"),
      h(
        "div",
        { class: "buttons" },
        h("button", { title: "the graph itself: atlas.load reads it", onclick: () => saveGraph(app, name) }, ".atlas"),
      ),
      h("h2", {}, "paper"),
      h("div", { class: "buttons" }, h("button", { onclick: () => print() }, "print")),
    ),
  );
  document.addEventListener("click", (event) => {
    if (!element.contains(event.target as Node)) element.open = false;
  });
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !element.open) return;
    element.open = false;
    element.querySelector("summary")?.focus();
    event.stopPropagation();
  });
  return element;
}

function saveGraph(app: App, name: string): void {
  const file = app.graph.document.asFile();
  if (file) download(`${name}.atlas`, file);
}

/** Paint an area of the scene as it looks now, with everything in it. */
function painted<P extends Painter>(app: App, painter: P, area: Rect): P {
  paint(painter, app.scene, lookOf(app), area, 1);
  return painter;
}

export function svg(app: App, area: Rect): string {
  return painted(app, new SvgPainter(), area).file(
    area.left,
    area.top,
    area.right - area.left,
    area.bottom - area.top,
    app.theme.background,
  );
}

export function pdf(app: App, area: Rect): Uint8Array {
  return painted(app, new PdfPainter(), area).file(
    area.left,
    area.top,
    area.right - area.left,
    area.bottom - area.top,
    app.theme.background,
  );
}

/** Twice as many pixels as units, unless that is more than browsers can hold. */
async function png(app: App, area: Rect): Promise<Blob> {
  const width = area.right - area.left,
    height = area.bottom - area.top;
  const scale = Math.min(2, 16_000 / width, 16_000 / height);
  const canvas = h("canvas", { width: Math.round(width * scale), height: Math.round(height * scale) });
  const pen = canvas.getContext("2d")!;
  pen.fillStyle = app.theme.background;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.setTransform(scale, 0, 0, scale, -area.left * scale, -area.top * scale);
  painted(app, new CanvasPainter(pen), area);
  return new Promise((resolve, reject) =>
    canvas.toBlob(
      (blob) => (blob ? resolve(blob) : reject(new Error("The picture is too large for this browser."))),
      "image/png",
    ),
  );
}

export function download(name: string, blob: Blob): void {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
