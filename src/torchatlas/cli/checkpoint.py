"""torchatlas checkpoint TARGET --limit 2GB: which modules to checkpoint so that a training step fits into memory."""

from __future__ import annotations

import inspect
from typing import Any

import click

from torchatlas.analysis.checkpoint_choice import MEASURES
from torchatlas.cli import _target
from torchatlas.cli._options import (
    device_option,
    inputs_option,
    optimizer_option,
    print_result,
    progress,
    target_argument,
    verb,
)
from torchatlas.errors import InvalidInputError

DIFFERS = 3


@click.command()
@target_argument
@inputs_option
@click.option("--limit", required=True, metavar="BYTES", help="What a step may take: 2GB, 1.5GiB or a number.")
@optimizer_option
@click.option(
    "--by", type=click.Choice(MEASURES), default="flops", show_default=True, help="What to recompute least of."
)
@device_option
@click.option("--exclude", multiple=True, metavar="MODULE", help="Do not run this module twice. Repeatable.")
@click.option("--verify", is_flag=True, help="Run the step with and without checkpoints, and compare the gradients.")
@verb
def command(
    target: str,
    inputs: tuple[str, ...],
    limit: str,
    optimizer: str | None,
    by: str,
    device: str | None,
    exclude: tuple[str, ...],
    verify: bool,
    as_json: bool,
) -> None:
    """Choose modules to checkpoint so that a step fits --limit.

    TARGET is module:callable or path.py:callable: a model, or a function that makes one. The step is captured on fake
    tensors: nothing is allocated. The loss is the sum of the floating outputs. With --verify the step really runs; exit
    code 3: gradients differ, or the peak is off the prediction.

    \b
    torchatlas checkpoint models.gpt:build --inputs int64:8,1024 --limit 8GiB --optimizer AdamW
    """
    with _target.opened(target, as_json) as (parsed, item):
        from torchatlas.checkpoint_plans import checkpoint_plan

        model, args, kwargs = _model(item, parsed, inputs, real=verify)
        options: dict[str, Any] = {"by": by, "device": device, "exclude": exclude}
        options |= {"optimizer": _target.optimizer_named(optimizer), "limit": limit, "kwargs": kwargs}
        with progress(f"planning {parsed}"):
            plan = checkpoint_plan(model, *args, **options)
        check = None
        if verify:
            with progress("running it plain and checkpointed"):
                check = plan.verify(model, *args, kwargs=kwargs)
    content = {"target": str(parsed), "plan": plan.to_dict(), "check": None if check is None else check.to_dict()}
    print_result(content, plan if check is None else f"{plan}\n\n{check}", as_json)
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
