/** A stand-in until the layout is there: boxes below each other. */

import type { Item } from "../model/outline";
import type { Layouter, Scene } from "./scene";

export const layoutScene: Layouter = (outline, options) => {
  const scene: Scene = { width: 0, height: 0, frames: [], lines: [], labels: [], frameOf: new Map() };
  const place = (item: Item, x: number, y: number, parent: number): [number, number] => {
    const own = scene.frames.length,
      open = !item.isLeaf && options.open.has(item.key);
    scene.frames.push({ item, x, y, width: 160, height: 36, open, parent });
    scene.frameOf.set(item.key, own);
    if (!open) return [160, 36];
    const size = inside(item, x + 12, y + 34, own);
    Object.assign(scene.frames[own]!, { width: size[0] + 24, height: size[1] + 40 });
    return [size[0] + 24, size[1] + 40];
  };
  const inside = (group: Item, x: number, y: number, parent: number): [number, number] => {
    let width = 0,
      at = y;
    for (const child of outline.children(group, options.rounds)) {
      if (child.kind === "lane" && options.hidden.has(child.title)) continue;
      const [w, h] = place(child, x, at, parent);
      width = Math.max(width, w);
      at += h + 24;
    }
    return [width, Math.max(at - y - 24, 0)];
  };
  [scene.width, scene.height] = inside(outline.root, 0, 0, -1);
  return scene;
};
