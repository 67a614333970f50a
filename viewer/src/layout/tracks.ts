/** The horizontal pieces of lines between two ranks -> a track for each: none on another, and few crossings. */

const ON_EACH_OTHER = 20; // what it costs, in crossings, if lines lie on each other
const NEAR = 6; // upright pieces closer than this seem to be one
const NEIGHBOURS = 5; // ends of pieces in one track are at least so far apart
const MOST_COMPARED = 300; // with more pieces than this, order is by direction only
const MOST_TURNED = 40; // pieces in one gap that may turn twice

export interface Piece {
  key: number; // of the trunk that it belongs to
  part: 0 | 1; // 1 for the second piece of a trunk that turns twice
  trunks: number[]; // where lines come down to it
  drops: number[]; // where lines go down from it
  low: number;
  high: number;
}

/** Two pieces, and the crossings when the first, or the second, runs above. */
interface Pair {
  one: number;
  other: number;
  above: number;
  below: number;
}

export function makePiece(key: number, part: 0 | 1, trunks: number[], drops: number[]): Piece {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (const ends of [trunks, drops]) {
    for (const x of ends) {
      low = Math.min(low, x);
      high = Math.max(high, x);
    }
  }
  return { key, part, trunks, drops, low, high };
}

/** The pieces, some cut in two, and the track of each. `taken` is where lines come down in this gap, also straight ones. */
export function assignTracks(
  pieces: Piece[],
  taken: number[],
  endsApart: number,
): { pieces: Piece[]; track: number[] } {
  if (pieces.length > MOST_COMPARED) return { pieces, track: byDirection(pieces) };
  const found = pieces.slice();
  const pairs = untangle(found, taken, endsApart);
  return { pieces: found, track: numbered(found, pairs) };
}

/** Trunks that change places in a ring would lie on each other in any order: one of each ring turns twice. */
function untangle(pieces: Piece[], taken: number[], endsApart: number): Pair[] {
  const turned = new Set<number>();
  for (;;) {
    const pairs = pairsOf(pieces);
    const ring = ringOf(pieces.length, pairs).filter((at) => !turned.has(pieces[at]!.key));
    if (!ring.length || turned.size >= MOST_TURNED) return pairs;
    const size = (at: number) => pieces[at]!.drops.length * 1e6 + pieces[at]!.high - pieces[at]!.low;
    const at = ring.reduce((best, one) => (size(one) < size(best) ? one : best));
    const { key, trunks, drops, low, high } = pieces[at]!;
    turned.add(key);
    const middle = freePlace((low + high) / 2, taken, low - 100, high + 100, endsApart);
    pieces.splice(at, 1, makePiece(key, 0, trunks, [middle]), makePiece(key, 1, [middle], drops));
  }
}

/** The free place nearest to one; it is taken then. */
export function freePlace(at: number, taken: number[], low: number, high: number, apart: number): number {
  const steps = 2 * Math.floor((high - low) / 4) + 4;
  for (let step = 1; step < steps; step++) {
    const place = at + (step >> 1) * 4 * (step % 2 ? 1 : -1);
    if (place >= low && place <= high && taken.every((other) => Math.abs(place - other) >= apart)) {
      taken.push(place);
      return place;
    }
  }
  return at;
}

function pairsOf(pieces: readonly Piece[]): Pair[] {
  const pairs: Pair[] = [];
  for (let one = 1; one < pieces.length; one++) {
    const first = pieces[one]!;
    for (let other = 0; other < one; other++) {
      const second = pieces[other]!;
      if (first.low > second.high + NEIGHBOURS || second.low > first.high + NEIGHBOURS) continue;
      pairs.push({ one, other, above: price(first, second), below: price(second, first) });
    }
  }
  return pairs;
}

/** Crossings when one piece runs above another; lines that would lie on each other cost much more. */
function price(upper: Piece, lower: Piece): number {
  if (upper.key === lower.key) return upper.part < lower.part ? 0 : 2 * ON_EACH_OTHER;
  let found = 0;
  let touches = false;
  for (const trunk of lower.trunks) {
    if (upper.low < trunk && trunk < upper.high) found++;
    if (!touches && trunk > upper.low - NEAR && trunk < upper.high + NEAR) {
      for (const drop of upper.drops) touches ||= Math.abs(trunk - drop) < NEAR;
    }
  }
  for (const drop of upper.drops) if (lower.low < drop && drop < lower.high) found++;
  return found + (touches ? ON_EACH_OTHER : 0);
}

/** Pieces of which each must run above the next, and the last above the first; empty if there are none. */
function ringOf(count: number, pairs: readonly Pair[]): number[] {
  const below: number[][] = Array.from({ length: count }, () => []);
  for (const { one, other, above, below: under } of pairs) {
    if (under >= ON_EACH_OTHER) below[one]!.push(other);
    if (above >= ON_EACH_OTHER) below[other]!.push(one);
  }
  const state = new Uint8Array(count); // 1 while on the way, 2 when done
  const next = new Int32Array(count);
  for (let start = 0; start < count; start++) {
    if (state[start]) continue;
    const way = [start];
    state[start] = 1;
    while (way.length) {
      const at = way[way.length - 1]!;
      const following = below[at]![next[at]!++];
      if (following === undefined) {
        state[at] = 2;
        way.pop();
      } else if (state[following] === 1) {
        return way.slice(way.indexOf(following));
      } else if (!state[following]) {
        state[following] = 1;
        way.push(following);
      }
    }
  }
  return [];
}

/** A track for every piece, from the top: no two that meet share one. A piece waits for those that must run above it,
 * else it would lie on them, and rather for those that cross fewer lines above it; short ones come first. */
function numbered(pieces: readonly Piece[], pairs: readonly Pair[]): number[] {
  const above: number[][] = pieces.map(() => []);
  const below: { at: number; weight: number }[][] = pieces.map(() => []);
  const meets: number[][] = pieces.map(() => []);
  const waits = new Float64Array(pieces.length);
  for (const { one, other, above: first, below: second } of pairs) {
    meets[one]!.push(other);
    meets[other]!.push(one);
    if (first === second) continue;
    const [upper, lower] = first < second ? [one, other] : [other, one];
    const weight = Math.max(first, second) >= ON_EACH_OTHER ? pieces.length + 1 : 1; // one that must outweighs all others
    above[lower]!.push(upper);
    below[upper]!.push({ at: lower, weight });
    waits[lower]! += weight;
  }
  const track = new Array<number>(pieces.length).fill(-1);
  const length = (at: number) => pieces[at]!.high - pieces[at]!.low;
  const rest = pieces.map((_, at) => at).sort((one, other) => length(one) - length(other));
  while (rest.length) {
    let best = 0;
    for (let at = 1; at < rest.length && waits[rest[best]!]!; at++)
      if (waits[rest[at]!]! < waits[rest[best]!]!) best = at;
    const at = rest.splice(best, 1)[0]!;
    const taken = new Set(meets[at]!.map((other) => track[other]!));
    let free = above[at]!.reduce((most, other) => Math.max(most, track[other]!), -1) + 1;
    while (taken.has(free)) free++;
    track[at] = free;
    for (const { at: other, weight } of below[at]!) waits[other]! -= weight;
  }
  return track;
}

/** Of very many: those that go right first, from the right on, then those that go left, from the left on. */
function byDirection(pieces: readonly Piece[]): number[] {
  const goesRight = (at: number) => pieces[at]!.trunks[0]! < pieces[at]!.drops[0]!;
  const order = pieces
    .map((_, at) => at)
    .sort((one, other) => {
      const isRight = goesRight(one);
      if (isRight !== goesRight(other)) return isRight ? -1 : 1;
      const difference = pieces[one]!.trunks[0]! - pieces[other]!.trunks[0]!;
      return isRight ? -difference : difference;
    });
  const ends: number[] = []; // track -> how far left, or right, it is used
  const track = new Array<number>(pieces.length).fill(-1);
  let first = 0; // those that go left come below the others
  let wasRight = true;
  for (const at of order) {
    const isRight = goesRight(at);
    if (wasRight && !isRight) first = ends.length;
    wasRight = isRight;
    const { low, high } = pieces[at]!;
    const last = ends.length - 1;
    const fits = last >= first && (isRight ? high + NEAR < ends[last]! : low - NEAR > ends[last]!);
    const own = fits ? last : ends.length;
    ends[own] = isRight ? low : high;
    track[at] = own;
  }
  return track;
}
