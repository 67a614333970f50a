"""A partition and a model's results for some inputs -> whether its pieces together compute the same, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchatlas.errors import InputMismatchError, NotAvailableError
from torchatlas.partition.fx_tracing import left_alone
from torchatlas.partition.report import PartitionReport
from torchatlas.partition.validate.checks import PartitionCheck
from torchatlas.partition.validate.models import Example

Runs = list[tuple[tuple[Any, ...], dict[str, Any], list[Any]]]  # args, kwargs and the results of the model


def runs_of(example: Example, recorded: bool) -> Runs:
    """Run the model on two different inputs and, if it was recorded, on one that is almost the first.

    Another input may well take another path than the recorded one; an almost equal one hardly does.
    """
    first = (example.args, example.kwargs)
    runs: Runs = []
    for args, kwargs in (first, _other(first), *([_almost(first)] if recorded else [])):
        try:
            made = _results(example.model, example.model, args, kwargs)
        except Exception:
            if not runs:
                raise
            break  # it does not take the second input: then one must do
        runs.append((args, kwargs, made))
    return runs


def _results(run: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The leaves of what `run` returns. The model is left as it was: a run may write to its buffers."""
    from torchatlas.torch_private import pytree

    with left_alone(model, args, kwargs):
        leaves = pytree.tree_flatten(run(*fresh(args), **fresh(kwargs)))[0]
        return [leaf.clone() if hasattr(leaf, "untyped_storage") else leaf for leaf in leaves]


def _changed(tree: Any, change: Callable[[Any], Any]) -> Any:
    import torch

    from torchatlas.torch_private import pytree

    flat, spec = pytree.tree_flatten(tree)
    return pytree.tree_unflatten([change(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat], spec)


def fresh(tree: Any) -> Any:
    """A copy, so that a run cannot write into the example."""
    return _changed(tree, lambda tensor: tensor.clone())


def _other(tree: Any) -> Any:
    """Another input of the same kind: pictures mirrored and darker, tokens and masks in another order."""
    return _changed(
        tree,
        lambda tensor: (
            tensor.flip(-1) * 0.5 if tensor.is_floating_point() else tensor.flip(-1) if tensor.dim() else tensor
        ),
    )


def _almost(tree: Any) -> Any:
    """An input that differs from another in the last digits only."""
    return _changed(tree, lambda tensor: tensor * (1 + 2**-16) if tensor.is_floating_point() else tensor)


def reassembled(report: PartitionReport, runs: Runs, model: Any) -> PartitionCheck:
    """Whether the pieces, put together, compute what the model does, to the bit, for each of the runs.

    Those of a recorded run may refuse inputs that take another path, but not the one that was recorded.
    """
    from torchatlas.inputs import same_bits

    name, refused = "put together", 0
    if len(runs) > 1 and all(_equal(other, runs[0][2]) for _, _, other in runs[1:]):
        return PartitionCheck(name, None, "vacuous: the model makes the same of two different inputs")
    try:
        pieces = report.extract()
    except NotAvailableError as error:
        return PartitionCheck(name, None, str(error))
    for args, kwargs, expected in runs:
        try:
            results = _results(pieces, model, args, kwargs)
        except InputMismatchError as error:
            if report.front_end != "run" or expected is runs[0][2]:
                return PartitionCheck(name, False, str(error))
            refused += 1
            continue
        if len(results) != len(expected):
            return PartitionCheck(name, False, f"{len(results)} results, {len(expected)} of the model")
        for number, (result, right) in enumerate(zip(results, expected, strict=True)):
            if not same_bits(result, right):
                return PartitionCheck(name, False, f"result {number} is not the model's to the bit")
    detail = f"{len(runs[0][2]):,} results equal to the bit, for {len(runs) - refused} of {len(runs)} inputs"
    return PartitionCheck(name, True, detail + (f"; {refused} refused, on another path" if refused else ""))


def _equal(one: list[Any], other: list[Any]) -> bool:
    from torchatlas.inputs import same_bits

    return len(one) == len(other) and all(same_bits(a, b) for a, b in zip(one, other, strict=True))
