/** What a pane is. A new one: one file with a class or function that makes a Pane, and one line in panes/all.ts. */

import type { App } from "../app";

export interface Pane {
  readonly name: string; // stands in links
  readonly title: string; // what people read
  readonly place: "left" | "right" | "bottom";
  readonly element: HTMLElement;
  /** Why it has nothing to show for this graph, and how to get it; "" if it has. */
  readonly missing?: string;
}

export type PaneMaker = (app: App) => Pane;
