/** What all panes share: the graph, its outline, the state, the scene that is shown, and the few actions they have in common. */

import { heat, mixed, type PageStyle, type Theme } from "./draw/theme";
import { layoutScene } from "./layout/layout";
import type { Scene } from "./layout/scene";
import { CHANGED, type Side } from "./model/alignment";
import type { Graph } from "./model/graph";
import { ItemValues, type Measure, measuresOf } from "./model/measures";
import { type Item, Outline } from "./model/outline";
import type { Playback } from "./model/playback";
import { type Scale, scaleOf } from "./model/scale";
import { changed, INITIAL, type Selection, type State, Store } from "./state/store";

export class App {
  readonly store: Store;
  readonly outline: Outline;
  readonly measures: Map<string, Measure>;
  private shown: { scene: Scene; of: State } | null = null;
  private readonly values = new Map<string, ItemValues>();
  private readonly dark = matchMedia("(prefers-color-scheme: dark)");
  private readonly pen = document.createElement("canvas").getContext("2d")!;
  private readonly widths = new Map<string, number>();
  /** Set by the graph's canvas: bring an item into view. */
  flyTo: (key: string) => void = () => {};
  /** Set by a comparison: whether what stands for a group in the other graph holds something that differs. */
  differsThere: (item: Item) => boolean = () => false;
  /** Set by the backward player while it is shown: what the graph marks. */
  played: { playback: Playback; now: number } | null = null;

  constructor(
    readonly graph: Graph,
    readonly style: PageStyle,
    readonly side: Side | null = null, // of a comparison
    readonly beside: App | null = null, // the app of the other graph
  ) {
    this.outline = new Outline(graph);
    this.measures = measuresOf(graph);
    const open = this.outline.table.open.map(([start, stop, depth]) => `${start}-${stop}-${depth}`);
    this.store = new Store({ ...INITIAL, open: new Set(open) });
    this.dark.addEventListener("change", () => this.store.update({ theme: this.state.theme }));
  }

  get state(): State {
    return this.store.state;
  }

  get theme(): Theme {
    const wanted = this.state.theme === "auto" ? (this.dark.matches ? "dark" : "light") : this.state.theme;
    return this.style.themes[wanted];
  }

  /** The scene of the state. Only what decides where boxes lie makes a new one. */
  get scene(): Scene {
    const state = this.state;
    if (!this.shown || movesBoxes(state, this.shown.of)) this.shown = { scene: this.sceneOf(state), of: state };
    return this.shown.scene;
  }

  sceneOf({ open, rounds, direction, grouping, hidden }: State): Scene {
    return layoutScene(this.outline, {
      open,
      rounds,
      direction,
      grouping,
      hidden,
      geometry: this.style.geometry,
      textWidth: this.textWidth,
    });
  }

  readonly textWidth = (text: string, size: number, bold: boolean): number => {
    const key = `${bold ? "b" : ""}${size}|${text}`;
    let width = this.widths.get(key);
    if (width === undefined) {
      this.pen.font = `${bold ? 600 : 400} ${size}px Inter, sans-serif`;
      width = this.pen.measureText(text).width;
      this.widths.set(key, width);
    }
    return width;
  };

  // -- measures ------------------------------------------------------------------------------------------------

  /** The values of all items for a measure; undefined for "type" and unknown names. */
  itemValues(name: string): ItemValues | undefined {
    const measure = this.measures.get(name);
    if (!measure) return undefined;
    const found = this.values.get(name) ?? new ItemValues(this.outline, measure);
    this.values.set(name, found);
    return found;
  }

  /** A scale from 0 to 1 for the colours of the shown boxes: by the largest that is shown. */
  heatScale(): (item: Item) => [fill: string, ink: string] | null {
    const { side } = this;
    if (this.state.heat === "difference" && side) return (item) => this.difference(side, item);
    const values = this.itemValues(this.state.heat);
    if (!values) return () => null;
    const theme = this.theme,
      scale = this.shownScale(values);
    return (item) => {
      const value = values.of(item);
      if (value === Number.POSITIVE_INFINITY) return [theme.accent, "#FFFFFF"];
      return heat(theme, scale.isLog ? scale.share(value) : Math.sqrt(scale.share(value)));
    };
  }

  /** The scale of a measure, by the boxes that are shown. */
  shownScale(values: ItemValues): Scale {
    const closed = this.scene.frames.filter((frame) => !frame.open);
    return scaleOf(
      values.measure,
      closed.map((frame) => values.of(frame.item)),
    );
  }

  /** The colour of what differs between two graphs: changed, or only in this one. */
  private difference(side: Side, item: Item): [fill: string, ink: string] {
    const { theme } = this,
      isDifferent = side.differences(this.outline, item) > 0 || (!item.isLeaf && this.differsThere(item));
    if (!isDifferent) return [theme.background, theme.ink];
    const isChange = !item.isLeaf || side.status[this.outline.leafNode[item.start]!] === CHANGED;
    const name = isChange ? "activation" : side.name === "a" ? "loss" : "norm";
    return [this.differenceFill(name), theme.ink];
  }

  /** Stronger than the fill of a type: in the dark those are hardly seen beside the background. */
  differenceFill(name: "activation" | "loss" | "norm"): string {
    const [fill, stroke] = this.theme.fills[name]!;
    return mixed(fill, stroke, 0.3);
  }

  // -- selection -----------------------------------------------------------------------------------------------

  /** The item of the scene's outline that a selection is, or lies in. */
  itemOf(selection: Selection | null): Item | null {
    if (!selection) return null;
    if (selection.kind === "node") {
      const leaf = this.outline.nodeLeaf[selection.node]!;
      return leaf < 0 ? null : (this.outline.around(leaf, this.state.rounds).at(-1) ?? null);
    }
    return this.itemWithKey(selection.key);
  }

  /** Keys are intervals of leaves: the way to an item is the way to its first leaf. A repeat whose rounds are all shown has
   * no box, but can be selected: how else would it be folded again? */
  itemWithKey(key: string): Item | null {
    const start = Number.parseInt(key, 10);
    if (Number.isNaN(start)) return null;
    for (const item of this.outline.around(start, this.state.rounds)) {
      if (item.key === key) return item;
      if (item.folded?.key === key) return item.folded;
    }
    return null;
  }

  /** The key of the group that shows a module call, in whichever round; null if none is of its own. */
  groupOfCall(call: number): string | null {
    const first = this.graph.keep("firstLeafOfCall", () => firstLeaves(this.graph, this.outline));
    const leaf = first[call]!;
    if (leaf < 0) return null;
    let level = 0;
    for (let up = this.graph.callParent[call]!; up >= 0; up = this.graph.callParent[up]!) level++;
    return this.outline.around(leaf, this.state.rounds).find((item) => item.level === level)?.key ?? null;
  }

  /** The selection that an item stands for: a node for a single op, else a group. */
  selectionOf(item: Item): Selection {
    return item.isLeaf && item.repeat === 1
      ? { kind: "node", node: this.outline.leafNode[item.start]! }
      : { kind: "group", key: item.key };
  }

  /** The nodes of a selection. */
  nodesOf(selection: Selection): number[] {
    if (selection.kind === "node") return [selection.node];
    const item = this.itemWithKey(selection.key);
    return item ? this.outline.nodes(item) : [];
  }

  select(selection: Selection | null, how: { fly?: boolean } = {}): void {
    this.store.update({ selection });
    if (selection && how.fly) this.reveal(selection);
  }

  /** Open what is around a selection, show its round, and bring it into view. */
  reveal(selection: Selection): void {
    const leaf =
      selection.kind === "node" ? this.outline.nodeLeaf[selection.node]! : Number.parseInt(selection.key, 10);
    if (leaf < 0) return;
    const open = new Set(this.state.open),
      rounds = new Map(this.state.rounds);
    let item = this.outline.root;
    for (;;) {
      const children = this.outline.children(item, rounds);
      const child = children.find((one) => leaf >= one.start && leaf < one.end);
      if (!child) break;
      if (child.repeat > 1 && (selection.kind === "node" || child.key !== selection.key)) {
        rounds.set(child.key, Math.floor((leaf - child.start) / child.length));
      }
      if (selection.kind === "group" ? child.key === selection.key : child.isLeaf) {
        item = child;
        break;
      }
      open.add(child.key);
      item = child;
    }
    this.store.update({ open, rounds, hidden: new Set() });
    this.store.flush();
    this.flyTo(item.key);
  }

  toggle(item: Item): void {
    if (item.isLeaf) return;
    const open = new Set(this.state.open);
    if (!open.delete(item.key)) open.add(item.key);
    this.store.update({ open });
  }

  /** Show another round of a repeat, or all of them side by side. */
  showRound(item: Item, round: number | "all"): void {
    const rounds = new Map(this.state.rounds);
    rounds.set(item.key, round === "all" ? "all" : (round + item.repeat) % item.repeat);
    this.store.update({ rounds });
  }
}

function movesBoxes(state: State, before: State): boolean {
  return state !== before && changed(state, before, "open", "rounds", "direction", "grouping", "hidden");
}

/** Of every module call the first leaf in it; -1 if it has none. */
function firstLeaves(graph: Graph, outline: Outline): Int32Array {
  const found = new Int32Array(graph.callModule.length).fill(-1);
  for (let leaf = outline.leafNode.length - 1; leaf >= 0; leaf--) {
    for (let call = graph.call[outline.leafNode[leaf]!]!; call >= 0; call = graph.callParent[call]!) found[call] = leaf;
  }
  return found;
}
