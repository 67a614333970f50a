import type { Painter } from "./painter";

/** Paints on a canvas whose transform is set already. */
export class CanvasPainter implements Painter {
  private font = "";

  constructor(readonly pen: CanvasRenderingContext2D) {}

  rect(
    x: number,
    y: number,
    width: number,
    height: number,
    corner: number,
    fill: string | null,
    stroke: string | null,
    line = 1,
  ): void {
    const pen = this.pen;
    if (!corner && fill && !stroke) {
      pen.fillStyle = fill; // without a path: thousands of tiny boxes are such
      pen.fillRect(x, y, width, height);
      return;
    }
    pen.beginPath();
    if (corner) pen.roundRect(x, y, width, height, corner);
    else pen.rect(x, y, width, height);
    if (fill) {
      pen.fillStyle = fill;
      pen.fill();
    }
    if (stroke) {
      pen.strokeStyle = stroke;
      pen.lineWidth = line;
      pen.stroke();
    }
  }

  line(points: readonly number[], stroke: string, width: number, corner: number, dash = false): void {
    const pen = this.pen,
      last = points.length - 2;
    pen.beginPath();
    pen.moveTo(points[0]!, points[1]!);
    for (let i = 2; i < last; i += 2) {
      const [x, y, nextX, nextY] = [points[i]!, points[i + 1]!, points[i + 2]!, points[i + 3]!];
      if (corner) {
        const before = Math.abs(x - points[i - 2]!) + Math.abs(y - points[i - 1]!);
        const after = Math.abs(nextX - x) + Math.abs(nextY - y);
        pen.arcTo(x, y, nextX, nextY, Math.min(corner, before / 2, after / 2));
      } else pen.lineTo(x, y);
    }
    pen.lineTo(points[last]!, points[last + 1]!);
    pen.strokeStyle = stroke;
    pen.lineWidth = width;
    if (dash) pen.setLineDash([5, 4]);
    pen.stroke();
    if (dash) pen.setLineDash([]);
  }

  arrow(x: number, y: number, dx: number, dy: number, size: number, fill: string): void {
    const pen = this.pen,
      length = Math.hypot(dx, dy) || 1;
    const [ux, uy] = [(dx / length) * size, (dy / length) * size];
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(x - ux - uy * 0.45, y - uy + ux * 0.45);
    pen.lineTo(x - ux + uy * 0.45, y - uy - ux * 0.45);
    pen.closePath();
    pen.fillStyle = fill;
    pen.fill();
  }

  circle(x: number, y: number, radius: number, fill: string): void {
    this.pen.beginPath();
    this.pen.arc(x, y, radius, 0, 2 * Math.PI);
    this.pen.fillStyle = fill;
    this.pen.fill();
  }

  text(
    x: number,
    y: number,
    text: string,
    size: number,
    bold: boolean,
    fill: string,
    anchor: "start" | "middle" | "end" = "start",
  ): void {
    const font = `${bold ? 600 : 400} ${size}px Inter, sans-serif`;
    if (font !== this.font) this.pen.font = this.font = font; // setting it is slow
    this.pen.textAlign = anchor === "middle" ? "center" : anchor;
    this.pen.fillStyle = fill;
    this.pen.fillText(text, x, y);
  }
}
