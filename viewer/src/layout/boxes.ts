/** Items, and which of them are open -> nested boxes with sizes. Groups of equal structure, in which the same is open and
 * whose texts are as wide, are laid out once. */

import type { Item, Outline, Rounds } from "../model/outline";
import { type Box, closedBox } from "./box";
import { type Frame, layoutGroup } from "./group";
import { getOrMake } from "./maps";
import type { Geometry, LayoutOptions } from "./scene";
import type { Wirer, Wiring } from "./wiring";

const MOST_KEPT = 200_000; // routes of layouts that are kept for later, some 50 MB
const NUMBERS = new Intl.NumberFormat("en-US"); // one for all: toLocaleString makes one for every number
const HEIGHT_WITH_SUBTITLE = 36;
const LABEL_HEIGHT = 12;
const MARGIN_OF_ENDS = 24; // beside the ends of lines on a box
const FOR_RETURN = [18, 6] as const; // what the dashed line of a repeat takes of the width and the height
const LEAST_BADGE = 56; // what paint.ts keeps free for the badge in a heading
const RANK_GAP_ACROSS = 72; // between boxes side by side, where labels stand above the lines

/** An item as it is shown: with its box, and its wiring if it is open. */
export interface Shown {
  item: Item;
  box: Box;
  wiring: Wiring | null;
  inner: Shown[];
}

/** What layouts have in common as long as texts and geometry stay the same. */
export class Kept {
  private young = new Map<string, Box>();
  private old = new Map<string, Box>();
  private weight = 0;
  private readonly numbers = new Map<string, number>(); // long structure -> short number
  private readonly widths = new Map<string, number>();
  private readonly closed = new Map<Item, Box>();

  constructor(
    readonly geometry: Geometry,
    readonly textWidth: LayoutOptions["textWidth"],
    readonly direction: LayoutOptions["direction"],
  ) {}

  box(key: string, make: () => Box): Box {
    let box = this.young.get(key) ?? this.old.get(key);
    box ??= make();
    if (!this.young.has(key)) {
      this.young.set(key, box);
      this.weight += box.routes.length + box.inner.length + 1;
      if (this.weight > MOST_KEPT) {
        this.old = this.young; // what nobody asks for until the next time is forgotten
        this.young = new Map();
        this.weight = 0;
      }
    }
    return box;
  }

  number(structure: string): number {
    return getOrMake(this.numbers, structure, () => this.numbers.size);
  }

  width(text: string, size: number, bold: boolean): number {
    if (!text) return 0;
    const key = `${size}${bold}${text}`;
    return getOrMake(this.widths, key, () => this.textWidth(text, size, bold));
  }

  /** What a label takes in the layout. */
  labelSize(text: string): readonly [number, number] {
    const width = this.width(text, this.geometry.small_text, false);
    return this.direction === "down" ? [width, LABEL_HEIGHT] : [LABEL_HEIGHT, width];
  }

  /** A closed box, as large as its texts want. */
  closedBox(item: Item): Box {
    let box = this.closed.get(item);
    if (!box) {
      const { geometry } = this;
      const more = (item.repeat > 1 ? this.badge(item) + 6 : 0) + (item.isLeaf ? 0 : geometry.plus);
      const title = Math.min(this.width(item.title, geometry.title_text, true), geometry.widest_title) + more;
      const subtitle = Math.min(this.width(item.subtitle, geometry.small_text, false), geometry.widest_text);
      const width = Math.max(geometry.least_width, Math.max(title, subtitle) + geometry.text_margins);
      const height = item.subtitle ? HEIGHT_WITH_SUBTITLE : geometry.least_height;
      const behind = item.repeat > 1 ? geometry.stack : 0;
      box = this.turned(closedBox(width + behind, height + behind));
      this.closed.set(item, box);
    }
    return box;
  }

  /** The same box with room for the ends of so many lines. */
  forEnds(box: Box, ends: number): Box {
    const margin = this.direction === "down" ? MARGIN_OF_ENDS : 10;
    const width = margin + this.geometry.line_end * ends;
    return width > box.width ? closedBox(width, box.height) : box;
  }

  /** The frame of an open group in the layout. */
  frame(item: Item, isRoot: boolean, hasInputs: boolean, hasOutputs: boolean): Frame {
    if (isRoot) return { left: 0, top: 0, right: 0, bottom: 0, leastWidth: 0, leastHeight: 0 };
    const { heading, padding, beside_heading, plus, title_text, small_text, widest_title, widest_text } = this.geometry;
    const title = Math.min(this.width(item.title, title_text, true), widest_title);
    const words = Math.min(this.width(item.heading || item.subtitle, small_text, false), widest_text);
    const head =
      title + words + beside_heading + plus + (item.repeat > 1 ? Math.max(this.badge(item) + 8, LEAST_BADGE) : 0);
    const [wider, higher] = item.repeat > 1 ? FOR_RETURN : [0, 0];
    const bottom = (hasOutputs ? 8 : padding) + higher;
    const above = hasInputs ? 0 : 10;
    return this.direction === "down"
      ? { left: padding, top: heading + above, right: padding + wider, bottom, leastWidth: head, leastHeight: 0 }
      : { left: heading + 8, top: above, right: padding + wider, bottom, leastWidth: 0, leastHeight: head };
  }

  /** The mark that says how often an item repeats. */
  private badge(item: Item): number {
    return this.width(`×${NUMBERS.format(item.repeat)}`, this.geometry.small_text, true) + 10;
  }

  private turned(box: Box): Box {
    return this.direction === "down" ? box : closedBox(box.height, box.width);
  }
}

/** Distances as a picture that runs to the right needs them. */
export function geometryFor(geometry: Geometry, direction: LayoutOptions["direction"]): Geometry {
  return direction === "down"
    ? geometry
    : { ...geometry, rank_gap: RANK_GAP_ACROSS, usual_height: 120, spanning_height: 200 };
}

/** Lays out what is shown of one outline. Wirings last as long as the same repeats are unfolded and
 * the same lanes are shown. */
export class BoxMaker {
  private readonly wirings = new Map<string, { wiring: Wiring; key: number }>(); // by item and where its round begins
  private rounds: Rounds = new Map();

  constructor(
    private readonly outline: Outline,
    private readonly kept: Kept,
    private readonly wirer: Wirer,
    private readonly childrenOf: (item: Item, rounds: Rounds) => Item[],
  ) {}

  show(item: Item, open: ReadonlySet<string>, rounds: Rounds): Shown {
    this.rounds = rounds;
    return this.open(item, open, [], []).shown;
  }

  private open(
    item: Item,
    open: ReadonlySet<string>,
    inputs: readonly number[],
    outputs: readonly number[],
  ): { shown: Shown; key: string } {
    const { kept } = this;
    const { wiring, key: wired } = this.wiring(item, inputs, outputs);
    const keys: string[] = [];
    const inner = wiring.children.map((child, at): Shown => {
      if (child.isLeaf || !open.has(child.key)) {
        const box = kept.closedBox(child);
        keys.push(`${box.width}x${box.height}`);
        return { item: child, box, wiring: null, inner: [] };
      }
      const { shown, key } = this.open(child, open, wiring.entering[at]!, wiring.leaving[at]!);
      keys.push(key);
      return shown;
    });
    const isRoot = item === this.outline.root;
    const frame = kept.frame(item, isRoot, inputs.length > 0, outputs.length > 0);
    const texts = `${frame.leastWidth} ${frame.leastHeight} ${item.repeat > 1} ${isRoot}`;
    const key = `o${kept.number(`${wired};${texts};${keys.join()}`)}`;
    const box = kept.box(key, () =>
      layoutGroup({
        wiring,
        children: inner.map((shown) => shown.box),
        frame,
        repeats: item.repeat > 1,
        isRoot,
        geometry: kept.geometry,
        labelSize: (text) => kept.labelSize(text),
        labelsLeft: kept.direction === "right",
        forEnds: (closed, ends) => kept.forEnds(closed, ends),
      }),
    );
    inner.forEach((shown, at) => {
      shown.box = box.inner[at]!;
    }); // closed ones may have become wider
    return { shown: { item, box, wiring, inner }, key };
  }

  private wiring(item: Item, inputs: readonly number[], outputs: readonly number[]): { wiring: Wiring; key: number } {
    const { rounds } = this;
    return getOrMake(this.wirings, `${item.key}@${this.outline.shownStart(item, rounds)}`, () => {
      const wiring = this.wirer.wire(item, this.childrenOf(item, rounds), inputs, outputs, rounds);
      const labels = wiring.lines.map(({ label }) => this.kept.labelSize(label).join("x")).join();
      const handed = wiring.handed.map(({ child, tensor }) => `${child}:${wiring.outputs.indexOf(tensor)}`).join();
      const kinds = wiring.children.map(({ kind }) => (kind === "lane" ? 1 : 0)).join("");
      return { wiring, key: this.kept.number(`${wiring.pattern};${labels};${handed};${kinds}`) };
    });
  }
}
