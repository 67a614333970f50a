/** A page without a graph: files can be dropped on it, or chosen. */

import { checkDocument } from "../document/check";
import { type Document, readAtlas } from "../document/document";
import { readJson } from "../document/json";
import { DamagedFile } from "../document/zip";
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
  input.addEventListener("change", () => {
    void take([...(input.files ?? [])]);
    input.value = ""; // so that the same file, mended, can be chosen again
  });
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

/** A file of a stranger: it is checked, and whatever is wrong with it is said with its name. */
export async function readFile(file: File): Promise<Document> {
  try {
    const bytes = new Uint8Array(await file.arrayBuffer());
    const isJson = file.name.endsWith(".json");
    const document = isJson ? readJson(file.name, bytes) : (await readAtlas(file.name, bytes)).plain();
    checkDocument(document);
    return document;
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    throw new DamagedFile(message.includes(file.name) ? message : `${file.name} cannot be read: ${message}`);
  }
}
