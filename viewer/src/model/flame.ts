/** Outline -> the bars of a flame chart: for every depth, which nodes in a row ran in which group.
 *
 * Every round of a repeat is a bar of its own. Bars follow the nodes in the order in which they ran: a group that was
 * left and entered again (branches of an optimizer) has several.
 */

import type { Outline } from "./outline";

const MOST_LEVELS = 64; // groups deeper than that are not drawn

export interface Level {
  /** Bars in order: the first node, the one after the last, and which place of the outline it is. */
  from: Int32Array;
  to: Int32Array;
  place: Int32Array;
}

/** A place of the outline: a child of a template, in one round of all repeats around it. */
export interface Places {
  template: Int32Array;
  child: Int32Array;
  start: Int32Array; // its first leaf
}

export interface Flame {
  places: Places;
  cells: Int32Array[]; // for every depth the place of each leaf; -1: none so deep
  leafOf: Int32Array; // the leaf that each node is drawn with; -1: none
}

export function flameOf(outline: Outline): Flame {
  return outline.graph.keep("flame", () => ({ ...expanded(outline), leafOf: drawnWith(outline) }));
}

/** The bars of every depth, of all nodes or of those of one thread. */
export function levelsOf(flame: Flame, isMeant?: (node: number) => boolean): Level[] {
  return flame.cells.map((cell) => bars(cell, flame.leafOf, isMeant));
}

/** The row of a template that a place uses. */
export function childOf(outline: Outline, places: Places, place: number) {
  return outline.table.templates[places.template[place]!]![places.child[place]!]!;
}

/** What to call a place: the name of the module in its round, and what it is. */
export function titleOf(outline: Outline, places: Places, place: number): string {
  const [kind, , , , , titleRow, , , , nameRow, level] = childOf(outline, places, place);
  const text = (row: number) => (row < 0 ? "" : (outline.table.texts[row] ?? ""));
  const title = text(titleRow);
  if (kind === "leaf") return title;
  const path = level < 0 ? "" : pathAt(outline, places.start[place]!, level);
  const name = path.split(".").at(-1) || text(nameRow);
  return name && name !== title ? `${name} ${title}` : title;
}

/** The path of the module call at a depth around a leaf. */
export function pathAt(outline: Outline, leaf: number, level: number): string {
  const { graph } = outline;
  const way: number[] = [];
  for (let call = graph.call[outline.leafNode[leaf]!]!; call >= 0; call = graph.callParent[call]!) way.push(call);
  const call = way[way.length - 1 - level];
  return call === undefined ? "" : graph.tables.modules[graph.callModule[call]!]!.path;
}

function expanded(outline: Outline): Pick<Flame, "places" | "cells"> {
  const { templates } = outline.table,
    leaves = outline.leafNode.length;
  const template: number[] = [],
    child: number[] = [],
    starts: number[] = [],
    cells: Int32Array[] = [];
  const waiting: [template: number, start: number, depth: number][] = [[outline.root.template, 0, 0]];
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    const [number, start, depth] = next;
    cells[depth] ??= new Int32Array(leaves).fill(-1);
    const cell = cells[depth];
    (templates[number] ?? []).forEach(([kind, first, stop, repeat, inner], row) => {
      for (let round = 0; round < repeat; round++) {
        const at = start + first + round * (stop - first);
        if (kind === "leaf") cell[at] = template.length;
        else cell.fill(template.length, at, at + stop - first);
        template.push(number);
        child.push(row);
        starts.push(at);
        if (kind !== "leaf" && depth + 1 < MOST_LEVELS) waiting.push([inner, at, depth + 1]);
      }
    });
  }
  const ints = (numbers: number[]) => Int32Array.from(numbers);
  return { places: { template: ints(template), child: ints(child), start: ints(starts) }, cells };
}

/** Nodes in a row that lie in one place. */
function bars(cell: Int32Array, leafOf: Int32Array, isMeant?: (node: number) => boolean): Level {
  const from: number[] = [],
    to: number[] = [],
    place: number[] = [];
  let current = -1;
  for (let node = 0; node < leafOf.length; node++) {
    const leaf = leafOf[node]!;
    if (leaf < 0 || (isMeant && !isMeant(node))) continue;
    const found = cell[leaf]!;
    if (found >= 0 && found === current) to[to.length - 1] = node + 1;
    else if (found >= 0) {
      from.push(node);
      to.push(node + 1);
      place.push(found);
    }
    current = found;
  }
  return { from: Int32Array.from(from), to: Int32Array.from(to), place: Int32Array.from(place) };
}

/** The leaf that each node is drawn with. Nodes without a box of their own (views, whose box may be far away) are drawn
 * with the next node of their module call that has one, else with the one before; -1 if neither has. */
function drawnWith(outline: Outline): Int32Array {
  const { nodeLeaf, leafNode, graph } = outline;
  const found = new Int32Array(nodeLeaf.length).fill(-1);
  const hasBox = (node: number) => nodeLeaf[node]! >= 0 && leafNode[nodeLeaf[node]!] === node;
  const isNear = (node: number, other: number) =>
    other >= 0 &&
    (nodeLeaf[node] === nodeLeaf[other] ||
      (graph.call[node] === graph.call[other] && graph.phase[node] === graph.phase[other]));
  for (let node = nodeLeaf.length - 1, next = -1; node >= 0; node--) {
    if (hasBox(node)) next = node;
    if (next === node || isNear(node, next)) found[node] = nodeLeaf[next]!;
  }
  for (let node = 0, before = -1; node < nodeLeaf.length; node++) {
    if (hasBox(node)) before = node;
    else if (isNear(node, before) && (found[node]! < 0 || nodeLeaf[node] === nodeLeaf[before]))
      found[node] = nodeLeaf[before]!;
  }
  return found;
}

/** Stretches of nodes in a row with the same number in a column: phases, threads, iterations. */
export function stretches(column: ArrayLike<number>, count: number): { from: number; to: number; value: number }[] {
  const found: { from: number; to: number; value: number }[] = [];
  for (let node = 0; node < count; node++) {
    const last = found.at(-1),
      value = column[node]!;
    if (last && last.value === value) last.to = node + 1;
    else found.push({ from: node, to: node + 1, value });
  }
  return found;
}
