"""Norm, extremes and count of non-finite numbers of many gradients, as quickly as can be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from torchatlas.graph.columns import Array
from torchatlas.torch_private import (
    FakeTensor,
    FunctionNode,
    in_transform,
    is_batched,
    no_transforms,
    unobserved,
    unwrapped,
)

_SMALL = 4_096  # numbers
_LARGE = 65_536  # numbers; to look at more of them takes longer than to begin: they do not wait
_MOST_WAITING = 1_000_000  # numbers
_ROOM = 4 * _LARGE  # numbers that are looked at together: a fast cache holds them
_SAFE = 1e-12, 1e12  # numbers whose squares float32 holds, and their sums
_Tensor, _strided = torch.Tensor, torch.strided  # as near as can be: they are asked for with every gradient
Figures = tuple[float, float, float, int]


class GradientFigures:
    """Norm, smallest, largest and count of non-finite numbers of the gradients on many edges.

    Those that are not large wait, and are looked at many at a time: one by one, that would take longer than to make
    them. They are held as long: the engine then adds to none of them in place.
    """

    def __init__(self, nodes: list[Any], edges: int) -> None:
        self.overwritten = 0  # before they were looked at
        self.without_numbers = 0
        self._found = np.zeros((4, edges))
        self._known = np.zeros(edges, bool)
        self._edges: list[int] = []  # of those that wait, side by side
        self._gradients: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._count = 0  # of their numbers
        self._room: torch.Tensor | None = None  # where they are brought together; new memory would cost more
        self._rooms: dict[tuple[int, ...], tuple[torch.Tensor, Array]] = {}
        self._is_transformed = in_transform()  # its tensors have no memory that could be brought together
        self._custom = {place for place, node in enumerate(nodes) if isinstance(node, FunctionNode)}

    def __contains__(self, edge: int) -> bool:
        return bool(self._known[edge])

    def __getitem__(self, edge: int) -> Figures:
        norm, low, high, bad = self._found[:, edge].tolist()
        return norm, low, high, int(bad)

    def before(self, node: int) -> None:
        if node in self._custom:  # it may write to the gradients it is given
            self.flush()

    def add(self, edge: int, gradient: torch.Tensor) -> None:
        count = gradient.numel()
        if count > _LARGE or type(gradient) is not _Tensor or gradient.layout is not _strided or self._is_transformed:
            self._one(edge, gradient)
            return
        try:
            self._versions.append(gradient._version)
        except RuntimeError:  # made in inference mode: nobody can tell whether it is written to
            self._one(edge, gradient)
            return
        self._edges.append(edge)
        self._gradients.append(gradient)
        self._count += count
        if self._count > _MOST_WAITING:
            self.flush()

    def copy(self, same: Mapping[int, int]) -> None:
        """Give edges the figures of others."""
        copies, seen = list(same), list(same.values())
        self._found[:, copies], self._known[copies] = self._found[:, seen], self._known[seen]

    def flush(self) -> None:
        """Look at those that wait, as many of one shape as there are at once."""
        edges, gradients, versions = self._edges, self._gradients, self._versions
        self._edges, self._gradients, self._versions, self._count = [], [], [], 0
        groups: dict[Any, tuple[list[int], list[torch.Tensor]]] = {}
        first: dict[int, int] = {}  # gradient -> the edge that it was seen on
        again: dict[int, int] = {}  # edge -> the one with the same gradient
        with unobserved():
            for edge, gradient, version in zip(edges, gradients, versions, strict=True):
                if gradient._version != version:
                    self.overwritten += 1
                    continue
                if (seen := first.setdefault(id(gradient), edge)) != edge:
                    again[edge] = seen
                    continue
                if gradient.numel() > _SMALL and gradient.dim() == 2 and not gradient.is_contiguous():
                    gradient = gradient.t()  # numbers that lie side by side are brought together three times as fast
                kind = gradient.shape, gradient.dtype, gradient.is_cpu or gradient.device
                group = groups.get(kind)
                if group is None:
                    group = groups[kind] = [], []
                group[0].append(edge)
                group[1].append(gradient)
            for of_edges, alike in groups.values():
                self._look(of_edges, alike)
        self.copy(again)

    def _look(self, edges: list[int], gradients: list[torch.Tensor]) -> None:
        """At gradients of one shape."""
        size = gradients[0].numel()
        if gradients[0].is_meta:
            self.without_numbers += len(gradients)
        elif size:
            rows = _ROOM // size
            for begin in range(0, len(gradients), rows):
                self._note(edges[begin : begin + rows], self._of_alike(gradients[begin : begin + rows]))

    def _of_alike(self, gradients: list[torch.Tensor]) -> Array:
        first, count = gradients[0], len(gradients)
        if first.dtype is torch.float32 and first.is_cpu:
            together, numbers = self._memory((count, *first.shape))
            torch.stack(gradients, out=together)
            figures = _of_own_rows(numbers)
        else:
            figures = _of_rows(_real(torch.stack(gradients)).reshape(count, -1))
        for row in np.flatnonzero(~np.isfinite(figures[0])).tolist():
            figures[:, row] = _of_finite(_real(gradients[row]))
        return figures

    def _memory(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, Array]:
        """The room as a tensor of some shape, and as rows of numbers."""
        found = self._rooms.get(shape)
        if found is None:
            if self._room is None:
                self._room = torch.empty(_ROOM)
            room = self._room[: math.prod(shape)]
            found = self._rooms[shape] = room.view(shape), room.numpy().reshape(shape[0], -1)
        return found

    def _one(self, edge: int, gradient: torch.Tensor) -> None:
        if has_no_numbers(gradient):
            self.without_numbers += 1
            return
        with unobserved(), no_transforms():
            numbers = _real(_numbers(unwrapped(gradient).detach())).reshape(1, -1)
            if numbers.numel():
                figures = _of_rows(numbers)
                self._note([edge], figures if math.isfinite(figures[0, 0]) else _of_finite(numbers)[:, None])

    def _note(self, edges: list[int], figures: Array) -> None:
        self._found[:, edges] = figures
        self._known[edges] = True


def has_no_numbers(gradient: torch.Tensor) -> bool:
    return gradient.is_meta or isinstance(gradient, FakeTensor) or is_batched(gradient)


def _of_own_rows(numbers: Array) -> Array:
    """Of each row, one below the other: norm, smallest, largest, 0. The numbers are written to.

    numpy begins to compute five times sooner than torch does.
    """
    found = np.zeros((4, len(numbers)))
    with np.errstate(all="ignore"):
        found[1], found[2] = numbers.min(1), numbers.max(1)
        largest = np.maximum(-found[1], found[2])
        if scaled := not (largest.min() > _SAFE[0] and largest.max() < _SAFE[1]):
            largest[~(np.isfinite(largest) & (largest > 0))] = 1.0
            numbers /= largest.astype(numbers.dtype)[:, None]
        found[0] = np.sqrt(np.multiply(numbers, numbers, out=numbers).sum(1))
        if scaled:
            found[0] *= largest
    return found


def _of_rows(numbers: torch.Tensor) -> Array:
    """The same of numbers on any device, which are left alone."""
    found = np.zeros((4, len(numbers)))
    found[1], found[2] = numbers.amin(1).cpu().numpy(), numbers.amax(1).cpu().numpy()
    with np.errstate(invalid="ignore"):
        largest = np.maximum(-found[1], found[2])
    if largest.min() > _SAFE[0] and largest.max() < _SAFE[1]:
        found[0] = torch.linalg.vector_norm(numbers, dim=1).cpu().numpy()
    else:
        scale = np.where(np.isfinite(largest) & (largest > 0), largest, 1.0)
        scales = torch.from_numpy(scale).to(numbers)
        found[0] = torch.linalg.vector_norm(numbers / scales[:, None], dim=1).cpu().numpy() * scale
    return found


def _real(numbers: torch.Tensor) -> torch.Tensor:
    """As numbers of a kind whose norm is exact enough: of complex ones, how large they are."""
    numbers = numbers.abs() if numbers.is_complex() else numbers
    return numbers if numbers.dtype in (torch.float32, torch.float64) else numbers.float()


def _of_finite(numbers: torch.Tensor) -> Array:
    """Of those that are finite, and how many are not."""
    array = numbers.double().cpu().numpy()
    finite = array[np.isfinite(array)]
    bad = array.size - finite.size
    if not finite.size:
        return np.array([math.nan, math.nan, math.nan, bad])
    most = float(np.abs(finite).max()) or 1.0  # whose squares may not fit
    norm = most * float(np.sqrt(np.square(finite / most).sum()))
    return np.array([norm, finite.min(), finite.max(), bad])


def _numbers(gradient: torch.Tensor) -> torch.Tensor:
    """All numbers of a gradient as a plain tensor."""
    if gradient.is_nested:
        return (
            gradient.values() if gradient.layout is torch.jagged else torch.cat([part.reshape(-1) for part in gradient])
        )
    if gradient.is_sparse:
        return gradient.coalesce().values()
    return gradient if gradient.layout is torch.strided else gradient.to_dense()
