/** Bytes of a zip whose members are stored or deflated -> its members. What `.atlas` files are made of. */

export class DamagedFile extends Error {}

const END = 0x06054b50,
  ENTRY = 0x02014b50,
  LOCAL = 0x04034b50;
const MOST_MEMBERS = 2000;

/** The members of a zip by name. Nothing is read beyond what the file holds, whatever its fields claim. */
export async function unzip(bytes: Uint8Array): Promise<Map<string, Uint8Array>> {
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
    const packed = view.getUint32(at + 20, true);
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
    if (start + packed > bytes.length) throw new DamagedFile(`The file ends within the member ${name}.`);
    const data = bytes.subarray(start, start + packed);
    members.set(name, method === 0 ? data : await inflate(data, "deflate-raw"));
    at += 46 + nameLength + extraLength + commentLength;
  }
  return members;
}

/** Unpack gzip, or a deflated member. */
export async function inflate(bytes: Uint8Array, format: CompressionFormat): Promise<Uint8Array> {
  const stream = new Blob([bytes as BlobPart]).stream().pipeThrough(new DecompressionStream(format));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function findEnd(view: DataView): number {
  for (let at = view.byteLength - 22; at >= 0 && at > view.byteLength - 66_000; at--) {
    if (view.getUint32(at, true) === END) return at;
  }
  throw new DamagedFile("This is no .atlas file: it has no end of a zip.");
}
