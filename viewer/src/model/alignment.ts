/** Two graphs, aligned: which node of one stands for which of the other, and what differs. */

import type { Document } from "../document/document";
import type { Item, Outline } from "./outline";

/** viewer/alignment.json, of the first of two documents */
interface Stored {
  pairs: [a: number, b: number][];
  changed: [a: number, b: number, what: Record<string, [string, string]>][];
  only_a: number[];
  only_b: number[];
  modules: ModuleChange[];
  times: Record<string, string>; // module -> longer, shorter, no difference (beyond the spread) or not compared
  time: string; // of all ops, and whether it differs; "" if it is not known
  sentence: string;
}

export interface ModuleChange {
  path: string;
  a: Record<string, number | null>;
  b: Record<string, number | null>;
}

export const SAME = 0,
  CHANGED = 1,
  ONLY_HERE = 2;

/** One side of a comparison. */
export class Side {
  readonly status: Uint8Array; // node -> SAME, CHANGED or ONLY_HERE
  readonly what = new Map<number, Record<string, [string, string]>>(); // node -> what changed: before, after
  private readonly partner = new Map<number, number>();
  private sums: { outline: Outline; changed: Int32Array } | null = null;

  constructor(
    readonly name: "a" | "b",
    count: number,
    readonly stored: Stored,
  ) {
    this.status = new Uint8Array(count);
    const own = name === "a" ? 0 : 1;
    for (const pair of stored.pairs) this.partner.set(pair[own], pair[1 - own]!);
    for (const [a, b, what] of stored.changed) {
      const node = own ? b : a;
      this.status[node] = CHANGED;
      this.partner.set(node, own ? a : b);
      this.what.set(node, what);
    }
    for (const node of own ? stored.only_b : stored.only_a) this.status[node] = ONLY_HERE;
  }

  /** The node of the other graph that stands for a node, if there is one. */
  other(node: number): number | undefined {
    return this.partner.get(node);
  }

  /** How many nodes of an item differ. */
  differences(outline: Outline, item: Item): number {
    if (this.sums?.outline !== outline) {
      const changed = new Int32Array(outline.leafNode.length + 1);
      this.status.forEach((status, node) => {
        const leaf = outline.nodeLeaf[node]!;
        if (status && leaf >= 0) changed[leaf + 1]!++;
      });
      for (let leaf = 0; leaf < outline.leafNode.length; leaf++) changed[leaf + 1]! += changed[leaf]!;
      this.sums = { outline, changed };
    }
    return this.sums.changed[item.end]! - this.sums.changed[item.start]!;
  }
}

export function sidesOf(first: Document, counts: [number, number]): [Side, Side] | null {
  const stored = first.json<Stored>("viewer/alignment.json");
  return stored ? [new Side("a", counts[0], stored), new Side("b", counts[1], stored)] : null;
}
