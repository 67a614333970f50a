/** Graph -> the dots of a roofline plot: equal calls of one operation, with their arithmetic per byte and how fast they ran. */

import type { Info } from "../document/document";
import type { Graph } from "./graph";

export interface Dot {
  nodes: number[]; // the slowest first
  category: string;
  work: number; // of one call: all arithmetic, multiply-adds twice
  moved: number; // bytes read and written by one call
  intensity: number;
  time: number; // ns, of all calls
  rate: number; // per second
}

export interface Roofline {
  dots: Dot[]; // the longest time first
  isTimed: boolean; // else times are the best that the device allows
  /** How many ops have no dot, and why. */
  idle: number;
  unknown: number;
  untimed: number;
}

/** null where no op has a dot: there is no arithmetic known, or neither times nor a device. */
export function rooflineOf(graph: Graph): Roofline | null {
  return graph.keep("roofline", () => {
    const work = graph.document.column("viewer/node_arithmetic"),
      moved = graph.document.column("viewer/node_moved");
    if (!work || !moved) return null;
    const { device } = graph.info;
    const isTimed = graph.time.some((time) => time > 0);
    if (!isTimed && !device) return null;
    const found = { dots: [] as Dot[], isTimed, idle: 0, unknown: 0, untimed: 0 };
    const groups = new Map<string, { nodes: number[]; time: number }>();
    for (let node = 0; node < graph.count; node++) {
      if (!graph.isOp(node)) continue;
      const time = isTimed ? graph.time[node]! : bestTime(device!, work[node]!, moved[node]!);
      if (work[node]! < 0 || moved[node]! < 0) found.unknown++;
      else if (!work[node] || !moved[node]) found.idle++;
      else if (!(time > 0)) found.untimed++;
      else {
        const key = `${graph.operation[node]} ${work[node]} ${moved[node]}`;
        const group = groups.get(key) ?? { nodes: [], time: 0 };
        group.nodes.push(node);
        group.time += time;
        groups.set(key, group);
      }
    }
    for (const { nodes, time } of groups.values()) {
      if (isTimed) nodes.sort((a, b) => graph.time[b]! - graph.time[a]! || a - b);
      const first = nodes[0]!;
      found.dots.push({
        nodes,
        category: graph.category(first),
        work: work[first]!,
        moved: moved[first]!,
        intensity: work[first]! / moved[first]!,
        time,
        rate: (work[first]! * nodes.length) / (time / 1e9),
      });
    }
    found.dots.sort((a, b) => b.time - a.time);
    return found.dots.length ? found : null;
  });
}

type Device = NonNullable<Info["device"]>;

/** The arithmetic per second that a device allows at an intensity. */
export function roofAt(device: Device, intensity: number): number {
  return Math.min(device.flops_per_second, device.bytes_per_second * intensity);
}

/** ns */
function bestTime(device: Device, work: number, moved: number): number {
  return 1e9 * Math.max(work / device.flops_per_second, moved / device.bytes_per_second);
}

/** A range in powers of ten around some numbers. */
export function logRange(numbers: Iterable<number>): [number, number] {
  let low = Number.POSITIVE_INFINITY,
    high = 0;
  for (const one of numbers) {
    low = Math.min(low, one);
    high = Math.max(high, one);
  }
  return [low / 1.6, high * 1.6];
}
