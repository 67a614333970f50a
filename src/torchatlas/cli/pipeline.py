"""torchatlas pipeline FILE|TARGET: cut a model into stages, and run them in processes of this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from torchatlas.cli import _target
from torchatlas.cli._options import (
    complete_files,
    count_option,
    device_option,
    inputs_option,
    old_option,
    print_result,
    progress,
    verb,
)
from torchatlas.graph.formats import READERS, suffix_of
from torchatlas.partition.stages import MEASURES, pipeline_stages

DIFFERS = 3
SCHEDULES = ("gpipe", "1f1b", "interleaved")


@click.command()
@click.argument("file", metavar="FILE|TARGET", shell_complete=complete_files)
@inputs_option
@count_option("--stages", "How many stages.", 2, least=1)
@click.option("--by", type=click.Choice(MEASURES), default="time", show_default=True, help="What to balance.")
@device_option
@click.option(
    "--bandwidth", metavar="BYTES", help="Bytes a second between stages: 25GB/s.  [default: the device's link]"
)
@click.option("--limit", metavar="BYTES", help="What a stage may take at most: 16GiB, 24GB or a number.")
@old_option("--memory-limit", "--limit")
@click.option("--run", "runs", is_flag=True, help="Train one batch with the stages, and compare with one process.")
@click.option(
    "--schedule",
    type=click.Choice(SCHEDULES),
    default="1f1b",
    show_default=True,
    help="With --run: the order in which stages work.",
)
@count_option("--microbatches", "With --run: parts of the batch.", 4, least=1)
@count_option("--ranks", "With --run: processes.  [default: one per stage]", least=1)
@click.option(
    "--backend",
    type=click.Choice(["gloo", "nccl"]),
    default="gloo",
    show_default=True,
    help="With --run: of torch.distributed.",
)
@click.option(
    "--timeout", type=float, default=300.0, show_default=True, metavar="S", help="With --run: when to give up."
)
@click.option("--torchrun", is_flag=True, help="With --run: let torchrun start the processes.")
@click.option("--train", is_flag=True, help="With --run: in training mode; dropout is refused.")
@verb
def command(
    file: str,
    inputs: tuple[str, ...],
    stages: int,
    by: str,
    device: str | None,
    bandwidth: str | None,
    limit: str | None,
    runs: bool,
    schedule: str,
    microbatches: int,
    ranks: int | None,
    backend: str,
    timeout: float,
    torchrun: bool,
    train: bool,
    as_json: bool,
) -> None:
    """Cut a model into pipeline stages, and run them.

    The slowest stage is made as quick as it can be. With --run the stages train one batch on
    torch.distributed.pipelining, each rank a process of this machine; outputs, loss, gradients and buffers are compared
    with those of one process over the same microbatches. Exit code 3: they differ.

    \b
    torchatlas pipeline step.atlas --stages 8 --device h100-sxm
    torchatlas pipeline models.gpt:build --inputs int64:8,16 --stages 2 --run
    torchatlas pipeline models.gpt:build --inputs int64:8,16 --stages 4 --ranks 2 --schedule interleaved --run
    """
    options: dict[str, Any] = {"by": by, "device": device, "bandwidth": bandwidth, "limit": limit}
    if suffix_of(Path(file)) in READERS:
        if runs or inputs:
            raise click.UsageError(f"--{'run' if runs else 'inputs'} is for models, and {file} is a saved graph.")
        plan = pipeline_stages(file, stages, **options)
        print_result(plan.to_dict(), plan, as_json)
        return
    import torchatlas as atlas

    with _target.opened(file, as_json) as (target, item):
        model, args, kwargs = _target.model_and_example(item, target, inputs)
        model.train(train)
        if not runs:
            with progress(f"planning {target}"):
                plan = pipeline_stages(atlas.trace(model, *args, **kwargs), stages, **options)
        else:
            with progress(f"running {target}"):
                run = atlas.run_pipeline(
                    model,
                    *args,
                    stages=stages,
                    schedule=schedule,
                    microbatches=microbatches,
                    ranks=ranks,
                    backend=backend,
                    timeout=timeout,
                    torchrun=torchrun,
                    kwargs=kwargs,
                    **options,
                )
    if not runs:
        print_result(plan.to_dict(), plan, as_json)
        return
    print_result(run.to_dict(), f"{run}\n\n{run.plan}", as_json)
    sys.exit(0 if run.agrees else DIFFERS)
