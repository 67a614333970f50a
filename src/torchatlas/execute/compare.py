"""The values of two runs -> the first node at which they differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchatlas.errors import InvalidInputError
from torchatlas.execute.values import NodeValues


@dataclass(frozen=True)
class Difference:
    """A node whose values differ, and whether what it took did already."""

    node: str
    largest: float  # apart, of the numbers that both runs have; infinite when shapes or types differ
    of: float  # the largest number there
    reason: str
    inputs_differ: bool

    def __str__(self) -> str:
        where = "its inputs differ already" if self.inputs_differ else "its inputs are the same"
        return f"{self.node}: {self.reason}; {where}"


def first_difference(one: NodeValues, other: NodeValues, *, rtol: float = 0.0, atol: float = 0.0) -> Difference | None:
    """The first node, in the order of the first run, whose values differ by more than allowed; None if none does.

    By default every bit of every number counts, and NaN equals NaN. Nodes that only one run kept are not compared.
    """
    return next(differences(one, other, rtol=rtol, atol=atol), None)


def differences(one: NodeValues, other: NodeValues, *, rtol: float = 0.0, atol: float = 0.0) -> Iterator[Difference]:
    """All nodes whose values differ, in the order of the first run."""
    common = [name for name in one if name in other]
    if not common:
        raise InvalidInputError("these runs have no node in common: nothing can be compared.")
    for name in common:
        found = _apart(one[name].output, other[name].output, rtol, atol)
        if found is not None:
            taken = _apart(one[name].inputs, other[name].inputs, rtol, atol)
            yield Difference(name, *found, taken is not None)


def _apart(one: Any, other: Any, rtol: float, atol: float) -> tuple[float, float, str] | None:
    """How far two values are apart, how large they are, and that in words."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return _tensors_apart(one.detach(), other.detach(), rtol, atol)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        pairs = [_apart(a, b, rtol, atol) for a, b in zip(one, other, strict=True)]
        return max((pair for pair in pairs if pair is not None), key=lambda pair: pair[0], default=None)
    if type(one) is not type(other):
        return float("inf"), 0.0, f"{type(one).__name__} in one run, {type(other).__name__} in the other"
    if isinstance(one, dict) and one.keys() == other.keys():
        return _apart(list(one.values()), list(other.values()), rtol, atol)
    return None if one == other else (float("inf"), 0.0, f"{one!r} in one run, {other!r} in the other")


def _tensors_apart(one: torch.Tensor, other: torch.Tensor, rtol: float, atol: float) -> tuple[float, float, str] | None:
    if one.shape != other.shape:
        return float("inf"), 0.0, f"shape {tuple(one.shape)} in one run, {tuple(other.shape)} in the other"
    if one.dtype != other.dtype and not (rtol or atol):
        return float("inf"), 0.0, f"{one.dtype} in one run, {other.dtype} in the other"
    wide = torch.complex128 if one.is_complex() or other.is_complex() else torch.float64
    a, b = (tensor.to_dense() if tensor.layout is not torch.strided else tensor for tensor in (one, other))
    a, b = a.to(wide), b.to(wide)
    if torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True):
        return None
    apart = (a - b).abs()
    wrong = int((~torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)).sum())
    largest = float(apart.nan_to_num(nan=float("inf")).max())
    size = float(torch.maximum(a.abs(), b.abs()).nan_to_num().max())
    return largest, size, f"{wrong:,} of {a.numel():,} numbers differ, by up to {largest:.3g} (of {size:.3g})"
