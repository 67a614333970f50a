/** A flat .npy -> numbers. 64-bit integers become doubles: exact up to 2^53, and nothing here counts that far. */

import { DamagedFile } from "./zip";

export type Column = Int8Array | Uint8Array | Int16Array | Int32Array | Float32Array | Float64Array;

const MAGIC = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1]; // "\x93NUMPY", version 1
const HEADER = /'descr': '([<|][a-z]\d)', 'fortran_order': (?:False|True), 'shape': \((\d+),\)/;

export function readColumn(name: string, bytes: Uint8Array): Column {
  const isNumpy = MAGIC.every((byte, at) => bytes[at] === byte);
  const length = bytes[8]! | (bytes[9]! << 8);
  const match = isNumpy && HEADER.exec(new TextDecoder("latin1").decode(bytes.subarray(10, 10 + length)));
  if (!match) throw new DamagedFile(`The column ${name} is not a flat array of numbers.`);
  const count = Number(match[2]);
  const kind = match[1]!.slice(1);
  const size = Number(kind[1]);
  const start = 10 + length;
  if (start + count * size > bytes.length) throw new DamagedFile(`The column ${name} ends too early.`);
  // A copy: typed arrays must begin at a multiple of their size, members of a zip begin anywhere.
  const data = bytes.slice(start, start + count * size).buffer;
  switch (kind) {
    case "u1":
      return new Uint8Array(data);
    case "i1":
      return new Int8Array(data);
    case "i2":
      return new Int16Array(data);
    case "i4":
      return new Int32Array(data);
    case "f4":
      return new Float32Array(data);
    case "f8":
      return new Float64Array(data);
    case "i8":
      return fromLongs(data, count);
  }
  throw new DamagedFile(`The column ${name} holds numbers of an unknown kind, ${kind}.`);
}

/** Two halves are quicker than BigInt. */
function fromLongs(data: ArrayBufferLike, count: number): Float64Array {
  const halves = new Int32Array(data);
  const found = new Float64Array(count);
  for (let i = 0; i < count; i++) found[i] = halves[2 * i + 1]! * 4294967296 + (halves[2 * i]! >>> 0);
  return found;
}
