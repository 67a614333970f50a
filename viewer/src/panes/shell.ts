/** The frame of the page: toolbar above, tree left, graph in the middle, details right, the other panes below. */

import type { App } from "../app";
import { changed } from "../state/store";
import { PANES } from "./all";
import { besideCanvas } from "./beside";
import { h, replace } from "./dom";
import { GraphCanvas } from "./graph_canvas";
import { listenToKeys } from "./keys";
import { legend } from "./legend";
import { minimap } from "./minimap";
import type { Pane } from "./pane";
import { takeAway } from "./take_away";
import { breadcrumbs, graphControls, toolbar } from "./toolbar";
import { tooltip } from "./tooltip";

export class Shell {
  readonly graph: GraphCanvas;
  readonly panes: Pane[];

  constructor(
    readonly app: App,
    root: HTMLElement,
  ) {
    this.graph = new GraphCanvas(app);
    this.panes = PANES.map((make) => make(app));
    const at = (place: Pane["place"]) => this.panes.filter((pane) => pane.place === place);
    const second = app.beside && besideCanvas(app, app.beside).element;
    const middle = h(
      "main",
      { class: second ? "middle two" : "middle" },
      h("div", { class: "first" }, this.graph.element, second && h("div", { class: "caption" }, app.graph.info.title)),
      second,
      graphControls(app, this.graph),
      legend(app),
      tooltip(app, this.graph),
      minimap(app, this.graph),
    );
    replace(
      root,
      toolbar(app, breadcrumbs(app), takeAway(app, this.graph)),
      h("nav", { class: "side left", "aria-label": "modules" }, ...at("left").map(section)),
      middle,
      h("aside", { class: "side right", "aria-label": "details" }, ...at("right").map(section)),
      this.bottom(at("bottom")),
    );
    listenToKeys(app, this.graph);
    this.printLight();
    app.store.subscribe((state, before) => {
      if (changed(state, before, "theme")) this.applyTheme();
      // A link may name a pane that this page does not have.
      if (changed(state, before, "pane"))
        root.classList.toggle(
          "has-bottom",
          at("bottom").some((pane) => pane.name === state.pane),
        );
    });
    app.store.flush();
  }

  /** Tabs of the panes below; a second click on an open one closes it. */
  private bottom(panes: Pane[]): HTMLElement {
    const { store } = this.app;
    const tabs = panes.map((pane) =>
      h(
        "button",
        {
          role: "tab",
          id: `tab-${pane.name}`,
          "aria-controls": "bottom-pane",
          title: pane.missing || undefined,
          onclick: () => store.update({ pane: store.state.pane === pane.name ? "" : pane.name }),
        },
        pane.title,
      ),
    );
    const body = h("div", { class: "body", id: "bottom-pane", role: "tabpanel" });
    store.subscribe((state, before) => {
      if (!changed(state, before, "pane")) return;
      const shown = panes.find((pane) => pane.name === state.pane);
      tabs.forEach((tab, i) => tab.setAttribute("aria-selected", String(panes[i] === shown)));
      replace(body, shown ? (shown.missing ? h("p", { class: "soft missing" }, shown.missing) : shown.element) : null);
    });
    return h("footer", { class: "bottom" }, h("div", { class: "tabs", role: "tablist" }, ...tabs), body);
  }

  /** Paper is white. */
  private printLight(): void {
    let { theme } = this.app.state;
    matchMedia("print").addEventListener("change", ({ matches }) => {
      if (matches) theme = this.app.state.theme;
      this.app.store.update({ theme: matches ? "light" : theme });
      this.app.store.flush();
      this.graph.paint();
    });
  }

  /** The colours of the theme as variables of the style sheet. */
  private applyTheme(): void {
    const { theme } = this.app,
      root = document.documentElement;
    for (const name of ["background", "ink", "soft", "line", "edge", "accent"] as const)
      root.style.setProperty(`--${name}`, theme[name]);
    theme.tints.forEach((tint, i) => root.style.setProperty(`--tint${i}`, tint));
    root.style.setProperty("--blue", theme.fills["matmul"]![1]);
    root.style.setProperty("--blue-fill", theme.fills["matmul"]![0]);
    root.style.setProperty("--terminal", theme.terminal[0]);
    root.style.setProperty("--terminal-ink", theme.terminal[1]);
    root.style.colorScheme = theme.name;
  }
}

function section(pane: Pane): HTMLElement {
  return h("section", { class: `pane ${pane.name}`, "aria-label": pane.title }, pane.element);
}
