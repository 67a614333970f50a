/** One state for all panes. A pane reads it, draws what it shows and asks for changes; nobody tells another pane anything.
 *
 * `update` merges a change and calls every listener once, in the next animation frame at the latest, with the state
 * before and after: a pane compares the fields that it shows and does nothing if they are equal.
 */

import type { Rounds } from "../model/outline";

/** What is selected everywhere: one node of the graph, or one group of the outline by its key. */
export type Selection = { kind: "node"; node: number } | { kind: "group"; key: string };

/** Where the graph stands on its canvas: a point of the layout is drawn at x * scale + left. */
export interface View {
  left: number;
  top: number;
  scale: number;
}

export interface State {
  // the graph
  readonly open: ReadonlySet<string>;
  readonly rounds: Rounds;
  readonly direction: "down" | "right";
  readonly grouping: boolean;
  readonly hidden: ReadonlySet<string>; // lanes: forward, backward, optimizer, other
  readonly view: View | null; // null: fitted to the window
  // what is looked at
  readonly selection: Selection | null;
  readonly second: Selection | null; // the other end of a way
  readonly hover: Selection | null;
  readonly relation: "none" | "tensor" | "ancestors" | "descendants" | "path"; // what of the selection is traced
  readonly heat: string; // a measure of measures.ts; "type" colours by the kind of op
  readonly critical: boolean; // whether the critical path is marked
  readonly groups: string; // overlay of partition, stages ...: its name, "" for none
  // time
  readonly pane: string; // name of the pane at the bottom, "" if it is closed
  readonly span: readonly [number, number] | null; // nodes that timelines show; null: all
  readonly moment: number | null; // the node at which memory and the backward player stand
  // the rest
  readonly query: string;
  readonly theme: "light" | "dark" | "auto";
}

export const INITIAL: State = {
  open: new Set(),
  rounds: new Map(),
  direction: "down",
  grouping: true,
  hidden: new Set(),
  view: null,
  selection: null,
  second: null,
  hover: null,
  relation: "none",
  heat: "type",
  critical: false,
  groups: "",
  pane: "",
  span: null,
  moment: null,
  query: "",
  theme: "auto",
};

export type Listener = (state: State, before: State) => void;

export class Store {
  private listeners = new Set<Listener>();
  private told: State; // what listeners know
  private waits = false;

  constructor(public state: State = INITIAL) {
    this.told = state;
  }

  update(change: Partial<State>): void {
    this.state = { ...this.state, ...change };
    if (!this.waits) {
      this.waits = true;
      requestAnimationFrame(() => this.flush());
    }
  }

  /** Tell all listeners now. */
  flush(): void {
    this.waits = false;
    const before = this.told;
    this.told = this.state;
    if (before !== this.state) for (const listener of this.listeners) listener(this.state, before);
  }

  /** Call it now and after every change; returns how to stop. */
  subscribe(listener: Listener): () => void {
    this.listeners.add(listener);
    listener(this.state, this.state);
    return () => this.listeners.delete(listener);
  }
}

/** Whether any of some fields changed. Call with equal states means: the first time. */
export function changed(state: State, before: State, ...fields: (keyof State)[]): boolean {
  return state === before || fields.some((field) => state[field] !== before[field]);
}

export function sameSelection(one: Selection | null, other: Selection | null): boolean {
  if (!one || !other) return one === other;
  return one.kind === "node"
    ? other.kind === "node" && one.node === other.node
    : other.kind === "group" && one.key === other.key;
}
