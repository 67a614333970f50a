/** An outline and what of it is open -> a Scene: boxes and lines at their places.
 *
 * folding.ts and wiring.ts tell which lines a group has, problem.ts to routing.ts lay one group out, group.ts and
 * boxes.ts nest them. Layouts are kept by structure: after a group is opened, only the groups around it are laid out anew.
 */

import type { Item, Outline, Rounds } from "../model/outline";
import { RETURN } from "./box";
import { BoxMaker, geometryFor, Kept, type Shown } from "./boxes";
import { foldedLeaves, identity } from "./folding";
import { handedLabel } from "./group";
import type { Label, Layouter, LayoutOptions, Line, Scene } from "./scene";
import { Wirer } from "./wiring";

export const MOST_UNGROUPED = 2000; // ops that are drawn without groups
const NO_ROUNDS: Rounds = new Map();
const BASELINE = 10; // from the top of a label
const RETURNING = -1_000_000; // nets of dashed lines begin here

export const layoutScene: Layouter = (outline, options) => {
  const { kept, maker } = sessionOf(outline, options);
  const shown = maker.show(outline.root, options.open, options.grouping ? options.rounds : NO_ROUNDS);
  return new SceneMaker(kept, options.direction).scene(shown);
};

// -- what is kept between two layouts ------------------------------------------------------------------------------------

interface Session {
  kept: Kept;
  options: LayoutOptions;
  view: string;
  maker: BoxMaker;
}

const sessions = new WeakMap<Outline, Session>();

function sessionOf(outline: Outline, options: LayoutOptions): Session {
  const rounds = options.grouping ? options.rounds : NO_ROUNDS;
  const isUnfolded = [...rounds.values()].includes("all"); // else all rounds are wired as the first
  const view = JSON.stringify([options.grouping, [...options.hidden].sort(), isUnfolded ? [...rounds].sort() : []]);
  const last = sessions.get(outline);
  const isSame =
    last?.options.direction === options.direction &&
    last.options.textWidth === options.textWidth &&
    last.options.geometry === options.geometry;
  if (isSame && last.view === view) return last;
  const kept = isSame
    ? last.kept
    : new Kept(geometryFor(options.geometry, options.direction), options.textWidth, options.direction);
  const stands = options.grouping ? foldedLeaves(outline, rounds) : identity(outline.leafNode.length);
  const isShown = (item: Item) => item.kind !== "lane" || !options.hidden.has(item.title);
  const flat = options.grouping ? null : leavesOf(outline, isShown);
  const childrenOf = (item: Item, shown: Rounds) => {
    const children = flat ?? outline.children(item, shown);
    return options.hidden.size ? children.filter(isShown) : children;
  };
  const session = {
    kept,
    options,
    view,
    maker: new BoxMaker(outline, kept, new Wirer(outline, stands), childrenOf),
  };
  sessions.set(outline, session);
  return session;
}

/** All ops of the shown lanes, also those of every round. */
function leavesOf(outline: Outline, isShown: (item: Item) => boolean): Item[] {
  const found: Item[] = [];
  const add = (item: Item): void => {
    if (!isShown(item)) return;
    for (const one of item.repeat > 1 ? outline.rounds(item) : [item]) {
      if (!one.isLeaf) for (const child of outline.children(one, NO_ROUNDS)) add(child);
      else if (found.push(one) > MOST_UNGROUPED) {
        throw new Error(
          `Without groups at most ${MOST_UNGROUPED.toLocaleString("en-US")} ops are drawn: this graph has more. ` +
            "Hide lanes, or leave the grouping on.",
        );
      }
    }
  };
  add(outline.root);
  return found;
}

// -- from nested boxes to a scene ------------------------------------------------------------------------------------------

class SceneMaker {
  private readonly scene_: Scene = {
    width: 0,
    height: 0,
    frames: [],
    lines: [],
    labels: [],
    frameOf: new Map(),
    leftOut: 0,
  };
  private readonly isDown: boolean;
  private returns = 0;

  constructor(
    private readonly kept: Kept,
    direction: LayoutOptions["direction"],
  ) {
    this.isDown = direction === "down";
  }

  scene(root: Shown): Scene {
    const scene = this.scene_;
    const [before, after] = this.besideRoot(root);
    this.addInside(root, before, 0, -1);
    const [width, height] = [root.box.width + before + after, root.box.height];
    [scene.width, scene.height] = this.isDown ? [width, height] : [height, width];
    scene.leftOut = root.box.leftOut;
    return scene;
  }

  /** How far labels of the outermost group stand out on both sides. */
  private besideRoot({ box, wiring }: Shown): [number, number] {
    let [before, after] = [0, 0];
    for (const { line, x } of box.spots) {
      const [wide] = this.kept.labelSize(wiring!.lines[line]!.label);
      before = Math.max(before, -x);
      after = Math.max(after, x + wide - box.width);
    }
    return [before, after];
  }

  private addFrame({ item, box }: Shown, x: number, y: number, parent: number): number {
    const behind = item.repeat > 1 ? this.kept.geometry.stack : 0;
    const [width, height] = [box.width - behind, box.height - behind];
    const frame = this.isDown
      ? { item, x, y, width, height, open: box.open, parent }
      : { item, x: y, y: x, width: height, height: width, open: box.open, parent };
    const number = this.scene_.frames.push(frame) - 1;
    this.scene_.frameOf.set(item.key, number);
    return number;
  }

  /** What is in an open group, whose upper left corner in the layout is given. */
  private addInside({ box, wiring, inner }: Shown, x: number, y: number, own: number): void {
    const frames = inner.map((child, at) => {
      const [left, top] = [x + box.x[at]!, y + box.y[at]!];
      const frame = this.addFrame(child, left, top, own);
      if (child.wiring) this.addInside(child, left, top, frame);
      return frame;
    });
    const back = box.routes.some(({ line }) => line === RETURN) ? RETURNING - this.returns++ : 0;
    for (const { line, points, from, to, arrow } of box.routes) {
      const isBack = line === RETURN;
      const wired = !isBack && line >= 0 ? wiring!.lines[line]! : undefined;
      const tensor = wired?.tensor ?? (isBack ? back : wiring!.outputs[-1 - line]!);
      const value = wired?.value ?? (isBack ? -1 : wiring!.made[-1 - line]!);
      this.scene_.lines.push({
        net: tensor,
        value,
        points: this.moved(points, x, y),
        arrow,
        dashed: isBack,
        many: wired?.many ?? 1,
        source: from >= 0 ? frames[from]! : isBack ? own : -1,
        target: to >= 0 ? frames[to]! : isBack ? own : -1,
      });
    }
    for (const spot of box.spots) {
      const isBack = spot.line === RETURN;
      const { label, tensor } = isBack ? { label: handedLabel(wiring!), tensor: back } : wiring!.lines[spot.line]!;
      this.addLabel(label, x + spot.x, y + spot.y, tensor);
    }
  }

  private addLabel(text: string, x: number, y: number, net: number): void {
    const label: Label = this.isDown ? { x, y: y + BASELINE, text, net } : { x: y, y: x + BASELINE, text, net };
    this.scene_.labels.push(label);
  }

  private moved(points: readonly number[], x: number, y: number): Line["points"] {
    const found = new Array<number>(points.length);
    for (let at = 0; at < points.length; at += 2) {
      const [px, py] = [points[at]! + x, points[at + 1]! + y];
      found[at] = this.isDown ? px : py;
      found[at + 1] = this.isDown ? py : px;
    }
    return found;
  }
}
