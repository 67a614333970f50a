/** State <-> the part of a link after "#", so that a link reproduces the view. Only what differs from the beginning is written. */

import type { Selection, State, Store, View } from "./store";

const MOST_GROUPS = 400; // open or closed groups in a link; with more it would be too long to send
const KEY = /^\d+-\d+-\d+r?$/; // of an item of the outline
const PLAIN = ["direction", "relation", "heat", "groups", "pane", "query", "theme"] as const;

export function toHash(state: State, start: State): string {
  const found = new URLSearchParams();
  for (const name of PLAIN) if (state[name] !== start[name]) found.set(name, state[name]);
  if (state.critical) found.set("critical", "1");
  if (!state.grouping) found.set("grouping", "0");
  for (const lane of state.hidden) found.append("hidden", lane);
  if (state.selection) found.set("select", word(state.selection));
  if (state.second) found.set("second", word(state.second));
  if (state.moment !== null) found.set("moment", String(state.moment));
  if (state.span) found.set("span", state.span.map((one) => Math.round(one)).join(" "));
  if (state.rounds.size) found.set("rounds", [...state.rounds].map(([key, round]) => `${key}:${round}`).join(" "));
  const opened = [...state.open].filter((key) => !start.open.has(key)),
    closed = [...start.open].filter((key) => !state.open.has(key));
  if (opened.length && opened.length <= MOST_GROUPS) found.set("open", opened.join(" "));
  if (closed.length && closed.length <= MOST_GROUPS) found.set("close", closed.join(" "));
  if (state.view)
    found.set(
      "view",
      [state.view.left, state.view.top, state.view.scale].map((one) => Number(one.toPrecision(5))).join(" "),
    );
  return found.toString();
}

/** What a link may name. */
export interface Known {
  nodes: number; // how many the graph has
  hasHeat(name: string): boolean;
}

/** The change that a link asks for. What it names and the graph does not have is left alone. */
export function fromHash(hash: string, start: State, known: Known): Partial<State> {
  const given = new URLSearchParams(hash.replace(/^#/, "")),
    change: Record<string, unknown> = {};
  const words = (name: string) => (given.get(name) ?? "").split(" ").filter(Boolean);
  const keys = (name: string) => words(name).filter((word) => KEY.test(word));
  const numbers = (name: string) => words(name).map(Number).filter(Number.isFinite);
  for (const name of PLAIN) if (given.has(name)) change[name] = given.get(name)!;
  if (!["down", "right"].includes(given.get("direction") ?? "down")) delete change["direction"];
  if (!["light", "dark", "auto"].includes(given.get("theme") ?? "auto")) delete change["theme"];
  if (!["none", "tensor", "ancestors", "descendants", "path"].includes(given.get("relation") ?? "none"))
    delete change["relation"];
  if (given.has("heat") && !known.hasHeat(given.get("heat")!)) delete change["heat"];
  if (given.has("critical")) change["critical"] = given.get("critical") === "1";
  if (given.has("grouping")) change["grouping"] = given.get("grouping") !== "0";
  if (given.has("hidden")) change["hidden"] = new Set(given.getAll("hidden"));
  for (const [name, field] of [
    ["select", "selection"],
    ["second", "second"],
  ] as const) {
    const selection = selected(given.get(name), known.nodes);
    if (selection) change[field] = selection;
  }
  const [moment] = numbers("moment"); // may lie behind all nodes: steps of a backward pass without a node
  if (moment !== undefined && isPlace(moment)) change["moment"] = moment;
  const [from, to] = numbers("span");
  if (from !== undefined && to !== undefined && isPlace(from) && isPlace(to) && from < to) change["span"] = [from, to];
  const rounds = words("rounds")
    .map((one) => one.split(":") as [string, string])
    .filter(([key, round]) => KEY.test(key) && (round === "all" || /^\d{1,9}$/.test(round)));
  if (rounds.length)
    change["rounds"] = new Map(rounds.map(([key, round]) => [key, round === "all" ? "all" : Number(round)]));
  if (keys("open").length || keys("close").length) {
    const closed = new Set(keys("close"));
    change["open"] = new Set([...start.open, ...keys("open")].filter((key) => !closed.has(key)));
  }
  const [left, top, scale] = numbers("view");
  if (left !== undefined && top !== undefined && scale !== undefined && scale >= 0.001 && scale <= 100)
    change["view"] = { left, top, scale } satisfies View;
  return change as Partial<State>;
}

function isPlace(value: number): boolean {
  return Number.isSafeInteger(value) && value >= 0;
}

/** Write every change into the address, a moment later, and follow when somebody changes it. */
export function keepInAddress(store: Store, start: State, known: Known): void {
  let timer = 0,
    written = location.hash;
  const first = store.state; // what the window made of the beginning is nothing to tell
  store.subscribe((state) => {
    if (state === first) return;
    clearTimeout(timer);
    timer = window.setTimeout(() => {
      const hash = toHash(store.state, start);
      if (`#${hash}` === location.hash || (!hash && !location.hash)) return;
      written = hash ? `#${hash}` : "";
      try {
        history.replaceState(null, "", written || "#");
      } catch {
        // A frame without an address of its own, as in a notebook, has none to write to.
      }
    }, 300);
  });
  addEventListener("hashchange", () => {
    if (location.hash !== written) store.update({ ...start, ...fromHash(location.hash, start, known) });
  });
}

function word(selection: Selection): string {
  return selection.kind === "node" ? `n${selection.node}` : `g${selection.key}`;
}

function selected(text: string | null, nodes: number): Selection | null {
  const [kind, rest] = [text?.[0], text?.slice(1) ?? ""];
  if (kind === "g") return KEY.test(rest) ? { kind: "group", key: rest } : null;
  return kind === "n" && /^\d+$/.test(rest) && Number(rest) < nodes ? { kind: "node", node: Number(rest) } : null;
}
