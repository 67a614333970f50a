"""How the analyses grow: CPU seconds and memory at 10,000, 40,000 and 100,000 operations, for graphs of several shapes.

    python benchmarks/bench_growth.py [--sizes 10000 40000 100000] [--only fusion stages ...] [--shapes chain wired ...]

Each graph is recorded once and saved; each analysis loads it. Both happen in processes of their own, as what a process
has held at most counts for those that it starts. Printed are the CPU time of the analysis and by how much the largest
memory of its process grew. The exponent is that of the time between the smallest and the largest size: 1 is linear.
"""

from __future__ import annotations

import argparse
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchatlas as atlas
from torchatlas.analysis import critical_path
from torchatlas.analysis.checkpoint_choice import choose_checkpoints

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import growing


def step(size: int, widths: tuple[int, ...]) -> atlas.Graph:
    """Forward, backward and optimizer step of blocks of these widths in turn."""
    model = nn.Sequential(*(growing.Block(widths[at % len(widths)]) for at in range(size // 32)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    return atlas.capture(model, torch.ones(64, 4), backward=True, optimizer=optimizer)


PROGRAMS: dict[str, Callable[[int], None]] = {one.__name__: one for one in growing.PROGRAMS}
STEPS = {"training": (8,), "training, six kinds": (4, 8, 12, 16, 20, 24)}
SHAPES = [*PROGRAMS, *STEPS]


def checkpoints(graph: atlas.Graph) -> Any:
    return choose_checkpoints(graph, 0.7 * (graph.peak_bytes or 0))


def concurrency(graph: atlas.Graph) -> Any:
    """With the partition by operation, which it needs."""
    return atlas.ConcurrencyAnalyzer().analyze(atlas.GraphPartitioner("op").partition(graph))


ANALYSES: dict[str, Callable[[atlas.Graph], Any]] = {
    "fusion": lambda graph: atlas.GraphPartitioner().partition(graph),
    "concurrency": concurrency,
    "stages": lambda graph: atlas.pipeline_stages(graph, 8),
    "stages by memory": lambda graph: atlas.pipeline_stages(graph, 8, by="memory"),
    "checkpoints": checkpoints,
    "cost": lambda graph: str(atlas.cost(graph)),
    "memory": lambda graph: str(atlas.memory(graph)),
    "compare": lambda graph: atlas.compare(graph, graph),
    "critical path": lambda graph: critical_path(graph, "flops"),
    "partition by module": lambda graph: atlas.GraphPartitioner("module").partition(graph),
    "picture": lambda graph: atlas.draw(graph).svg,
}


def record(shape: str, size: int, path: str) -> None:
    if shape in STEPS:
        step(size, STEPS[shape]).save(path)
        return
    with atlas.recording() as rec:
        PROGRAMS[shape](size)
    assert rec.graph is not None
    rec.graph.save(path)


def one(analysis: str, path: str) -> None:
    """In a process of its own: seconds and mebibytes."""
    graph = atlas.Graph.load(path)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    ANALYSES[analysis](graph)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(time.process_time() - began, grown / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", type=int, default=[10_000, 40_000, 100_000])
    parser.add_argument("--only", nargs="*", choices=list(ANALYSES), default=list(ANALYSES))
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=SHAPES)
    parser.add_argument("--record", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.record:
        shape, size, path = options.record
        record(shape, int(size), path)
    elif options.one:
        one(*options.one)
    else:
        table(options.sizes, options.only, options.shapes)


def child(*arguments: str) -> str:
    return subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True).stdout


def table(sizes: list[int], analyses: list[str], shapes: list[str]) -> None:
    print(f"| analysis | shape | {' | '.join(f'{size:,}' for size in sizes)} | exponent |")
    print("|---" * (len(sizes) + 3) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            for size in sizes:
                child("--record", shape, str(size), f"{folder}/{size}.atlas")
            for analysis in analyses:
                if analysis == "checkpoints" and shape not in STEPS:
                    continue
                figures = [[*map(float, child("--one", analysis, f"{folder}/{size}.atlas").split())] for size in sizes]
                cells = " | ".join(f"{seconds:.1f} s, {grown:.0f} MiB" for seconds, grown in figures)
                exponent = math.log(figures[-1][0] / figures[0][0]) / math.log(sizes[-1] / sizes[0])
                print(f"| {analysis} | {shape} | {cells} | {exponent:.2f} |", flush=True)


if __name__ == "__main__":
    main()
