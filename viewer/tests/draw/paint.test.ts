import { describe, expect, test } from "vitest";
import { type Look, paint } from "../../src/draw/paint";
import type { Scene } from "../../src/layout/scene";
import { frame, item, line, look, Recorder, scene, THEME } from "./scenes";

const ALL = { left: -1e6, top: -1e6, right: 1e6, bottom: 1e6 };

function painted(what: Scene, change: Partial<Look> = {}, visible = ALL, scale = 1): Recorder {
  const recorder = new Recorder();
  paint(recorder, what, look(change), visible, scale);
  return recorder;
}

describe("painting", () => {
  const boxes = scene(
    [frame(item("left", { start: 0 }), 0, 0), frame(item("right", { start: 1 }), 500, 0)],
    [line([50, 36, 50, 80]), line([550, 36, 550, 80])],
    [
      { x: 55, y: 60, text: "2×3", net: 0 },
      { x: 555, y: 60, text: "4×5", net: 1 },
    ],
  );

  test.each([
    ["everything", ALL, ["left", "right", "2×3", "4×5"], 2],
    ["the left", { left: -10, top: -10, right: 150, bottom: 100 }, ["left", "2×3"], 1],
    ["the right", { left: 400, top: -10, right: 700, bottom: 100 }, ["right", "4×5"], 1],
    ["nothing", { left: 0, top: 500, right: 700, bottom: 900 }, [], 0],
  ])("draws only what is visible: %s", (_, visible, texts, lines) => {
    const asked: string[] = [];
    const mark: Look["mark"] = (one) => {
      asked.push(one.title);
      return "";
    };
    const recorder = painted(boxes, { mark }, visible);
    expect(recorder.texts.filter((text) => text !== "")).toEqual(texts);
    expect(recorder.of("line").length).toBe(lines);
    expect(recorder.of("arrow").length).toBe(lines);
    for (const title of ["left", "right"]) expect(asked.includes(title)).toBe(texts.includes(title));
  });

  test("leaves out texts that nobody could read, arrows and thin borders when it is small", () => {
    const recorder = painted(boxes, {}, ALL, 0.1);
    expect([recorder.texts, recorder.of("arrow")]).toEqual([[], []]);
    expect(recorder.of("rect").map((call) => call[7])).toEqual([null, null]);
  });

  test("draws groups below lines below boxes", () => {
    const group = item("group", { leaf: false });
    const recorder = painted(
      scene([frame(group, 0, 0, 300, 200, true), frame(item("op"), 20, 50)], [line([0, 0, 9, 0])]),
    );
    const order = recorder.calls.map(([shape, , , what]) => (shape === "text" ? what : shape));
    expect(order.indexOf("group")).toBeLessThan(order.indexOf("arrow"));
    expect(order.indexOf("arrow")).toBeLessThan(order.indexOf("op"));
  });

  test("shows of a repeat what looks out behind it, how often, and which round", () => {
    const folded = painted(scene([frame(item("block", { leaf: false, repeat: 1200 }), 0, 0)]));
    expect(folded.texts).toEqual(["block", "×1,200"]);
    expect(folded.of("rect").length).toBe(4); // two behind, itself, the badge
    const open = painted(scene([frame(item("block", { leaf: false, repeat: 12 }), 0, 0, 400, 99, true)]), {
      round: () => "round 3 of 12",
    });
    expect(open.texts).toEqual(["block", "round 3 of 12", "×12"]);
  });

  test("gives closed groups a plus, open ones a minus, and ops none", () => {
    const signs = (leaf: boolean, open: boolean) =>
      painted(scene([frame(item("a", { leaf }), 0, 0, 200, 60, open)])).of("line").length;
    expect([signs(false, false), signs(false, true), signs(true, false)]).toEqual([2, 1, 0]);
  });

  test.each([
    ["selected", THEME.fills["matmul"]![1]],
    ["second", THEME.fills["attention"]![1]],
    ["near", THEME.fills["pooling"]![1]],
    ["failed", THEME.accent],
    ["finding", THEME.accent],
    ["dim", THEME.line],
  ] as const)("marks what is %s, also where it is tiny", (mark, stroke) => {
    const box = (scale: number) =>
      painted(scene([frame(item("a"), 0, 0)]), { mark: () => mark }, ALL, scale).of("rect")[0]!;
    expect(box(1)[7]).toBe(stroke);
    expect(box(0.05)[7]).toBe(mark === "dim" ? null : stroke);
  });

  test.each([
    ["traced", THEME.fills["matmul"]![1]],
    ["critical", THEME.accent],
    ["dim", THEME.line],
    ["", THEME.edge],
  ] as const)("colours a line that is %j", (mark, colour) => {
    expect(painted(scene([], [line([0, 0, 50, 0])]), { lineMark: () => mark }).of("line")[0]![2]).toBe(colour);
  });

  test("colours by a measure, by type, and what it does not know as unknown", () => {
    const fill = (change: Partial<Look>, flags = 0) =>
      painted(scene([frame(item("a", { flags }), 0, 0)]), change).of("rect")[0]![6];
    expect(fill({ heat: () => ["#123456", "#FFFFFF"] })).toBe("#123456");
    expect(fill({})).toBe(THEME.fills["matmul"]![0]);
    expect(fill({ category: () => "quantum" })).toBe(THEME.fills["unknown"]![0]);
    expect(fill({}, 4)).toBe(THEME.terminal[0]); // an input
  });

  test("writes on the longest piece of a line", () => {
    const bent = scene([], [line([0, 0, 0, 10, 200, 10, 200, 40])]);
    const recorder = painted(bent, { lineText: () => ({ text: "0.5", isWrong: false }) });
    expect(recorder.of("text").map(([, x, y, text]) => [x, y, text])).toEqual([[100, 14, "0.5"]]);
  });

  test("draws a line without length as a dot", () => {
    const recorder = painted(scene([], [line([5, 6])]));
    expect(recorder.calls.map((call) => call.slice(0, 3))).toEqual([["circle", 5, 6]]);
  });

  test.each([false, true])("shortens names that are longer than any box (open: %s)", (open) => {
    const long = item(`${"ab".repeat(50_000)}`, { leaf: false, subtitle: "😀".repeat(50_000) });
    const recorder = painted(scene([frame(long, 0, 0, 300, 60, open)]), {
      tag: () => ({ text: "t".repeat(100_000), color: "#000000" }),
    });
    expect(recorder.texts.length).toBe(open ? 2 : 3);
    const { textWidth } = look();
    for (const [, , , text, size, bold] of recorder.of("text") as [string, number, number, string, number, boolean][]) {
      expect(text.endsWith("…")).toBe(true);
      expect(textWidth(text, size, bold)).toBeLessThanOrEqual(300);
      expect(text).not.toMatch(/[\ud800-\udbff](?![\udc00-\udfff])/); // no half of a pair
    }
  });

  test("hangs a tag on a corner", () => {
    const recorder = painted(scene([frame(item("a"), 0, 0)]), { tag: () => ({ text: "!", color: "#00FF00" }) });
    expect(recorder.of("rect").some((call) => call[6] === "#00FF00")).toBe(true);
    expect(recorder.texts).toContain("!");
  });
});
