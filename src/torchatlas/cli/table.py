"""torchatlas table FILE|TARGET: the modules of a saved graph, or of a model run now, with their figures; or as bars."""

from __future__ import annotations

import click

from torchatlas.cli._graph import GraphSource, graph_argument
from torchatlas.cli._options import count_option, print_json, print_styled, verb
from torchatlas.render.module_table import module_bars, module_table


@click.command()
@graph_argument
@click.option(
    "--bars",
    type=click.Choice(["time", "macs", "memory", "parameters"]),
    help="Print the tree with bars of this figure.",
)
@count_option("--depth", "Levels of modules to print; as many as fit by default.")
@click.option("--unfold", is_flag=True, help="Print a row for every module, also for equal ones.")
@verb
def command(source: GraphSource, bars: str | None, depth: int | None, unfold: bool, as_json: bool) -> None:
    """Print the modules of a graph as a table, or as bars.

    With output shape, parameters, multiply-adds, time and memory, as torchinfo does. FILE is a saved graph; TARGET a
    model or function, as for `torchatlas capture`.

    \b
    torchatlas table step.atlas --depth 3
    torchatlas table step.atlas --bars time
    torchatlas table models.gpt:build --inputs int64:2,16 --backward
    """
    graph = source.graph("table", as_json)
    shown = (
        module_table(graph, depth, fold=not unfold)
        if bars is None
        else module_bars(graph, bars, depth, fold=not unfold)
    )
    if as_json:
        print_json({"file": source.text, "table" if bars is None else "bars": shown.as_dict()})
    else:
        print_styled(shown)
