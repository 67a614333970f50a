import { defineConfig } from "vitest/config";

// Pure functions only: what needs a page is tested in Chromium, by tests/viewer.
// A slow machine is no failure: tests end by themselves, and the limit is for one that hangs.
export default defineConfig({
  test: { include: ["src/**/*.test.ts", "tests/**/*.test.ts"], environment: "node", testTimeout: 120_000 },
});
