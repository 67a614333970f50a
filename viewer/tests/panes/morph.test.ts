import { expect, test } from "vitest";
import { between, morph } from "../../src/panes/morph";
import { frame, item, line, scene } from "../draw/scenes";

const group = item("group", { leaf: false, start: 0 }),
  inner = item("inner", { start: 0, depth: 2 }),
  stays = item("stays", { start: 1 }),
  stranger = item("stranger", { start: 2 });

const closed = scene([frame(group, 0, 0, 100, 40), frame(stays, 0, 100, 60, 30)]);
const opened = scene(
  [
    frame(group, 0, 0, 300, 200, true),
    frame(inner, 20, 50, 80, 40, false, 0),
    frame(stays, 0, 300, 60, 30),
    frame(stranger, 500, 0),
  ],
  [line([0, 0, 10, 0])],
  [{ x: 0, y: 0, text: "2×3", net: 0 }],
);
const places = (share: number) =>
  between(morph(closed, opened), share).frames.map(({ x, y, width, height }) => [x, y, width, height]);

test("boxes move from where they were to where they will be", () => {
  expect([places(0)[0], places(0.5)[0], places(1)[0]]).toEqual([
    [0, 0, 100, 40],
    [0, 0, 200, 120],
    [0, 0, 300, 200],
  ]);
  expect([0, 0.5, 1].map((share) => places(share)[2]![1])).toEqual([100, 200, 300]);
});

test("a new box grows out of the middle of the group it lies in", () => {
  expect([places(0)[1], places(1)[1]]).toEqual([
    [30, 10, 40, 20], // half as large, around the middle of the closed group
    [20, 50, 80, 40],
  ]);
});

test("a box that came from nowhere is where it will be", () => {
  expect(places(0)[3]).toEqual(places(1)[3]);
});

test("lines come when boxes are nearly there, labels at the end", () => {
  const lines = (share: number) => between(morph(closed, opened), share).lines.length;
  expect([lines(0), lines(0.5), lines(0.9)]).toEqual([0, 0, 1]);
  expect(between(morph(closed, opened), 0.9).labels).toEqual([]);
});

test("the scenes themselves are left as they were", () => {
  between(morph(closed, opened), 0.5);
  expect([closed.frames[0]!.width, opened.frames[0]!.width, opened.labels.length]).toEqual([100, 300, 1]);
});
