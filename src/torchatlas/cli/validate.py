"""torchatlas validate NAME ...: are partitions of models right? Checks that can fail, and published figures."""

from __future__ import annotations

import click

from torchatlas.cli import _target
from torchatlas.cli._options import inputs_option, print_result, progress, stdout_to_stderr, verb
from torchatlas.partition.partitioner import STRATEGIES
from torchatlas.partition.validate import FRONT_ENDS, ModelValidation, ValidationReport, validate, validate_model
from torchatlas.partition.validate.models import ONE_OF_EACH_FAMILY, check_names

FAILED = 1


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME|TARGET]...")
@inputs_option
@click.option("--strategy", type=click.Choice(STRATEGIES), multiple=True, help="Check this one only. Repeatable.")
@click.option("--front-end", type=click.Choice(FRONT_ENDS), multiple=True, help="Check this one only. Repeatable.")
@verb
def command(
    names: tuple[str, ...],
    inputs: tuple[str, ...],
    strategy: tuple[str, ...],
    front_end: tuple[str, ...],
    as_json: bool,
) -> None:
    """Partition models in every way and check the result. Exit code 0: all right; 1: a check failed; 2: impossible.

    NAME is a model of torchvision for classification, segmentation or detection, or bert, gpt2, llama, t5 or lstm,
    which are small ones. TARGET is module:callable or path.py:callable: a model, or a function that makes one. Without
    any, one model of each family is validated. Weights are random; nothing is downloaded.

    \b
    torchatlas validate resnet18 mobilenet_v2
    torchatlas validate models.gpt:build --inputs int64:2,16 --json
    """
    targets = [name for name in names if _is_target(name)]
    if inputs and not targets:
        raise click.UsageError(
            "--inputs is for a TARGET, module:callable; models that are named have their own inputs."
        )
    check_names(name for name in names if name not in targets)
    chosen = strategy or STRATEGIES, front_end or FRONT_ENDS
    validations: list[ModelValidation] = []
    with stdout_to_stderr(as_json):
        for name in names or ONE_OF_EACH_FAMILY:
            with progress(f"validating {name}"):
                if name in targets:
                    validations.append(_of_target(name, inputs, *chosen))
                else:
                    validations += validate(
                        name, strategies=chosen[0], front_ends=chosen[1], skip_missing=not names
                    ).models
    report = ValidationReport(tuple(validations))
    print_result(report.to_dict(), report, as_json)
    if not report:
        raise click.exceptions.Exit(FAILED)


def _is_target(name: str) -> bool:
    return ":" in name or name.endswith(".py")


def _of_target(
    text: str, inputs: tuple[str, ...], strategies: tuple[str, ...], front_ends: tuple[str, ...]
) -> ModelValidation:
    with _target.opened(text, as_json=False) as (target, item):
        model, args, kwargs = _target.model_and_example(item, target, inputs)
        return validate_model(model, args, kwargs, name=text, strategies=strategies, front_ends=front_ends)
