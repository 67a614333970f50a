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
}

export function flameOf(outline: Outline): Flame {
  return outline.graph.keep("flame", () => expanded(outline));
}

/** The bars of every depth, of all nodes or of those of one thread. */
export function levelsOf(outline: Outline, flame: Flame, isMeant?: (node: number) => boolean): Level[] {
  return flame.cells.map((cell) => bars(outline, cell, isMeant));
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

function expanded(outline: Outline): Flame {
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
        cell.fill(template.length, at, at + stop - first);
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

/** Nodes in a row that lie in one place. Nodes without a box of their own (views) belong to what is around them. */
function bars(outline: Outline, cell: Int32Array, isMeant?: (node: number) => boolean): Level {
  const { nodeLeaf, leafNode } = outline;
  const from: number[] = [],
    to: number[] = [],
    place: number[] = [];
  let current = -1;
  for (let node = 0; node < nodeLeaf.length; node++) {
    const leaf = nodeLeaf[node]!;
    if (leaf < 0 || (isMeant && !isMeant(node))) continue;
    const found = cell[leaf]!;
    if (leafNode[leaf] !== node && found !== current) continue; // a line of a box elsewhere
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
