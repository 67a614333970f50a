/** Subgraphs and stages in lanes: when each runs, how large it is; a click shows it in the graph. */

import type { App } from "../app";
import { type Groups, groupColor, groupsOf } from "../model/groups";
import { formatBytes, formatInteger, formatTime } from "../model/units";
import { changed } from "../state/store";
import { h, replace } from "./dom";
import { groupColors, shownGroups } from "./overlays";
import type { Pane } from "./pane";

const MOST = 500; // lanes

export function groupLanes(app: App): Pane {
  const all = groupsOf(app.graph),
    element = h("div", { class: "lanes" });
  app.store.subscribe((state, before) => {
    if (!changed(state, before, "groups", "theme", "pane")) return;
    const shown = shownGroups(app) ?? all[0];
    if (state.pane === "groups" && shown) replace(element, ...lanes(app, shown, all));
  });
  return {
    name: "groups",
    title: all[0] ? (all[0].name === "stages" ? "Stages" : "Subgraphs") : "Subgraphs",
    place: "bottom",
    element,
    missing: all.length
      ? ""
      : 'There are no subgraphs or stages in this page. Write them with graph.save("x.html", partition=report) or stages=plan.',
  };
}

function lanes(app: App, groups: Groups, all: Groups[]): HTMLElement[] {
  const { graph } = app,
    time = app.measures.get("time")?.values;
  const first: number[] = [],
    last: number[] = [],
    count: number[] = [],
    spent: number[] = [];
  for (let node = 0; node < graph.count; node++) {
    const group = groups.of[node]!;
    if (group < 0) continue;
    first[group] ??= node;
    last[group] = node;
    count[group] = (count[group] ?? 0) + 1;
    spent[group] = (spent[group] ?? 0) + (time && !Number.isNaN(time[node]!) ? time[node]! : 0);
  }
  const choice = h(
    "div",
    { class: "buttons" },
    ...all.map((one) =>
      h(
        "button",
        {
          "aria-pressed": String(app.state.groups === one.name),
          onclick: () => app.store.update({ groups: app.state.groups === one.name ? "" : one.name }),
        },
        `show ${one.title} in the graph`,
      ),
    ),
  );
  const rows = groups.names.slice(0, MOST).map((name, group) => {
    const bar = h("span", {});
    bar.style.left = `${(100 * (first[group] ?? 0)) / graph.count}%`;
    bar.style.width = `${Math.max((100 * ((last[group] ?? 0) - (first[group] ?? 0) + 1)) / graph.count, 0.3)}%`;
    bar.style.background = groupColor(group, groupColors(app));
    return h(
      "button",
      {
        class: "lane",
        disabled: first[group] === undefined,
        onclick: () => app.select({ kind: "node", node: first[group]! }, { fly: true }),
      },
      h("span", { class: "name" }, name),
      h("span", { class: "track" }, bar),
      h(
        "span",
        { class: "soft" },
        [
          `${formatInteger(count[group] ?? 0)} nodes`,
          spent[group] ? formatTime(spent[group]!) : "",
          ...more(groups, group),
        ]
          .filter(Boolean)
          .join(" · "),
      ),
    );
  });
  return [
    choice,
    ...rows,
    ...(groups.names.length > MOST ? [h("p", { class: "soft" }, `and ${groups.names.length - MOST} more`)] : []),
  ];
}

function more(groups: Groups, group: number): string[] {
  return Object.entries(groups.facts).flatMap(([name, values]) => {
    const value = Array.isArray(values) ? values[group] : null;
    if (value === null || value === undefined || value === "") return [];
    if (typeof value === "string") return [value];
    if (name.endsWith("bytes")) return [`${name.replace("_bytes", "").replace("_", " ")} ${formatBytes(value)}`];
    return [name === "seconds" ? formatTime(value * 1e9) : `${name} ${value}`];
  });
}
