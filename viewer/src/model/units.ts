/** Numbers as people write them. The words and digits are those of torchatlas/units.py. */

export function formatCount(count: number): string {
  return scaled(count, 1000, ["", "K", "M", "B", "T"], "");
}

const INTEGERS = new Intl.NumberFormat("en-US"); // making one takes long

export function formatInteger(count: number): string {
  return INTEGERS.format(count);
}

export function formatBytes(bytes: number): string {
  return scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], " ");
}

export function formatFlops(flops: number): string {
  return scaled(flops, 1000, ["FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs"], " ");
}

export function formatTime(ns: number): string {
  return scaled(ns, 1000, ["ns", "µs", "ms", "s"], " ");
}

export function formatNumber(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(1);
  return Number(value.toPrecision(3)).toString();
}

function scaled(value: number, step: number, units: string[], space: string): string {
  if (!Number.isFinite(value)) return "unknown";
  let unit = 0;
  while (Math.abs(value) >= step * 0.9995 && unit < units.length - 1) {
    value /= step;
    unit++;
  }
  const digits =
    unit === 0
      ? String(Math.round(value))
      : value >= 100
        ? value.toFixed(0)
        : value >= 10
          ? value.toFixed(1)
          : value.toFixed(2);
  return `${digits}${units[unit] ? space : ""}${units[unit]}`;
}
