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


class Snapshot:
    """What some tensors held: a few numbers of each, and the sums over all."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self.references = [weakref.ref(tensor) for tensor in tensors if has_numbers(tensor)]
        self._then = self._look()

    def _look(self) -> list[tuple[torch.Tensor, float, float] | None]:
        with unobserved():
            return [None if (tensor := each()) is None else _summary(tensor) for each in self.references]

    def change(self) -> float | None:
        """By how much the tensors have changed since, relative to all of them together; None if no tensor is left."""
        moved = size = shifted = total = 0.0
        pairs = [(a, b) for a, b in zip(self._then, self._look(), strict=True) if a is not None and b is not None]
        with unobserved():
            for (sample, sum_, sum_of_sizes), (sample_now, sum_now, _) in pairs:
                if sample.shape != sample_now.shape:
                    return math.inf
                moved += float((sample_now - sample).square().sum())
                size += float(sample.square().sum())
                shifted, total = shifted + abs(sum_now - sum_), total + sum_of_sizes
        if not pairs:
            return None
        if not math.isfinite(moved + shifted):
            return math.inf
        return max(_share(math.sqrt(moved), math.sqrt(size)), _share(shifted, total))

    def has_changed(self, same: float = SAME) -> bool:
        """False also if nothing is left to look at."""
        change = self.change()
        return change is not None and change > same


def _summary(tensor: torch.Tensor) -> tuple[torch.Tensor, float, float]:
    """A few numbers, the sum of all, and the sum of their sizes."""
    numbers = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    sample = numbers.flatten()[:: max(numbers.numel() // _SAMPLE, 1)].clone().cpu().double()
    wide = torch.float64 if numbers.device.type != "mps" else torch.float32
    return sample, float(numbers.sum(dtype=wide)), float(torch.linalg.vector_norm(numbers, 1, dtype=wide))


def _share(part: float, whole: float) -> float:
    return 0.0 if not part else math.inf if not whole else part / whole
