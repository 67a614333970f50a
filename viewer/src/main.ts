/** Where it begins: read what the page carries, make the panes, say when it is ready. */

import { App } from "./app";
import { type Document, fromBase64, readAtlas } from "./document/document";
import type { PageStyle } from "./draw/theme";
import { sidesOf } from "./model/alignment";
import { Graph } from "./model/graph";
import { h, replace } from "./panes/dom";
import { emptyPage } from "./panes/empty";
import { openWhatFits } from "./panes/opening";
import { Shell } from "./panes/shell";
import { fromHash, type Known, keepInAddress } from "./state/hash";

declare global {
  interface Window {
    /** For tests and for people who script the page. */
    torchatlas?: { app: App; shell: Shell };
  }
}

const root = document.getElementById("app")!;

async function start(): Promise<void> {
  const style = JSON.parse(document.getElementById("style")!.textContent!) as PageStyle;
  const documents = await Promise.all(
    [...document.querySelectorAll<HTMLScriptElement>('script[type="application/x-atlas"]')].map(async (element) =>
      readAtlas(element.dataset["name"] ?? "graph", await bytesOf(element)),
    ),
  );
  // Boxes are as wide as their texts: those are measured with the font that is drawn.
  await Promise.all([document.fonts.load("400 11px Inter"), document.fonts.load("600 12px Inter")]);
  if (documents.length) open(style, documents);
  else {
    emptyPage(root, (dropped) => open(style, dropped));
    document.documentElement.dataset["ready"] = "empty";
  }
}

/** A page that a server of ours sent may leave a large document with the server. */
async function bytesOf(element: HTMLScriptElement): Promise<Uint8Array> {
  const address = element.dataset["src"];
  if (!address) return fromBase64(element.textContent!.trim());
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`The server answers ${answer.status}: ${await answer.text()}`);
  return new Uint8Array(await answer.arrayBuffer());
}

function open(style: PageStyle, documents: Document[]): void {
  const graphs = documents.map((one) => new Graph(one));
  const sides = graphs[1] ? sidesOf(documents[0]!, [graphs[0]!.count, graphs[1].count]) : null;
  const second = graphs[1] ? new App(graphs[1], style, sides?.[1] ?? null) : null;
  const app = new App(graphs[0]!, style, sides?.[0] ?? null, second);
  if (sides) app.store.update({ heat: "difference", pane: "compare" });
  // A link may name what this graph does not have.
  const known: Known = {
    nodes: app.graph.count,
    hasHeat: (name) => name === "type" || app.measures.has(name) || (name === "difference" && sides !== null),
  };
  const start = app.state,
    asked = fromHash(location.hash, start, known);
  app.store.update(asked);
  const shell = new Shell(app, root);
  if (!asked.open && !asked.view) {
    openWhatFits(app, shell.graph.element.clientWidth, shell.graph.element.clientHeight);
    if (second) openWhatFits(second, shell.graph.element.clientWidth, shell.graph.element.clientHeight);
    app.store.flush();
  }
  keepInAddress(app.store, start, known);
  window.torchatlas = { app, shell };
  document.title = app.graph.info.title;
  document.documentElement.dataset["ready"] = "yes";
}

start().catch((error: unknown) => {
  replace(
    root,
    h(
      "main",
      { class: "failed", role: "alert" },
      h("h1", {}, "This graph cannot be shown"),
      h("p", {}, error instanceof Error ? error.message : String(error)),
    ),
  );
  document.documentElement.dataset["ready"] = "failed";
  console.warn(error);
});
