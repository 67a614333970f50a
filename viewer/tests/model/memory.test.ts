import { describe, expect, it } from "vitest";
import { Memory, originOf } from "../../src/model/memory";
import { graphOf } from "./graphs";

const FORWARD = 0,
  BACKWARD = 1;
const PARAMETER = 1,
  ACTIVATION = 4,
  GRADIENT = 5,
  INPUT = 0;

/** Two ops of forward, two of backward. Storages: a weight, a saved activation, a passing one, a gradient of unknown size. */
function step(live: number[], metadata: Record<string, unknown> = {}) {
  return graphOf({
    nodes: 4,
    metadata,
    columns: {
      node_phase: [FORWARD, FORWARD, BACKWARD, BACKWARD],
      node_memory_bytes: live,
      storage_bytes: [100, 40, 7, -1],
      storage_born: [-1, 0, 0, 3],
      storage_died: [-1, 2, 1, -1],
      storage_role: [PARAMETER, ACTIVATION, ACTIVATION, GRADIENT],
      value_storage: [0, 1, 2, 3, 1],
      value_parameter: [0, -1, -1, 0, -1],
      value_role: [1, 4, 4, 5, 4],
      value_layout: [0, 0, 0, 0, 0],
      value_producer: [-1, 0, 0, 3, 1],
    },
    tables: { names: ["fc.weight"] },
  });
}

describe("memory", () => {
  it("says where the peak is, and what it is made of", () => {
    const memory = Memory.of(step([147, 147, 140, 100]))!;
    expect([memory.peakBytes, memory.peakNode]).toEqual([147, 0]);
    expect(Object.fromEntries([...memory.timeline].map(([key, row]) => [key, [...row]]))).toEqual({
      parameters: [100, 100, 100, 100],
      saved_activations: [40, 40, 40, 0],
      temporaries: [7, 7, 0, 0],
      gradients: [0, 0, 0, 0],
    });
  });

  it("has a category of its own for what no storage explains", () => {
    const row = Memory.of(step([150, 147, -1, 100]))!.timeline.get("unattributed")!;
    expect([...row]).toEqual([3, 0, 0, 0]);
  });

  it("lists what is alive, the largest first, and unknown sizes before", () => {
    const memory = Memory.of(step([147, 147, 140, 100]))!;
    expect(memory.alive(1, 10).rows.map((one) => [one.storage, one.bytes, one.category])).toEqual([
      [0, 100, "parameters"],
      [1, 40, "saved_activations"],
      [2, 7, "temporaries"],
    ]);
    const last = memory.alive(3, 10);
    expect(last.rows.map((one) => one.storage)).toEqual([3, 0]);
    expect(last.rows[0]!.bytes).toBeNaN();
    expect(last.unknown.get("gradients")).toBe(1);
    expect(memory.unknown).toBe(1);
  });

  it("sums what it does not list", () => {
    const memory = Memory.of(step([147, 147, 140, 100]))!;
    expect(memory.alive(1, 1)).toMatchObject({ rows: [{ storage: 0 }], others: { count: 2, bytes: 47, unknown: 0 } });
    expect(memory.alive(1, 5, "temporaries").rows.map((one) => one.storage)).toEqual([2]);
  });

  it("follows storages that are resized", () => {
    const memory = Memory.of(
      step([120, 147, 140, 100], {
        resized: [
          [1, 1, 13, 40],
          ["x", 0, 0, 0],
          [99, 0, 1, 1],
        ],
      }),
    )!;
    expect([...memory.timeline.get("saved_activations")!]).toEqual([13, 40, 40, 0]);
    expect(memory.alive(0, 5).rows.map((one) => one.bytes)).toEqual([100, 13, 7]);
    expect(memory.alive(1, 5).rows.map((one) => one.bytes)).toEqual([100, 40, 7]);
  });

  it("counts what came from outside and was freed from its first use on", () => {
    const graph = graphOf({
      nodes: 3,
      columns: {
        node_memory_bytes: [0, 8, 0],
        storage_bytes: [8],
        storage_born: [-1],
        storage_died: [1],
        storage_role: [INPUT],
        value_storage: [0],
        value_parameter: [-1],
        input_ptr: [0, 0, 1, 1],
        input_value: [0],
      },
    });
    expect([...Memory.of(graph)!.timeline.get("inputs")!]).toEqual([0, 8, 0]);
  });

  it("is absent where memory was not followed", () => {
    expect(Memory.of(graphOf({ nodes: 2 }))).toBeNull();
  });

  it("knows where a storage comes from", () => {
    expect(originOf(step([0, 0, 0, 0]), 1)).toEqual({ value: 1, born: 0, name: "" });
    expect(originOf(step([0, 0, 0, 0]), 0)).toEqual({ value: 0, born: -1, name: "fc.weight" });
  });
});

it("picks the same rows as sorting would, of many", () => {
  const count = 500,
    bytes = Array.from({ length: count }, (_, i) => (i * 7919) % 263);
  const all = (value: number) => Array.from({ length: count }, () => value);
  const graph = graphOf({
    nodes: 1,
    columns: {
      node_memory_bytes: [1],
      storage_bytes: bytes,
      storage_born: all(0),
      storage_died: all(-1),
      storage_role: all(ACTIVATION),
    },
  });
  const { rows, others } = Memory.of(graph)!.alive(0, 50);
  const sorted = [...bytes].sort((a, b) => b - a);
  expect(rows.map((one) => one.bytes)).toEqual(sorted.slice(0, 50));
  expect(others).toEqual({ count: 450, bytes: sorted.slice(50).reduce((a, b) => a + b), unknown: 0 });
});
