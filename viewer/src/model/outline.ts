/** The tree of groups that pictures and viewer share: modules, lanes, folded repeats, single ops.
 *
 * Python stores equal structures once, as templates whose children are counted from where the group begins. An Item is one
 * place where a template is used. Items are made when their group is looked into and stay the same objects, so that they
 * can be keys. A repeat ("x 12") is one Item that shows one of its rounds, or, unfolded, all of them as Items of their own.
 */

import { type OutlineTable, outlineOf } from "../document/outline";
import type { Graph } from "./graph";

export type Kind = "leaf" | "module" | "lane" | "loop" | "functional" | "segment" | "iteration" | "group" | "update";

export class Item {
  /** Same in every session: it stands in links. */
  readonly key: string;

  constructor(
    readonly kind: Kind,
    readonly start: number, // its leaves; of a repeat those of the first round
    readonly stop: number,
    readonly repeat: number,
    readonly template: number,
    readonly title: string,
    readonly subtitle: string,
    readonly heading: string,
    readonly type: string, // the class of a module
    readonly name: string,
    readonly level: number, // depth of its module call; -1 for what is no module
    readonly flags: number,
    readonly depth: number,
    readonly parent: Item | null,
    readonly folded: Item | null = null, // the repeat that it is an unfolded round of
    readonly round: number = -1, // and which
  ) {
    this.key = `${start}-${stop}-${depth}${round >= 0 ? "r" : ""}`;
  }

  get isLeaf(): boolean {
    return this.kind === "leaf";
  }
  get length(): number {
    return this.stop - this.start;
  }
  /** After the last leaf of the last round. */
  get end(): number {
    return this.start + this.length * this.repeat;
  }
  get differs(): boolean {
    return (this.flags & 1) !== 0;
  }
  get handsOn(): boolean {
    return (this.flags & 2) !== 0;
  }
  get isMarker(): boolean {
    return (this.flags & 4) !== 0;
  }
}

/** Which round of each repeat is shown: a number, or all of them. By the item's key; the first if it is absent. */
export type Rounds = ReadonlyMap<string, number | "all">;

export class Outline {
  readonly root: Item;
  readonly table: OutlineTable;
  readonly leafNode: Int32Array;
  readonly nodeLeaf: Int32Array;
  private readonly inside = new Map<string, Item[]>(); // by key of the group and where its round begins

  constructor(readonly graph: Graph) {
    this.table = outlineOf(graph);
    this.leafNode = this.table.leafNode;
    this.nodeLeaf = this.table.nodeLeaf;
    this.root = new Item(
      "module",
      0,
      this.leafNode.length,
      1,
      this.table.root,
      graph.info.title,
      "",
      "",
      "",
      "",
      -1,
      0,
      0,
      null,
    );
  }

  /** Where the shown round of an item begins. */
  shownStart(item: Item, rounds: Rounds): number {
    const round = item.repeat > 1 ? rounds.get(item.key) : 0;
    return item.start + (typeof round === "number" ? Math.min(round, item.repeat - 1) : 0) * item.length;
  }

  /** What is drawn in an open item, in the order in which it ran. */
  children(item: Item, rounds: Rounds): Item[] {
    if (item.isLeaf) return [];
    const start = this.shownStart(item, rounds);
    const folded = this.made(item, start);
    if (!folded.some((child) => rounds.get(child.key) === "all")) return folded;
    return folded.flatMap((child) => (rounds.get(child.key) === "all" ? this.rounds(child) : [child]));
  }

  /** The rounds of a repeat as items of their own. */
  rounds(item: Item): Item[] {
    const key = `${item.key}*`;
    let found = this.inside.get(key);
    if (!found) {
      found = Array.from({ length: item.repeat }, (_, round) => {
        const start = item.start + round * item.length;
        const name = this.nameOfRound(item, start, round);
        return new Item(
          item.kind,
          start,
          start + item.length,
          1,
          item.template,
          item.title,
          name,
          item.heading,
          item.type,
          name,
          item.level,
          item.flags & ~2,
          item.depth,
          item.parent,
          item,
          round,
        );
      });
      this.inside.set(key, found);
    }
    return found;
  }

  /** The way from the root to the item that stands for a leaf: the innermost one last. Rounds are looked through. */
  around(leaf: number, rounds: Rounds): Item[] {
    const found: Item[] = [];
    let item = this.root;
    while (!item.isLeaf) {
      const children = this.children(item, rounds);
      const child = children[lastBefore(children, leaf)];
      if (!child || leaf >= child.end) break;
      found.push(child);
      leaf = this.shownStart(child, rounds) + ((leaf - child.start) % child.length);
      item = child;
    }
    return found;
  }

  /** The nodes that an item stands for, in all its rounds: those with a box, and those whose lines end there. */
  nodes(item: Item): number[] {
    const found: number[] = [];
    for (let node = 0; node < this.nodeLeaf.length; node++) {
      const leaf = this.nodeLeaf[node]!;
      if (leaf >= item.start && leaf < item.end) found.push(node);
    }
    return found;
  }

  /** The module call of an item, -1 if it is none. */
  call(item: Item, rounds: Rounds): number {
    return this.callAt(this.shownStart(item, rounds), item.level);
  }

  /** The module path of an item, "" if it is none. */
  path(item: Item, rounds: Rounds): string {
    return this.pathAt(this.shownStart(item, rounds), item.level);
  }

  /** The path of the module call around a leaf at a level (0 is the outermost), "" if there is none. */
  pathAt(leaf: number, level: number): string {
    const call = this.callAt(leaf, level);
    return call < 0 ? "" : this.graph.tables.modules[this.graph.callModule[call]!]!.path;
  }

  private callAt(leaf: number, level: number): number {
    if (level < 0) return -1;
    const { call, callParent } = this.graph;
    const inward: number[] = [];
    for (let one = call[this.leafNode[leaf]!] ?? -1; one >= 0; one = callParent[one]!) inward.push(one);
    return inward.at(-1 - level) ?? -1;
  }

  private made(item: Item, start: number): Item[] {
    const key = `${item.key}@${start}`;
    let found = this.inside.get(key);
    if (!found) {
      const { templates, texts, classes } = this.table;
      const text = (row: number) => (row < 0 ? "" : (texts[row] ?? ""));
      found = (templates[item.template] ?? []).map(
        ([kind, first, stop, repeat, template, title, subtitle, heading, type, name, level, flags]) =>
          new Item(
            kind,
            start + first,
            start + stop,
            repeat,
            template,
            text(title),
            text(subtitle),
            text(heading),
            type < 0 ? "" : (classes[type] ?? ""),
            text(name),
            level,
            flags,
            item.depth + 1,
            item,
          ),
      );
      this.inside.set(key, found);
    }
    return found;
  }

  private nameOfRound(item: Item, start: number, round: number): string {
    return this.pathAt(start, item.level) || `round ${round + 1} of ${item.repeat}`;
  }
}

/** The last of some items, in order, that begins at or before a leaf. */
export function lastBefore(items: readonly Item[], leaf: number): number {
  let low = 0,
    high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (items[middle]!.start <= leaf) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
