"""How large a viewer page is, how soon it can be used, and how fluently, in the machine's Chromium.

    python benchmarks/bench_viewer.py [gpt2 llama13k llama405 large] [--repeats N] [--rivals [only]] [--folder DIR]

Graphs are made by the script: training steps on fake tensors of GPT-2, of 37 layers of Llama-405B (13,000 ops) and of
all its 126, and 100,000 ops in blocks that differ. Printed are medians, with the slowest in brackets. On a busy machine
trust the CPU times: they are those of all of Chromium's processes. With --rivals, Model Explorer and torchvista show
the same models in the same run: see viewer_rivals.py.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torchatlas as atlas
from torchatlas.graph import Graph

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from browser import Visit, chromium
from support import giant_llama, load_transformers

HEAD = (
    *("graph", "ops", "MB", "write, s", "ready, ms", "open a group, ms", "open all, ms", "CPU ms of it", "boxes"),
    *("frames per second", "longest frame, ms", "CPU ms of a frame", "with boxes in the window"),
)

# When the page says that it is ready, in ms after the navigation began.
READY = """
new MutationObserver(() => {
  if (document.documentElement?.dataset.ready) window.readyAt ??= performance.now();
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-ready"] });
"""

# What the measurements share. A frame is over when the task after its animation callbacks runs.
SHARED = """
const { app, shell } = window.torchatlas;
const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
const timed = async (change) => {
  const start = performance.now();
  change();
  await painted();
  return performance.now() - start;
};
"""

# The closed groups that are seen, opened and closed one after the other: ms until the first frame that shows it.
OPEN_GROUPS = """async () => {
  %s
  const groups = app.scene.frames.filter((frame) => !frame.open && !frame.item.isLeaf).map((frame) => frame.item);
  const times = [];
  for (const item of groups.slice(0, 20)) {
    times.push(await timed(() => app.toggle(item)));
    await new Promise((done) => setTimeout(done, 250)); // it has moved to its place
    app.toggle(item);
    await new Promise((done) => setTimeout(done, 250));
  }
  return times;
}"""

# Every group open and every repeat unfolded: ms until all boxes are painted, and how many there are.
EXPAND_ALL = """async () => {
  %s
  const all = () => {
    const open = new Set(), rounds = new Map();
    const walk = (group) => {
      for (const child of app.outline.children(group, rounds)) if (child.repeat > 1) rounds.set(child.key, "all");
      for (const child of app.outline.children(group, rounds)) {
        if (child.isLeaf) continue;
        open.add(child.key);
        walk(child);
      }
    };
    walk(app.outline.root);
    app.store.update({ open, rounds, view: null });
  };
  const ms = await timed(all);
  return [ms, app.scene.frames.length];
}"""

# Move and zoom for two seconds with about so many boxes in the window: frames per second, the longest frame, boxes.
MOVE = """async (wanted) => {
  %s
  const { width, height } = shell.graph.canvas.getBoundingClientRect();
  const { frames } = app.scene;
  const middle = frames[Math.floor(frames.length / 2)];
  const seen = (scale) => {
    const half = width / scale / 2, tall = height / scale / 2, { x, y } = middle;
    const isSeen = (frame) =>
      frame.x < x + half && frame.x + frame.width > x - half && frame.y < y + tall && frame.y + frame.height > y - tall;
    return frames.filter(isSeen).length;
  };
  let low = 0.001, high = 4;
  for (let turn = 0; turn < 30; turn++) {
    const scale = Math.sqrt(low * high);
    if (seen(scale) > wanted) low = scale;
    else high = scale;
  }
  const base = low, times = [];
  const place = (scale, dx, dy) => app.store.update({
    view: { scale, left: width / 2 - middle.x * scale + dx, top: height / 2 - middle.y * scale + dy },
  });
  const boxes = seen(base);
  place(base, 0, 0);
  await painted();
  await new Promise((done) => {
    const step = (now) => {
      times.push(now);
      const t = now - times[0];
      if (t > 2000) return done();
      place(base * (1 + 0.1 * Math.sin(t / 300)), 60 * Math.sin(t / 200), 60 * Math.cos(t / 250));
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  });
  const gaps = times.slice(1).map((time, i) => time - times[i]);
  return [(1000 * gaps.length) / (times.at(-1) - times[0]), Math.max(...gaps), boxes];
}"""


# -- graphs ------------------------------------------------------------------------------------------------------------


def _fake_step(make: Callable[[], Any], tokens: int) -> Graph:
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = make()
        inputs = torch.zeros(1, tokens, dtype=torch.long)
        optimizer = torch.optim.AdamW(model.parameters())
        with atlas.recording(model) as recording:
            model(input_ids=inputs, labels=inputs).loss.backward()
            optimizer.step()
        return recording.graph


def _gpt2() -> Any:
    transformers = load_transformers()
    return transformers.GPT2LMHeadModel(transformers.GPT2Config())


def _large() -> Graph:
    from bench_pictures import large_graph

    return large_graph()


GRAPHS: dict[str, Callable[[], Graph]] = {
    "gpt2": lambda: _fake_step(_gpt2, 64),
    "llama13k": lambda: _fake_step(lambda: giant_llama("405B", num_hidden_layers=37), 2048),
    "llama405": lambda: _fake_step(lambda: giant_llama("405B"), 2048),
    "large": _large,
}


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(browser: Any, path: Path, repeats: int) -> dict[str, list[float]]:
    """Lists of what was measured, one entry per repeat or per group."""
    names = ("ready", "open", "expand", "expand_cpu", "boxes", "fps", "frame", "frame_cpu", "seen")
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(repeats):
        visit = Visit.to(browser, path, script=READY)
        if (answer := visit.wait_until_ready()) != "yes":
            raise SystemExit(f"{path}: the viewer says {answer}: {visit.page.locator('body').inner_text()[:300]}")
        visit.page.wait_for_timeout(300)
        found["ready"].append(visit.page.evaluate("readyAt"))
        found["open"] += visit.page.evaluate(OPEN_GROUPS % SHARED)
        if number == 0:  # these take long, and vary little
            clock = [_cpu_ms()]
            ms, boxes = visit.page.evaluate(EXPAND_ALL % SHARED)
            clock.append(_cpu_ms())
            fps, frame, seen = visit.page.evaluate(MOVE % SHARED, 5000)
            clock.append(_cpu_ms())
            cpu = (clock[1] - clock[0], (clock[2] - clock[1]) / (2 * fps))
            for key, value in zip(names[2:], (ms, cpu[0], boxes, fps, frame, cpu[1], seen), strict=True):
                found[key].append(value)
        visit.check()
        visit.close()
    return found


def _cpu_ms() -> float:
    """CPU time of the processes below this one, which are Playwright's and Chromium's."""
    children: dict[int, list[tuple[int, int]]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            fields = path.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append((int(path.parent.name), int(fields[11]) + int(fields[12])))
    ticks, waiting = 0, [os.getpid()]
    while waiting:
        for child, taken in children.get(waiting.pop(), []):
            ticks += taken
            waiting.append(child)
    return 1000 * ticks / os.sysconf("SC_CLK_TCK")


def row(name: str, graph: Graph, path: Path, browser: Any, repeats: int) -> str:
    start = time.perf_counter()
    graph.save(path)
    written = time.perf_counter() - start
    found = measure(browser, path, repeats)

    def median(key: str, digits: int = 0) -> str:
        values = found[key]
        return f"{statistics.median(values):,.{digits}f} ({max(values):,.{digits}f})" if values else "–"

    cells = (
        name,
        f"{len(graph.where(kind='op')):,}",
        f"{path.stat().st_size / 1e6:.2f}",
        f"{written:.1f}",
        median("ready"),
        median("open"),
        f"{found['expand'][0]:,.0f}",
        f"{found['expand_cpu'][0]:,.0f}",
        f"{found['boxes'][0]:,.0f}",
        f"{found['fps'][0]:.0f}",
        f"{found['frame'][0]:.0f}",
        f"{found['frame_cpu'][0]:.0f}",
        f"{found['seen'][0]:,.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("graphs", nargs="*", default=list(GRAPHS), metavar="GRAPH")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument(
        "--rivals", nargs="?", const="also", choices=["also", "only"], help="the other viewers as well"
    )
    options.add_argument("--folder", type=Path, help="keep the pages there; .atlas files there are not made again")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        for name in chosen.graphs:
            stored = folder / f"{name}.atlas"
            graph = atlas.load(stored) if stored.exists() else GRAPHS[name]()
            if chosen.folder and not stored.exists():
                graph.save(stored)
            with chromium() as browser:
                if chosen.rivals != "only":
                    print(row(name, graph, folder / f"{name}.html", browser, chosen.repeats), flush=True)
                if chosen.rivals:
                    from viewer_rivals import rows

                    for line in rows(name, graph, folder, browser):
                        print(line, flush=True)


if __name__ == "__main__":
    main()
