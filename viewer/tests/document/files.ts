/** Files made by hand, byte by byte: zips and .npy, whole or with a field that lies. */

export interface Entry {
  name: string;
  data: string | Uint8Array;
  method?: number;
  at?: number; // what its header says, if not the truth
  size?: number;
}

export function makeZip(
  entries: Entry[],
  lies: { comment?: string; count?: number; listAt?: number } = {},
): Uint8Array<ArrayBuffer> {
  const body: number[] = [],
    list: number[] = [];
  for (const { name, data, method = 0, at = body.length, size } of entries) {
    const [text, bytes] = [encoded(name), typeof data === "string" ? encoded(data) : data];
    const about = [short(20), short(0x800), short(method), short(0), short(0x21), long(crc32(bytes))].flat();
    const sizes = [long(size ?? bytes.length), long(size ?? bytes.length), short(text.length)].flat();
    body.push(...long(0x04034b50), ...about, ...sizes, ...short(0), ...text, ...bytes);
    list.push(...long(0x02014b50), ...short(20), ...about, ...sizes, ...short(0), ...short(0), ...short(0));
    list.push(...short(0), ...long(0), ...long(at), ...text);
  }
  const comment = encoded(lies.comment ?? "");
  const counts = [short(lies.count ?? entries.length), short(lies.count ?? entries.length)].flat();
  const end = [...long(0x06054b50), ...short(0), ...short(0), ...counts, ...long(list.length)];
  return Uint8Array.from([
    ...body,
    ...list,
    ...end,
    ...long(lies.listAt ?? body.length),
    ...short(comment.length),
    ...comment,
  ]);
}

/** What numpy.save writes for a flat array. */
export function makeNpy(descr: string, data: ArrayBufferView, count: number, shape = `(${count},)`): Uint8Array {
  const header = `{'descr': '${descr}', 'fortran_order': False, 'shape': ${shape}, }`;
  const padded = header.padEnd(Math.ceil((header.length + 11) / 64) * 64 - 11, " ");
  const numbers = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return Uint8Array.from([
    ...[0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0],
    ...short(padded.length + 1),
    ...encoded(`${padded}\n`),
    ...numbers,
  ]);
}

export async function gzip(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Bit by bit, as the definition says. */
function crc32(bytes: Uint8Array): number {
  let rest = 0xffffffff;
  for (const byte of bytes) {
    rest ^= byte;
    for (let bit = 0; bit < 8; bit++) rest = rest & 1 ? (rest >>> 1) ^ 0xedb88320 : rest >>> 1;
  }
  return ~rest >>> 0;
}

function encoded(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}
function short(number: number): number[] {
  return [number & 255, (number >> 8) & 255];
}
function long(number: number): number[] {
  return [...short(number), ...short(number >>> 16)];
}
