/** The outline of a graph whose file has none, as a plain `.atlas` or `.json`: phases and module calls as groups, equal
 * neighbours folded. Python's outline knows more (views in lines, loops of several modules): `torchatlas view FILE`. */

import type { Graph } from "../model/graph";
import type { Kind } from "../model/outline";
import { type ChildRow, firstEdges, type OutlineTable } from "./outline";

const LANES: Record<string, string> = {
  forward: "forward",
  backward: "backward",
  recompute: "backward",
  optimizer: "optimizer",
  other: "other",
};
const MOST_OPEN = 40; // boxes that are shown at first

/** A group while the tree is made. Its leaves are an interval, as all its nodes stand together. */
interface Group {
  kind: Kind;
  call: number;
  name: string;
  children: (Group | number)[];
  inside: Map<string, Group>;
}
interface Shape {
  template: number;
  leaves: number;
}

export function plainOutline(graph: Graph): OutlineTable {
  return new Maker(graph).table();
}

class Maker {
  private readonly texts: string[] = [];
  private readonly numbers = new Map<string, number>();
  private readonly classes: string[] = [];
  private readonly templates: ChildRow[][] = [];
  private readonly known = new Map<string, number>(); // structure -> template
  private readonly order: number[] = []; // leaf -> node

  constructor(private readonly graph: Graph) {}

  table(): OutlineTable {
    const root = this.tree(),
      top = this.made(root),
      graph = this.graph;
    const leafNode = Int32Array.from(this.order),
      nodeLeaf = new Int32Array(graph.count).fill(-1);
    leafNode.forEach((node, leaf) => {
      nodeLeaf[node] = leaf;
    });
    const none = new Int32Array(0);
    return {
      templates: this.templates,
      root: top.template,
      texts: this.texts,
      classes: this.classes,
      open: this.opened(top.template),
      leafNode,
      nodeLeaf,
      edges: this.edges(nodeLeaf),
      kept: { source: none, output: none, target: none },
    };
  }

  /** Nodes in the groups of their phase and module calls. */
  private tree(): Group {
    const { graph } = this,
      root = group("module", -1, "");
    const used = new Set(
      Array.from(graph.phase, (_, node) => (graph.isOp(node) ? LANES[graph.phaseName(node)] : undefined)),
    );
    used.delete(undefined);
    for (let node = 0; node < graph.count; node++) {
      const way: number[] = [];
      if (graph.isOp(node))
        for (let call = graph.call[node]!; call >= 0; call = graph.callParent[call]!) way.unshift(call);
      let at = used.size > 1 && graph.kind[node] !== 0 ? inner(root, "lane", -1, LANES[graph.phaseName(node)]!) : root;
      for (const call of way)
        at = inner(at, "module", call, graph.tables.modules[graph.callModule[call]!]!.path.split(".").at(-1)!);
      at.children.push(node);
    }
    return root;
  }

  /** The template of a group; its leaves are added to the order on the way. */
  private made(group: Group): Shape {
    const rows: ChildRow[] = [],
      start = this.order.length;
    for (const child of group.children) {
      const first = this.order.length - start;
      if (typeof child === "number") {
        this.order.push(child);
        rows.push(this.leaf(child, first));
      } else {
        const { template, leaves } = this.made(child);
        rows.push(this.row(child, first, leaves, template));
      }
    }
    const folded = fold(rows),
      key = JSON.stringify(folded);
    let template = this.known.get(key);
    if (template === undefined) {
      template = this.templates.push(folded) - 1;
      this.known.set(key, template);
    }
    return { template, leaves: this.order.length - start };
  }

  private leaf(node: number, first: number): ChildRow {
    const { graph } = this,
      shape = graph.outputs(node).find((value) => value >= 0); // an output may have been None
    return [
      "leaf",
      first,
      first + 1,
      1,
      -1,
      this.text(graph.shortOperation(node)),
      shape === undefined ? -1 : this.text(graph.shape(shape)),
      -1,
      -1,
      -1,
      -1,
      graph.isOp(node) ? 0 : 4,
    ];
  }

  private row({ kind, call, name }: Group, first: number, leaves: number, template: number): ChildRow {
    const { graph } = this,
      type = call >= 0 ? graph.tables.modules[graph.callModule[call]!]!.type : "";
    let level = -1;
    for (let up = call; up >= 0; up = graph.callParent[up]!) level++;
    if (type && !this.classes.includes(type)) this.classes.push(type);
    const ops = `${leaves} op${leaves === 1 ? "" : "s"}`;
    return [
      kind,
      first,
      first + leaves,
      1,
      template,
      this.text(type || name),
      this.text(name && type ? `${name} · ${ops}` : ops),
      -1,
      this.classes.indexOf(type),
      type ? this.text(name) : -1,
      level,
      0,
    ];
  }

  private text(words: string): number {
    const known = this.numbers.get(words);
    if (known !== undefined) return known;
    this.numbers.set(words, this.texts.push(words) - 1);
    return this.texts.length - 1;
  }

  /** Groups from the outside in, as long as few boxes are shown. */
  private opened(root: number): [number, number, number][] {
    const found: [number, number, number][] = [];
    let level = this.templates[root]!.map((row) => ({ row, start: 0, depth: 1 })),
      boxes = level.length;
    while (level.length) {
      const groups = level.filter(({ row }) => row[4] >= 0);
      const next = groups.flatMap(({ row, start, depth }) =>
        this.templates[row[4]]!.map((child) => ({ row: child, start: start + row[1], depth: depth + 1 })),
      );
      boxes += next.length - groups.length;
      if (boxes > MOST_OPEN && found.length) break;
      for (const { row, start, depth } of groups) found.push([start + row[1], start + row[2], depth]);
      level = next;
    }
    return found;
  }

  private edges(nodeLeaf: Int32Array): OutlineTable["edges"] {
    const column = (name: string) => this.graph.document.need(`edge_${name}`);
    const kind = column("kind"),
      from = column("source"),
      to = column("target"),
      index = column("input_index");
    const data = [...kind.keys()].filter((edge) => kind[edge] === 0);
    data.sort((a, b) => nodeLeaf[to[a]!]! - nodeLeaf[to[b]!]! || index[a]! - index[b]!);
    const pick = (values: ArrayLike<number>) => Int32Array.from(data, (edge) => values[edge]!);
    const target = pick(to).map((node) => nodeLeaf[node]!);
    return {
      source: pick(from).map((node) => nodeLeaf[node]!),
      output: pick(column("output_index")),
      target,
      value: pick(column("value")),
      first: firstEdges(target, nodeLeaf.length),
    };
  }
}

function group(kind: Kind, call: number, name: string): Group {
  return { kind, call, name, children: [], inside: new Map() };
}

function inner(around: Group, kind: Kind, call: number, name: string): Group {
  const key = kind === "lane" ? name : String(call);
  let found = around.inside.get(key);
  if (!found) {
    found = group(kind, call, name);
    around.inside.set(key, found);
    around.children.push(found);
  }
  return found;
}

/** Neighbours of one class with equal insides as one row that repeats. */
function fold(rows: ChildRow[]): ChildRow[] {
  const found: ChildRow[] = [];
  for (const row of rows) {
    const last = found.at(-1);
    if (last && last[0] === "module" && row[0] === "module" && last[4] === row[4] && last[8] === row[8]) last[3]++;
    else found.push(row.slice() as ChildRow);
  }
  return found;
}
