"""torchatlas pipeline FILE|TARGET: cut a model into stages, and run them in processes of this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from torchatlas.cli import _target
from torchatlas.cli._options import echo, print_json, progress, stdout_to_stderr, verb
from torchatlas.errors import InvalidInputError
from torchatlas.graph.formats import READERS, suffix_of
from torchatlas.partition.stages import MEASURES, pipeline_stages

DIFFERS = 3
SCHEDULES = ("gpipe", "1f1b", "interleaved")


@click.command()
@click.argument("file", metavar="FILE|TARGET")
@click.option("--inputs", multiple=True, metavar="SHAPE", help="Of a TARGET, a whole batch: [NAME=][DTYPE:]SHAPE.")
@click.option("--stages", type=click.IntRange(min=1), default=2, show_default=True, help="How many to cut it into.")
@click.option("--by", type=click.Choice(MEASURES), default="time", show_default=True, help="What to balance.")
@click.option("--device", help='A device profile, e.g. "a100-80gb".  [default: generic]')
@click.option("--bandwidth", type=float, metavar="BYTES_PER_S", help="Between stages.  [default: the device's link]")
@click.option("--memory-limit", metavar="BYTES", help="That no stage may exceed, e.g. 16GiB.")
@click.option("--run", "runs", is_flag=True, help="Train one batch with the stages, and compare with one process.")
@click.option("--schedule", type=click.Choice(SCHEDULES), default="1f1b", show_default=True, help="Of --run.")
@click.option("--microbatches", type=click.IntRange(min=1), default=4, show_default=True, help="Of --run.")
@click.option("--ranks", type=click.IntRange(min=1), help="Of --run: processes.  [default: one per stage]")
@click.option("--backend", type=click.Choice(["gloo", "nccl"]), default="gloo", show_default=True, help="Of --run.")
@click.option("--timeout", type=float, default=300.0, show_default=True, metavar="S", help="Of --run.")
@click.option("--torchrun", is_flag=True, help="Of --run: let torchrun start the processes.")
@click.option("--train", is_flag=True, help="Of --run: in training mode. Random numbers cannot be compared.")
@verb
def command(
    file: str,
    inputs: tuple[str, ...],
    stages: int,
    by: str,
    device: str | None,
    bandwidth: float | None,
    memory_limit: str | None,
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
    """Cut a model into stages that take as long as each other, and print them.

    With --run they train one batch on torch.distributed.pipelining, each rank a process of this machine; outputs, loss,
    gradients and buffers are compared with those of one process over the same microbatches. Exit code 3: they differ.

    \b
    torchatlas pipeline step.atlas --stages 8 --device h100-sxm
    torchatlas pipeline models.gpt:build --inputs int64:8,16 --stages 2 --run
    torchatlas pipeline models.gpt:build --inputs int64:8,16 --stages 4 --ranks 2 --schedule interleaved --run
    """
    options: dict[str, Any] = {"by": by, "device": device, "bandwidth": bandwidth, "memory_limit": memory_limit}
    if suffix_of(Path(file)) in READERS:
        if runs or inputs:
            raise click.UsageError(f"--{'run' if runs else 'inputs'} is for models, and {file} is a saved graph.")
        _show(pipeline_stages(file, stages, **options), as_json)
        return
    target = _target.parse_target(file)
    if target.is_script:
        raise InvalidInputError(f"{file} is a script; name the model in it: {file}:build.")
    import torchatlas as atlas

    with stdout_to_stderr(as_json), _target.program(target), _target.found(target) as item:
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
        _show(plan, as_json)
        return
    _show(run, as_json)
    if not as_json:
        echo(f"\n{run.plan}")
    sys.exit(0 if run.agrees else DIFFERS)


def _show(found: Any, as_json: bool) -> None:
    if as_json:
        print_json(found.to_dict())
    else:
        echo(str(found))
