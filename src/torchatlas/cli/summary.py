"""torchatlas summary FILE|TARGET: the figures of a graph; of a file without torch."""

from __future__ import annotations

import click

from torchatlas.cli._graph import GraphSource, graph_argument
from torchatlas.cli._options import count_option, show, verb


@click.command()
@graph_argument
@count_option("--depth", "Levels of modules to print; as many as fit by default.")
@count_option("--top", "The slowest operations to list.", 10)
@verb
def command(source: GraphSource, depth: int | None, top: int, as_json: bool) -> None:
    """Print what is in a graph.

    Its phases, modules and slowest operations.

    \b
    torchatlas summary step.atlas
    torchatlas summary models.gpt:build --inputs int64:2,16 --backward
    """
    show(source.graph("summary", as_json), as_json=as_json, depth=depth, top=top, file=source.text)
