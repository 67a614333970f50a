"""torchatlas memory FILE: the peak of a saved graph and what it is made of, without torch."""

from __future__ import annotations

from pathlib import Path

import click

from torchatlas.analysis.memory import memory
from torchatlas.cli._options import count_option, file_argument, print_result, progress, verb
from torchatlas.graph import Graph


@click.command()
@file_argument
@count_option("--top", "Tensors to list.", 10)
@verb
def command(file: Path, top: int, as_json: bool) -> None:
    """Print what fills memory in a saved graph.

    The peak, what it is made of, and the tensors that are held longest.
    """
    with progress(f"reading {file.name}"):
        report = memory(Graph.load(file), top=top)
    print_result({"file": str(file), "memory": report.to_dict()}, report, as_json)
