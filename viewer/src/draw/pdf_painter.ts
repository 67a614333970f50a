import type { Painter } from "./painter";
import { arrowCorners, roundedSteps } from "./svg_painter";

const LARGEST_SIDE = 14_400; // units: readers refuse larger pages, so that larger pictures are drawn smaller
const ROUND = 0.5523; // where a cubic curve is pulled to, of the radius, to be a quarter of a circle

/** Paints a PDF of one page. Text is text, in Helvetica, which every reader has; letters that it lacks become "?".
 * For papers Python writes PDF with its own fonts inside: graph.save("x.pdf"). */
export class PdfPainter implements Painter {
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
    const ink = `${fill ? `${colour(fill)} rg ` : ""}${stroke ? `${colour(stroke)} RG ${n(line)} w ` : ""}`;
    this.parts.push(
      `${ink}${box(x, y, width, height, corner)} ${fill && stroke ? "B" : fill ? "f" : stroke ? "S" : "n"}`,
    );
  }

  line(points: readonly number[], stroke: string, width: number, corner: number, dash = false): void {
    let [atX, atY] = [0, 0];
    const path = roundedSteps(points, corner).map((step, i) => {
      const [x, y] = step.slice(-2) as [number, number];
      // PDF has cubic curves only: each of their two points lies two thirds of the way to the one of a quadratic curve.
      const pulled =
        step.length === 4
          ? [atX, atY, x, y].map((at, k) => n(at + (2 / 3) * (step[k % 2]! - at))).concat(n(x), n(y), "c")
          : [n(x), n(y), i ? "l" : "m"];
      [atX, atY] = [x, y];
      return pulled.join(" ");
    });
    this.parts.push(
      `${dash ? "[5 4] 0 d " : ""}${colour(stroke)} RG ${n(width)} w ${path.join(" ")} S${dash ? " [] 0 d" : ""}`,
    );
  }

  arrow(x: number, y: number, dx: number, dy: number, size: number, fill: string): void {
    const [ax, ay, bx, by, cx, cy] = arrowCorners(x, y, dx, dy, size).map(n);
    this.parts.push(`${colour(fill)} rg ${ax} ${ay} m ${bx} ${by} l ${cx} ${cy} l h f`);
  }

  circle(x: number, y: number, radius: number, fill: string): void {
    this.rect(x - radius, y - radius, 2 * radius, 2 * radius, radius, fill, null);
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
    const shown = [...text].map(inLatin).join("");
    const left = x - { start: 0, middle: 0.5, end: 1 }[anchor] * helveticaWidth(shown, bold) * size;
    const safe = shown.replace(/[\\()]/g, "\\$&");
    // The page is turned upside down to count from its top; text is turned back.
    this.parts.push(
      `BT ${colour(fill)} rg /${bold ? "B" : "R"} ${n(size)} Tf 1 0 0 -1 ${n(left)} ${n(y)} Tm (${safe}) Tj ET`,
    );
  }

  file(left: number, top: number, width: number, height: number, ground: string): Uint8Array {
    const scale = Math.min(1, LARGEST_SIDE / Math.max(width, height));
    const turned = [scale, 0, 0, -scale, -left * scale, (height + top) * scale].map(exact).join(" ");
    const content = `q ${turned} cm ${colour(ground)} rg ${n(left)} ${n(top)} ${n(width)} ${n(height)} re f\n${this.parts.join("\n")}\nQ`;
    const font = (name: string) => `<< /Type /Font /Subtype /Type1 /BaseFont /${name} /Encoding /WinAnsiEncoding >>`;
    const objects = [
      "<< /Type /Catalog /Pages 2 0 R >>",
      "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
      `<< /Type /Page /Parent 2 0 R /MediaBox [0 0 ${n(width * scale)} ${n(height * scale)}] /Contents 4 0 R /Resources << /Font << /R 5 0 R /B 6 0 R >> >> >>`,
      `<< /Length ${content.length} >>\nstream\n${content}\nendstream`,
      font("Helvetica"),
      font("Helvetica-Bold"),
    ];
    let file = "%PDF-1.4\n";
    const places = objects.map((object, i) => {
      const at = file.length;
      file += `${i + 1} 0 obj\n${object}\nendobj\n`;
      return at;
    });
    const table = file.length;
    file += `xref\n0 ${objects.length + 1}\n0000000000 65535 f \n${places.map((at) => `${String(at).padStart(10, "0")} 00000 n \n`).join("")}`;
    file += `trailer\n<< /Size ${objects.length + 1} /Root 1 0 R >>\nstartxref\n${table}\n%%EOF\n`;
    return Uint8Array.from(file, (sign) => sign.charCodeAt(0));
  }
}

/** The path of a box, with round corners if there are any. */
function box(x: number, y: number, width: number, height: number, corner: number): string {
  const r = Math.min(corner, width / 2, height / 2);
  if (!(r > 0)) return `${n(x)} ${n(y)} ${n(width)} ${n(height)} re`;
  const k = r * (1 - ROUND),
    [right, bottom] = [x + width, y + height];
  const curve = (...points: number[]) => `${points.map(n).join(" ")} c`;
  return [
    `${n(x + r)} ${n(y)} m ${n(right - r)} ${n(y)} l`,
    curve(right - k, y, right, y + k, right, y + r),
    `${n(right)} ${n(bottom - r)} l`,
    curve(right, bottom - k, right - k, bottom, right - r, bottom),
    `${n(x + r)} ${n(bottom)} l`,
    curve(x + k, bottom, x, bottom - k, x, bottom - r),
    `${n(x)} ${n(y + r)} l`,
    curve(x, y + k, x + k, y, x + r, y),
    "h",
  ].join(" ");
}

function colour(text: string): string {
  return [1, 3, 5].map((at) => n(Number.parseInt(text.slice(at, at + 2), 16) / 255)).join(" ");
}

function n(value: number): string {
  return String(Math.round(value * 1000) / 1000);
}

/** A scale needs more digits than a place; PDF knows no exponents. */
function exact(value: number): string {
  return value.toFixed(8).replace(/\.?0+$/, "");
}

// WinAnsi holds some signs that we write elsewhere than Unicode does, and has no minus but the hyphen.
const ELSEWHERE: Record<string, string> = {
  "…": "\x85",
  "–": "\x96",
  "—": "\x97",
  "‘": "\x91",
  "’": "\x92",
  "“": "\x93",
  "”": "\x94",
  "•": "\x95",
  "−": "-",
};

/** The sign as a byte of WinAnsi; "?" for what it lacks, a space for controls. */
function inLatin(sign: string): string {
  const code = sign.charCodeAt(0);
  if (code < 32 || (code >= 127 && code < 160)) return " ";
  return code < 256 ? sign : (ELSEWHERE[sign] ?? "?");
}

// Adobe's font metrics, thousandths of the size, for the signs from space to tilde.
const REGULAR =
  "278 278 355 556 556 889 667 191 333 333 389 584 278 333 278 278 556 556 556 556 556 556 556 556 556 556 278 278 584 584 584 556 1015 667 667 722 722 667 611 778 722 278 500 667 556 833 722 778 667 778 722 667 611 722 667 944 667 667 611 278 278 278 469 556 333 556 556 500 556 556 278 556 556 222 222 500 222 833 556 556 556 556 333 500 278 556 500 722 500 500 500 334 260 334 584"
    .split(" ")
    .map(Number);

/** Of a text of size 1; bold letters are about a twentieth wider. */
function helveticaWidth(text: string, bold: boolean): number {
  let sum = 0;
  for (const sign of text) sum += REGULAR[sign.charCodeAt(0) - 32] ?? 556;
  return (sum / 1000) * (bold ? 1.05 : 1);
}
