import { describe, expect, test } from "vitest";
import type { Painter } from "../../src/draw/painter";
import { PdfPainter } from "../../src/draw/pdf_painter";
import { arrowCorners, escaped, roundedSteps, SvgPainter } from "../../src/draw/svg_painter";

const HOSTILE = `</text><script>alert("1")</script> & \u0000\u001b\ud800\uffff(\\) 多 …`;

function draw(painter: Painter): void {
  painter.rect(0, 0, 50, 20, 5, "#FF0000", "#00FF00", 2);
  painter.rect(0, 0, 50, 20, 0, null, "#00FF00");
  painter.rect(0, 0, 50, 20, 0, "#0000FF", null);
  painter.line([0, 0, 0, 40, 60, 40], "#123456", 1.5, 6, true);
  painter.arrow(60, 40, 1, 0, 6, "#123456");
  painter.circle(10, 10, 3, "#123456");
  painter.text(5, 5, HOSTILE, 12, true, "#000000", "middle");
}

describe("an SVG", () => {
  const painter = new SvgPainter();
  draw(painter);
  const file = painter.file(-10, -20, 300, 200, "#FFFFFF");

  test("escapes whatever a name holds, and leaves out what XML cannot hold", () => {
    expect(escaped(HOSTILE)).toBe("&lt;/text&gt;&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; (\\) 多 …");
    expect(file).not.toContain("<script");
    expect(escaped("a\u0001\u009fb\ufffe\udc00😀")).toBe("ab😀");
  });

  test("is one picture of the area, with all shapes", () => {
    expect(file).toMatch(
      /^<svg xmlns="http:\/\/www.w3.org\/2000\/svg" viewBox="-10 -20 300 200" width="300" height="200"/,
    );
    const count = (tag: string) => file.split(`<${tag} `).length - 1;
    expect([count("rect"), count("path"), count("circle"), count("text")]).toEqual([4, 2, 1, 1]);
    expect(file).toContain(
      '<path d="M0 0L0 34Q0 40 6 40L60 40" fill="none" stroke="#123456" stroke-width="1.5" stroke-dasharray="5 4"/>',
    );
    expect(file).toContain('fill="none" stroke="#00FF00"');
    expect(file).toContain('font-weight="600" fill="#000000" text-anchor="middle"');
    expect(file).not.toMatch(/NaN|undefined/);
  });
});

describe("a PDF", () => {
  const made = (width = 300, height = 200) => {
    const painter = new PdfPainter();
    draw(painter);
    return new TextDecoder("latin1").decode(painter.file(-10, -20, width, height, "#FFFFFF"));
  };
  const file = made();

  test("has a table that says where every object is", () => {
    const start = Number(/startxref\n(\d+)\n%%EOF\n$/.exec(file)![1]);
    expect(file.slice(start, start + 9)).toBe("xref\n0 7\n");
    const rows = file.slice(start + 9, file.indexOf("trailer")).match(/.{20}/gs)!; // exactly twenty bytes each
    expect(rows[0]).toBe("0000000000 65535 f \n");
    expect(rows.length).toBe(7);
    rows.slice(1).forEach((row, i) => {
      expect(row).toMatch(/^\d{10} 00000 n \n$/);
      expect(file.slice(Number(row.slice(0, 10))).startsWith(`${i + 1} 0 obj\n`)).toBe(true);
    });
  });

  test("says how long its content is", () => {
    const [, length, content] = /<< \/Length (\d+) >>\nstream\n(.*)\nendstream/s.exec(file)!;
    expect(content!.length).toBe(Number(length));
  });

  test("escapes texts and has a sign for every letter", () => {
    expect(file).toContain('(</text><script>alert\\("1"\\)</script> &   ??\\(\\\\\\) ? \x85) Tj');
  });

  test("has round corners, and curves that end where lines begin", () => {
    expect(file).toContain("0 0 m 0 34 l 0 38 2 40 6 40 c 60 40 l S [] 0 d");
    expect(file).toContain("1 0 0 rg 0 1 0 RG 2 w 5 0 m 45 0 l");
    expect(file).toContain("0 0 50 20 re S");
    expect(file).toContain("0 0 50 20 re f");
    expect(file).not.toMatch(/NaN|undefined|\de[+-]/);
  });

  test("of a huge picture is drawn smaller, as readers refuse large pages", () => {
    expect(file).toContain("/MediaBox [0 0 300 200]");
    expect(file).toContain("q 1 0 0 -1 10 180 cm");
    const huge = made(100_000, 200);
    expect(huge).toContain("/MediaBox [0 0 14400 28.8]");
    expect(huge).toContain("q 0.144 0 0 -0.144 1.44 25.92 cm");
  });
});

test("the head of an arrow has its tip where it is asked for, whichever way it points", () => {
  expect(arrowCorners(10, 10, 0, 5, 4).map((at) => Math.round(at * 10) / 10)).toEqual([10, 10, 8.2, 6, 11.8, 6]);
  expect(arrowCorners(1, 2, 0, 0, 4)).toEqual([1, 2, 1, 2, 1, 2]);
});

test.each<[string, number[], number, number[][]]>([
  [
    "a straight line",
    [0, 0, 9, 0],
    6,
    [
      [0, 0],
      [9, 0],
    ],
  ],
  [
    "a corner",
    [0, 0, 20, 0, 20, 20],
    6,
    [
      [0, 0],
      [14, 0],
      [20, 0, 20, 6],
      [20, 20],
    ],
  ],
  [
    "a corner with little room",
    [0, 0, 4, 0, 4, 20],
    6,
    [
      [0, 0],
      [2, 0],
      [4, 0, 4, 2],
      [4, 20],
    ],
  ],
  [
    "a piece without length",
    [0, 0, 0, 0, 9, 0],
    6,
    [
      [0, 0],
      [0, 0],
      [9, 0],
    ],
  ],
  [
    "sharp corners",
    [0, 0, 20, 0, 20, 20],
    0,
    [
      [0, 0],
      [20, 0],
      [20, 20],
    ],
  ],
])("the path of %s", (_, points, corner, steps) => {
  expect(roundedSteps(points, corner)).toEqual(steps);
});
