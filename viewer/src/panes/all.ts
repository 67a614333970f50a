/** Every pane, in the order in which they stand. A new pane is one file and one line here. */

import { compare } from "./compare";
import { details } from "./details";
import { findings } from "./findings";
import { groupLanes } from "./groups";
import { memory } from "./memory";
import type { PaneMaker } from "./pane";
import { player } from "./player";
import { roofline } from "./roofline";
import { searchPane } from "./search";
import { stepsPane } from "./steps";
import { table } from "./table";
import { time } from "./time";
import { tree } from "./tree";

export const PANES: readonly PaneMaker[] = [
  // left
  searchPane,
  tree,
  findings,
  // right
  details,
  // bottom
  memory,
  time,
  roofline,
  table,
  player,
  stepsPane,
  groupLanes,
  compare,
];
