"""Questions about the numbers in a tensor. Asking leaves no trace in the program."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from torchatlas.autograd.gradient_statistics import all_finite
from torchatlas.torch_private import functorch_depth, unobserved

_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}
_SAFE_NORM = 1e-12  # smaller norms, and larger ones than its reciprocal, may have lost squares


def has_numbers(tensor: Any) -> bool:
    """True for a tensor of floating numbers that can be looked at: not sparse, nested, meta, wrapped ..."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.dtype in _FLOATS
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.device.type != "meta"
        and not tensor._is_zerotensor()  # of forward-mode AD: zeros without memory, which nobody may read here
        and functorch_depth() == 0
    )


def is_finite(tensor: torch.Tensor) -> bool:
    with unobserved():
        return all_finite(tensor)


def is_zero(tensor: torch.Tensor) -> bool:
    """True if all numbers are 0; False if they cannot be looked at."""
    if not has_numbers(tensor):
        return False
    with unobserved():
        return not (tensor.sum().item() != 0 or bool(tensor.any()))  # a sum takes a tenth of the time


def largest(tensor: torch.Tensor) -> float:
    """The largest absolute value; 1 if it is NaN, or if the numbers cannot be looked at."""
    if not has_numbers(tensor):
        return 1.0
    with unobserved():
        if not tensor.numel():
            return 0.0
        if tensor.is_complex():
            return float(tensor.abs().max())
        low, high = tensor.aminmax()
        size = max(-float(low), float(high))
        return size if size == size else 1.0


def rms(tensor: torch.Tensor) -> float:
    """The root of the mean square. Squares of very small and very large numbers need float64, which not every device
    has."""
    with unobserved():
        norm = float(torch.linalg.vector_norm(tensor))
        if not _SAFE_NORM < norm < 1 / _SAFE_NORM and not tensor.is_complex():
            norm = float(torch.linalg.vector_norm(tensor.cpu().double()))
        return norm / math.sqrt(tensor.numel())


def tensors_in(item: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    return (leaf for leaf in _leaves(item) if isinstance(leaf, torch.Tensor))


def scalars_in(item: Any) -> Iterator[int | float]:
    """The Python numbers in nested lists, tuples and dicts."""
    return (leaf for leaf in _leaves(item) if isinstance(leaf, (int, float)))


def _leaves(item: Any) -> Iterator[Any]:
    if isinstance(item, (list, tuple)):
        for each in item:
            yield from _leaves(each)
    elif isinstance(item, dict):
        yield from _leaves(list(item.values()))
    else:
        yield item
