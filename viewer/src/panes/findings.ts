/** The doctor's findings as a list; each is pinned to its boxes and leads there. */

import type { App } from "../app";
import { h } from "./dom";
import { findingsOf } from "./overlays";
import type { Pane } from "./pane";

export function findings(app: App): Pane {
  const found = findingsOf(app);
  const element = h(
    "div",
    { class: found.length ? "findings" : "hidden" },
    h("h2", {}, `findings (${found.length})`),
    ...found.map((finding) =>
      h(
        "details",
        { class: finding.severity },
        h("summary", { title: finding.key }, `${finding.severity === "error" ? "✕" : "⚠"} ${finding.title}`),
        h("p", {}, finding.message),
        finding.fix ? h("p", {}, h("b", {}, "fix: "), finding.fix) : null,
        finding.file
          ? h("p", { class: "soft" }, `${finding.file.split(/[\\/]/).slice(-2).join("/")}:${finding.line}`)
          : null,
        finding.nodes.length
          ? h(
              "div",
              { class: "chips" },
              ...finding.nodes
                .slice(0, 8)
                .map((node) =>
                  h(
                    "button",
                    { class: "chip", onclick: () => app.select({ kind: "node", node }, { fly: true }) },
                    app.graph.nodeName(node),
                  ),
                ),
            )
          : null,
      ),
    ),
  );
  return { name: "findings", title: "Findings", place: "left", element };
}
