/** A backward pass as steps: who is ready when, which buffers fill, what each gradient was.
 *
 * A recorded pass (atlas.record_backward) tells all of it. Of a recorded training step the ops of backward are the steps:
 * then norms are unknown, and what waits is what was made and is still to be read.
 */

import type { Graph } from "./graph";

/** viewer/backward.json */
interface Stored {
  names: string[];
  operations: string[];
  modules: string[];
  parameters: Record<string, string>;
  nodes: number[];
  time_ns: number[];
  waiting_bytes: (number | null)[];
  edges: {
    source: number[];
    target: number[];
    bytes: (number | null)[];
    norm: (number | null)[];
    not_finite: (number | null)[];
  };
  first_not_finite: number | null;
  statistics: boolean;
  error: string | null;
  notes: string[];
}

export interface Edge {
  source: number;
  target: number;
  bytes: number | null;
  norm: number | null;
  notFinite: number | null;
}

export interface Filling {
  step: number;
  arrived: number;
  needed: number;
}

export class Playback {
  readonly into: Edge[][]; // step -> the gradients that it takes
  readonly outOf: Edge[][];
  private readonly lastSource: Int32Array; // step -> the last step that it waits for, -1 if for none
  readonly stepOfNode = new Map<number, number>();

  constructor(
    readonly names: string[],
    readonly operations: string[],
    readonly modules: string[],
    readonly nodes: number[],
    readonly edges: Edge[],
    readonly bytes: (number | null)[],
    readonly isRecorded: boolean,
    readonly hasNorms: boolean,
    readonly error: string | null,
  ) {
    this.into = names.map(() => []);
    this.outOf = names.map(() => []);
    this.lastSource = new Int32Array(names.length).fill(-1);
    for (const edge of edges) {
      this.into[edge.target]?.push(edge);
      this.outOf[edge.source]?.push(edge);
      this.lastSource[edge.target] = Math.max(this.lastSource[edge.target]!, edge.source);
    }
    nodes.forEach((node, step) => {
      if (node >= 0 && !this.stepOfNode.has(node)) this.stepOfNode.set(node, step);
    });
  }

  get count(): number {
    return this.names.length;
  }

  /** Steps that have all they need when a step runs, and have not run: the engine's queue. An op of a recorded training
   * step that takes nothing from backward, such as a detached view, waits for nothing and is not listed. */
  ready(now: number): number[] {
    const found: number[] = [];
    for (let step = now + 1; step < this.count; step++)
      if (this.lastSource[step]! < now && (this.isRecorded || this.into[step]!.length)) found.push(step);
    return found;
  }

  /** Steps that have some of what they need, but not all: their buffers fill. */
  filling(now: number): Filling[] {
    const found: Filling[] = [];
    for (let step = now + 1; step < this.count; step++) {
      if (this.lastSource[step]! < now) continue;
      let arrived = 0;
      for (const edge of this.into[step]!) if (edge.source < now) arrived++;
      if (arrived) found.push({ step, arrived, needed: this.into[step]!.length });
    }
    return found;
  }

  /** The first step that makes something that is not finite, or -1. */
  firstNotFinite(): number {
    let first = this.count; // in a loop: Math.min takes some 100,000 numbers at most
    for (const { source, notFinite } of this.edges) if (notFinite && source < first) first = source;
    return first < this.count ? first : -1;
  }
}

export function playbackOf(graph: Graph): Playback | null {
  const stored = graph.document.json<Stored>("viewer/backward.json");
  return stored ? fromRecording(stored) : fromSteps(graph);
}

function fromRecording(stored: Stored): Playback {
  const { source, target, bytes, norm, not_finite } = stored.edges;
  const edges = source.map(
    (from, i): Edge => ({
      source: from,
      target: target[i]!,
      bytes: bytes[i] ?? null,
      norm: norm[i] ?? null,
      notFinite: not_finite[i] ?? null,
    }),
  );
  const known = stored.waiting_bytes.map((one) => (one === null || one < 0 ? null : one));
  return new Playback(
    stored.names,
    stored.operations,
    stored.modules,
    stored.nodes,
    edges,
    known,
    true,
    stored.statistics,
    stored.error,
  );
}

function fromSteps(graph: Graph): Playback | null {
  const isAutograd = graph.document.header.source === "autograd",
    nodes: number[] = [];
  for (let node = 0; node < graph.count; node++) {
    if (
      graph.isOp(node) &&
      (isAutograd || graph.phaseName(node) === "backward" || graph.phaseName(node) === "recompute")
    )
      nodes.push(node);
  }
  if (!nodes.length) return null;
  const step = new Map(nodes.map((node, i) => [node, i] as const)),
    edges: Edge[] = [];
  for (const [target, node] of nodes.entries()) {
    for (const before of new Set(graph.before(node))) {
      const source = step.get(before);
      if (source !== undefined) edges.push({ source, target, bytes: null, norm: null, notFinite: null });
    }
  }
  const memory = graph.document.column("node_memory_bytes");
  const bytes = nodes.map((node) => {
    const one = memory?.[node] ?? -1;
    return one < 0 ? null : one;
  });
  return new Playback(
    nodes.map((node) => graph.nodeName(node)),
    nodes.map((node) => graph.operationName(node)),
    nodes.map((node) => graph.modulePath(node)),
    nodes,
    edges,
    bytes,
    false,
    false,
    null,
  );
}
