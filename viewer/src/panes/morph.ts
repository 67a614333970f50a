/** Two scenes -> scenes between them: boxes that are in both move, others appear where their group was. */

import type { Frame, Scene } from "../layout/scene";

export interface Morph {
  to: Scene;
  from: (Frame | null)[];
}

export function morph(old: Scene, to: Scene): Morph {
  const from: (Frame | null)[] = [];
  for (const frame of to.frames) {
    const was = old.frames[old.frameOf.get(frame.item.key) ?? -1];
    // A box that is new begins at the place of the group it lies in, small.
    from.push(was ?? shrunk(frame, from[frame.parent] ?? null));
  }
  return { to, from };
}

export function between({ to, from }: Morph, share: number): Scene {
  const mix = (a: number, b: number) => a + (b - a) * share;
  const frames = to.frames.map((frame, i) => {
    const was = from[i];
    if (!was) return frame;
    return {
      ...frame,
      x: mix(was.x, frame.x),
      y: mix(was.y, frame.y),
      width: mix(was.width, frame.width),
      height: mix(was.height, frame.height),
    };
  });
  return { ...to, frames, lines: share > 0.6 ? to.lines : [], labels: [] };
}

function shrunk(frame: Frame, around: Frame | null): Frame | null {
  if (!around) return null;
  const x = around.x + around.width / 2,
    y = around.y + around.height / 2;
  return {
    ...frame,
    x: x - frame.width / 4,
    y: y - frame.height / 4,
    width: frame.width / 2,
    height: frame.height / 2,
  };
}
