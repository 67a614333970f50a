"""Pictures: how long a layout takes, what it shows, whether it is true, and how its crossings compare with Graphviz.

python benchmarks/bench_pictures.py [--all] [--only NAME ...] [--skip-large] [--skip-dot]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from programs import load_torchvision, load_transformers
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph
from torchatlas.render.layout.layered import Layering, Problem, layer
from torchatlas.render.picture import Picture, draw

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # last: programs here is not the one there

from render.layout import verify

PAGES = ((1600, 1200), (1200, 800), (1200, 1600), (800, 600))
LIMIT_SECONDS = {"densenet121": 1.0}  # the others: half a second
CROSSINGS_LIMIT = 1.2
_REPEATS = 5


# -- what is drawn -----------------------------------------------------------------------------------------------------


def image_model(name: str) -> Graph:
    more: dict[str, Any] = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    model = getattr(load_torchvision().models, name)(weights=None, **more).eval()
    return atlas.capture(model, torch.randn(1, 3, 224, 224), fake=True)


class LSTMLoop(nn.Module):
    """A cell run step by step, its outputs stacked at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(32, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, state = torch.zeros(4, 64), torch.zeros(4, 64)
        found = []
        for moment in x:
            hidden, state = self.cell(moment, (hidden, state))
            found.append(hidden)
        result: torch.Tensor = self.head(torch.stack(found))
        return result


def lstm_loop() -> Graph:
    return atlas.capture(LSTMLoop(), torch.randn(50, 4, 32), fake=True)


def gpt2_step() -> Graph:
    transformers: Any = load_transformers()
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(loss_type="ForCausalLM"))
    ids = torch.randint(0, 50257, (1, 128))
    return atlas.capture(model, ids, labels=ids, backward=True, loss=lambda output: output.loss, fake=True)


MODELS: dict[str, Callable[[], Graph]] = {
    "resnet18": lambda: image_model("resnet18"),
    "googlenet": lambda: image_model("googlenet"),
    "vit_b_16": lambda: image_model("vit_b_16"),
    "swin_t": lambda: image_model("swin_t"),
    "densenet121": lambda: image_model("densenet121"),
    "lstm_loop": lstm_loop,
    "gpt2_training": gpt2_step,
}


class Block(nn.Module):
    """A residual block whose number of ops depends on its place."""

    def __init__(self, width: int, extra: int) -> None:
        super().__init__()
        self.norm, self.extra = nn.LayerNorm(width), extra
        self.wide, self.narrow = nn.Linear(width, width + extra), nn.Linear(width + extra, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.wide(self.norm(x)).relu()
        for _ in range(self.extra):
            h = h + h.tanh()
        result: torch.Tensor = x + self.narrow(h)
        return result


def large_graph() -> Graph:
    """100,000 ops in 56 stages of 90 blocks that differ."""
    stages = (nn.Sequential(*(Block(8, 1 + (number + stage) % 7) for number in range(90))) for stage in range(56))
    return atlas.capture(nn.Sequential(*stages), torch.randn(2, 8))


# -- measuring ---------------------------------------------------------------------------------------------------------


def seconds(work: Callable[[], Any], repeats: int = _REPEATS) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def fill(picture: Picture) -> float:
    """The share of the page that the scene takes."""
    scene, scale = picture.scene, picture.fit.scale
    return scene.width * scene.height * scale**2 / (picture.width * picture.height)


def row(name: str, graph: Graph, page: tuple[int, int]) -> str:
    width, height = page
    picture = draw(graph, width=width, height=height)
    taken = seconds(lambda: draw(graph, width=width, height=height))
    png = seconds(picture.png, 3)
    limit = LIMIT_SECONDS.get(name, 0.5)
    account = verify.account(picture.outline, picture.scene)
    cells = (
        name,
        f"{width}x{height}",
        f"{len(graph.where(kind='op')):,}",
        f"{taken:.2f}",
        f"{limit:.1f}{'' if taken <= limit else ' **missed**'}",
        f"{png:.2f}",
        picture.boxes,
        picture.open_groups,
        f"{picture.smallest_text:.1f}",
        f"{fill(picture):.0%}",
        picture.fit.box.crossings,
        len(verify.defects(picture.scene)) + len(verify.hidden(picture.outline, picture.scene)),
        len(account.missing),
        len(account.invented),
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def time_large() -> None:
    """Load, draw and PNG in turn, so that what else the machine does meets all three."""
    graph = large_graph()
    print(f"\nA graph of {len(graph):,} nodes as a PNG.\n")
    print("| file | page | load, s | draw, s | PNG, s |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"large{suffix}" for suffix in (".atlas", ".json")]
        for path in paths:
            graph.save(path)
        for path, page in itertools.product(paths, PAGES):
            turns = [_large_turn(path, *page) for _ in range(_REPEATS + 1)][1:]
            load, drawn, png = map(statistics.median, zip(*turns, strict=True))
            cells = (path.suffix, "{}x{}".format(*page), f"{load:.3f}", f"{drawn:.2f}", f"{png:.2f}")
            print("| " + " | ".join(cells) + " |", flush=True)
        loads, saves = zip(*(_first_picture(paths[0]) for _ in range(_REPEATS)), strict=True)
        print(
            "\nThe first picture of a process, from `.atlas` to PNG at 1600x1200, with what draws being imported: "
            f"{statistics.median(saves):.2f} s after loading ({statistics.median(loads):.3f} s)."
        )


def _first_picture(path: Path) -> tuple[float, float]:
    """Seconds of loading and of saving a PNG in a fresh process, which has torchatlas imported."""
    code = """
import sys, time
from torchatlas.graph import Graph
start = time.perf_counter()
graph = Graph.load(sys.argv[1])
loaded = time.perf_counter()
graph.save(sys.argv[1] + ".png")
print(loaded - start, time.perf_counter() - loaded)
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    load, save = map(float, done.stdout.split())
    return load, save


def _large_turn(path: Path, width: int, height: int) -> tuple[float, float, float]:
    """Seconds of loading, drawing and making a PNG."""
    clock = [time.perf_counter()]
    graph = Graph.load(path)
    clock.append(time.perf_counter())
    picture = draw(graph, width=width, height=height)
    clock.append(time.perf_counter())
    picture.png()
    clock.append(time.perf_counter())
    load, drawn, png = (b - a for a, b in itertools.pairwise(clock))
    return load, drawn, png


# -- crossings against Graphviz ----------------------------------------------------------------------------------------


def group_problems(picture: Picture) -> list[Problem]:
    """Every open group as one layered problem: its boxes as they are drawn, and the lines between them."""
    found, seen = [], set[int]()
    stack = [picture.fit.box]
    while stack:
        box = stack.pop()
        if id(box) in seen or not box.open:
            continue
        seen.add(id(box))
        stack += box.inner
        count = len(box.inner)
        edges = {(route.source, route.target): None for route in box.routes if max(route.source, route.target) < count}
        forward = sorted({(min(edge), max(edge)) for edge in edges})
        found.append(Problem([(inner.width, inner.height) for inner in box.inner], [(u, v, u) for u, v in forward]))
    return found


def all_problems(picture: Picture) -> list[Problem]:
    """Every group there is, open or not, one of each structure: the harder ones, that a page may not show."""
    outline, found, seen = picture.outline, [], set[int]()
    stack = [outline.root]
    while stack:
        item = stack.pop()
        if item.is_leaf or item.hash in seen:
            continue
        seen.add(item.hash)
        items, wiring = outline.children(item), outline.wiring(item)
        stack += items
        joined = sorted({(min(u, v), max(u, v)) for u, v, _ in wiring.edges if u >= 0 and u != v})
        found.append(Problem([(90.0, 36.0)] * len(items), [(u, v, u) for u, v in joined]))
    return found


def random_problems(count: int = 40) -> list[Problem]:
    """Problems harder than any module: what models cross too seldom to show."""
    rng, found = random.Random(0), []
    for _ in range(count):
        boxes = rng.randint(8, 24)
        joined = {tuple(sorted(rng.sample(range(boxes), 2))) for _ in range(round(1.4 * boxes))}
        near = sorted((u, v) for u, v in joined if v - u < boxes // 2)
        found.append(Problem([(90.0, 36.0)] * boxes, [(u, v, u) for u, v in near]))
    return found


def dot_crossings(problem: Problem) -> int:
    """Crossings of Graphviz's lines, as it routed them, at the same sizes: two lines that meet in a point count once.

    Straight lines between the ranks (splines=line would jump over ranks), so that its own order of ranks is judged.
    """
    lines = ["digraph {", 'splines=polyline; nodesep=0.25; ranksep=0.4; node [shape=box, fixedsize=true, label=""];']
    lines += [f"{n} [width={w / 72:.3f}, height={h / 72:.3f}];" for n, (w, h) in enumerate(problem.sizes)]
    lines += [f"{u} -> {v} [arrowhead=none, headport=n, tailport=s];" for u, v, _ in problem.edges]
    done = subprocess.run(["dot", "-Tjson"], input="\n".join([*lines, "}"]), capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    names = [int(one["name"]) for one in answer["objects"]]
    ways = []
    for edge in answer.get("edges", ()):
        points = [tuple(map(float, point.split(","))) for point in edge["pos"].removeprefix("e,").split(" ")]
        ways.append((names[edge["tail"]], names[edge["head"]], points))
    return sum(
        _cross(one[2], other[2])
        for number, one in enumerate(ways)
        for other in ways[:number]
        if one[0] != other[0] and one[1] != other[1]  # lines that share an end meet there
    )


def _cross(one: list[tuple[float, ...]], other: list[tuple[float, ...]]) -> int:
    return sum(_meet(a, b, c, d) for a, b in itertools.pairwise(one) for c, d in itertools.pairwise(other))


def _meet(a: tuple[float, ...], b: tuple[float, ...], c: tuple[float, ...], d: tuple[float, ...]) -> bool:
    def side(p: tuple[float, ...], q: tuple[float, ...], r: tuple[float, ...]) -> float:
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0


def our_crossings(layering: Layering) -> int:
    """The same count for ours: lines of one tensor or into one box meet there and do not cross."""
    ways = [(u, v, chain) for u, v, _, chain in layering.chains]
    place = {node: position for line in layering.rows for position, node in enumerate(line)}
    total = 0
    for number, (u, v, one) in enumerate(ways):
        for w, x, other in ways[:number]:
            if u == w or v == x:
                continue
            at = {layering.rank[node]: place[node] for node in other}
            for a, b in itertools.pairwise(one):
                top, bottom = layering.rank[a], layering.rank[b]
                if top in at and bottom in at:
                    total += (place[a] - at[top]) * (place[b] - at[bottom]) < 0
    return total


def compare_crossings(graphs: dict[str, Graph]) -> None:
    print("\nCrossings in the groups of each picture, open ones and all.")
    print(f"The goal is at most {CROSSINGS_LIMIT:g} times those of Graphviz.\n")
    if shutil.which("dot") is None:
        print("Graphviz is not installed: nothing to compare with.")
        return
    print("| model | which groups | groups | lines | ours | dot |\n|---|---|---|---|---|---|")
    total_ours = total_dot = 0
    for name, graph in graphs.items():
        picture = draw(graph)
        for which, problems in (("open", group_problems(picture)), ("all", all_problems(picture))):
            ours = sum(our_crossings(layer(problem)) for problem in problems)
            theirs = sum(dot_crossings(problem) for problem in problems if problem.edges)
            total_ours, total_dot = total_ours + ours, total_dot + theirs
            lines = sum(len(problem.edges) for problem in problems)
            print(f"| {name} | {which} | {len(problems)} | {lines} | {ours} | {theirs} |", flush=True)
    problems = random_problems()
    ours, theirs = sum(our_crossings(layer(one)) for one in problems), sum(map(dot_crossings, problems))
    lines = sum(len(one.edges) for one in problems)
    print(f"| random, not in the sum | | {len(problems)} | {lines} | {ours} | {theirs} |")
    ratio = total_ours / total_dot if total_dot else math.inf if total_ours else 1.0
    missed = "" if ratio <= CROSSINGS_LIMIT else " **missed**"
    print(f"| together | | | | {total_ours} | {total_dot} |\n\nRatio {ratio:.2f}{missed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="on all four pages, not only 1600x1200")
    parser.add_argument("--only", nargs="*", choices=list(MODELS), help="these models only")
    parser.add_argument("--skip-large", action="store_true", help="not the graph of 100,000 ops")
    parser.add_argument("--skip-dot", action="store_true", help="not the crossings of Graphviz")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    graphs = {name: build() for name, build in MODELS.items() if not chosen.only or name in chosen.only}
    titles = "model, page, ops, layout s, limit, PNG s, boxes, open, smallest text px, fill, crossings, defects"
    columns = [*titles.split(", "), "missing", "invented"]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for page in PAGES if chosen.all else PAGES[:1]:
        for name, graph in graphs.items():
            print(row(name, graph, page), flush=True)
    if not chosen.skip_dot:
        compare_crossings(graphs)
    if not chosen.skip_large:
        time_large()


if __name__ == "__main__":
    main()
