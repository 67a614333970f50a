"""torchatlas checkpoint TARGET --limit 2GB: which modules to checkpoint so that a training step fits into memory."""

from __future__ import annotations

import inspect
import re
from typing import Any

import click

from torchatlas.analysis.checkpoint_choice import MEASURES
from torchatlas.cli import _target
from torchatlas.cli._options import echo, print_json, progress, stdout_to_stderr, verb
from torchatlas.errors import InvalidInputError

DIFFERS = 3
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def _bytes(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """2GB, 1.5GiB, 800MB or a plain number of bytes."""
    match = _SIZE.fullmatch(value.strip())
    if match is None or not (size := float(match[1])):
        raise click.BadParameter(f"{value!r} is no size such as 2GB (10**9 bytes each), 1.5GiB (2**30) or 800000000.")
    return int(size * (1024 if match[3] else 1000) ** " kmgt".index(match[2].lower() or " "))


@click.command()
@click.argument("target")
@click.option("--inputs", multiple=True, metavar="SHAPE", help="An example input: [NAME=][DTYPE:]SHAPE. Repeatable.")
@click.option(
    "--limit", callback=_bytes, required=True, metavar="SIZE", help="That a step may take: 2GB, 1.5GiB or bytes."
)
@click.option("--optimizer", metavar="NAME", help="Of torch.optim: its state and its step are in the peak too.")
@click.option(
    "--by", type=click.Choice(MEASURES), default="flops", show_default=True, help="What to do least of again."
)
@click.option("--device", help='A device profile for times, e.g. "a100-80gb".  [default: generic]')
@click.option("--exclude", multiple=True, metavar="MODULE", help="A module not to run twice. Repeatable.")
@click.option("--verify", is_flag=True, help="Really run it plain and checkpointed, and compare the gradients.")
@verb
def command(
    target: str,
    inputs: tuple[str, ...],
    limit: int,
    optimizer: str | None,
    by: str,
    device: str | None,
    exclude: tuple[str, ...],
    verify: bool,
    as_json: bool,
) -> None:
    """Print which modules to checkpoint so that a training step of TARGET fits into --limit.

    TARGET is module:callable or path.py:callable: a model, or what makes one. The step is captured on fake tensors:
    nothing is allocated. The loss is the sum of the outputs. With --verify the step really runs; exit code 3: gradients
    differ, or the peak is off the prediction.

    \b
    torchatlas checkpoint models.gpt:build --inputs int64:8,1024 --limit 8GiB --optimizer AdamW
    """
    parsed = _target.parse_target(target)
    if parsed.is_script:
        raise InvalidInputError(f"{target} is a script; name the model in it: {target}:build.")
    with stdout_to_stderr(as_json), _target.program(parsed), _target.found(parsed) as item:
        from torchatlas.checkpointing import checkpoint_plan

        model, args, kwargs = _model(item, parsed, inputs, real=verify)
        options: dict[str, Any] = {"by": by, "device": device, "exclude": exclude}
        options |= {"optimizer": _target.optimizer_named(optimizer), "limit": limit, "kwargs": kwargs}
        with progress(f"planning {parsed}"):
            plan = checkpoint_plan(model, *args, **options)
        check = None
        if verify:
            with progress("running it plain and checkpointed"):
                check = plan.verify(model, *args, kwargs=kwargs)
    if as_json:
        print_json({"target": str(parsed), "plan": plan.to_dict(), "check": None if check is None else check.to_dict()})
    else:
        echo(str(plan) if check is None else f"{plan}\n\n{check}")
    if check is not None and not check.passed:
        click.get_current_context().exit(DIFFERS)


def _model(
    item: Any, target: _target.Target, inputs: tuple[str, ...], *, real: bool
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The model and its example; with --inputs a function that makes one is called on fake tensors only."""
    from torch import nn

    if real or not inputs or isinstance(item, nn.Module):
        return _target.model_and_example(item, target, inputs)
    if not (isinstance(item, type) and issubclass(item, nn.Module)) and inspect.signature(item).parameters:
        raise InvalidInputError(
            f"{target} takes {inspect.signature(item)}; name a model, or what makes one of nothing."
        )
    args, kwargs = _target.example_inputs(inputs, fake=True)
    return item, tuple(args), kwargs
