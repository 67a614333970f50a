import type { Painter } from "./painter";

/** Paints an SVG file. Texts stay texts. */
export class SvgPainter implements Painter {
  private readonly parts: string[] = [];

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
    this.parts.push(
      `<rect x="${n(x)}" y="${n(y)}" width="${n(width)}" height="${n(height)}" rx="${n(corner)}" fill="${fill ?? "none"}"${stroke ? ` stroke="${stroke}" stroke-width="${n(line)}"` : ""}/>`,
    );
  }

  line(points: readonly number[], stroke: string, width: number, corner: number, dash = false): void {
    this.parts.push(
      `<path d="${pathOf(roundedSteps(points, corner))}" fill="none" stroke="${stroke}" stroke-width="${n(width)}"${dash ? ' stroke-dasharray="5 4"' : ""}/>`,
    );
  }

  arrow(x: number, y: number, dx: number, dy: number, size: number, fill: string): void {
    const corners = arrowCorners(x, y, dx, dy, size);
    this.parts.push(`<path d="M${corners.map(n).join(" ")}Z" fill="${fill}"/>`);
  }

  circle(x: number, y: number, radius: number, fill: string): void {
    this.parts.push(`<circle cx="${n(x)}" cy="${n(y)}" r="${n(radius)}" fill="${fill}"/>`);
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
    const place = anchor === "start" ? "" : ` text-anchor="${anchor}"`;
    this.parts.push(
      `<text x="${n(x)}" y="${n(y)}" font-size="${n(size)}"${bold ? ' font-weight="600"' : ""} fill="${fill}"${place}>${escaped(text)}</text>`,
    );
  }

  /** The whole file: a part of the scene on a ground. */
  file(left: number, top: number, width: number, height: number, ground: string): string {
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="${n(left)} ${n(top)} ${n(width)} ${n(height)}" width="${n(width)}" height="${n(height)}" font-family="Inter, Helvetica, Arial, sans-serif"><rect x="${n(left)}" y="${n(top)}" width="${n(width)}" height="${n(height)}" fill="${ground}"/>${this.parts.join("")}</svg>\n`;
  }
}

/** The three corners of the head of an arrow: tip first. */
export function arrowCorners(x: number, y: number, dx: number, dy: number, size: number): number[] {
  const length = Math.hypot(dx, dy) || 1,
    ux = (dx / length) * size,
    uy = (dy / length) * size;
  return [x, y, x - ux - uy * 0.45, y - uy + ux * 0.45, x - ux + uy * 0.45, y - uy - ux * 0.45];
}

/** A step of a path: straight to (x, y), or in a curve that (cx, cy) draws to itself. */
export type Step = [x: number, y: number] | [cx: number, cy: number, x: number, y: number];

/** A path at right angles whose corners are quarter curves. It begins at the first step. */
export function roundedSteps(points: readonly number[], corner: number): Step[] {
  const steps: Step[] = [[points[0]!, points[1]!]],
    last = points.length - 2;
  for (let i = 2; i < last; i += 2) {
    const [x, y, beforeX, beforeY, afterX, afterY] = [
      points[i]!,
      points[i + 1]!,
      points[i - 2]!,
      points[i - 1]!,
      points[i + 2]!,
      points[i + 3]!,
    ];
    const before = Math.abs(x - beforeX) + Math.abs(y - beforeY),
      after = Math.abs(afterX - x) + Math.abs(afterY - y);
    const r = Math.min(corner, before / 2, after / 2);
    if (!r) steps.push([x, y]);
    else
      steps.push(
        [x + ((beforeX - x) / before) * r, y + ((beforeY - y) / before) * r],
        [x, y, x + ((afterX - x) / after) * r, y + ((afterY - y) / after) * r],
      );
  }
  steps.push([points[last]!, points[last + 1]!]);
  return steps;
}

function pathOf(steps: Step[]): string {
  return steps.map((step, i) => `${i === 0 ? "M" : step.length === 2 ? "L" : "Q"}${step.map(n).join(" ")}`).join("");
}

function n(value: number): string {
  return String(Math.round(value * 100) / 100);
}

const NOT_IN_XML = /[\p{Cc}\p{Cs}\ufffe\uffff]/gu; // controls, halves of pairs, and what is no character
const ENTITIES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

/** For XML: markup escaped, and what XML cannot hold left out. */
export function escaped(text: string): string {
  return text.replace(NOT_IN_XML, "").replace(/[&<>"]/g, (sign) => ENTITIES[sign]!);
}
