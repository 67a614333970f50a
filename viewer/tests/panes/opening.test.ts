import { expect, test, vi } from "vitest";
import type { App } from "../../src/app";
import type { Scene } from "../../src/layout/scene";
import { openWhatFits } from "../../src/panes/opening";
import { INITIAL, type State } from "../../src/state/store";
import { frame, item, scene } from "../draw/scenes";

/** An app whose scene is 100 units higher for each open group, and 100 wide. */
function appWith(groups: number, sceneOfCount: (open: number) => Partial<Scene> = () => ({}), kind = "module") {
  const state: State = { ...INITIAL, open: new Set(Array.from({ length: groups }, (_, i) => `${i}-${i + 1}-1`)) };
  const update = vi.fn<(change: Partial<State>) => void>();
  const sceneOf = vi.fn(({ open }: State) => ({
    ...scene([]),
    width: 100,
    height: 100 + 100 * open.size,
    ...sceneOfCount(open.size),
  }));
  const outline = { root: null, children: () => [{ kind }] };
  const app = { state, sceneOf, store: { update }, outline } as unknown as App;
  const opened = (width: number, height: number) => {
    openWhatFits(app, width, height);
    const { open, view } = update.mock.calls.at(-1)![0];
    expect([...open!]).toEqual([...state.open].slice(0, open!.size)); // the first ones, in the order of the still picture
    return { count: open!.size, view };
  };
  return { opened, sceneOf };
}

test.each([
  ["all of few groups", 3, 1000, 3],
  ["as many as can be read", 100, 750, 9], // (750 - 90) / 0.66 = 1000 units
  ["none of none", 0, 1000, 0],
])("opens %s", (_, groups, height, expected) => {
  expect(appWith(groups).opened(1000, height)).toEqual({ count: expected, view: undefined });
});

test("opens neither more nor fewer than fit, whatever the window", () => {
  for (let height = 90 + 200; height < 1500; height += 33) {
    const fitting = Math.floor((height - 90) / 66) - 1; // 100 units are 66 pixels, and one box is always there
    expect(appWith(20).opened(1000, height).count).toBe(Math.min(fitting, 20));
  }
});

test("opens something in a small window too, to be scrolled through from its top", () => {
  const { count, view } = appWith(100).opened(500, 156); // 100 units fit, which is nothing open
  expect(count).toBe(1); // 200 units, in two windows
  expect(view).toEqual({ scale: 1, left: 200, top: 62 });
});

test("a window that shows phases only is scrolled through as well, as wide as the first phase", () => {
  const lane = frame(item("forward", { leaf: false }), 40, 0, 300, 100, true);
  Object.defineProperty(lane.item, "kind", { value: "lane" });
  const wide = appWith(2, (open) => (open ? { width: 5000, frames: [lane] } : { width: 5000 }), "lane");
  expect(wide.opened(656, 2000)).toEqual({ count: 2, view: { scale: 1, left: 138, top: 36 } });
});

test("lays out few scenes, however many groups there are", () => {
  const { opened, sceneOf } = appWith(10_000);
  opened(1000, 800);
  expect(sceneOf.mock.calls.length).toBeLessThan(20);
});

test("an empty scene fits", () => {
  expect(appWith(2, () => ({ width: 0, height: 0 })).opened(500, 500).count).toBe(2);
});
