// The list of captures beside the viewer: asks the server once a second what there is, and shows what was chosen. A
// capture that changes is shown again; the newest is shown first.
"use strict";
const [list, frame, empty, state, compare, stop] = ["list", "frame", "empty", "state", "compare", "stop"].map((id) =>
  document.getElementById(id),
);
let known = "", chosen = [], shown = "", seen = null, lost = false, stopped = false, reading = "";

const address = (ids) => `view/${ids.join("+")}`;
const marked = () => [...list.querySelectorAll("input:checked")].map((box) => box.value);

function show(ids, captures) {
  chosen = ids;
  // The time of the last change stands in the address, so that the frame is read again after one.
  const next = ids.length
    ? `${address(ids)}?${ids.map((id) => captures.find((one) => one.id === id)?.modified_ms ?? 0).join("-")}`
    : "";
  if (next !== shown) {
    shown = next;
    if (next) {
      frame.src = next;
      reading = captures.filter((one) => ids.includes(one.id)).map((one) => one.name).join(" and ");
    }
  }
  frame.hidden = !next;
  empty.hidden = !!next;
  for (const link of list.querySelectorAll("a")) {
    if (ids.includes(link.dataset.id)) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

/** What stands above the list: a page of a large graph takes the server some seconds. */
function tell() {
  if (stopped || lost || !known) return;
  const count = JSON.parse(known).captures.length;
  state.textContent = reading ? `reading ${reading} …` : `${count} capture${count === 1 ? "" : "s"}`;
}

frame.addEventListener("load", () => {
  reading = "";
  tell();
});

function size(bytes) {
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

function row(capture, captures, checked, focused) {
  const item = document.createElement("li"), box = document.createElement("input"), link = document.createElement("a");
  const facts = document.createElement("small"), name = document.createElement("span");
  box.type = "checkbox";
  box.value = capture.id;
  box.checked = checked.includes(capture.id);
  box.setAttribute("aria-label", `choose ${capture.name} to compare`);
  box.addEventListener("change", () => { compare.disabled = marked().length !== 2; });
  link.href = address([capture.id]);
  link.dataset.id = capture.id;
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    show([capture.id], captures);
    tell();
  });
  name.textContent = capture.name;
  facts.textContent = `${size(capture.bytes)} · ${new Date(capture.modified_ms).toLocaleString()}`;
  link.append(name, facts);
  if (seen && !seen.has(capture.id)) {
    const fresh = document.createElement("b");
    fresh.textContent = " new";
    name.append(fresh);
  }
  item.append(box, link);
  if (focused === capture.id) queueMicrotask(() => link.focus());
  return item;
}

async function look() {
  if (stopped) return;
  try {
    const answer = await fetch("captures.json", { cache: "no-store", signal: AbortSignal.timeout(20_000) });
    if (!answer.ok) throw new Error(`${answer.status}`);
    const text = await answer.text();
    if (text !== known || lost) {
      const { captures } = JSON.parse(text), checked = marked(), focused = document.activeElement?.dataset?.id;
      known = text;
      lost = false;
      list.replaceChildren(...captures.map((one) => row(one, captures, checked, focused)));
      seen ??= new Set(captures.map((one) => one.id));
      const there = chosen.filter((id) => captures.some((one) => one.id === id));
      show(there.length === chosen.length && there.length ? there : captures.slice(0, 1).map((one) => one.id), captures);
      tell();
    }
  } catch {
    if (stopped) return;
    lost = true;
    state.textContent = "The server does not answer: what is shown stays, and no more comes.";
  }
  setTimeout(look, lost ? 5000 : 1000);
}

compare.addEventListener("click", () => {
  const { captures } = JSON.parse(known); // newest first, and the older one is what was before
  show(captures.map((one) => one.id).filter((id) => marked().includes(id)).reverse(), captures);
  tell();
});
stop.addEventListener("click", async () => {
  const answer = await fetch("stop", { method: "POST" }).catch(() => null);
  if (!answer?.ok) return look();
  stopped = stop.disabled = compare.disabled = true;
  state.textContent = "The server has ended: what is shown stays, and no more comes.";
});
look();
