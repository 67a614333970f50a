import { describe, expect, test } from "vitest";
import { readAtlas } from "../../src/document/document";
import { DamagedFile, gunzip, unzip, zip } from "../../src/document/zip";
import { type Entry, gzip, makeZip } from "./files";

const BOTH: Entry[] = [
  { name: "header.json", data: '{"format": "torchatlas", "version": 2, "tables": {}}' },
  { name: "größe/a.bin", data: "123456789" },
];

describe("a zip", () => {
  test("gives its members by name, and only their bytes", () => {
    const members = unzip(makeZip(BOTH));
    expect([...members.keys()]).toEqual(["header.json", "größe/a.bin"]);
    expect(new TextDecoder().decode(members.get("größe/a.bin"))).toBe("123456789");
  });

  test("may be preceded by other bytes of a larger buffer, and have a comment", () => {
    const bytes = makeZip(BOTH, { comment: "written by hand" });
    const larger = new Uint8Array(bytes.length + 7);
    larger.set(bytes, 7);
    expect(unzip(larger.subarray(7)).size).toBe(2);
  });

  test.each([
    ["nothing at all", () => new Uint8Array(0), "no end of a zip"],
    ["a text", () => new TextEncoder().encode("PK, but no zip".repeat(9)), "no end of a zip"],
    ["a file whose end is missing", () => makeZip(BOTH).subarray(0, -5), "no end of a zip"],
    ["a file whose middle is missing", () => without(makeZip(BOTH), 40, 60), "damaged"],
    ["a list that begins beyond the file", () => makeZip(BOTH, { listAt: 0xfffffff0 }), "list of members is damaged"],
    ["more members than it lists", () => makeZip(BOTH, { count: 3 }), "list of members is damaged"],
    ["far too many members", () => makeZip(BOTH, { count: 65000 }), "65000 members"],
    ["a member beyond the file", () => makeZip([{ ...BOTH[0]!, at: 0x7fffffff }]), "header.json is damaged"],
    ["a member larger than the file", () => makeZip([{ ...BOTH[0]!, size: 1e9 }]), "ends within the member"],
    ["a compressed member", () => makeZip([{ ...BOTH[0]!, method: 8 }]), "header.json is compressed"],
    ["one name twice", () => makeZip([BOTH[0]!, BOTH[0]!]), "stands twice"],
    ["a flipped bit", () => flipped(makeZip(BOTH), "123456789"), "größe/a.bin is damaged"],
  ])("that is %s is refused in words", (_, make, message) => {
    expect(() => unzip(make())).toThrow(DamagedFile);
    expect(() => unzip(make())).toThrow(message);
  });

  test("is found in gzip, and gzip's own damage is told as such", async () => {
    const packed = await gzip(makeZip(BOTH));
    expect((await readAtlas("a.atlas", packed)).header.version).toBe(2);
    await expect(readAtlas("a.atlas", packed.subarray(0, -9))).rejects.toThrow(DamagedFile);
    packed[packed.length - 6]! ^= 1; // of the checksum
    await expect(readAtlas("a.atlas", packed)).rejects.toThrow("cannot be unpacked");
  });
});

test("what is written can be read: by us, and checksums are those of every zip", async () => {
  const bytes = async (members: Map<string, Uint8Array>) => new Uint8Array(await zip(members).arrayBuffer());
  const members = new Map([
    ["header.json", new TextEncoder().encode("{}")],
    ["columns/a.npy", Uint8Array.of(1, 2, 3, 4, 5, 6, 7)],
    ["empty", new Uint8Array(0)],
  ]);
  expect(unzip(await bytes(members))).toEqual(members);
  const known = await bytes(new Map([["n", new TextEncoder().encode("123456789")]]));
  expect(new DataView(known.buffer).getUint32(14, true)).toBe(0xcbf43926); // the check value of CRC-32
});

function without(bytes: Uint8Array, from: number, to: number): Uint8Array {
  return Uint8Array.from([...bytes.subarray(0, from), ...bytes.subarray(to)]);
}

function flipped(bytes: Uint8Array, data: string): Uint8Array {
  bytes[new TextDecoder("latin1").decode(bytes).indexOf(data)]! ^= 4;
  return bytes;
}

test("what gzip packed is unpacked up to a limit", async () => {
  const packed = await gzip(new Uint8Array(1000));
  expect((await gunzip(packed, 1000)).length).toBe(1000);
  await expect(gunzip(packed, 999)).rejects.toThrow("unpacks to more than");
});
