"""torchatlas cost FILE: multiply-adds, other arithmetic, bytes and the best time of a saved graph, without torch."""

from __future__ import annotations

from pathlib import Path

import click

from torchatlas.analysis.cost import cost, cost_text
from torchatlas.cli._options import count_option, device_option, file_argument, print_result, progress, verb
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph


@click.command()
@file_argument
@device_option
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="The value of a symbolic size. Repeatable.")
@count_option("--depth", "Levels of modules to print.", 2)
@count_option("--top", "Operations to list.", 10)
@verb
def command(file: Path, device: str | None, sizes: tuple[str, ...], depth: int, top: int, as_json: bool) -> None:
    """Print what a saved graph costs: FLOPs, bytes, best time.

    In all, by phase, by module and by kind of operation.
    """
    with progress(f"costing {file.name}"):
        report = cost(Graph.load(file), device, sizes=dict(_size(text) for text in sizes))
    print_result({"file": str(file), "cost": report.to_dict()}, cost_text(report, depth=depth, top=top), as_json)


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name or not number.isdecimal():
        raise InvalidInputError(f"--size takes NAME=N, as in s0=256; got {text!r}.")
    return name, int(number)
