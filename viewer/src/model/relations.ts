/** What has to do with a node: who reads its tensors, what it depends on, the ways between two nodes. */

import type { App } from "../app";
import type { Graph } from "./graph";

/** The nodes that the state traces from its selection, or null if it traces nothing. */
export function tracedNodes(app: App): Set<number> | null {
  const { relation, selection, second } = app.state;
  if (relation === "none" || !selection) return null;
  const from = app.nodesOf(selection),
    graph = app.graph;
  switch (relation) {
    case "ancestors":
      return reached(from, (node) => graph.before(node));
    case "descendants":
      return reached(from, (node) => graph.after(node));
    case "tensor":
      return followed(graph, from);
    case "path":
      return second ? between(graph, from, app.nodesOf(second)) : null;
  }
}

/** All nodes that can be reached along edges. */
export function reached(from: Iterable<number>, next: (node: number) => Iterable<number>): Set<number> {
  const found = new Set(from),
    waiting = [...found];
  for (let node = waiting.pop(); node !== undefined; node = waiting.pop()) {
    for (const other of next(node)) {
      if (!found.has(other)) {
        found.add(other);
        waiting.push(other);
      }
    }
  }
  return found;
}

/** The nodes themselves and all that read the tensors they make, also through views, which hand on the same tensor. */
export function followed(graph: Graph, from: Iterable<number>): Set<number> {
  const makers = reached(from, (node) => readers(graph, node).filter((reader) => graph.category(reader) === "view"));
  return new Set([...makers].flatMap((node) => [node, ...readers(graph, node)]));
}

function readers(graph: Graph, node: number): number[] {
  return [...graph.outputs(node)].flatMap((value) => [...graph.readers(value)]);
}

/** The nodes on any way from some nodes to others, whichever comes first. */
export function between(graph: Graph, one: number[], other: number[]): Set<number> {
  const after = (node: number) => graph.after(node),
    before = (node: number) => graph.before(node);
  for (const [from, to] of [
    [one, other],
    [other, one],
  ] as const) {
    const down = reached(from, after),
      up = reached(to, before);
    const found = new Set([...down].filter((node) => up.has(node)));
    if (found.size) return found;
  }
  return new Set([...one, ...other]);
}
