"""torchatlas partition FILE|TARGET: subgraphs, what fusing saves, and what can run at the same time."""

from __future__ import annotations

from typing import Any

import click

from torchatlas.cli._graph import Given, given
from torchatlas.cli._options import print_json, progress, verb
from torchatlas.partition.concurrency import WEIGHTS, WORKERS, ConcurrencyAnalyzer
from torchatlas.partition.partitioner import STRATEGIES, GraphPartitioner
from torchatlas.partition.text import report_text


@click.command()
@given
@click.option("--strategy", type=click.Choice(STRATEGIES), default="fusion", show_default=True, help="How to cut.")
@click.option("--device", help='A device profile, e.g. "a100-80gb"; "here" measures this machine.  [default: generic]')
@click.option("--depth", type=click.IntRange(min=1), default=2, show_default=True, help="Of modules: how far down.")
@click.option("--by", type=click.Choice(WEIGHTS), default="flops", show_default=True, help="What a path sums.")
@click.option("--workers", type=click.IntRange(min=1), multiple=True, help="So many; may be repeated.")
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, help="Subgraphs to list.")
@verb
def command(
    given: Given,
    strategy: str,
    device: str | None,
    depth: int,
    by: str,
    workers: tuple[int, ...],
    top: int,
    as_json: bool,
) -> None:
    """Cut a graph into subgraphs and print them: what they cost, what fusing saves, what can run at the same time.

    \b
    torchatlas partition step.atlas --strategy op --json
    torchatlas partition models.gpt:build --inputs int64:2,16 --device h100-sxm --workers 4
    """
    graph = given.graph("partition", as_json)
    with progress("partitioning"):
        report = GraphPartitioner(strategy, device, depth=depth).partition(graph)
        concurrency = ConcurrencyAnalyzer(by, workers or WORKERS).analyze(report)
    if as_json:
        found: dict[str, Any] = {"partition": report.to_dict(), "concurrency": concurrency.to_dict()}
        print_json(found)
    else:
        click.echo(f"{report_text(report, top=top)}\n\n{concurrency}")
