/** Every pane, in the order in which tabs stand. A new pane is one file and one line here. */

import { details } from "./details";
import type { PaneMaker } from "./pane";
import { searchPane } from "./search";
import { tree } from "./tree";

export const PANES: readonly PaneMaker[] = [searchPane, tree, details];
