import { expect, test } from "vitest";
import { readColumn } from "../../src/document/npy";
import { DamagedFile } from "../../src/document/zip";
import { makeNpy } from "./files";

test.each([
  ["|u1", Uint8Array.of(0, 255), [0, 255]],
  ["|i1", Int8Array.of(-1, 127), [-1, 127]],
  ["<i2", Int16Array.of(-1, 300), [-1, 300]],
  ["<i4", Int32Array.of(-1, 70_000), [-1, 70_000]],
  ["<f4", Float32Array.of(0.5, -2), [0.5, -2]],
  ["<f8", Float64Array.of(Number.NaN, 1e300), [Number.NaN, 1e300]],
  ["<i8", BigInt64Array.of(-1n, 2n ** 53n - 1n), [-1, 2 ** 53 - 1]],
  ["<i8", BigInt64Array.of(-(2n ** 40n), 2n ** 32n + 2n ** 31n), [-(2 ** 40), 2 ** 32 + 2 ** 31]],
])("a column of %s is read, wherever its bytes begin", (descr, data, expected) => {
  const bytes = makeNpy(descr, data, 2);
  const shifted = new Uint8Array(bytes.length + 3);
  shifted.set(bytes, 3);
  expect([...readColumn("c", bytes)]).toEqual(expected);
  expect([...readColumn("c", shifted.subarray(3))]).toEqual(expected);
});

test("a column without rows is empty", () => {
  expect(readColumn("c", makeNpy("<i4", new Int32Array(0), 0)).length).toBe(0);
});

const three = Int32Array.of(1, 2, 3);
test.each([
  ["is empty", new Uint8Array(0), "not a flat array"],
  ["is no .npy", new Uint8Array(200), "not a flat array"],
  ["has two axes", makeNpy("<i4", three, 3, "(1, 3)"), "not a flat array"],
  ["is big endian", makeNpy(">i4", three, 3), "not a flat array"],
  ["holds objects", makeNpy("|O8", three, 3), "not a flat array"],
  ["holds complex numbers", makeNpy("<c8", three, 1), "unknown kind, c8"],
  ["is cut off", makeNpy("<i4", three, 3).subarray(0, -1), "ends too early"],
  ["claims more rows than it has", makeNpy("<i4", three, 4), "ends too early"],
  ["claims more rows than there are", makeNpy("<i4", three, 3, `(${"9".repeat(30)},)`), "ends too early"],
])("a column that %s is refused", (_, bytes, message) => {
  expect(() => readColumn("node_kind", bytes)).toThrow(DamagedFile);
  expect(() => readColumn("node_kind", bytes)).toThrow(message);
});
