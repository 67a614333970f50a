/** Bytes of a zip -> its members. What `.atlas` files are made of: members are stored, as docs/format.md says, so that a
 * small file cannot ask for much memory. */

export class DamagedFile extends Error {}

const END = 0x06054b50,
  ENTRY = 0x02014b50,
  LOCAL = 0x04034b50;
const MOST_MEMBERS = 2000;
const MOST_BYTES = 1_000_000_000; // beyond it, a tab of a browser may run out of memory

/** The members of a zip by name. Nothing is read beyond what the file holds, whatever its fields claim. `isChecked`
 * compares checksums too, which tells a flipped bit: for bytes that did not come out of gzip, which has its own. */
export function unzip(bytes: Uint8Array, isChecked = true): Map<string, Uint8Array> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const end = findEnd(view);
  const count = view.getUint16(end + 10, true);
  if (count > MOST_MEMBERS) throw new DamagedFile(`The file has ${count} members; no file of ours has as many.`);
  const members = new Map<string, Uint8Array>();
  let at = view.getUint32(end + 16, true);
  for (let number = 0; number < count; number++) {
    if (at + 46 > bytes.length || view.getUint32(at, true) !== ENTRY)
      throw new DamagedFile("The list of members is damaged.");
    const method = view.getUint16(at + 10, true);
    const checksum = view.getUint32(at + 16, true);
    const size = view.getUint32(at + 20, true);
    const [nameLength, extraLength, commentLength] = [28, 30, 32].map((field) => view.getUint16(at + field, true)) as [
      number,
      number,
      number,
    ];
    const local = view.getUint32(at + 42, true);
    const name = new TextDecoder().decode(bytes.subarray(at + 46, at + 46 + nameLength));
    if (local + 30 > bytes.length || view.getUint32(local, true) !== LOCAL)
      throw new DamagedFile(`The member ${name} is damaged.`);
    const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    if (start + size > bytes.length) throw new DamagedFile(`The file ends within the member ${name}.`);
    if (method !== 0) throw new DamagedFile(`The member ${name} is compressed: no file of ours is like that.`);
    if (members.has(name)) throw new DamagedFile(`The member ${name} stands twice in the file.`);
    const data = bytes.subarray(start, start + size);
    if (isChecked && crc32(data) !== checksum) throw new DamagedFile(`The member ${name} is damaged.`);
    members.set(name, data);
    at += 46 + nameLength + extraLength + commentLength;
  }
  return members;
}

/** Unpack gzip, up to so many bytes: a small file can unpack to a thousand times its size. */
export async function gunzip(bytes: Uint8Array, most = MOST_BYTES): Promise<Uint8Array> {
  const parts: BlobPart[] = [];
  let size = 0;
  try {
    const reader = new Blob([bytes as BlobPart]).stream().pipeThrough(new DecompressionStream("gzip")).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      size += part.value.length;
      if (size > most) {
        await reader.cancel();
        break;
      }
      parts.push(part.value as BlobPart);
    }
  } catch (error) {
    throw new DamagedFile("The file is damaged: what gzip packed cannot be unpacked.", { cause: error });
  }
  if (size > most)
    throw new DamagedFile(`The file unpacks to more than ${most / 1e6} MB. No page of ours is as large.`);
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

function findEnd(view: DataView): number {
  for (let at = view.byteLength - 22; at >= 0 && at > view.byteLength - 66_000; at--) {
    if (view.getUint32(at, true) === END) return at;
  }
  throw new DamagedFile("This is no .atlas file: it has no end of a zip.");
}

/** Members -> the bytes of a zip that holds them as they are. Without clock and platform: equal members, equal bytes. */
export function zip(members: ReadonlyMap<string, Uint8Array>): Blob {
  const parts: BlobPart[] = [];
  const directory: BlobPart[] = [];
  let at = 0;
  let size = 0;
  for (const [name, data] of members) {
    const path = new TextEncoder().encode(name);
    const shared = [20, 0, 0, 0, 0x21]; // version, flags, stored, and the first of January 1980
    const sums = [crc32(data), data.length, data.length];
    const local = fields([
      [4, LOCAL],
      ...shared.map((one): Field => [2, one]),
      ...sums.map((one): Field => [4, one]),
      [2, path.length],
      [2, 0],
    ]);
    const entry = fields([
      [4, ENTRY],
      [2, 20],
      ...shared.map((one): Field => [2, one]),
      ...sums.map((one): Field => [4, one]),
      [2, path.length],
      ...[0, 0, 0, 0].map((one): Field => [2, one]), // extra, comment, disk, kind
      [4, 0],
      [4, at],
    ]);
    parts.push(local, path as BlobPart, data as BlobPart);
    directory.push(entry, path as BlobPart);
    at += local.byteLength + path.length + data.length;
    size += entry.byteLength + path.length;
  }
  const end = fields([
    [4, END],
    [2, 0],
    [2, 0],
    [2, members.size],
    [2, members.size],
    [4, size],
    [4, at],
    [2, 0],
  ]);
  return new Blob([...parts, ...directory, end], { type: "application/octet-stream" });
}

type Field = [bytes: 2 | 4, value: number];

function fields(rows: Field[]): ArrayBuffer {
  const view = new DataView(new ArrayBuffer(rows.reduce((sum, [bytes]) => sum + bytes, 0)));
  let at = 0;
  for (const [bytes, value] of rows) {
    if (bytes === 2) view.setUint16(at, value, true);
    else view.setUint32(at, value, true);
    at += bytes;
  }
  return view.buffer as ArrayBuffer;
}

// CRC-32 of zip, four bytes at a time: CRC[k][b] is the remainder of byte b with k bytes of zeros behind it.
const CRC = Array.from({ length: 4 }, () => new Uint32Array(256));
for (let byte = 0; byte < 256; byte++) {
  let rest = byte;
  for (let bit = 0; bit < 8; bit++) rest = rest & 1 ? 0xedb88320 ^ (rest >>> 1) : rest >>> 1;
  CRC[0]![byte] = rest;
}
for (let behind = 1; behind < 4; behind++)
  for (let byte = 0; byte < 256; byte++) {
    const rest = CRC[behind - 1]![byte]!;
    CRC[behind]![byte] = (rest >>> 8) ^ CRC[0]![rest & 255]!;
  }

function crc32(bytes: Uint8Array): number {
  const [none, one, two, three] = CRC as [Uint32Array, Uint32Array, Uint32Array, Uint32Array];
  let rest = 0xffffffff,
    at = 0;
  for (const last = bytes.length - 3; at < last; at += 4) {
    rest ^= bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24);
    rest = three[rest & 255]! ^ two[(rest >>> 8) & 255]! ^ one[(rest >>> 16) & 255]! ^ none[rest >>> 24]!;
  }
  for (; at < bytes.length; at++) rest = (rest >>> 8) ^ none[(rest ^ bytes[at]!) & 255]!;
  return ~rest >>> 0;
}
