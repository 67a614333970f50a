import { expect, test } from "vitest";
import { Document, fromBase64, readAtlas } from "../../src/document/document";
import { DamagedFile } from "../../src/document/zip";
import { makeNpy, makeZip } from "./files";

const HEADER = { format: "torchatlas", version: 2, tables: {} };
const bytes = (value: unknown) => new TextEncoder().encode(typeof value === "string" ? value : JSON.stringify(value));
const made = (header: unknown, members: [string, Uint8Array][] = []) =>
  new Document("a.atlas", new Map([["header.json", bytes(header)], ...members]));

test("columns of the graph and of the viewer are read when asked for, once", () => {
  const column = makeNpy("<i4", Int32Array.of(3, 4), 2);
  const document = made(HEADER, [
    ["columns/node_kind.npy", column],
    ["viewer/leaf_node.npy", column.slice()],
    ["viewer/names.json", bytes(["a", "b"])],
  ]);
  expect([...document.need("node_kind")]).toEqual([3, 4]);
  expect(document.column("node_kind")).toBe(document.column("node_kind"));
  expect([...document.column("viewer/leaf_node")!]).toEqual([3, 4]);
  expect(document.json("viewer/names.json")).toEqual(["a", "b"]);
  expect(document.column("viewer/node_leaf")).toBeUndefined();
  expect(document.json("viewer/info.json")).toBeUndefined();
  expect(() => document.need("node_phase")).toThrow("a.atlas lacks the column node_phase");
});

test.each([
  ["another program's", { format: "other", version: 1 }, "is not a graph of torchatlas"],
  ["without a version", { format: "torchatlas", tables: {} }, "is not a graph of torchatlas"],
  ["no object", null, "is not a graph of torchatlas"],
  ["of a newer version", { ...HEADER, version: 4 }, "newer torchatlas (format 4; this viewer reads up to 3)"],
  ["without tables", { format: "torchatlas", version: 2 }, "its header has no tables"],
  ["cut off", '{"format": "torcha', "header.json is no JSON"],
])("a header that is %s is refused", (_, header, message) => {
  expect(() => made(header)).toThrow(DamagedFile);
  expect(() => made(header)).toThrow(message);
});

test("a damaged member is named", () => {
  const document = made(HEADER, [["viewer/info.json", bytes("{")]]);
  expect(() => document.json("viewer/info.json")).toThrow("a.atlas is damaged: viewer/info.json is no JSON");
});

test("a file without a header is no graph", async () => {
  await expect(readAtlas("b.atlas", makeZip([]))).rejects.toThrow("b.atlas is not a graph of torchatlas");
});

test("the graph is saved without what the viewer added", async () => {
  const document = made(HEADER, [["viewer/names.json", bytes(["a"])]]);
  const saved = await readAtlas("b.atlas", new Uint8Array(await document.asFile()!.arrayBuffer()));
  expect(saved.header).toEqual(HEADER);
  expect(saved.json("viewer/names.json")).toBeUndefined();
  expect(new Document("c", new Map(), new Map([["header.json", HEADER]])).asFile()).toBeUndefined();
});

test("of a stranger's file only the graph is taken", () => {
  const document = made(HEADER, [["viewer/outline.json", bytes({ templates: "of a stranger" })]]);
  expect(document.json("viewer/outline.json")).toBeDefined();
  expect(document.plain().json("viewer/outline.json")).toBeUndefined();
  expect(document.plain().header).toEqual(HEADER);
});

test("base64 gives its bytes back", () => {
  expect([...fromBase64("AP+AEA==")]).toEqual([0, 255, 128, 16]);
});
