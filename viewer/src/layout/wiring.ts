/** The lines inside one group: between its items, and from and to its border.
 *
 * A tensor is numbered by the leaf that makes it, in first rounds, and which output it is. So it has one number at all
 * depths, and all rounds of a repeat hand out one tensor. Linear in the edges into the leaves of the group.
 */

import type { Item, Outline, Rounds } from "../model/outline";
import { shiftOf } from "./folding";
import { getOrMake } from "./maps";
import { Shapes } from "./shapes";

export const OUTPUTS = 1024; // a tensor is numbered by its leaf times this, plus which output it is
const BORDER = -1;

export interface WiredLine {
  from: number; // child; -1 for what enters the group
  to: number;
  tensor: number; // negative for a bundle
  value: number; // of the graph, as it arrives in the shown round; -1 for a bundle
  many: number;
  label: string;
}

export interface Wiring {
  children: Item[];
  inputs: readonly number[]; // tensors that enter the group
  outputs: readonly number[];
  lines: WiredLine[];
  makers: number[]; // output -> the child it comes from; -1 if that is not shown
  made: number[]; // output -> its value, as it was made in the shown round; -1 if there is none
  entering: number[][]; // child -> the tensors that enter it
  leaving: number[][];
  handed: { child: number; tensor: number }[]; // what each round of a repeat reads of the one before
  pattern: string; // equal for groups that are wired alike, within and to the outside
}

export class Wirer {
  private readonly shapes: Shapes;

  /** `stands` is what foldedLeaves says. */
  constructor(
    private readonly outline: Outline,
    private readonly stands: Int32Array,
  ) {
    this.shapes = new Shapes(outline);
  }

  wire(
    group: Item,
    children: Item[],
    inputs: readonly number[],
    outputs: readonly number[],
    rounds: Rounds = new Map(),
  ): Wiring {
    const shift = shiftOf(this.outline, group, rounds);
    const first = this.outline.shownStart(group, rounds) - shift;
    this.shapes.enter(group, rounds);
    const places = new Places(children, shift);
    const lines = this.between(group, children, places, shift, first, new Set(inputs));
    lines.push(...this.bundles(children, places));
    const makers = outputs.map((tensor) => places.of(Math.floor(tensor / OUTPUTS)));
    const entering = children.map(() => new Set<number>());
    const leaving = children.map(() => new Set<number>());
    for (const { from, to, tensor } of lines) {
      if (tensor < 0) continue; // a bundle ends at the frame
      entering[to]!.add(tensor);
      if (from >= 0) leaving[from]!.add(tensor);
    }
    makers.forEach((child, output) => {
      if (child >= 0) leaving[child]!.add(outputs[output]!);
    });
    return {
      children,
      inputs,
      outputs,
      lines,
      makers,
      made: outputs.map((tensor) => this.shapes.valueMade(Math.floor(tensor / OUTPUTS) + shift, tensor % OUTPUTS)),
      entering: entering.map((tensors) => [...tensors]),
      leaving: leaving.map((tensors) => [...tensors]),
      handed: group.repeat > 1 && group.handsOn ? this.handed(first, group.length, places) : [],
      pattern: patternOf(lines, makers, inputs, outputs),
    };
  }

  /** The tensors that children read, of each other and from outside. */
  private between(
    group: Item,
    children: Item[],
    places: Places,
    shift: number,
    first: number,
    inputs: ReadonlySet<number>,
  ): WiredLine[] {
    const { edges } = this.outline.table;
    const stands = this.stands;
    const last = first + group.length;
    const known = new Map<number, { line: WiredLine; shown: number }>(); // with the edge that it was first met by
    children.forEach((child, to) => {
      const begin = child.start - shift;
      for (let leaf = begin; leaf < begin + child.length; leaf++) {
        if (stands[leaf] !== leaf) continue; // drawn with the first round
        for (let edge = edges.first[leaf]!; edge < edges.first[leaf + 1]!; edge++) {
          const source = edges.source[edge]!;
          const maker = stands[source]!;
          const tensor = maker * OUTPUTS + Math.min(edges.output[edge]!, OUTPUTS - 1);
          const from = places.of(maker);
          if (from === to) continue;
          const isOtherRound = from >= 0 && (source < first || source >= last); // the dashed line tells
          if (isOtherRound || (from === BORDER && !inputs.has(tensor))) continue;
          const shown = this.shownEdge(edge, leaf, shift);
          const key = tensor * children.length + to;
          const met = known.get(key);
          if (met) {
            if (!this.shapes.agree(met.shown, shown, child)) met.line.label = this.shapes.labelMade(shown);
          } else {
            const label = this.shapes.label(shown, child);
            known.set(key, { line: { from, to, tensor, value: edges.value[shown]!, many: 1, label }, shown });
          }
        }
      }
    });
    return [...known.values()].map(({ line }) => line);
  }

  /** An edge of a first round as that of the shown one. Rounds that only look alike may read more or less. */
  private shownEdge(edge: number, leaf: number, shift: number): number {
    const { first } = this.outline.table.edges;
    const shown = first[leaf + shift]! + edge - first[leaf]!;
    return shown < first[leaf + shift + 1]! ? shown : edge;
  }

  /** How many tensors one lane takes from another, or one iteration from those before, as one line each. */
  private bundles(children: Item[], places: Places): WiredLine[] {
    const bundled = children.map((child) => this.isBundled(child));
    if (bundled.filter(Boolean).length < 2) return [];
    const { kept } = this.outline.table;
    const tensors = new Map<number, Set<number>>();
    for (let row = 0; row < kept.source.length; row++) {
      const from = places.of(kept.source[row]!);
      const to = places.of(kept.target[row]!);
      if (from === to || !bundled[from] || !bundled[to]) continue;
      const pair = from * children.length + to;
      const known = getOrMake(tensors, pair, () => new Set());
      known.add(kept.source[row]! * OUTPUTS + kept.output[row]!);
    }
    return [...tensors].map(([pair, { size }], number) => ({
      from: Math.floor(pair / children.length),
      to: pair % children.length,
      tensor: -1 - number,
      value: -1,
      many: size,
      label: `${size.toLocaleString("en-US")} tensor${size > 1 ? "s" : ""}`,
    }));
  }

  /** A lane, an iteration or a repeat of several iterations. */
  private isBundled(item: Item): boolean {
    if (item.kind === "lane" || item.kind === "iteration") return true;
    return item.kind === "loop" && this.outline.children(item, new Map()).some(({ kind }) => kind === "iteration");
  }

  private handed(first: number, length: number, places: Places): { child: number; tensor: number }[] {
    const { edges } = this.outline.table;
    const found = new Map<number, { child: number; tensor: number }>();
    for (let edge = edges.first[first + length]!; edge < edges.first[first + 2 * length]!; edge++) {
      const source = edges.source[edge]!;
      if (source < first || source >= first + length) continue;
      const maker = this.stands[source]!;
      const child = places.of(maker);
      const tensor = maker * OUTPUTS + Math.min(edges.output[edge]!, OUTPUTS - 1);
      if (child >= 0) found.set(tensor, { child, tensor });
    }
    return [...found.values()].sort((one, other) => one.tensor - other.tensor);
  }
}

/** Leaf -> the child that it is in. */
class Places {
  private readonly starts: Float64Array;
  private readonly ends: Float64Array;

  constructor(children: readonly Item[], shift: number) {
    this.starts = Float64Array.from(children, (child) => child.start - shift);
    this.ends = Float64Array.from(children, (child) => child.end - shift);
  }

  /** -1 if it is in none. */
  of(leaf: number): number {
    let low = 0;
    let high = this.starts.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.starts[middle]! <= leaf) low = middle + 1;
      else high = middle;
    }
    return low && leaf < this.ends[low - 1]! ? low - 1 : BORDER;
  }
}

/** The lines of a group with its tensors numbered as they come. */
function patternOf(
  lines: readonly WiredLine[],
  makers: readonly number[],
  inputs: readonly number[],
  outputs: readonly number[],
): string {
  const numbers = new Map<number, number>();
  const number = (tensor: number) => {
    return getOrMake(numbers, tensor, () => numbers.size);
  };
  const inner = lines.map(({ from, to, tensor }) => `${from}>${to}:${number(tensor)}`);
  const outer = outputs.map((tensor, output) => `${makers[output]}:${number(tensor)}`);
  return `${inner.join()}|${outer.join()}|${inputs.map((tensor) => numbers.get(tensor) ?? -1).join()}`;
}
