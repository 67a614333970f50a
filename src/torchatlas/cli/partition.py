"""torchatlas partition FILE|TARGET: subgraphs, what fusing saves, and what can run at the same time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from torchatlas.cli import _target
from torchatlas.cli._graph import Given, given
from torchatlas.cli._options import echo, print_json, progress, stdout_to_stderr, verb
from torchatlas.graph.formats import READERS, suffix_of
from torchatlas.partition.concurrency import WEIGHTS, WORKERS, ConcurrencyAnalyzer
from torchatlas.partition.partitioner import STRATEGIES, GraphPartitioner
from torchatlas.partition.report import PartitionReport
from torchatlas.partition.text import report_text


@click.command()
@given
@click.option("--strategy", type=click.Choice(STRATEGIES), default="fusion", show_default=True, help="How to cut.")
@click.option("--device", help='A device profile, e.g. "a100-80gb"; "here" measures this machine.  [default: generic]')
@click.option("--depth", type=click.IntRange(min=1), default=2, show_default=True, help="Of modules: how far down.")
@click.option("--by", type=click.Choice(WEIGHTS), default="flops", show_default=True, help="What a path sums.")
@click.option("--workers", type=click.IntRange(min=1), multiple=True, help="So many; may be repeated.")
@click.option(
    "--gradients/--no-gradients",
    default=None,
    help="Run a model with autograd on, or off.  [default: by its mode]",
)
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, help="Subgraphs to list.")
@verb
def command(
    given: Given,
    strategy: str,
    device: str | None,
    depth: int,
    by: str,
    workers: tuple[int, ...],
    gradients: bool | None,
    top: int,
    as_json: bool,
) -> None:
    """Cut a graph into subgraphs and print them: what they cost, what fusing saves, what can run at the same time.

    A model is traced by torch.fx, else by torch.export, else it is run; the first line says which. It is run in any
    case with --backward, --optimizer, --fake, --warmup, --repeat and --by time.

    \b
    torchatlas partition step.atlas --strategy op --json
    torchatlas partition models.gpt:build --inputs int64:2,16 --device h100-sxm --workers 4
    """
    partitioner = GraphPartitioner(strategy, device, depth=depth, gradients=gradients)
    runs = given.backward or given.optimizer or given.fake or given.warmup or given.repeat > 1 or by == "time"
    report = None if runs else _traced(given, partitioner, as_json)
    if report is None:
        graph = given.graph("partition", as_json)
        with progress("partitioning"):
            report = partitioner.partition(graph)
    with progress("looking for what can run at the same time"):
        concurrency = ConcurrencyAnalyzer(by, workers or WORKERS).analyze(report)
    if as_json:
        found: dict[str, Any] = {"partition": report.to_dict(), "concurrency": concurrency.to_dict()}
        print_json(found)
    else:
        echo(f"{report_text(report, top=top)}\n\n{concurrency}")


def _traced(given: Given, partitioner: GraphPartitioner, as_json: bool) -> PartitionReport | None:
    """The partition of a model that is at hand, or of a program; None for a file, and for what takes arguments."""
    from torch import nn

    import torchatlas as atlas
    from torchatlas.execute.recorded_run import record

    if ":" not in given.text or suffix_of(Path(given.text)) in READERS:
        return None
    target = _target.parse_target(given.text)
    with stdout_to_stderr(as_json), _target.program(target), _target.found(target) as item:
        is_model = isinstance(item, nn.Module) or (isinstance(item, type) and issubclass(item, nn.Module))
        if not is_model and not _target.takes_nothing(item):
            return None
        if not is_model and not given.inputs:
            with atlas.recording() as rec:  # it may be the program itself: it cannot be run twice to find out
                made = item()
            if not isinstance(made[0] if isinstance(made, tuple) and made else made, nn.Module):
                return partitioner.partition(rec.graph)
            item = partial(_same, made)
        model, args, kwargs = _target.model_and_example(item, target, given.inputs)
        with progress(f"partitioning {target}"):
            if not args and not kwargs:
                return partitioner.partition(record(model, (), {}))
            return partitioner.partition(model, *args, **kwargs)


def _same(made: Any) -> Any:
    return made
