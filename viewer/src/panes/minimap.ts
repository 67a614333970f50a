/** The whole graph, small, with a frame around what is seen. Drag the frame to move. */

import type { App } from "../app";
import { h } from "./dom";
import type { GraphCanvas } from "./graph_canvas";

const WIDTH = 150,
  HEIGHT = 110;

export function minimap(app: App, graph: GraphCanvas): HTMLElement {
  const canvas = h("canvas", { width: WIDTH * 2, height: HEIGHT * 2, "aria-hidden": "true" });
  const element = h("div", { class: "minimap" }, canvas);
  const pen = canvas.getContext("2d")!;
  const scale = () => Math.min(WIDTH / Math.max(app.scene.width, 1), HEIGHT / Math.max(app.scene.height, 1)) * 0.94;
  graph.painted = () => {
    const { scene, theme } = app,
      k = scale(),
      seen = graph.visible;
    element.classList.toggle(
      "hidden",
      seen.left <= 0 && seen.top <= 0 && seen.right >= scene.width && seen.bottom >= scene.height,
    );
    pen.setTransform(2, 0, 0, 2, 0, 0);
    pen.clearRect(0, 0, WIDTH, HEIGHT);
    pen.translate((WIDTH - scene.width * k) / 2, (HEIGHT - scene.height * k) / 2);
    for (const frame of scene.frames) {
      if (frame.width * k < 1.5 && frame.parent >= 0) continue;
      pen.fillStyle = frame.open ? theme.tints[Math.min(frame.item.depth, theme.tints.length - 1)]! : theme.edge;
      pen.fillRect(frame.x * k, frame.y * k, Math.max(frame.width * k, 1), Math.max(frame.height * k, 1));
    }
    pen.strokeStyle = theme.accent;
    pen.lineWidth = 1.5;
    pen.strokeRect(seen.left * k, seen.top * k, (seen.right - seen.left) * k, (seen.bottom - seen.top) * k);
  };
  const move = (event: PointerEvent) => {
    const box = canvas.getBoundingClientRect(),
      k = scale();
    graph.centre(
      (event.clientX - box.left - (WIDTH - app.scene.width * k) / 2) / k,
      (event.clientY - box.top - (HEIGHT - app.scene.height * k) / 2) / k,
    );
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    move(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons) move(event);
  });
  return element;
}
