"""torchatlas summary FILE: the figures of a saved graph, without torch."""

from __future__ import annotations

from pathlib import Path

import click

from torchatlas.cli._options import depth_option, file_argument, progress, show, top_option, verb
from torchatlas.graph import Graph


@click.command()
@file_argument
@depth_option()
@top_option("The slowest operations")
@verb
def command(file: Path, depth: int | None, top: int, as_json: bool) -> None:
    """Print what is in a saved graph.

    Its phases, modules and slowest operations.
    """
    with progress(f"reading {file.name}"):
        graph = Graph.load(file)
    show(graph, as_json=as_json, depth=depth, top=top, file=str(file))
