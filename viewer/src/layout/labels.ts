/** Lines and what they carry -> where a label stands beside each: where there is room, else nowhere. */

import type { Area, Route, Spot } from "./box";
import { getOrMake } from "./maps";

const BUCKET = 64; // areas are looked up by the stripes of this height that they lie in
const TO_LINE = 3.5;
const TO_LABEL = 3;
const TO_BOX = 1;

/** A label that is to stand beside one of the routes of its line. */
export interface Wish {
  line: number;
  size: readonly [wide: number, tall: number];
  routes: Route[];
  others: Route[];
}

/** `boxes` is what no label may lie on, `room` how far left and right they may stand. They stand right of lines rather
 * than left, or the other way round. */
export function placeLabels(
  wishes: readonly Wish[],
  routes: readonly Route[],
  boxes: readonly Area[],
  room: readonly [number, number],
  gap: number,
  isLeftFirst: boolean,
): Spot[] {
  const taken = new Stripes();
  for (const box of boxes) taken.add(box, TO_BOX);
  for (const { points } of routes) {
    for (let at = 0; at + 3 < points.length; at += 2) {
      const [ax, ay, bx, by] = [points[at]!, points[at + 1]!, points[at + 2]!, points[at + 3]!];
      taken.add([Math.min(ax, bx), Math.min(ay, by), Math.max(ax, bx), Math.max(ay, by)], TO_LINE);
    }
  }
  const found: Spot[] = [];
  for (const wish of wishes) {
    const spot = firstFree(wish, taken, room, gap, isLeftFirst);
    if (!spot) continue;
    taken.add([spot[0], spot[1], spot[0] + wish.size[0], spot[1] + wish.size[1]], TO_LABEL);
    found.push({ line: wish.line, x: spot[0], y: spot[1] });
  }
  return found;
}

/** Beside the upright pieces of a line that it shares with no line of another label. */
function firstFree(
  wish: Wish,
  taken: Stripes,
  room: readonly [number, number],
  gap: number,
  isLeftFirst: boolean,
): [number, number] | null {
  const [wide, tall] = wish.size;
  for (const { points } of wish.routes) {
    for (let at = 0; at + 3 < points.length; at += 2) {
      const x = points[at]!;
      if (points[at + 2] !== x) continue;
      const [first, last] = [points[at + 1]!, points[at + 3]!];
      const top = parting(x, Math.min(first, last), Math.max(first, last), wish.others);
      if (Math.max(first, last) - top < tall + 3) continue;
      const sides = [x + gap, x - gap - wide];
      for (const left of isLeftFirst ? sides.reverse() : sides) {
        if (left < room[0] || left + wide > room[1]) continue;
        if (!taken.hits([left, top + 2, left + wide, top + 2 + tall])) return [left, top + 2];
      }
    }
  }
  return null;
}

/** Where an upright piece has left the other lines of its tensor, which begin where it does. */
function parting(x: number, top: number, bottom: number, others: readonly Route[]): number {
  for (const { points } of others) {
    for (let at = 0; at + 3 < points.length; at += 2) {
      if (points[at] !== x || points[at + 2] !== x) continue;
      if (points[at + 1]! < bottom && top < points[at + 3]!) top = points[at + 3]!;
    }
  }
  return top;
}

/** Areas by height, each with how far others keep away. */
class Stripes {
  private readonly stripes = new Map<number, Area[]>();

  add([left, top, right, bottom]: Area, pad: number): void {
    const area: Area = [left - pad, top - pad, right + pad, bottom + pad];
    for (let stripe = Math.floor(area[1] / BUCKET); stripe <= Math.floor(area[3] / BUCKET); stripe++) {
      getOrMake(this.stripes, stripe, () => []).push(area);
    }
  }

  hits([left, top, right, bottom]: Area): boolean {
    for (let stripe = Math.floor(top / BUCKET); stripe <= Math.floor(bottom / BUCKET); stripe++) {
      for (const area of this.stripes.get(stripe) ?? []) {
        if (left < area[2] && right > area[0] && top < area[3] && bottom > area[1]) return true;
      }
    }
    return false;
  }
}
