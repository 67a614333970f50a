"""Norm, extremes and count of non-finite numbers of many gradients, as quickly as can be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from torchatlas.autograd.tasks import Gradients
from torchatlas.torch_private import FakeTensor, FunctionNode, functorch_depth, unobserved

_SMALL = 4_096  # numbers; fewer are looked at sooner than one finds out whether they were
_LARGE = 65_536  # numbers; to look at more of them takes longer than to begin
_MOST_WAITING = 1_000_000
_SAFE = 1e-12, 1e12  # numbers whose squares float32 holds, and their sums
_Tensor, _strided = torch.Tensor, torch.strided  # as near as can be: they are asked for with every gradient
Figures = tuple[float, float, float, int]


class GradientFigures:
    """Norm, smallest, largest and count of non-finite numbers of many gradients.

    Those that are not large wait, and are looked at many at a time: one by one, that would take longer than to make
    them. They are held as long: the engine then adds to none of them in place.
    """

    def __init__(self, nodes: list[Any]) -> None:
        self.found: dict[tuple[int, int], Figures] = {}  # (node, slot) -> its figures
        self.overwritten = 0  # before they were looked at
        self.without_numbers = 0
        self._waiting: list[tuple[int, int, torch.Tensor, int, int]] = []  # node, slot, gradient, version, size
        self._count = 0
        self._room: torch.Tensor | None = None  # where they are brought together; new memory would cost more
        self._custom = {place for place, node in enumerate(nodes) if isinstance(node, FunctionNode)}

    def before(self, node: int) -> None:
        if node in self._custom:  # it may write to the gradients it is given
            self.flush()

    def add(self, node: int, made: Gradients) -> None:
        for slot, gradient in enumerate(made):
            if gradient is None:
                continue
            count = gradient.numel()
            if count > _LARGE or type(gradient) is not _Tensor or gradient.layout is not _strided:
                self._one(node, slot, gradient)
                continue
            try:
                self._waiting.append((node, slot, gradient, gradient._version, count))
            except RuntimeError:  # made in inference mode: nobody can tell whether it is written to
                self._one(node, slot, gradient)
                continue
            self._count += count
        if self._count > _MOST_WAITING:
            self.flush()

    def _one(self, node: int, slot: int, gradient: torch.Tensor) -> None:
        if has_no_numbers(gradient):
            self.without_numbers += 1
        elif (figures := _figures(gradient)) is not None:
            self.found[node, slot] = figures

    def flush(self) -> None:
        """Look at those that wait, as many of one shape as there are at once."""
        waiting, self._waiting, self._count = self._waiting, [], 0
        if functorch_depth():  # tensors of a transform have no memory that could be compared
            for node, slot, gradient, *_ in waiting:
                self._one(node, slot, gradient)
            return
        with unobserved():
            groups: dict[Any, list[torch.Tensor]] = {}
            seen: dict[Any, tuple[list[torch.Tensor], int]] = {}
            rows: list[tuple[tuple[int, int], tuple[list[torch.Tensor], int]]] = []
            for node, slot, gradient, version, count in waiting:
                if gradient._version != version:
                    self.overwritten += 1
                    continue
                place = memory = None
                if count > _SMALL:  # what a transpose passes on is the memory of what it got: looked at once
                    gradient = gradient if gradient.is_contiguous() or gradient.dim() != 2 else gradient.t()
                    if gradient.is_contiguous():
                        memory = gradient.data_ptr(), count, gradient.dtype
                        place = seen.get(memory)
                if place is None:
                    key = gradient.shape, gradient.dtype, gradient.is_cpu or gradient.device
                    group = groups.get(key)
                    if group is None:
                        group = groups[key] = []
                    place = group, len(group)
                    group.append(gradient)
                    if memory is not None:
                        seen[memory] = place
                rows.append(((node, slot), place))
            figures = {id(group): self._of_group(group) for group in groups.values()}
        for edge, (group, row) in rows:
            if (found := figures[id(group)]) is not None:
                self.found[edge] = found[row]
            elif group[0].is_meta:
                self.without_numbers += 1

    def _of_group(self, gradients: list[torch.Tensor]) -> list[Figures] | None:
        """Of gradients of one shape; None if they have no numbers."""
        first, count = gradients[0], len(gradients)
        if not first.numel() or first.is_meta:
            return None
        room = None
        if first.dtype is torch.float32 and first.is_cpu:
            if self._room is None:
                self._room = torch.empty(_MOST_WAITING + _LARGE)
            room = self._room[: count * first.numel()].view(count, *first.shape)
        return _of_rows(_real(torch.stack(gradients, out=room)).reshape(count, -1), ours=True)


def has_no_numbers(gradient: torch.Tensor) -> bool:
    return gradient.is_meta or isinstance(gradient, FakeTensor)


def _figures(gradient: torch.Tensor) -> Figures | None:
    with unobserved():
        numbers = _numbers(gradient.detach())
        return _of_rows(_real(numbers).reshape(1, -1))[0] if numbers.numel() else None


def _of_rows(numbers: torch.Tensor, *, ours: bool = False) -> list[Figures]:
    """Of each row. If the memory is ours it is written to."""
    lows, highs = numbers.amin(1), numbers.amax(1)
    largest = torch.maximum(-lows, highs)
    plain = (largest > _SAFE[0]) & (largest < _SAFE[1])
    if plain.all():
        norms = torch.linalg.vector_norm(numbers, dim=1)
    else:  # squares of such numbers vanish or overflow, or take a hundred times as long
        scale = torch.where(largest.isfinite() & (largest > 0), largest, 1).unsqueeze(1)
        numbers = torch.div(numbers, scale, out=numbers if ours else None)
        norms = torch.linalg.vector_norm(numbers, dim=1).double() * scale[:, 0]
    rows = zip(*torch.stack([norms.double(), lows.double(), highs.double()]).tolist(), strict=True)
    return [
        (norm, low, high, 0) if math.isfinite(low) and math.isfinite(high) else _of_array(numbers[row])
        for row, (norm, low, high) in enumerate(rows)
    ]


def _real(numbers: torch.Tensor) -> torch.Tensor:
    """As numbers of a kind whose norm is exact enough: of complex ones, how large they are."""
    numbers = numbers.abs() if numbers.is_complex() else numbers
    return numbers if numbers.dtype in (torch.float32, torch.float64) else numbers.float()


def _of_array(numbers: torch.Tensor) -> Figures:
    """Of the finite ones, and how many are not."""
    array = numbers.double().cpu().numpy()
    finite = array[np.isfinite(array)]
    bad = array.size - finite.size
    if not finite.size:
        return math.nan, math.nan, math.nan, bad
    return float(np.sqrt(np.square(finite).sum())), float(finite.min()), float(finite.max()), bad


def _numbers(gradient: torch.Tensor) -> torch.Tensor:
    """All numbers of a gradient as a plain tensor."""
    if gradient.is_nested:
        return (
            gradient.values() if gradient.layout is torch.jagged else torch.cat([part.reshape(-1) for part in gradient])
        )
    if gradient.is_sparse:
        return gradient.coalesce().values()
    return gradient if gradient.layout is torch.strided else gradient.to_dense()
