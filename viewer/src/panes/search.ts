/** The search box and what it finds: a list that the arrows walk through, each result a flight to its place. */

import type { App } from "../app";
import { QueryError, search } from "../model/search";
import { changed, type Selection } from "../state/store";
import { h, replace } from "./dom";
import type { Pane } from "./pane";

const MOST = 200; // results that are listed
const EXAMPLES = "softmax · class:Linear · 768×768 · time > 1ms · grad is nan · file:model.py · /conv[12]/";

interface Result {
  selection: Selection;
  title: string;
  beside: string;
}

export function searchPane(app: App): Pane {
  const input = h("input", {
    id: "search",
    type: "search",
    placeholder: "op, module, shape, file, “time > 1ms” …   /",
    "aria-label": "search",
    "aria-controls": "results",
    autocomplete: "off",
    spellcheck: false,
    title: EXAMPLES,
  });
  const list = h("ul", { id: "results", role: "listbox", "aria-label": "results" });
  const title = h("h2", { role: "status" });
  const element = h("div", { class: "results hidden" }, title, list);
  queueMicrotask(() => document.getElementById("search-slot")?.append(input));
  let results: Result[] = [],
    chosen = -1;

  const choose = (next: number) => {
    if (!results.length) return;
    chosen = (next + results.length) % results.length;
    [...list.children].forEach((row, i) => row.setAttribute("aria-selected", String(i === chosen)));
    list.children[chosen]?.scrollIntoView({ block: "nearest" });
    app.select(results[chosen]!.selection, { fly: true });
  };
  input.addEventListener("input", () => app.store.update({ query: input.value }));
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "Enter") choose(chosen + 1);
    else if (event.key === "ArrowUp") choose(chosen - 1);
    else if (event.key === "Escape") {
      app.store.update({ query: "" });
      input.blur();
    } else return;
    event.preventDefault();
  });
  app.store.subscribe((state, before) => {
    if (!changed(state, before, "query")) return;
    if (input.value !== state.query) input.value = state.query;
    element.classList.toggle("hidden", !state.query.trim());
    chosen = -1;
    try {
      const found = state.query.trim() ? find(app, state.query) : { results: [], count: 0 };
      results = found.results;
      title.textContent =
        found.count > results.length
          ? `${found.count.toLocaleString("en-US")} found, the first ${results.length}`
          : `${found.count} found`;
    } catch (error) {
      if (!(error instanceof QueryError)) throw error;
      results = [];
      title.textContent = error.message;
    }
    replace(
      list,
      ...results.map((result, i) =>
        h(
          "li",
          { role: "option", "aria-selected": "false", onclick: () => choose(i) },
          h("span", { class: "name" }, result.title),
          h("span", { class: "number" }, result.beside),
        ),
      ),
    );
  });
  return { name: "results", title: "Results", place: "left", element };
}

function find(app: App, query: string): { results: Result[]; count: number } {
  const { graph } = app,
    { modules, nodes } = search(graph, app.measures, query);
  const groups = modules.flatMap((call) => groupOf(app, call) ?? []);
  const measure = app.measures.get(app.state.heat) ?? app.measures.get("time");
  const results = [
    ...groups,
    ...nodes.slice(0, MOST).map((node): Result => {
      const value = measure?.values[node] ?? Number.NaN;
      return {
        selection: { kind: "node", node },
        title: graph.nodeName(node),
        beside: Number.isNaN(value) ? "" : measure!.format(value),
      };
    }),
  ];
  return { results: results.slice(0, MOST), count: groups.length + nodes.length };
}

/** The group of a module call; nothing if it has none of its own. */
function groupOf(app: App, call: number): Result | null {
  const { graph } = app;
  const key = app.groupOfCall(call);
  if (!key) return null;
  const { path, type } = graph.tables.modules[graph.callModule[call]!]!;
  return { selection: { kind: "group", key }, title: path || type, beside: type };
}
