import { expect, test } from "vitest";
import { formatBytes, formatCount, formatFlops, formatInteger, formatNumber, formatTime } from "../../src/model/units";

// The doctests of torchatlas/units.py, and what its functions return for numbers at the edges.
test.each([
  [formatBytes, 46_827_520, "44.7 MiB"],
  [formatBytes, 0, "0 B"],
  [formatBytes, Number.NaN, "unknown"],
  [formatBytes, 1023, "1023 B"],
  [formatBytes, 1024, "1.00 KiB"],
  [formatBytes, 2176, "2.12 KiB"], // 2.125: to the even digit
  [formatBytes, 2432, "2.38 KiB"], // 2.375
  [formatBytes, -2176, "-2.12 KiB"],
  [formatBytes, 2 ** 60, "1.00 EiB"],
  [formatBytes, 2 ** 71, "2,048 EiB"],
  [formatCount, 11_689_512, "11.7M"],
  [formatCount, 7_000_000_000, "7.00B"],
  [formatCount, 62, "62"],
  [formatCount, 999_499, "999K"],
  [formatCount, 999_999, "1.00M"],
  [formatCount, 9_996, "10.0K"],
  [formatCount, Number.POSITIVE_INFINITY, "infinite"],
  [formatFlops, 3_628_146_688, "3.63 GFLOPs"],
  [formatFlops, 512, "512 FLOPs"],
  [formatFlops, 1e25, "10.0 YFLOPs"],
  [formatTime, 12_300_000, "12.3 ms"],
  [formatTime, 75e9, "1 min 15 s"],
  [formatTime, 7500e9, "2 h 05 min"],
  [formatTime, 789, "789 ns"],
  [formatTime, 45_600, "45.6 µs"],
  [formatTime, 1_500_000_000, "1.50 s"],
  [formatTime, 59.94e9, "59.9 s"],
  [formatTime, 59.95e9, "1 min 00 s"],
  [formatTime, 3599.5e9, "1 h 00 min"],
  [formatTime, 0.5, "0.5 ns"],
  [formatTime, 2.675, "2.67 ns"], // stored as a little less
  [formatTime, 1e-5, "1e-05 ns"],
  [formatTime, -75e9, "-1 min 15 s"],
  [formatNumber, 0.000123456, "1.2e-4"],
  [formatNumber, 123_456, "123000"],
  [formatNumber, Number.NaN, "NaN"],
  [formatNumber, Number.NEGATIVE_INFINITY, "−∞"],
  [formatInteger, 1_234_567, "1,234,567"],
] as [(value: number) => string, number, string][])("%o of %d is %s", (format, value, text) => {
  expect(format(value)).toBe(text);
});
