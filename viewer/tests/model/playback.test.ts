import { describe, expect, test } from "vitest";
import { playbackOf } from "../../src/model/playback";
import { smallGraph } from "../small_graph";

/** 0 -> 1, 0 -> 2, 1 -> 3, 2 -> 3, and 4, which waits for nobody. Docs: step j is ready after k if ready_after[j] <= k < j. */
const recorded = (change: object = {}) =>
  playbackOf(
    smallGraph({
      json: {
        "viewer/backward.json": {
          names: ["Loss", "A", "B", "Add", "Free"],
          operations: ["l", "a", "b", "+", "f"],
          modules: ["", "a", "b", "", ""],
          nodes: [7, -1, 7, -1, -1],
          waiting_bytes: [8, null, -1, 0, 4],
          edges: {
            source: [0, 0, 1, 2],
            target: [1, 2, 3, 3],
            bytes: [4, 4, null, 4],
            norm: [1.5, null, 2, null],
            not_finite: [0, 3, 0, 1],
          },
          statistics: true,
          error: "stopped",
          ...change,
        },
      },
    }),
  )!;

describe("a recorded backward pass", () => {
  test.each([
    [0, [4], []],
    [1, [2, 4], []],
    [2, [4], [[3, 1, 2]]],
    [3, [4], []],
    [4, [], []],
  ])("at step %i: who is ready, whose buffers fill", (now, ready, filling) => {
    const playback = recorded();
    expect(playback.ready(now)).toEqual(ready);
    expect(playback.filling(now).map(({ step, arrived, needed }) => [step, arrived, needed])).toEqual(filling);
  });

  test("keeps what was recorded, and what is unknown unknown", () => {
    const playback = recorded();
    expect(playback.bytes).toEqual([8, null, null, 0, 4]);
    expect([playback.count, playback.isRecorded, playback.hasNorms, playback.error]).toEqual([
      5,
      true,
      true,
      "stopped",
    ]);
    expect(playback.into[3]!.map(({ source, bytes, norm }) => [source, bytes, norm])).toEqual([
      [1, null, 2],
      [2, 4, null],
    ]);
    expect([...playback.stepOfNode]).toEqual([[7, 0]]); // the first of a node's steps
  });

  test("knows the first step that makes something that is not finite, however many do", () => {
    expect(recorded().firstNotFinite()).toBe(0);
    const none = { source: [0], target: [1], bytes: [null], norm: [1], not_finite: [0] };
    expect(recorded({ edges: none }).firstNotFinite()).toBe(-1);
    const many = Array<number>(300_000).fill(1);
    const edges = { source: many, target: many.map(() => 3), bytes: [], norm: [], not_finite: many };
    expect(recorded({ edges }).firstNotFinite()).toBe(1);
  });
});

describe("the backward pass of a training step", () => {
  test("is its ops of backward, without norms", () => {
    const playback = playbackOf(smallGraph())!;
    expect([playback.nodes, playback.isRecorded, playback.hasNorms]).toEqual([[7], false, false]);
    expect([playback.operations[0], playback.modules[0]]).toEqual(["aten.threshold_backward.default", "blocks.1"]);
    expect(playback.bytes).toEqual([100]);
  });

  test("has the edges between them, and those from forward not", () => {
    const playback = playbackOf(smallGraph({ columns: { node_phase: [0, 0, 0, 1, 1, 2, 3, 1, 0] } }))!;
    expect(playback.nodes).toEqual([3, 4, 5, 7]); // recompute too, the optimizer not
    expect(playback.edges.map(({ source, target }) => [source, target])).toEqual([[0, 1], [1, 2]]); // biome-ignore format: one row
  });

  test("is all ops of an autograd graph, and none of a forward pass", () => {
    expect(playbackOf(smallGraph({ source: "autograd" }))!.nodes).toEqual([1, 2, 3, 4, 5, 6, 7]);
    expect(playbackOf(smallGraph({ columns: { node_phase: Array(9).fill(0) } }))).toBeNull();
  });
});
