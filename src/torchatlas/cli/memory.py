"""torchatlas memory FILE|TARGET: the peak of a graph and what it is made of; of a file without torch."""

from __future__ import annotations

import click

from torchatlas.analysis.memory import memory
from torchatlas.cli._graph import GraphSource, graph_argument
from torchatlas.cli._options import count_option, print_result, progress, verb


@click.command()
@graph_argument
@count_option("--top", "Tensors to list.", 10)
@verb
def command(source: GraphSource, top: int, as_json: bool) -> None:
    """Print what fills memory in a graph.

    The peak, what it is made of, and the tensors that are held longest. With --fake a model of any size is followed
    without allocating anything.

    \b
    torchatlas memory step.atlas
    torchatlas memory models.gpt:build --inputs int64:8,1024 --optimizer AdamW --fake
    """
    graph = source.graph("memory", as_json)
    with progress(f"reading the memory of {source.text}"):
        report = memory(graph, top=top)
    print_result({"file": source.text, "memory": report.to_dict()}, report, as_json)
