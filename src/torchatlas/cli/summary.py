"""torchatlas summary FILE|TARGET|RUN: the figures of a graph, or of a recorded run; of what was saved without torch."""

from __future__ import annotations

from pathlib import Path

import click

from torchatlas.cli._graph import GraphSource, graph_argument
from torchatlas.cli._options import count_option, print_result, show, verb
from torchatlas.runs.journal import is_run
from torchatlas.runs.run import Run


@click.command()
@graph_argument
@count_option("--depth", "Levels of modules to print; as many as fit by default.")
@count_option("--top", "The slowest operations to list.", 10)
@verb
def command(source: GraphSource, depth: int | None, top: int, as_json: bool) -> None:
    """Print what is in a graph, or in a recorded run.

    Of a graph: its phases, modules and slowest operations. Of a run, which is a folder: its structures and the steps
    that stand out.

    \b
    torchatlas summary step.atlas
    torchatlas summary models.gpt:build --inputs int64:2,16 --backward
    torchatlas summary runs/first
    """
    if not source.is_target and is_run(Path(source.text)):
        run = Run.load(Path(source.text))
        print_result(run.to_dict(), run, as_json)
        return
    show(source.graph("summary", as_json), as_json=as_json, depth=depth, top=top, file=source.text)
