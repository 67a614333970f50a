import { describe, expect, test } from "vitest";
import { fromHash, type Known, toHash } from "../../src/state/hash";
import { INITIAL, type State } from "../../src/state/store";

const START: State = { ...INITIAL, open: new Set(["0-5-1", "1-3-2", "8-9-1"]) };
const KNOWN: Known = { nodes: 9, hasHeat: (name) => ["type", "time", "overlay:a & b"].includes(name) };

/** A state that differs from the start in every field that a link keeps. */
const OTHER: { [Field in keyof Omit<State, "hover">]: State[Field] } = {
  open: new Set(["1-3-2", "8-9-1", "5-10-1r", "20-30-3"]),
  rounds: new Map<string, number | "all">([
    ["0-5-1", "all"],
    ["8-9-1", 11],
  ]),
  direction: "right",
  grouping: false,
  hidden: new Set(["backward", "a lane & its name"]),
  view: { left: -120.5, top: 33.25, scale: 0.5 },
  selection: { kind: "group", key: "5-10-1r" },
  second: { kind: "node", node: 8 },
  relation: "path",
  heat: "overlay:a & b",
  critical: true,
  groups: "stages",
  pane: "memory",
  span: [10, 400],
  moment: 12, // beyond the nodes: a step of the backward player
  query: "time > 1ms & <b>#?=%",
  theme: "dark",
};

describe("a link", () => {
  test.each(Object.keys(OTHER) as (keyof typeof OTHER)[])("reproduces %s", (field) => {
    const state = { ...START, [field]: OTHER[field] };
    const hash = toHash(state, START);
    expect(hash).not.toBe("");
    expect(fromHash(`#${hash}`, START, KNOWN)).toEqual({ [field]: OTHER[field] });
  });

  test("reproduces all of it at once", () => {
    const state: State = { ...START, ...OTHER };
    expect({ ...START, ...fromHash(toHash(state, START), START, KNOWN) }).toEqual(state);
  });

  test("is empty for the start, and does not tell where the pointer is", () => {
    expect(toHash({ ...START, hover: { kind: "node", node: 3 } }, START)).toBe("");
    expect(fromHash("", START, KNOWN)).toEqual({});
    expect(fromHash("#", START, KNOWN)).toEqual({});
  });

  test("stays short: of very many open groups it tells none", () => {
    const open = new Set([...START.open, ...Array.from({ length: 401 }, (_, i) => `${i}-${i + 1}-4`)]);
    expect(toHash({ ...START, open }, START)).toBe("");
  });
});

describe("a hostile link changes nothing", () => {
  test.each([
    "direction=up",
    "theme=<script>",
    "relation=all",
    "heat=constructor",
    "select=n9", // the graph has nine nodes
    "select=n-1",
    "select=n1.5",
    "select=n",
    "select=nNaN",
    "select=x3",
    "select=g<img src=x onerror=alert(1)>",
    "second=g__proto__",
    "moment=-1",
    "moment=1.5",
    "moment=Infinity",
    "moment=1e400",
    "span=5",
    "span=9 3",
    "span=-4 3",
    "span=a b",
    "rounds=0-5-1:-7",
    "rounds=0-5-1:1.5",
    "rounds=0-5-1:NaN",
    "rounds=0-5-1",
    "rounds=__proto__:3",
    "rounds=0-5-1:99999999999",
    "open=__proto__ constructor <b>",
    "close=1",
    "view=0 0 0",
    "view=0 0 -1",
    "view=0 0 1e9",
    "view=NaN 0 1",
    "view=1 2",
    "hover=n3",
    "__proto__=1",
    "%E0%A4%A",
  ])("%s", (hash) => {
    expect(fromHash(`#${hash}`, START, KNOWN)).toEqual({});
  });
});
