import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { changed, INITIAL, type Listener, Store, sameSelection } from "../../src/state/store";

let frames: (() => void)[] = [];
const nextFrame = () => {
  const waiting = frames;
  frames = [];
  for (const one of waiting) one();
};
beforeEach(() => vi.stubGlobal("requestAnimationFrame", (run: () => void) => frames.push(run)));
afterEach(() => {
  vi.unstubAllGlobals();
  frames = [];
});

describe("a store", () => {
  test("calls a listener at once, and once for all changes until the next frame", () => {
    const store = new Store();
    const listener = vi.fn<Listener>();
    store.subscribe(listener);
    expect(listener.mock.calls).toEqual([[INITIAL, INITIAL]]);
    store.update({ query: "a" });
    store.update({ pane: "memory" });
    expect(store.state).toEqual({ ...INITIAL, query: "a", pane: "memory" }); // readers see it now
    expect([listener.mock.calls.length, frames.length]).toEqual([1, 1]);
    nextFrame();
    expect(listener.mock.calls[1]).toEqual([store.state, INITIAL]);
  });

  test("tells every listener of changes that a listener makes", () => {
    const store = new Store();
    const heard: string[] = [];
    store.subscribe((state) => {
      if (state.query === "a") store.update({ query: "b" });
    });
    store.subscribe((state, before) => heard.push(`${before.query}>${state.query}`));
    store.update({ query: "a" });
    nextFrame();
    nextFrame();
    expect(heard.at(-1)!.endsWith(">b")).toBe(true);
    expect(frames).toEqual([]); // and comes to rest
  });

  test("can be told to tell now, and then has nothing left to tell", () => {
    const store = new Store();
    const listener = vi.fn<Listener>();
    store.subscribe(listener);
    store.update({ query: "a" });
    store.flush();
    nextFrame();
    expect(listener).toHaveBeenCalledTimes(2);
  });

  test("forgets who does not listen any more", () => {
    const store = new Store();
    const listener = vi.fn<Listener>();
    store.subscribe(listener)();
    store.update({ query: "a" });
    store.flush();
    expect(listener).toHaveBeenCalledTimes(1);
  });
});

test("what changed is told by field; the first time everything did", () => {
  const state = { ...INITIAL, query: "a" };
  expect(changed(state, INITIAL, "query", "pane")).toBe(true);
  expect(changed(state, INITIAL, "pane", "theme")).toBe(false);
  expect(changed(state, state, "pane")).toBe(true);
});

test.each([
  [null, null, true],
  [null, { kind: "node", node: 1 }, false],
  [{ kind: "node", node: 1 }, { kind: "node", node: 1 }, true],
  [{ kind: "node", node: 1 }, { kind: "node", node: 2 }, false],
  [{ kind: "group", key: "1" }, { kind: "group", key: "1" }, true],
  [{ kind: "group", key: "1" }, { kind: "node", node: 1 }, false],
] as const)("selections %j and %j are the same: %s", (one, other, same) => {
  expect(sameSelection(one, other)).toBe(same);
  expect(sameSelection(other, one)).toBe(same);
});
