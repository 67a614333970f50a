"""Whether a time can be believed: a U-Net captured again and again, once and with warmup=2, repeat=10, in turns.

python benchmarks/bench_times.py [ROUNDS]
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise

import torch
from torch import Tensor, nn

import torchatlas as atlas
from torchatlas.graph.timing import Measured
from torchatlas.units import format_ns

CLOSE = 1.10  # medians this close to each other were promised


class DoubleConv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        parts: list[nn.Module] = []
        for width in (inputs, outputs):
            parts += [nn.Conv2d(width, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        super().__init__(*parts)


class UNet(nn.Module):
    """Three levels down and up again, with skip connections."""

    def __init__(self, width: int = 16, levels: int = 3) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels + 1)]
        self.inward = DoubleConv(3, width)
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in pairwise(widths))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths))
        self.up = nn.ModuleList(DoubleConv(2 * a, a) for a in widths[:-1])
        self.outward = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = [self.inward(x)]
        for block in self.down:
            skipped.append(block(nn.functional.max_pool2d(skipped[-1], 2)))
        x = skipped.pop()
        for grow, block in zip(reversed(self.grow), reversed(self.up), strict=True):
            x = block(torch.cat([skipped.pop(), grow(x)], dim=1))
        return self.outward(x)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, x = UNet(), torch.randn(1, 3, 96, 96)
    once, often = [], []
    for _ in range(rounds):
        once.append(atlas.capture(model, x))
        often.append(atlas.capture(model, x, warmup=2, repeat=10))
    print("| round | one run | slowest op | warmup=2, repeat=10 | slowest op | eager |\n|---|---|---|---|---|---|")
    for number, (one, ten) in enumerate(zip(once, often, strict=True), 1):
        assert ten.timing is not None
        slow = [max(graph.where(kind="op"), key=lambda node: node.time_ns or 0).name for graph in (one, ten)]
        print(f"| {number} | {one.measured()} | {slow[0]} | {ten.measured()} | {slow[1]} | {ten.timing.eager} |")
    eager = [graph.timing.eager.ns for graph in often if graph.timing is not None and graph.timing.eager is not None]
    for name, times in {
        "one run": [graph.time_ns or 0 for graph in once],
        "medians of 10": [graph.time_ns or 0 for graph in often],
        "eager, medians of 10": eager,
    }.items():
        apart, middle = max(times) / min(times), Measured.of(times)
        assert middle is not None
        print(f"{name}: {format_ns(middle.ns)}, the largest is {apart:.2f} times the smallest")
    apart = max(graph.time_ns or 0 for graph in often) / min(graph.time_ns or 1 for graph in often)
    said = "reached" if apart <= CLOSE else "not reached"
    print(f"medians within {CLOSE - 1:.0%} of each other: {said}; load of the machine {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
