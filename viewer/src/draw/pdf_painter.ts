import type { Painter } from "./painter";
import { arrowCorners } from "./svg_painter";

/** Paints a PDF of one page. Text is text, in Helvetica, which every reader has; letters outside of Latin-1 become "?".
 * For papers Python writes PDF with its own fonts inside: graph.save("x.pdf"). */
export class PdfPainter implements Painter {
  private readonly parts: string[] = [];

  rect(
    x: number,
    y: number,
    width: number,
    height: number,
    _corner: number,
    fill: string | null,
    stroke: string | null,
    line = 1,
  ): void {
    this.parts.push(
      `${fill ? `${colour(fill)} rg ` : ""}${stroke ? `${colour(stroke)} RG ${n(line)} w ` : ""}${n(x)} ${n(y)} ${n(width)} ${n(height)} re ${fill && stroke ? "B" : fill ? "f" : "S"}`,
    );
  }

  line(points: readonly number[], stroke: string, width: number, _corner: number, dash = false): void {
    const path = [];
    for (let i = 0; i < points.length; i += 2) path.push(`${n(points[i]!)} ${n(points[i + 1]!)} ${i ? "l" : "m"}`);
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
    const shown = [...text].map((sign) => (sign.charCodeAt(0) < 256 ? sign : "?")).join("");
    const left = x - { start: 0, middle: 0.5, end: 1 }[anchor] * helveticaWidth(shown, bold) * size;
    const safe = shown.replace(/[\\()]/g, "\\$&").replace(/[\r\n]/g, " ");
    // The page is turned upside down to count from its top; text is turned back.
    this.parts.push(
      `BT ${colour(fill)} rg /${bold ? "B" : "R"} ${n(size)} Tf 1 0 0 -1 ${n(left)} ${n(y)} Tm (${safe}) Tj ET`,
    );
  }

  file(left: number, top: number, width: number, height: number, ground: string): Uint8Array {
    const content = `q 1 0 0 -1 ${n(-left)} ${n(height + top)} cm ${colour(ground)} rg ${n(left)} ${n(top)} ${n(width)} ${n(height)} re f\n${this.parts.join("\n")}\nQ`;
    const font = (name: string) => `<< /Type /Font /Subtype /Type1 /BaseFont /${name} /Encoding /WinAnsiEncoding >>`;
    const objects = [
      "<< /Type /Catalog /Pages 2 0 R >>",
      "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
      `<< /Type /Page /Parent 2 0 R /MediaBox [0 0 ${n(width)} ${n(height)}] /Contents 4 0 R /Resources << /Font << /R 5 0 R /B 6 0 R >> >> >>`,
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

function colour(text: string): string {
  return [1, 3, 5].map((at) => n(Number.parseInt(text.slice(at, at + 2), 16) / 255)).join(" ");
}

function n(value: number): string {
  return String(Math.round(value * 1000) / 1000);
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
