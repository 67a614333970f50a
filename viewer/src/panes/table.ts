/** Modules and ops as tables that can be sorted, filtered and copied. Only the rows in sight are elements. */

import type { App } from "../app";
import { pathAt } from "../model/flame";
import { cellText, delimited, modulesTable, opsTable, orderedRows, type Table, type TableColumn } from "../model/table";
import { formatInteger } from "../model/units";
import { changed } from "../state/store";
import { whenSeen } from "./chart";
import { h, replace } from "./dom";
import { copyButton } from "./facts";
import { selectAround } from "./marks";
import type { Pane } from "./pane";

const ROW = 22; // pixels
const SPARE = 6; // rows above and below what is in sight

export function table(app: App): Pane {
  return {
    name: "table",
    title: "Table",
    place: "bottom",
    element: whenSeen(() => new TablePane(app).element),
    missing: app.graph.count ? "" : "This graph has no ops.",
  };
}

class TablePane {
  readonly element: HTMLElement;
  private readonly scroller = h("div", { class: "table-scroll", tabindex: 0, role: "table" });
  private readonly head = h("div", { class: "table-row table-head", role: "row" });
  private readonly body = h("div", { class: "table-body", role: "rowgroup" });
  private readonly count = h("span", { class: "soft" });
  private readonly filter = h("input", {
    type: "search",
    placeholder: "filter: names, ops, classes, shapes",
    "aria-label": "filter rows",
    oninput: () => this.order(),
  });
  private readonly made = new Map<string, Table>();
  private shown: Table | null = null;
  private by: { column: TableColumn; falling: boolean } | null = null;
  private rows = new Uint32Array(0);
  private active = -1; // where in `rows` the keyboard is
  private waits = false;
  private mine = false; // the selection was made here: do not scroll to it

  constructor(private readonly app: App) {
    const kinds = (app.graph.tables.modules.some((one) => one.path) ? ["modules", "ops"] : ["ops"]) as Table["name"][];
    const buttons = kinds.map((kind) => h("button", { onclick: () => choose(kind) }, kind));
    const choose = (kind: Table["name"]) => {
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(kinds[i] === kind)));
      this.show(kind);
    };
    const copy = (title: string, separator: "," | "\t") =>
      copyButton(
        title,
        () => (this.shown ? delimited(this.shown, this.rows, separator) : ""),
        "the rows that are listed, numbers in the units that the first line names",
      );
    this.scroller.append(this.head, this.body);
    this.element = h(
      "div",
      { class: "chart-pane table-pane" },
      h(
        "div",
        { class: "chart-head" },
        h("span", { class: "toggles", role: "group", "aria-label": "rows" }, ...buttons),
        this.filter,
        this.count,
        h("span", { class: "grow" }),
        copy("copy CSV", ","),
        copy("copy TSV", "\t"),
      ),
      this.scroller,
    );
    this.scroller.addEventListener("scroll", () => this.redraw());
    this.scroller.addEventListener("keydown", (event) => this.key(event));
    this.scroller.addEventListener("pointerleave", () => {
      if (app.state.hover) app.store.update({ hover: null });
    });
    new ResizeObserver(() => {
      if (!this.shown && this.element.isConnected) choose(kinds[0]!);
      else this.redraw();
    }).observe(this.scroller);
    app.store.subscribe((state, before) => {
      if (state === before || !this.element.isConnected) return;
      if (changed(state, before, "selection") && !this.mine) this.scrollToSelection();
      if (changed(state, before, "selection", "hover", "rounds")) this.redraw();
      this.mine = false;
    });
  }

  private show(kind: Table["name"]): void {
    let found = this.made.get(kind);
    if (!found) {
      found =
        kind === "ops" ? opsTable(this.app.graph, this.app.measures) : modulesTable(this.app.graph, this.app.measures);
      this.made.set(kind, found);
    }
    this.shown = found;
    const numbers = found.columns.filter((column) => column.kind === "number");
    const first = ["time_ns", "flops"].map((name) => numbers.find((one) => one.name === name)).find(Boolean);
    this.by = { column: first ?? found.columns[0]!, falling: first !== undefined };
    this.scroller.style.setProperty("--columns", found.columns.map(trackOf).join(" "));
    this.scroller.setAttribute("aria-label", found.name);
    this.order();
    this.scrollToSelection();
  }

  private order(): void {
    const { shown, by } = this;
    if (!shown || !by) return;
    this.rows = orderedRows(shown, by.column, by.falling, this.filter.value) as Uint32Array<ArrayBuffer>;
    this.active = -1;
    const all = formatInteger(shown.count);
    this.count.textContent =
      this.rows.length === shown.count
        ? `${all} ${shown.count === 1 ? shown.name.slice(0, -1) : shown.name}`
        : `${formatInteger(this.rows.length)} of ${all}`;
    this.scroller.setAttribute("aria-rowcount", String(this.rows.length + 1));
    this.body.style.height = `${this.rows.length * ROW}px`;
    this.scroller.scrollTop = 0;
    this.drawHead();
    this.draw();
  }

  private drawHead(): void {
    const { by } = this;
    replace(
      this.head,
      ...this.shown!.columns.map((column) => {
        const sorted = by!.column === column;
        return h(
          "div",
          {
            role: "columnheader",
            class: column.kind,
            "aria-sort": sorted ? (by!.falling ? "descending" : "ascending") : "none",
          },
          h(
            "button",
            {
              title: column.kind === "number" ? `${column.hint}; sort by it` : "sort by it",
              onclick: () => {
                this.by = { column, falling: sorted ? !by!.falling : column.kind === "number" };
                this.order();
                this.head.querySelectorAll("button")[this.shown!.columns.indexOf(column)]?.focus();
              },
            },
            `${column.title}${sorted ? (by!.falling ? " ↓" : " ↑") : ""}`,
          ),
        );
      }),
    );
  }

  private redraw(): void {
    if (this.waits || !this.shown) return;
    this.waits = true;
    requestAnimationFrame(() => this.draw());
  }

  private draw(): void {
    this.waits = false;
    const { scroller, rows, shown } = this;
    if (!shown) return;
    const first = Math.max(Math.floor(scroller.scrollTop / ROW) - SPARE, 0),
      last = Math.min(Math.ceil((scroller.scrollTop + scroller.clientHeight) / ROW) + SPARE, rows.length);
    const isSelected = this.matching("selection"),
      isNear = this.matching("hover");
    const elements: HTMLElement[] = [];
    for (let at = first; at < last; at++) elements.push(this.rowElement(at, isSelected, isNear));
    replace(this.body, ...elements, rows.length ? null : h("p", { class: "soft missing" }, "No row has these words."));
  }

  private rowElement(at: number, isSelected: (row: number) => boolean, isNear: (row: number) => boolean): HTMLElement {
    const row = this.rows[at]!,
      selected = isSelected(row);
    const element = h(
      "div",
      {
        role: "row",
        class: `table-row${selected ? " selected" : isNear(row) ? " near" : ""}${at === this.active ? " active" : ""}`,
        "aria-rowindex": at + 2,
        "aria-selected": String(selected),
        onclick: () => {
          this.active = at;
          this.choose(row);
        },
        onmouseenter: () => this.point(row),
      },
      ...this.shown!.columns.map((column) => cell(column, row)),
    );
    element.style.transform = `translateY(${at * ROW}px)`;
    return element;
  }

  /** Whether a row is about what a field of the state names. */
  private matching(field: "selection" | "hover"): (row: number) => boolean {
    const selection = this.app.state[field],
      shown = this.shown!;
    if (!selection) return () => false;
    if (!shown.path) return selection.kind === "node" ? (row) => shown.node(row) === selection.node : () => false;
    const path = this.pathOf(field);
    return path ? (row) => shown.path!(row) === path : () => false;
  }

  /** The module that a field of the state names, or that its op ran in. */
  private pathOf(field: "selection" | "hover"): string {
    const { app } = this,
      selection = app.state[field];
    if (!selection) return "";
    if (selection.kind === "node") return app.graph.modulePath(selection.node);
    const item = app.itemWithKey(selection.key);
    return item ? app.outline.path(item, app.state.rounds) : "";
  }

  private choose(row: number): void {
    const { app } = this,
      shown = this.shown!,
      node = shown.node(row);
    if (node < 0) return;
    this.mine = true;
    if (!shown.path) return app.select({ kind: "node", node }, { fly: true });
    const path = shown.path(row),
      leaf = this.leafIn(path, node);
    if (leaf < 0) app.select({ kind: "node", node });
    else selectAround(app, leaf, (item) => item.level >= 0 && pathAt(app.outline, leaf, item.level) === path);
  }

  /** The first leaf of a module, from its first node on: a view has none. */
  private leafIn(path: string, first: number): number {
    const { graph, outline } = this.app;
    for (let node = first; node < graph.count; node++) {
      const own = graph.modulePath(node),
        leaf = outline.nodeLeaf[node]!;
      if (leaf >= 0 && outline.leafNode[leaf] === node && (own === path || own.startsWith(`${path}.`))) return leaf;
    }
    return -1;
  }

  private point(row: number): void {
    const node = this.shown!.node(row);
    if (node >= 0 && !this.shown!.path) this.app.store.update({ hover: { kind: "node", node } });
  }

  private scrollToSelection(): void {
    if (!this.shown || !this.app.state.selection) return;
    const at = this.rows.findIndex(this.matching("selection"));
    if (at >= 0) this.bring(at);
  }

  private bring(at: number): void {
    const { scroller } = this,
      room = scroller.clientHeight - 2 * ROW; // the head covers one
    if (at * ROW < scroller.scrollTop) scroller.scrollTop = at * ROW;
    else if (at * ROW > scroller.scrollTop + room) scroller.scrollTop = at * ROW - room;
    this.redraw();
  }

  private key(event: KeyboardEvent): void {
    if (event.target !== this.scroller) return;
    const page = Math.max(Math.floor(this.scroller.clientHeight / ROW) - 2, 1);
    const by = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -this.rows.length,
      End: this.rows.length,
    }[event.key];
    if (by !== undefined) {
      this.active = Math.min(Math.max(this.active + by, 0), this.rows.length - 1);
      this.bring(this.active);
    } else if (event.key === "Enter" && this.active >= 0) this.choose(this.rows[this.active]!);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

function cell(column: TableColumn, row: number): HTMLElement {
  const text = cellText(column, row);
  const element = h("div", {
    role: "cell",
    class: column.kind,
    title: column.kind === "text" ? text.slice(0, 500) : undefined,
  });
  if (column.kind === "number" && column.isShare) {
    const bar = h("span", { class: "share-bar" });
    bar.style.width = `${Math.min(100 * (column.values[row]! || 0), 100) * 0.5}%`;
    element.append(bar);
    element.classList.add("has-bar");
  }
  element.append(text.length > 300 ? `${text.slice(0, 300)}…` : text);
  return element;
}

function trackOf(column: TableColumn, at: number): string {
  if (column.kind === "number") return column.isShare ? "minmax(110px, 150px)" : "minmax(84px, 110px)";
  return at === 0 ? "minmax(170px, 2fr)" : column.name === "phase" ? "minmax(76px, 90px)" : "minmax(110px, 1.2fr)";
}
