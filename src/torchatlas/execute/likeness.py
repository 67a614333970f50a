"""What a traced program returns against what its model returns: how far apart, and whose gradients differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from torchatlas.capturing.deep_graphs import nodes_behind
from torchatlas.torch_private import pytree


def copied(tree: Any) -> Any:
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


def count_not_finite(tensor: torch.Tensor) -> int:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0
    values = tensor._values() if tensor.is_sparse else tensor
    return values.numel() - int(values.isfinite().sum())
