/** Which leaf stands for which: of a folded repeat, the leaves of all rounds are drawn as those of the first.
 *
 * All wiring is done in terms of first rounds, which makes it the same whichever round is shown: the shown leaf of a
 * group lies `shift` leaves behind the one that it is wired as.
 */

import type { Item, Outline, Rounds } from "../model/outline";

/** Leaf -> the leaf of first rounds that stands for it. Linear in the leaves. */
export function foldedLeaves(outline: Outline, rounds: Rounds): Int32Array {
  const { templates } = outline.table;
  const stands = identity(outline.leafNode.length);
  const folds = templates.map((): boolean | undefined => undefined);

  /** Whether anything repeats in a template. */
  function hasRepeats(template: number): boolean {
    const rows = templates[template];
    if (!rows) return false;
    folds[template] ??= rows.some(([, , , repeat, inner]) => repeat > 1 || hasRepeats(inner));
    return folds[template];
  }

  function fold(template: number, first: number, shown: number, depth: number): void {
    if (!hasRepeats(template)) return;
    for (const [, start, stop, repeat, inner] of templates[template]!) {
      const length = stop - start;
      const own = first + start;
      const begin = shown + start;
      const choice = repeat > 1 ? rounds.get(`${begin}-${begin + length}-${depth}`) : undefined;
      if (choice === "all") {
        for (let at = 0; at < length * repeat; at += length) fold(inner, own + at, begin + at, depth + 1);
      } else {
        fold(inner, own, begin + Math.min(choice ?? 0, repeat - 1) * length, depth + 1);
        for (let leaf = own + length; leaf < own + length * repeat; leaf++) stands[leaf] = stands[leaf - length]!;
      }
    }
  }

  fold(outline.table.root, 0, 0, 1);
  return stands;
}

export function identity(count: number): Int32Array {
  const found = new Int32Array(count);
  for (let leaf = 0; leaf < count; leaf++) found[leaf] = leaf;
  return found;
}

/** How far the leaves that a group shows lie behind those that it is wired as. */
export function shiftOf(outline: Outline, group: Item, rounds: Rounds): number {
  let shift = 0;
  for (let item: Item | null = group; item; item = item.parent) shift += outline.shownStart(item, rounds) - item.start;
  return shift;
}
