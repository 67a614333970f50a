/** The numbers to write along an axis. */

/** Round numbers from 0 up to a largest one, about `count` of them. Of bytes (base 1024) powers of two and their halves. */
export function roundTicks(low: number, high: number, count: number, base = 10): number[] {
  const step = roundStep((high - low) / Math.max(count, 1), base);
  if (!(step > 0)) return [low];
  const found: number[] = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high * (1 + 1e-12) && found.length < 200; at++)
    found.push(at * step + 0); // no negative zero
  return found;
}

function roundStep(least: number, base: number): number {
  if (!(least > 0) || !Number.isFinite(least)) return 0;
  if (base === 1024) return 2 ** Math.max(Math.ceil(Math.log2(least)), 0);
  const unit = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((one) => one * unit).find((one) => one >= least * (1 - 1e-9))!;
}

/** Powers of ten (or of a thousand ... if those were too many) within a range. */
export function logTicks(low: number, high: number, count: number): number[] {
  const first = Math.ceil(Math.log10(low) - 1e-9),
    last = Math.floor(Math.log10(high) + 1e-9);
  const step = Math.max(Math.ceil((last - first + 1) / Math.max(count, 1)), 1);
  return Array.from({ length: Math.max(Math.floor((last - first) / step) + 1, 0) }, (_, i) => 10 ** (first + i * step));
}
