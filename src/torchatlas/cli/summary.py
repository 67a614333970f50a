"""torchatlas summary FILE: the figures of a saved graph, without torch."""

from __future__ import annotations

from pathlib import Path

import click

from torchatlas.cli._options import progress, show, verb
from torchatlas.graph import Graph


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--depth", type=click.IntRange(min=0), help="Levels of modules to show; as many as fit by default.")
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, help="Slow operations to show.")
@verb
def command(file: Path, depth: int | None, top: int, as_json: bool) -> None:
    """Print what is in a saved graph: phases, modules, the slowest operations."""
    with progress(f"reading {file.name}"):
        graph = Graph.load(file)
    show(graph, as_json=as_json, depth=depth, top=top, file=str(file))
