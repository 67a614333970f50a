import { defineConfig } from "vitest/config";

// Pure functions only: what needs a page is tested in Chromium, by tests/viewer.
export default defineConfig({
  test: {
    include: ["src/**/*.test.ts", "tests/**/*.test.ts"],
    environment: "node",
    testTimeout: 60_000, // for what hangs; a busy machine is no failure
  },
});
