/** A page without a graph: files can be dropped on it, or chosen. */

import { type Document, readAtlas } from "../document/document";
import { readJson } from "../document/json";
import { h, replace } from "./dom";

export function emptyPage(root: HTMLElement, open: (documents: Document[]) => void): void {
  const message = h("p", { role: "status" });
  const input = h("input", { type: "file", multiple: true, accept: ".atlas,.json", id: "files", class: "hidden" });
  const page = h(
    "main",
    { class: "empty" },
    h("h1", {}, "torchatlas"),
    h("p", {}, "Drop an .atlas or .json file of torchatlas here. Two files are compared."),
    h("label", { for: "files", class: "button" }, "Choose files"),
    input,
    message,
    h("p", { class: "soft" }, "The file stays on this machine: the page makes no request."),
  );
  const take = async (files: File[]) => {
    try {
      message.textContent = "Reading …";
      open(await Promise.all(files.slice(0, 2).map(readFile)));
    } catch (error) {
      message.textContent = error instanceof Error ? error.message : String(error);
    }
  };
  input.addEventListener("change", () => void take([...(input.files ?? [])]));
  acceptDrops(page, (files) => void take(files));
  replace(root, page);
}

/** Files that are dropped on an element. */
export function acceptDrops(element: HTMLElement, take: (files: File[]) => void): void {
  element.addEventListener("dragover", (event) => {
    event.preventDefault();
    element.classList.add("over");
  });
  element.addEventListener("dragleave", () => element.classList.remove("over"));
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    element.classList.remove("over");
    const files = [...(event.dataTransfer?.files ?? [])];
    if (files.length) take(files);
  });
}

export async function readFile(file: File): Promise<Document> {
  const bytes = new Uint8Array(await file.arrayBuffer());
  return file.name.endsWith(".json") ? readJson(file.name, bytes) : readAtlas(file.name, bytes);
}
