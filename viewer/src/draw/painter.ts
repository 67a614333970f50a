/** What pictures are made of. The canvas, SVG and PDF each paint these few shapes, so that what is saved is what is seen. */

export interface Painter {
  /** A box with round corners; `dash` for an outline of dashes. */
  rect(
    x: number,
    y: number,
    width: number,
    height: number,
    corner: number,
    fill: string | null,
    stroke: string | null,
    line?: number,
  ): void;
  /** A line at right angles with round corners. */
  line(points: readonly number[], stroke: string, width: number, corner: number, dash?: boolean): void;
  /** The head of an arrow that points along (dx, dy), with its tip at (x, y). */
  arrow(x: number, y: number, dx: number, dy: number, size: number, fill: string): void;
  circle(x: number, y: number, radius: number, fill: string): void;
  /** Text on a baseline; `anchor` says which end of it is at x. */
  text(
    x: number,
    y: number,
    text: string,
    size: number,
    bold: boolean,
    fill: string,
    anchor?: "start" | "middle" | "end",
  ): void;
}
