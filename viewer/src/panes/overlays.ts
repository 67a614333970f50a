/** What is laid over the boxes: pins of the doctor's findings, colours and numbers of subgraphs and stages. */

import type { App } from "../app";
import { type Groups, groupColor, groupOfItems, groupsOf } from "../model/groups";
import type { Item } from "../model/outline";
import { leafMarks } from "./graph_look";

export interface Finding {
  key: string;
  severity: string;
  title: string;
  message: string;
  fix: string;
  where?: string[];
  file: string | null;
  line: number | null;
  nodes: number[];
  cause?: number | null;
}

export function findingsOf(app: App): Finding[] {
  return app.graph.document.json<Finding[]>("viewer/findings.json") ?? [];
}

const STROKES = [
  "matmul",
  "activation",
  "norm",
  "attention",
  "pooling",
  "recurrent",
  "embedding",
  "reduction",
  "optimizer",
  "communication",
];

export function groupColors(app: App): string[] {
  return STROKES.map((type) => app.theme.fills[type]![1]);
}

/** The groups that the state shows, if any. */
export function shownGroups(app: App): Groups | null {
  return groupsOf(app.graph).find((one) => one.name === app.state.groups) ?? null;
}

/** A function that tells the corner label of a box. */
export function tags(app: App): (item: Item) => { text: string; color: string } | null {
  const groups = shownGroups(app),
    of = groups && groupOfItems(app.outline, groups),
    colors = groupColors(app);
  const marks = findingsOf(app).length
    ? leafMarks(
        app,
        findingsOf(app).flatMap((finding) => finding.nodes),
      )
    : null;
  return (item) => {
    if (of && !item.isMarker) {
      const group = of(item);
      if (group >= 0)
        return {
          text: groups!.name === "stages" ? groups!.names[group]! : String(group),
          color: groupColor(group, colors),
        };
    }
    const isOpen = app.state.open.has(item.key) && !item.isLeaf;
    if (marks && !isOpen && marks[item.end]! > marks[item.start]!) return { text: "!", color: app.theme.accent };
    return null;
  };
}
