"""torchatlas cost FILE|TARGET: multiply-adds, other arithmetic, bytes and the best time; of a file without torch."""

from __future__ import annotations

import click

from torchatlas.analysis.cost import cost, cost_text
from torchatlas.cli._graph import GraphSource, graph_argument
from torchatlas.cli._options import count_option, device_option, print_result, progress, verb
from torchatlas.errors import InvalidInputError


@click.command()
@graph_argument
@device_option
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="The value of a symbolic size. Repeatable.")
@count_option("--depth", "Levels of modules to print.", 2)
@count_option("--top", "Operations to list.", 10)
@verb
def command(
    source: GraphSource, device: str | None, sizes: tuple[str, ...], depth: int, top: int, as_json: bool
) -> None:
    """Print what a graph costs: FLOPs, bytes, best time.

    In all, by phase, by module and by kind of operation.

    \b
    torchatlas cost step.atlas --device a100-80gb
    torchatlas cost models.gpt:build --inputs int64:2,16 --backward
    """
    size_values = dict(_size(text) for text in sizes)
    graph = source.graph("cost", as_json)
    with progress(f"costing {source.text}"):
        report = cost(graph, device, sizes=size_values)
    print_result({"file": source.text, "cost": report.to_dict()}, cost_text(report, depth=depth, top=top), as_json)


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name or not number.isdecimal():
        raise InvalidInputError(f"--size takes NAME=N, as in s0=256; got {text!r}.")
    return name, int(number)
