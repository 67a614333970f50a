/** Edges between leaves -> the shapes written beside their lines: as a tensor enters a box, after the views on its way
 * and before those inside. A shape that the reader knows already is not repeated. */

import type { Item, Outline, Rounds } from "../model/outline";

export class Shapes {
  private callAround = -1;
  private isInRoot = true;

  constructor(private readonly outline: Outline) {}

  /** The group whose lines are asked for from now on. */
  enter(group: Item, rounds: Rounds): void {
    let item: Item | null = group;
    while (item && item.level < 0) item = item.parent;
    this.callAround = item ? this.outline.call(item, rounds) : -1;
    this.isInRoot = group === this.outline.root;
  }

  /** What stands beside a line into a child of the group; "" where the reader knows it. */
  label(edge: number, child: Item): string {
    const { edges } = this.outline.table;
    const leaf = edges.source[edge]!;
    if (child.repeat > 1 && child.differs) return ""; // each round has its own
    const shape = this.arriving(edge);
    return shape === this.known(leaf, edges.output[edge]!) ? "" : shape;
  }

  /** Whether a tensor enters a child in one shape, though by two edges. */
  agree(one: number, other: number, child: Item): boolean {
    const { value } = this.outline.table.edges;
    return value[one] === value[other] || child.isLeaf || this.arriving(one) === this.arriving(other);
  }

  /** The shape of a tensor as it comes into the module call that reads it; "" if the edge has no value. */
  private arriving(edge: number): string {
    const { edges } = this.outline.table;
    const value = edges.value[edge]!;
    return value < 0 ? "" : this.outline.graph.shape(this.atBorder(value, this.callWithin(edges.target[edge]!)));
  }

  /** The same for a tensor that enters in several shapes: the one in which it was made. */
  labelMade(edge: number): string {
    const { edges } = this.outline.table;
    const [leaf, output] = [edges.source[edge]!, edges.output[edge]!];
    const shape = this.asMade(leaf, output);
    return shape === this.known(leaf, output) ? "" : shape;
  }

  private asMade(leaf: number, output: number): string {
    const value = this.valueMade(leaf, output);
    return value < 0 ? "" : this.outline.graph.shape(value);
  }

  /** -1 if the leaf returned None there. */
  valueMade(leaf: number, output: number): number {
    const { graph, leafNode } = this.outline;
    return graph.outputs(leafNode[leaf]!)[output] ?? -1;
  }

  /** The shape that needs no label: what is written on an input of the program, else that of what the maker reads. */
  private known(leaf: number, output: number): string {
    const { graph, leafNode, table } = this.outline;
    if (graph.kind[leafNode[leaf]!] === 0 && this.isInRoot) return this.asMade(leaf, output);
    const first = table.edges.first[leaf]!;
    if (first === table.edges.first[leaf + 1]) return "";
    const value = table.edges.value[first]!;
    return value < 0 ? "" : graph.shape(this.atBorder(value, graph.call[leafNode[leaf]!]!));
  }

  /** The outermost module call in the group that a leaf ran in; -1 if it is an op of the group itself. */
  private callWithin(leaf: number): number {
    const { graph, leafNode } = this.outline;
    let found = -1;
    for (let call = graph.call[leafNode[leaf]!]!; call >= 0 && call !== this.callAround; call = graph.callParent[call]!)
      found = call;
    return found;
  }

  /** What became a value by views within a call, as it came into that call. */
  private atBorder(value: number, call: number): number {
    const { graph, leafNode, nodeLeaf } = this.outline;
    if (call < 0) return value;
    for (;;) {
      const node = graph.producer(value);
      if (node === undefined || !this.isWithin(graph.call[node]!, call)) return value;
      const leaf = nodeLeaf[node]!;
      if (leaf < 0 || leafNode[leaf] === node) return value; // it has a box: no view
      const before = graph.inputs(node).find((input) => input >= 0 && input !== value);
      if (before === undefined) return value;
      value = before;
    }
  }

  private isWithin(inner: number, call: number): boolean {
    while (inner >= 0 && inner !== call) inner = this.outline.graph.callParent[inner]!;
    return inner === call;
  }
}
