/** Repeats: turn to another round, show all of them, fold them again. */

import type { App } from "../app";
import type { Item } from "../model/outline";
import { h } from "./dom";

/** The buttons of a repeat, or of one of its rounds once all are shown; null for what is neither. */
export function roundButtons(app: App, item: Item): HTMLElement | null {
  const repeat = item.folded ?? item,
    shown = app.state.rounds.get(repeat.key);
  if (repeat.repeat < 2) return null;
  if (shown === "all") {
    const words = `fold all ${repeat.repeat} rounds`;
    return h("div", { class: "buttons" }, h("button", { onclick: () => fold(app, repeat, item.round) }, words));
  }
  const round = shown ?? 0;
  const turn = (by: number, sign: string, title: string) =>
    h("button", { title, "aria-label": title, onclick: () => app.showRound(item, round + by) }, sign);
  return h(
    "div",
    { class: "buttons" },
    turn(-1, "◂", "the round before ([)"),
    h("span", {}, `round ${round + 1} of ${item.repeat}`),
    turn(1, "▸", "the next round (])"),
    h("button", { onclick: () => unfold(app, item) }, `show all ${item.repeat}`),
  );
}

/** Show all rounds; the one that was shown is selected, so that one sees where it went. */
export function unfold(app: App, item: Item): void {
  const shown = app.state.rounds.get(item.key),
    rounds = app.outline.rounds(item);
  app.showRound(item, "all");
  app.select(app.selectionOf(rounds[typeof shown === "number" ? shown : 0] ?? rounds[0]!), { fly: true });
}

/** Fold a repeat; the round that was selected is the one that it shows. */
function fold(app: App, repeat: Item, round: number): void {
  app.showRound(repeat, Math.max(round, 0));
  app.select({ kind: "group", key: repeat.key }, { fly: true });
}
