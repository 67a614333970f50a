/** Every pane, in the order in which tabs stand. A new pane is one file and one line here. */

import { details } from "./details";
import { memory } from "./memory";
import type { PaneMaker } from "./pane";
import { roofline } from "./roofline";
import { table } from "./table";
import { time } from "./time";
import { tree } from "./tree";

export const PANES: readonly PaneMaker[] = [tree, details, memory, time, roofline, table];
