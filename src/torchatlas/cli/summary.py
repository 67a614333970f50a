"""torchatlas summary FILE: the figures of a saved graph, or of a recorded run, without torch."""

from __future__ import annotations

from pathlib import Path

import click

from torchatlas.cli._options import count_option, file_argument, print_result, progress, show, verb
from torchatlas.graph import Graph
from torchatlas.runs.folder import is_run
from torchatlas.runs.run import Run


@click.command()
@file_argument
@count_option("--depth", "Levels of modules to print; as many as fit by default.")
@count_option("--top", "The slowest operations to list.", 10)
@verb
def command(file: Path, depth: int | None, top: int, as_json: bool) -> None:
    """Print what is in a saved graph, or in the folder of a recorded run.

    Of a graph: its phases, modules and slowest operations. Of a run: its structures and the steps that stand out.
    """
    if is_run(file):
        run = Run.load(file)
        print_result(run.to_dict(), run, as_json)
        return
    with progress(f"reading {file.name}"):
        graph = Graph.load(file)
    show(graph, as_json=as_json, depth=depth, top=top, file=str(file))
