/** What is open at first: as many of the still picture's groups, in its order, as the window shows in text that can be read. */

import type { App } from "../app";

const READABLE = 0.66; // scale at which the smallest text is some 7 pixels high
const MARGIN = 56;

export function openWhatFits(app: App, width: number, height: number): void {
  const order = [...app.state.open];
  const fits = (count: number) => {
    const scene = app.sceneOf({ ...app.state, open: new Set(order.slice(0, count)) });
    return (
      Math.min((width - MARGIN) / Math.max(scene.width, 1), (height - MARGIN - 34) / Math.max(scene.height, 1)) >=
      READABLE
    );
  };
  let low = 0,
    high = order.length; // the largest number that fits, or none
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (fits(middle)) low = middle;
    else high = middle - 1;
  }
  app.store.update({ open: new Set(order.slice(0, low)) });
}
