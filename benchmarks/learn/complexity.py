"""Measure how the cost of autograd grows with the graph: python benchmarks/learn/complexity.py [--write]

Chains of n small ops, in torch's own engine. Prints the table of docs/learn/summary.md, section 11; --write puts it
there and draws docs/learn/pictures/complexity.svg and memory.svg. It takes a few minutes. The figures are those of one
machine.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from curves import Curve, draw

import torchatlas as atlas
from torchatlas.units import format_bytes, format_ns

DOCS = Path(__file__).parents[2] / "docs" / "learn"
BEGIN, END = "<!-- complexity: begin -->", "<!-- complexity: end -->"
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
WIDE = 8  # edges of each node of the graph with many edges
ROUNDS = 4


def chain(n: int, numbers: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """A leaf, and the last of n ops in a row on it. Each leaves a node with one edge and one saved tensor."""
    x = torch.ones(numbers, requires_grad=True)
    y = x
    for _ in range(n):
        y = y.sin()
    return x, y


def many_edges(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with n nodes that have 8 edges each: half of them join 8 tensors, the others take one out again."""
    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(n // 2):
        y = torch.stack([y] * (2 * WIDE - 1))[0]
    return x, y


def timed(run: Callable[[], object]) -> int:
    """The processor time of this thread, which is the one that backward runs in: others may use the machine as well."""
    start = time.thread_time_ns()
    run()
    return time.thread_time_ns() - start


def repeated(run: Callable[[], object]) -> int:
    """The least of three: the first call after a graph was built also tidies the memory that building has freed."""
    return min(timed(run) for _ in range(3))


def construction(n: int) -> int:
    return timed(lambda: chain(n))


def backward(n: int) -> int:
    _, y = chain(n)
    return repeated(lambda: y.backward(retain_graph=True))


def first_phase(n: int, build: Callable[[int], tuple[torch.Tensor, torch.Tensor]] = chain) -> int:
    """The gradient of a factor behind which nothing lies: two nodes run, but all dependencies are counted first."""
    _, y = build(n)
    factor = torch.ones(1, requires_grad=True)
    loss = y * factor
    return repeated(lambda: torch.autograd.grad(loss, factor, retain_graph=True))


def pruned(n: int) -> int:
    """The gradient of the last tensor of the chain: its topological number tells the engine to look no further."""
    _, y = chain(n)
    loss = y * 2
    return repeated(lambda: torch.autograd.grad(loss, y, retain_graph=True))


def saved_bytes(n: int) -> int:
    return atlas.lifecycle(chain(n, numbers=256)[1]).held_bytes


def resident_bytes(n: int) -> int:
    """What the process grows by while the graph of n nodes is there: measured in a process of its own."""
    code = (
        "import complexity, sys\n"
        "rss = lambda: int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "complexity.chain(100)\n"
        "before = rss()\n"
        "graph = complexity.chain(int(sys.argv[1]))\n"
        "print(rss() - before)\n"
    )
    command = [sys.executable, "-c", code, str(n)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent).stdout)


def megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:,.3g}"


def measured(name: str, measure: Callable[[int], int], sizes: tuple[int, ...] = SIZES, rounds: int = ROUNDS) -> Curve:
    """The least of several rounds for each size, round by round: what a busy machine adds is left out."""
    measure(sizes[0])  # warm up
    every = [[measure(n) for n in sizes] for _ in range(rounds)]
    return Curve(
        name, tuple((n, float(min(values))) for n, values in zip(sizes, zip(*every, strict=True), strict=True))
    )


def times() -> list[Curve]:
    return [
        measured("construction", construction),
        measured("dependencies, 1 edge per node", first_phase),
        measured(f"dependencies, {WIDE} edges per node", lambda n: first_phase(n, many_edges)),
        measured("dependencies, pruned", pruned),
        measured("backward", backward),
    ]


def memories() -> list[Curve]:
    return [
        measured("saved tensors of 1 KiB each", saved_bytes, SIZES[:4], rounds=1),
        measured("process, tensors of 4 B", resident_bytes, SIZES[1:], rounds=3),
    ]


def table(time_curves: list[Curve], memory_curves: list[Curve]) -> str:
    building, narrow, wide, skipped, running = time_curves
    saved, process = memory_curves
    rows = [
        ("construction, n ops", "O(n)", building, format_ns),
        ("dependencies, n nodes and e = n edges", "O(n + e)", narrow, format_ns),
        (f"dependencies, e = {WIDE} n", "O(n + e)", wide, format_ns),
        ("dependencies, if only the last tensor is asked for", "O(1) here: pruned by topological_nr", skipped, None),
        ("backward, n nodes", "O(n)", running, format_ns),
        ("memory of n nodes", "O(n)", process, format_bytes),
        ("saved tensors, 1 KiB by each node", "O(n) of what they weigh", saved, format_bytes),
    ]
    version = torch.__version__.split("+")[0]
    machine = f"one machine ({platform.machine()}, one thread)"
    lines = [
        f"Measured with torch {version} on {machine}, n from {SIZES[0]:,} to {SIZES[-1]:,}.",
        "",
        "| what | grows as | fitted exponent of n | for each node, smallest n | largest n |",
        "|---|---|---|---|---|",
    ]
    for what, grows, curve, say in rows:
        ends = curve.points[0], curve.points[-1]
        each = [f"{format_ns(value)} in all" if say is None else say(value / n) for n, value in ends]
        if (ends[0][0], ends[1][0]) != (SIZES[0], SIZES[-1]):
            what += f" (n from {ends[0][0]:,} to {ends[1][0]:,})"
        lines.append(f"| {what} | {grows} | {curve.exponent:.2f} | {' | '.join(each)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put table and plots into docs/learn")
    write = parser.parse_args().write
    torch.set_num_threads(1)
    time_curves, memory_curves = times(), memories()
    text = table(time_curves, memory_curves)
    print(text)
    if not write:
        return
    note = f"torch {torch.__version__.split('+')[0]}, one machine, least of several rounds; the slope is the exponent"
    below = "n, nodes of the graph"
    drawn = {
        "complexity": (time_curves, "Time against the size of the graph", "processor time", "time", format_ns),
        "memory": (memory_curves, "Memory against the size of the graph", "while it lives", "megabytes", megabytes),
    }
    for name, (curves, title, subtitle, beside, say) in drawn.items():
        svg = draw(curves, title, subtitle, (below, beside), say, note)
        (DOCS / "pictures" / f"{name}.svg").write_text(svg)
    page = DOCS / "summary.md"
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
