"""A traced program against its model: the same results, the same gradients, and nothing kept from call to call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchatlas.capturing.deep_graphs import nodes_behind
from torchatlas.capturing.restore import Restorer
from torchatlas.errors import CaptureError
from torchatlas.torch_private import pytree

if TYPE_CHECKING:
    from torchatlas.execute.traced import TracedModel

Call = tuple[tuple[Any, ...], dict[str, Any]]


def check_trace(traced: TracedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Run the example both ways, under the same random numbers. Returns what to know before the trace is used."""
    model, name, reached, left = traced.model, type(traced.model).__name__, [], []

    def inspect(result: Any) -> None:
        reached.append(gradients_of(model, result))
        left.append(pytree.tree_flatten(_copied((args, kwargs))))

    results = [_called(traced, run, [(args, kwargs)], inspect)[0] for run in (model, traced)]
    for which, result in zip(("the model", "the traced program"), results, strict=True):
        if isinstance(result, Exception):
            raise CaptureError(f"{which} of {name} does not run on its own example: {result}") from result
    apart = difference(*map(pytree.tree_leaves, results))
    if apart is None:
        raise CaptureError(
            f"the traced program does not compute what {name} computes: torch.export did not see all that its "
            "forward does, such as an assignment to .data, to a Python object, or numbers of its own generator."
        )
    notes = []
    if left[0][1] != left[1][1] or difference(left[0][0], left[1][0]) is None:
        notes.append("the model changes a list or dictionary that it is given; the traced model leaves it as it is")
    notes += gradient_notes(*reached)
    if apart:
        notes.append(f"differs from the model by up to {apart:.2g}: it takes a fused path there that is not traced")
    return notes


def check_assigned(traced: TracedModel, assigned: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What forward keeps in attributes must not change what it returns later: the program keeps nothing.

    So the model is called several times in a row: with the example, with other values, and with a larger batch.
    Returns a note that says so.
    """
    kept = f"{', '.join(assigned[:3])}{' ...' * (len(assigned) > 3)}"
    calls = [(args, kwargs), *_others((args, kwargs), traced.first.leaves)]
    apart: list[float | None] = []
    for wanted, got in zip(*(_called(traced, run, calls) for run in (traced.model, traced)), strict=False):
        if isinstance(wanted, Exception):  # inputs that the model does not take tell nothing
            break
        failed = isinstance(got, Exception)
        apart.append(None if failed else difference(*map(pytree.tree_leaves, (wanted, got))))
    if None in apart or (apart[0] == 0.0 and any(apart)):  # what was exact stays exact
        raise CaptureError(
            f"{type(traced.model).__name__} assigns {kept} in forward, and what it returns depends on them, which a "
            "traced program cannot do. Register such tensors with register_buffer and write to them."
        )
    return f"the model keeps tensors in {kept}; the traced model keeps none, and computes them every time"


def _called(
    traced: TracedModel, run: Callable[..., Any], calls: list[Call], inspect: Callable[[Any], None] | None = None
) -> list[Any]:
    """The results of calls one after another, copied; an exception ends them. Model and inputs are left as found."""
    made: list[Any] = []
    with Restorer(traced.model, calls[0], None, whole=True), torch.random.fork_rng(devices=[]):
        for args, kwargs in calls:
            try:
                result = run(*args, **kwargs)
                made.append(_copied(result))
            except Exception as error:
                return [*made, error]
            if inspect is not None:
                inspect(result)
    return made


def _copied(tree: Any) -> Any:
    """A result that outlives the restoring of what it may share memory with."""
    return pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


def difference(wanted: list[Any], got: list[Any]) -> float | None:
    """The largest difference of two results, 0 for equal ones; None if they are not the same result at all."""
    if len(wanted) != len(got):
        return None
    most = 0.0
    for one, other in zip(wanted, got, strict=True):
        if not isinstance(one, torch.Tensor) or one.layout is not torch.strided or one.is_nested or one.is_quantized:
            continue
        if not isinstance(other, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
            return None
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True):
            return None
        if one.numel() and one.is_floating_point():
            apart = (one.cpu().double() - other.cpu().double()).abs().nan_to_num()
            most = max(most, float(apart.max()))
    return most


def gradients_of(model: nn.Module, result: Any) -> tuple[set[str], set[str]]:
    """Which parameters gradients of a result reach, and which autograd Functions written in Python they pass."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    reached, own = set[str](), set[str]()
    for node in nodes_behind(leaf.grad_fn for leaf in leaves if leaf.grad_fn is not None):
        if (variable := getattr(node, "variable", None)) is not None:
            reached.add(names.get(id(variable), "an input"))
        elif isinstance(node, torch.autograd.function.BackwardCFunction):
            own.add(type(node).__name__.removesuffix("Backward"))
    return reached, own


def gradient_notes(model: tuple[set[str], set[str]], traced: tuple[set[str], set[str]]) -> Iterator[str]:
    """What to know before a traced model is trained."""
    if more := sorted(traced[0] - model[0]):
        yield f"gradients reach {', '.join(more)}, unlike the model's: torch.inference_mode is not traced, no_grad is"
    if fewer := sorted(model[0] - traced[0]):
        yield f"gradients do not reach {', '.join(fewer)}, as the model's do"
    if own := sorted(model[1] - traced[1]):
        yield f"gradients are those of the ops inside {', '.join(own)}, whose own backward, or hook, is not traced"


def _others(tree: Any, expectations: list[tuple[str, Any]]) -> list[Any]:
    """The same arguments with other values, and then with twice the batch if that is free."""
    leaves, spec = pytree.tree_flatten(tree)
    other = [_other(leaf) for leaf in leaves]
    first = [
        expectation.shape[0] if isinstance(leaf, torch.Tensor) and leaf.dim() else ""
        for leaf, (_, expectation) in zip(leaves, expectations, strict=True)
    ]
    batch = next((size for size in first if size and not size.isdecimal()), None)
    twice = [torch.cat([leaf, leaf]) if size == batch else leaf for leaf, size in zip(other, first, strict=True)]
    return [pytree.tree_unflatten(made, spec) for made in ([other, twice] if batch else [other])]


def _other(leaf: Any) -> Any:
    """Other values of the same kind: indices stay in their range."""
    if not isinstance(leaf, torch.Tensor) or leaf.is_nested:
        return leaf
    moved = leaf.detach().flatten().roll(1).view(leaf.shape)
    return moved * 0.5 if moved.is_floating_point() else moved
