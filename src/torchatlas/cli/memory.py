"""torchatlas memory FILE: the peak of a saved graph and what it is made of, without torch."""

from __future__ import annotations

from pathlib import Path

import click

from torchatlas.analysis.memory import memory
from torchatlas.cli._options import echo, print_json, progress, verb
from torchatlas.graph import Graph


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, help="Tensors to list.")
@verb
def command(file: Path, top: int, as_json: bool) -> None:
    """Print what fills memory in a saved graph: the peak, what it is made of, and what is held longest."""
    with progress(f"reading {file.name}"):
        report = memory(Graph.load(file), top=top)
    if as_json:
        print_json({"file": str(file), "memory": report.to_dict()})
    else:
        echo(str(report))
