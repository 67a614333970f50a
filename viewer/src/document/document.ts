/** Bytes -> a Document: the columns and tables of one graph, and what Python computed beside them for the panes. */

import { type Column, readColumn } from "./npy";
import { DamagedFile, gunzip, unzip, zip } from "./zip";

export interface Operation {
  name: string;
  type: string;
  parameters: { name: string }[];
}
export interface Layout {
  shape: (number | string)[];
  stride: (number | string)[] | null;
  dtype: string;
  device: string;
  kind: string;
}
export interface Module {
  path: string;
  type: string;
  kind: string;
}
export interface SourceLine {
  file: string;
  line: number;
  function: string;
  text: string;
}
export interface Tables {
  operations: Operation[];
  layouts: Layout[];
  arguments: string[];
  sources: SourceLine[];
  modules: Module[];
  names: string[];
  threads: string[];
  devices: string[];
}
export interface Header {
  format: string;
  version: number;
  source: string;
  notes: string[];
  metadata: Record<string, unknown>;
  columns: string[];
  tables: Tables;
  timing?: { runs?: number } | null;
}
export interface Totals {
  ops: number;
  parameters: number;
  flops: number | null;
  peak_bytes: number | null;
  time_ns: number | null;
  at_least: string[];
}
/** viewer/info.json */
export interface Info {
  version: number;
  title: string;
  time: string | null;
  program: string;
  totals: Totals;
  device: { name: string; flops_per_second: number; bytes_per_second: number; basis: string } | null;
  notes: string[];
  failed: { node: number; message: string } | null;
  left_out: string[];
}

const NEWEST = 3; // version of the .atlas format, see docs/format.md

export class Document {
  readonly header: Header;
  private readonly columns = new Map<string, Column>();

  /** `known` holds members that were read already, by their names. */
  constructor(
    readonly name: string,
    private readonly members: ReadonlyMap<string, Uint8Array>,
    private readonly known = new Map<string, unknown>(),
  ) {
    const header = this.json<Header>("header.json");
    checkFormat(name, header);
    if (!header.tables) throw new DamagedFile(`${name} is damaged: its header has no tables.`);
    this.header = header;
  }

  /** A JSON member; undefined if the document has none. */
  json<T>(member: string): T | undefined {
    if (!this.known.has(member)) {
      const bytes = this.members.get(member);
      this.known.set(member, bytes && this.parsed(member, bytes));
    }
    return this.known.get(member) as T | undefined;
  }

  private parsed(member: string, bytes: Uint8Array): unknown {
    try {
      return JSON.parse(new TextDecoder().decode(bytes));
    } catch (error) {
      throw new DamagedFile(`${this.name} is damaged: ${member} is no JSON.`, { cause: error });
    }
  }

  /** A column of the graph (`node_kind`) or of the viewer (`viewer/leaf_node`); undefined if there is none. */
  column(name: string): Column | undefined {
    const found = this.columns.get(name); // by its short name: this is asked for every node
    if (found) return found;
    const member = name.includes("/") ? `${name}.npy` : `columns/${name}.npy`;
    const bytes = this.members.get(member);
    const made = (this.known.get(member) as Column | undefined) ?? (bytes && readColumn(name, bytes));
    if (made) this.columns.set(name, made);
    return made;
  }

  /** A column that every graph has. */
  need(name: string): Column {
    const found = this.column(name);
    if (!found) throw new DamagedFile(`${this.name} lacks the column ${name}.`);
    return found;
  }

  /** The graph as an `.atlas` file, without what the viewer adds; undefined if it was read from JSON. */
  asFile(): Blob | undefined {
    const own = this.own();
    return own.size ? zip(own) : undefined;
  }

  /** The same graph without what the viewer adds. Of a stranger's file nobody checks that, and it may lead anywhere. */
  plain(): Document {
    return new Document(this.name, this.own());
  }

  private own(): Map<string, Uint8Array> {
    return new Map([...this.members].filter(([name]) => !name.startsWith("viewer/")));
  }
}

/** Refuse what is no graph, and graphs of versions that this viewer does not know. */
export function checkFormat(name: string, header: Header | undefined): asserts header is Header {
  if (header?.format !== "torchatlas" || typeof header.version !== "number")
    throw new DamagedFile(`${name} is not a graph of torchatlas.`);
  if (header.version > NEWEST) {
    throw new DamagedFile(
      `${name} was written by a newer torchatlas (format ${header.version}; this viewer reads up to ${NEWEST}).`,
    );
  }
}

/** The bytes of an `.atlas` file, gzipped or not. */
export async function readAtlas(name: string, bytes: Uint8Array): Promise<Document> {
  const isPacked = bytes[0] === 0x1f && bytes[1] === 0x8b;
  return new Document(name, isPacked ? unzip(await gunzip(bytes), false) : unzip(bytes));
}

/** What `<script type="application/x-atlas">` holds. */
export function fromBase64(text: string): Uint8Array {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}
