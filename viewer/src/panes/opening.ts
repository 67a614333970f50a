/** What is open at first: as many of the still picture's groups, in its order, as the window shows in text that can be read. */

import type { App } from "../app";
import type { Frame, Scene } from "../layout/scene";
import type { Item, Outline } from "../model/outline";

const READABLE = 0.66; // scale at which the smallest text is some 7 pixels high
const MARGIN = 56;
const ABOVE = [36, 62] as const; // pixels for the legend; it takes two lines where there are fewer than
const NARROW = 600; // pixels
const MOST_WINDOWS = 2; // windows below each other, where a model does not fit into one

export function openWhatFits(app: App, width: number, height: number): void {
  const order = [...app.state.open];
  const sceneOf = (count: number) => app.sceneOf({ ...app.state, open: new Set(order.slice(0, count)) });
  const most = (fits: (scene: Scene) => boolean) => {
    let low = 0,
      high = order.length; // the largest number that fits, or none
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (fits(sceneOf(middle))) low = middle;
      else high = middle - 1;
    }
    return low;
  };
  const fits = (wide: number, high: number) =>
    Math.min((width - MARGIN) / Math.max(wide, 1), (height - MARGIN - 34) / Math.max(high, 1)) >= READABLE;
  const count = most((scene) => fits(scene.width, scene.height));
  // Keys end in the depth. Whether a module is open, not only an iteration or a phase:
  if (order.slice(0, count).some((key) => Number(key.split("-")[2]) > levels(app.outline, app.outline.root))) {
    app.store.update({ open: new Set(order.slice(0, count)) });
    return;
  }
  // A window that shows closed boxes only says nothing: a phase or an iteration is opened, to be scrolled through from its top.
  const long = most((scene) => fits(first(scene)?.width ?? scene.width, scene.height / MOST_WINDOWS));
  if (long <= count) {
    app.store.update({ open: new Set(order.slice(0, count)) });
    return;
  }
  const scene = sceneOf(long),
    frame = first(scene);
  const wide = fits(scene.width, 1) ? scene.width : (frame?.width ?? scene.width),
    from = fits(scene.width, 1) ? 0 : (frame?.x ?? 0);
  const scale = Math.min(1, (width - MARGIN) / wide);
  app.store.update({
    open: new Set(order.slice(0, long)),
    view: { scale, left: (width - wide * scale) / 2 - from * scale, top: ABOVE[width < NARROW ? 1 : 0] },
  });
}

function first(scene: Scene): Frame | undefined {
  return scene.frames.find((frame) => frame.parent < 0 && frame.open && isOfTime(frame.item));
}

/** How many levels of iterations and phases stand above the modules. */
function levels(outline: Outline, item: Item): number {
  const part = outline.children(item, new Map()).find(isOfTime);
  return part ? 1 + levels(outline, part) : 0;
}

function isOfTime(item: Item): boolean {
  return item.kind === "lane" || item.kind === "iteration";
}
