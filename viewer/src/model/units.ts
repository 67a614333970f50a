/** Numbers as people write them. Words, digits and rounding are those of torchatlas/units.py, so that a page and a report
 * never tell two numbers for one: three significant digits, whole numbers below the first step exactly, NaN is unknown. */

const COUNT = ["", "K", "M", "B", "T"];
const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const FLOPS = ["", "K", "M", "G", "T", "P", "E", "Z", "Y"].map((prefix) => `${prefix}FLOPs`);
const TIME = ["ns", "µs", "ms", "s"];

export function formatCount(count: number): string {
  return scaled(count, 1000, COUNT).replace(" ", "");
}

const INTEGERS = new Intl.NumberFormat("en-US"); // making one takes long

export function formatInteger(count: number): string {
  return INTEGERS.format(count);
}

export function formatBytes(bytes: number): string {
  return scaled(bytes, 1024, BINARY);
}

export function formatFlops(flops: number): string {
  return scaled(flops, 1000, FLOPS);
}

/** A duration in nanoseconds. From 59.95 s on, three digits would say "60.0 s". */
export function formatTime(ns: number): string {
  if (!(Math.abs(ns) >= 59.95e9 && Number.isFinite(ns))) return scaled(ns, 1000, TIME);
  const sign = ns < 0 ? "-" : "",
    seconds = Math.abs(ns) / 1e9;
  if (seconds < 3599.5) {
    const whole = halfEven(seconds, 0);
    return `${sign}${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  }
  const minutes = halfEven(seconds / 60, 0);
  return `${sign}${formatInteger(Math.floor(minutes / 60))} h ${String(minutes % 60).padStart(2, "0")} min`;
}

/** A plain number, such as a norm. */
export function formatNumber(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(1);
  return Number(value.toPrecision(3)).toString();
}

function scaled(value: number, step: number, units: string[]): string {
  if (Number.isNaN(value)) return "unknown";
  if (!Number.isFinite(value)) return value > 0 ? "infinite" : "-infinite";
  const sign = value < 0 ? "-" : "",
    last = units.length - 1;
  let size = Math.abs(value);
  if (size < step && Number.isInteger(size)) return `${sign}${size} ${units[0]}`.trimEnd();
  for (let unit = 0; unit < last; unit++) {
    const text = threeDigits(size);
    // The rounded text decides, so that 999,999 is 1.00M and not 1000K.
    if (Number(text) < step) return `${sign}${text} ${units[unit]}`.trimEnd();
    size /= step;
  }
  return `${sign}${size < 1000 ? threeDigits(size) : formatInteger(halfEven(size, 0))} ${units[last]}`;
}

function threeDigits(size: number): string {
  if (size < 0.9995) {
    const text = Number(size.toPrecision(3));
    if (text >= 1e-4 || text === 0) return String(text);
    return text.toExponential().replace(/e-(\d)$/, "e-0$1"); // as Python writes exponents
  }
  const decimals = size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  return halfEven(size, decimals).toFixed(decimals);
}

/** Round as Python does: what lies exactly between two (2.125, as 2,176 bytes are in KiB) goes to the even one. */
function halfEven(value: number, decimals: number): number {
  const power = 10 ** decimals,
    shifted = value * power;
  // Only then is the product exact, and half of it a tie: 2.675 * 100 is 267.5, but 2.675 is stored as a bit less.
  const isTie = Number.isInteger(value * 2 ** (decimals + 1)) && Math.abs(shifted % 1) === 0.5;
  return isTie ? (2 * Math.round(shifted / 2)) / power : Number(value.toFixed(decimals));
}
