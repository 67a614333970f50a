/** State <-> the part of a link after "#", so that a link reproduces the view. Only what differs from the beginning is written. */

import type { Selection, State, Store, View } from "./store";

const MOST_GROUPS = 400; // open or closed groups in a link; with more it would be too long to send
const PLAIN = ["direction", "relation", "heat", "groups", "pane", "query", "theme"] as const;

export function toHash(state: State, start: State): string {
  const found = new URLSearchParams();
  for (const name of PLAIN) if (state[name] !== start[name]) found.set(name, state[name]);
  if (state.critical) found.set("critical", "1");
  if (!state.grouping) found.set("grouping", "0");
  if (state.hidden.size) found.set("hidden", [...state.hidden].join(" "));
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

/** The change that a link asks for. What it names and the graph does not have is left alone. */
export function fromHash(hash: string, start: State): Partial<State> {
  const given = new URLSearchParams(hash.replace(/^#/, "")),
    change: Record<string, unknown> = {};
  const words = (name: string) => (given.get(name) ?? "").split(" ").filter(Boolean);
  for (const name of PLAIN) if (given.has(name)) change[name] = given.get(name)!;
  if (!["down", "right"].includes(given.get("direction") ?? "down")) delete change["direction"];
  if (!["light", "dark", "auto"].includes(given.get("theme") ?? "auto")) delete change["theme"];
  if (!["none", "tensor", "ancestors", "descendants", "path"].includes(given.get("relation") ?? "none"))
    delete change["relation"];
  if (given.has("critical")) change["critical"] = given.get("critical") === "1";
  if (given.has("grouping")) change["grouping"] = given.get("grouping") !== "0";
  if (given.has("hidden")) change["hidden"] = new Set(words("hidden"));
  for (const [name, field] of [
    ["select", "selection"],
    ["second", "second"],
  ] as const) {
    const selection = selected(given.get(name));
    if (selection) change[field] = selection;
  }
  const numbers = (name: string) => words(name).map(Number).filter(Number.isFinite);
  if (numbers("moment").length) change["moment"] = numbers("moment")[0];
  if (numbers("span").length === 2) change["span"] = numbers("span");
  if (given.has("rounds"))
    change["rounds"] = new Map(
      words("rounds")
        .map((one) => one.split(":") as [string, string])
        .map(([key, round]) => [key, round === "all" ? "all" : Number(round) || 0]),
    );
  if (given.has("open") || given.has("close")) {
    const closed = new Set(words("close"));
    change["open"] = new Set([...start.open, ...words("open")].filter((key) => !closed.has(key)));
  }
  const [left, top, scale] = numbers("view");
  if (left !== undefined && top !== undefined && scale) change["view"] = { left, top, scale } satisfies View;
  return change as Partial<State>;
}

/** Write every change into the address, a moment later, and follow when somebody changes it. */
export function keepInAddress(store: Store, start: State): void {
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
    if (location.hash !== written) store.update({ ...start, ...fromHash(location.hash, start) });
  });
}

function word(selection: Selection): string {
  return selection.kind === "node" ? `n${selection.node}` : `g${selection.key}`;
}

function selected(text: string | null): Selection | null {
  if (!text) return null;
  if (text.startsWith("g")) return { kind: "group", key: text.slice(1) };
  const node = Number(text.slice(1));
  return text.startsWith("n") && Number.isInteger(node) && node >= 0 ? { kind: "node", node } : null;
}
