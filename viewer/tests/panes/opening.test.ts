import { expect, test, vi } from "vitest";
import type { App } from "../../src/app";
import { openWhatFits } from "../../src/panes/opening";
import { INITIAL, type State } from "../../src/state/store";

/** An app whose scene is as high as groups are open, 100 each. */
function appWith(groups: number, sceneHeight = (open: number) => 100 + 100 * open) {
  const state: State = { ...INITIAL, open: new Set(Array.from({ length: groups }, (_, i) => `${i}-${i + 1}-1`)) };
  const outline = { root: null, children: () => [] }; // no phases
  const update = vi.fn<(change: Partial<State>) => void>();
  const sceneOf = vi.fn(({ open }: State) => ({ width: 100, height: sceneHeight(open.size), frames: [] }));
  return { app: { state, sceneOf, outline, store: { update } } as unknown as App, update, sceneOf };
}

test.each([
  ["all of few groups", 3, 1000, 3],
  ["as many as can be read", 100, 750, 9], // (750 - 90) / 0.66 = 1000 units
  ["none in a small window", 100, 100, 0],
  ["none of none", 0, 1000, 0],
])("opens %s", (_, groups, height, expected) => {
  const { app, update } = appWith(groups);
  openWhatFits(app, 1000, height);
  const open = [...update.mock.calls[0]![0].open!];
  expect(open).toEqual([...app.state.open].slice(0, expected)); // the first ones, in the order of the still picture
});

test("opens neither more nor fewer than fit, whatever the window", () => {
  for (let height = 230; height < 1500; height += 33) {
    const { app, update } = appWith(20);
    openWhatFits(app, 1000, height);
    const fitting = Math.floor((height - 90) / 66) - 1; // 100 units are 66 pixels, and one box is always there
    expect(update.mock.calls[0]![0].open!.size).toBe(Math.min(Math.max(fitting, 0), 20));
  }
});

test("lays out few scenes, however many groups there are", () => {
  const { app, sceneOf } = appWith(10_000);
  openWhatFits(app, 1000, 800);
  expect(sceneOf.mock.calls.length).toBeLessThan(20);
});

test("an empty scene fits", () => {
  const { app, update } = appWith(2, () => 0);
  openWhatFits(app, 500, 500);
  expect(update.mock.calls[0]![0].open!.size).toBe(2);
});
