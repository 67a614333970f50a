"""torchatlas partition FILE|TARGET: subgraphs, what fusing saves, and what can run at the same time."""

from __future__ import annotations

from functools import partial

import click

from torchatlas.cli import _target
from torchatlas.cli._graph import GraphSource, graph_argument
from torchatlas.cli._options import count_option, device_option, print_result, progress, stdout_to_stderr, verb
from torchatlas.partition.concurrency import WEIGHTS, WORKERS, ConcurrencyAnalyzer
from torchatlas.partition.partitioner import STRATEGIES, GraphPartitioner
from torchatlas.partition.report import PartitionReport, report_text


@click.command()
@graph_argument
@click.option("--strategy", type=click.Choice(STRATEGIES), default="fusion", show_default=True, help="How to cut.")
@device_option
@count_option("--depth", "Levels of modules of --strategy module.", 2, least=1)
@click.option(
    "--by",
    type=click.Choice(WEIGHTS),
    default="flops",
    show_default=True,
    help="What the critical path is measured in.",
)
@click.option(
    "--workers", type=click.IntRange(min=1), multiple=True, metavar="N", help="Devices to share the work. Repeatable."
)
@click.option(
    "--gradients/--no-gradients",
    default=None,
    help="Run a model with autograd on, or off.  [default: by its mode]",
)
@count_option("--top", "Subgraphs to list.", 10)
@verb
def command(
    source: GraphSource,
    strategy: str,
    device: str | None,
    depth: int,
    by: str,
    workers: tuple[int, ...],
    gradients: bool | None,
    top: int,
    as_json: bool,
) -> None:
    """Cut a graph into subgraphs and print them.

    Prints what they cost, what fusing saves and what can run at the same time.

    A model is traced by torch.fx, or by torch.export where that fails, or else it is run; the first line says which.
    With --backward, --optimizer, --fake, --warmup, --repeat and --by time it is always run.

    \b
    torchatlas partition step.atlas --strategy op --json
    torchatlas partition models.gpt:build --inputs int64:2,16 --device h100-sxm --workers 4
    """
    partitioner = GraphPartitioner(strategy, device, depth=depth, gradients=gradients)
    must_run = by == "time" or set(source.run.options) - {"--inputs"}
    report = None if must_run else _traced(source, partitioner, as_json)
    if report is None:
        graph = source.graph("partition", as_json)
        with progress("partitioning"):
            report = partitioner.partition(graph)
    with progress("looking for what can run at the same time"):
        concurrency = ConcurrencyAnalyzer(by, workers or WORKERS).analyze(report)
    content = {"partition": report.to_dict(), "concurrency": concurrency.to_dict()}
    print_result(content, f"{report_text(report, top=top)}\n\n{concurrency}", as_json)


def _traced(source: GraphSource, partitioner: GraphPartitioner, as_json: bool) -> PartitionReport | None:
    """The partition of a model or program that TARGET names; None for a file, and for what takes arguments."""
    if ":" not in source.text or not source.is_target:
        return None
    from torch import nn

    import torchatlas as atlas
    from torchatlas.execute.recorded_run import record

    target = _target.parse_target(source.text)
    with stdout_to_stderr(as_json), _target.program(target), _target.imported(target) as item:
        is_model = isinstance(item, nn.Module) or (isinstance(item, type) and issubclass(item, nn.Module))
        if not is_model and not _target.takes_nothing(item):
            return None
        if not is_model and not source.run.inputs:
            with atlas.recording() as rec:  # it may be the program itself: it cannot be run twice to find out
                made = item()
            if not isinstance(made[0] if isinstance(made, tuple) and made else made, nn.Module):
                return partitioner.partition(rec.graph)
            item = partial(lambda made: made, made)
        model, args, kwargs = _target.model_and_example(item, target, source.run.inputs)
        with progress(f"partitioning {target}"):
            if not args and not kwargs:
                return partitioner.partition(record(model, (), {}))
            return partitioner.partition(model, *args, **kwargs)
