"""By how much tensors have changed since a moment, without copying them or keeping them alive."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable

import torch

from torchatlas.diagnosis.numeric_checks import has_numbers
from torchatlas.torch_private import unobserved

_SAMPLE = 64  # numbers of a tensor that are remembered
SAME = 1e-7  # relative change of all parameters that is none: about what a step of float32 is


class EarlierNumbers:
    """What some tensors held: a few numbers of each, and the sums over all."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self.references = [weakref.ref(tensor) for tensor in tensors if has_numbers(tensor)]
        with unobserved():
            held = [(each, tensor) for each in self.references if (tensor := each()) is not None]
            self._then = [(each, _sample(tensor), _sum(tensor), _size(tensor)) for each, tensor in held]

    def change(self, enough: float = math.inf) -> float | None:
        """By how much the tensors have changed since, relative to all of them together; None if no tensor is left.

        If the few numbers alone have changed by more than `enough`, the sums are not asked for: they take long.
        """
        moved = size = shifted = total = 0.0
        left = [(now, sample, sum_, sizes) for each, sample, sum_, sizes in self._then if (now := each()) is not None]
        if not left:
            return None
        with unobserved():
            for tensor, sample, _, _ in left:
                now = _sample(tensor)
                if sample.shape != now.shape:
                    return math.inf
                moved += float((now - sample).square().sum())
                size += float(sample.square().sum())
            share = _share(math.sqrt(moved), math.sqrt(size)) if math.isfinite(moved) else math.inf
            if share > enough:
                return share
            for tensor, _, sum_, sum_of_sizes in left:
                shifted, total = shifted + abs(_sum(tensor) - sum_), total + sum_of_sizes
        return max(share, _share(shifted, total)) if math.isfinite(shifted) else math.inf

    def has_changed(self, same: float = SAME) -> bool:
        """True if the tensors have changed by more than `same`; False if none is left."""
        change = self.change(enough=same)
        return change is not None and change > same


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """A few numbers."""
    numbers = _numbers(tensor)
    return numbers.flatten()[:: max(numbers.numel() // _SAMPLE, 1)].clone().cpu().double()


def _sum(tensor: torch.Tensor) -> float:
    """The sum of all numbers, the same to the bit for the same numbers. In float64 it takes four times as long."""
    numbers = _numbers(tensor)
    return float(numbers.sum(dtype=_wide(numbers)))


def _size(tensor: torch.Tensor) -> float:
    """The sum of the sizes of all numbers."""
    numbers = _numbers(tensor)
    return float(torch.linalg.vector_norm(numbers, 1, dtype=_wide(numbers)))


def _wide(numbers: torch.Tensor) -> torch.dtype:
    return torch.float64 if numbers.dtype is torch.float64 else torch.float32


def _share(part: float, whole: float) -> float:
    return 0.0 if not part else math.inf if not whole else part / whole
