import { expect, test } from "vitest";
import type { App } from "../../src/app";
import { between, followed, reached, tracedNodes } from "../../src/model/relations";
import { INITIAL, type State } from "../../src/state/store";
import { smallGraph } from "../small_graph";

const graph = smallGraph();
const sorted = (nodes: Set<number> | null) => nodes && [...nodes].sort((a, b) => a - b);

/** As much of an app as tracing asks for: the group "b" holds nodes 3 and 4. */
function app(change: Partial<State>): App {
  const nodesOf = (selection: NonNullable<State["selection"]>) =>
    selection.kind === "node" ? [selection.node] : selection.key === "b" ? [3, 4] : [];
  return { state: { ...INITIAL, ...change }, graph, nodesOf } as unknown as App;
}
const node = (number: number) => ({ kind: "node", node: number }) as const;
const group = { kind: "group", key: "b" } as const;

test.each<[string, Partial<State>, number[] | null]>([
  ["nothing without a relation", { selection: node(2) }, null],
  ["nothing without a selection", { relation: "ancestors" }, null],
  ["ancestors", { relation: "ancestors", selection: node(3) }, [0, 1, 2, 3]],
  ["ancestors of the first", { relation: "ancestors", selection: node(0) }, [0]],
  ["descendants of a group", { relation: "descendants", selection: group }, [3, 4, 5, 6, 7, 8]],
  ["a tensor, through views", { relation: "tensor", selection: node(4) }, [4, 5, 6]],
  ["a tensor, to its readers only", { relation: "tensor", selection: node(1) }, [1, 2]],
  ["no way without another end", { relation: "path", selection: node(1) }, null],
  ["the way between two", { relation: "path", selection: node(1), second: group }, [1, 2, 3, 4]],
  ["the way, the other end first", { relation: "path", selection: node(5), second: node(2) }, [2, 3, 4, 5]],
  ["the ends, where no way is", { relation: "path", selection: node(7), second: node(8) }, [7, 8]],
])("what is traced: %s", (_, change, nodes) => {
  expect(sorted(tracedNodes(app(change)))).toEqual(nodes);
});

test("a way between groups that touch holds both ends", () => {
  expect(sorted(between(graph, [1, 2], [2, 3]))).toEqual([1, 2, 3]);
});

test("a cycle, as a damaged file may have, ends", () => {
  expect(sorted(reached([0], (one) => [(one + 1) % 4]))).toEqual([0, 1, 2, 3]);
});

test("an op that returned None is followed without it", () => {
  expect(sorted(followed(graph, [7]))).toEqual([7]);
});
