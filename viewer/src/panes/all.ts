/** Every pane, in the order in which they stand. A new pane is one file and one line here. */

import { details } from "./details";
import { findings } from "./findings";
import { groupLanes } from "./groups";
import type { PaneMaker } from "./pane";
import { searchPane } from "./search";
import { tree } from "./tree";

export const PANES: readonly PaneMaker[] = [
  // left
  searchPane,
  tree,
  findings,
  // right
  details,
  // bottom
  groupLanes,
];
