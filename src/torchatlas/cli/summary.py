"""torchatlas summary FILE: the figures of a saved graph, without torch."""

from __future__ import annotations

from pathlib import Path

import click

from torchatlas.cli._options import count_option, file_argument, progress, show, verb
from torchatlas.graph import Graph


@click.command()
@file_argument
@count_option("--depth", "Levels of modules to print; as many as fit by default.")
@count_option("--top", "The slowest operations to list.", 10)
@verb
def command(file: Path, depth: int | None, top: int, as_json: bool) -> None:
    """Print what is in a saved graph.

    Its phases, modules and slowest operations.
    """
    with progress(f"reading {file.name}"):
        graph = Graph.load(file)
    show(graph, as_json=as_json, depth=depth, top=top, file=str(file))
