import { expect, test } from "vitest";
import { groupColor, groupOfItems, groupsOf } from "../../src/model/groups";
import { Outline } from "../../src/model/outline";
import { smallGraph } from "../small_graph";

/** Blocks in two stages, the rest in the second, inputs and outputs in none. */
const STAGES = [-1, 0, 0, 1, 1, 1, 1, -1, -1];
const staged = (of: number[] = STAGES) =>
  smallGraph({
    json: { "viewer/groups/stages.json": { title: "pipeline", names: ["first", "last"], seconds: [1, 2] } },
    columns: { "viewer/node_stage": of, "viewer/node_partition": of },
  });

test("groups are there if both of their members are", () => {
  const [stages, ...more] = groupsOf(staged());
  expect(more).toEqual([]); // a partition without names is none
  expect(stages).toMatchObject({ name: "stages", title: "pipeline", names: ["first", "last"] });
  expect(stages!.facts).toEqual({ seconds: [1, 2] });
  expect(groupsOf(smallGraph())).toEqual([]);
});

test.each([
  ["in two groups", STAGES, -2, [0, 1]],
  ["in one", STAGES.map((one) => Math.min(one, 0)), 0, [0, 0]],
  ["in none", STAGES.map(() => -1), -1, [-1, -1]],
])("a repeat whose rounds lie %s", (_, of, all, rounds) => {
  const graph = staged(of),
    outline = new Outline(graph),
    groupOf = groupOfItems(outline, groupsOf(graph)[0]!);
  const blocks = outline.around(outline.nodeLeaf[1]!, new Map()).find((item) => item.repeat > 1)!;
  expect(groupOf(blocks)).toBe(all); // not only of the first round
  expect(outline.rounds(blocks).map(groupOf)).toEqual(rounds);
});

test("colours come again and again", () => {
  expect([0, 1, 2].map((group) => groupColor(group, ["red", "blue"]))).toEqual(["red", "blue", "red"]);
});
