"""torchatlas cost FILE: multiply-adds, other arithmetic, bytes and the best time of a saved graph, without torch."""

from __future__ import annotations

from pathlib import Path

import click

from torchatlas.analysis.cost import cost, cost_text
from torchatlas.cli._options import echo, print_json, progress, verb
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--device", help='A device profile, e.g. "a100-80gb"; "here" measures this machine.  [default: generic]')
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="What a symbolic size is; may be repeated.")
@click.option("--depth", type=click.IntRange(min=0), default=2, show_default=True, help="Levels of modules to show.")
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, help="Operations to show.")
@verb
def command(file: Path, device: str | None, sizes: tuple[str, ...], depth: int, top: int, as_json: bool) -> None:
    """Print what a saved graph costs: in all, by phase, by module, by kind of operation."""
    with progress(f"costing {file.name}"):
        report = cost(Graph.load(file), device, sizes=dict(_size(text) for text in sizes))
    if as_json:
        print_json({"file": str(file), "cost": report.to_dict()})
    else:
        echo(cost_text(report, depth=depth, top=top))


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name or not number.isdecimal():
        raise InvalidInputError(f"--size takes NAME=N, as in s0=256; got {text!r}.")
    return name, int(number)
