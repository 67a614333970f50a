"""What cutting costs: a partition against tracing, recordings of growing size, and the search for pipeline stages.

    python benchmarks/bench_partition.py [--only resnet50 recordings stages] [--steps 100 200 400 800]

Partition and tracing run in turn, each round once; a ratio is taken within its round. Printed are medians and the
interval that holds the middle half. Time is CPU time of one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from programs import load_torchvision
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp

import torchatlas as atlas

PARTS = ("resnet50", "recordings", "stages")


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    made = work()
    return time.process_time() - began, made


def resnet50(rounds: int = 11) -> None:
    """The goal is at most twice the time of tracing it: symbolic_trace and ShapeProp, as document 004 does it."""
    model, x = load_torchvision().models.resnet50(weights=None).eval(), torch.randn(1, 3, 224, 224)
    rows = []
    for _ in range(rounds + 1):
        traced, module = seconds(lambda: fx.symbolic_trace(model))
        with torch.no_grad():
            shaped, _ = seconds(lambda module=module: ShapeProp(module).propagate(x))
        cut, _ = seconds(lambda module=module: atlas.GraphPartitioner().partition(module))
        exported, _ = seconds(lambda: torch.export.export(model, (x,)))
        rows.append((cut, cut / (traced + shaped), cut / exported))
    cuts, ratios, to_export = zip(*rows[1:], strict=True)  # the first warms up
    print(f"\nresnet50, {rounds} rounds: partition {statistics.median(cuts):.2f} s")
    for name, found in (("symbolic_trace and ShapeProp", ratios), ("torch.export", to_export)):
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"  / {name:28} {middle:.2f} ({low:.2f} to {high:.2f}); goal 2")


def recordings(steps: list[int]) -> None:
    """A training step of an LSTM cell in a loop."""
    print("\n| steps | nodes | partition s | microseconds a node |\n|---|---|---|---|")
    for count in steps:
        model = nn.LSTMCell(8, 16)
        with atlas.recording(model) as rec:
            hidden, state = torch.zeros(2, 16), torch.zeros(2, 16)
            for moment in torch.randn(count, 2, 8):
                hidden, state = model(moment, (hidden, state))
            hidden.sum().backward()
        taken, _ = seconds(lambda graph=rec.graph: atlas.GraphPartitioner().partition(graph))
        print(f"| {count:,} | {len(rec.graph):,} | {taken:.2f} | {taken / len(rec.graph) * 1e6:.0f} |", flush=True)


def stages() -> None:
    """The best 15 cuts of a chain of 2,000 operations; the goal is 1 s."""
    model = nn.Sequential(*(layer for _ in range(500) for layer in (nn.Linear(8, 8), nn.ReLU())))
    graph = atlas.capture(model.eval(), torch.randn(4, 8))
    taken, plan = seconds(lambda: atlas.pipeline_stages(graph, 16, by="flops"))
    print(f"\nstages: {len(graph):,} nodes into {len(plan.stages)}: {taken:.2f} s; goal 1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--steps", nargs="*", type=int, default=[100, 200, 400, 800, 1_600])
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if "resnet50" in options.only:
        resnet50()
    if "recordings" in options.only:
        recordings(options.steps)
    if "stages" in options.only:
        stages()


if __name__ == "__main__":
    main()
