"""Norm, extremes and count of non-finite numbers of many gradients, as quickly as can be."""

from __future__ import annotations

import cmath
import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from torchatlas.graph.columns import Array
from torchatlas.torch_private import (
    FakeTensor,
    in_transform,
    is_batched,
    no_transforms,
    unobserved,
    unwrapped,
)

_SMALL = 4_096  # numbers
_LARGE = 65_536  # numbers; larger gradients do not wait: computing on them takes longer than starting to
_MOST_WAITING = 1_000_000  # numbers
_ROOM = 4 * _LARGE  # numbers that are looked at together: a fast cache holds them
_BLOCK = 8_192  # numbers whose squares float32 adds up well, and BLAS without threads of its own
_SAFE = 1e-12, 1e12  # numbers whose squares float32 holds, and their sums
_FLOAT32, _FLOAT64 = 126, 1022  # the largest power of two that is a number of this kind, and so is its reciprocal
_kind = attrgetter("shape", "dtype", "device", "layout")
_Tensor = torch.Tensor  # as near as can be: it is asked for with every gradient
Figures = tuple[float, float, float, int]


class GradientFigures:
    """Norm, smallest, largest and count of non-finite numbers of the gradients on many edges.

    Gradients that are not large wait, and are looked at many at a time: one by one, that would take longer than to make
    them. They are held while they wait, so that the engine adds to none of them in place.
    """

    def __init__(self, edges: int) -> None:
        self.overwritten = 0  # before they were looked at
        self.without_numbers = 0
        self._figures = np.zeros((4, edges))
        self._known = np.zeros(edges, bool)
        self._edges: list[int] = []  # of those that wait, side by side
        self._gradients: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._count = 0  # of their numbers
        self._room: torch.Tensor | None = None  # where they are brought together; new memory would cost more
        self._rooms: dict[tuple[int, ...], tuple[torch.Tensor, Array]] = {}
        self._is_transformed = in_transform()  # its tensors have no memory that could be brought together

    def __contains__(self, edge: int) -> bool:
        return bool(self._known[edge])

    def __getitem__(self, edge: int) -> Figures:
        norm, low, high, bad = self._figures[:, edge].tolist()
        return norm, low, high, int(bad)

    def add(self, edge: int, gradient: torch.Tensor) -> None:
        count = gradient.numel()
        if count > _LARGE or type(gradient) is not _Tensor or gradient.is_nested or self._is_transformed:
            self._one(edge, gradient)
            return
        try:
            self._versions.append(gradient._version)
        except RuntimeError:  # made in inference mode: it has no version that tells of writes
            self._one(edge, gradient)
            return
        self._edges.append(edge)
        self._gradients.append(gradient)
        self._count += count
        if self._count > _MOST_WAITING:
            self.flush()

    def finish(self, same: Mapping[int, int]) -> None:
        """Call when no more gradients come. `same` are edges that have the gradient of another one."""
        self.flush()
        self.copy(list(same), list(same.values()))
        self._room, self._rooms = None, {}

    def copy(self, copies: Sequence[int] | Array, seen: Sequence[int] | Array) -> None:
        """Give edges the figures of others."""
        self._figures[:, copies], self._known[copies] = self._figures[:, seen], self._known[seen]

    def flush(self) -> None:
        """Compute the figures of the gradients that wait: all of one kind together, and each of them once."""
        edges, gradients, versions = np.array(self._edges, np.int64), self._gradients, self._versions
        self._edges, self._gradients, self._versions, self._count = [], [], [], 0
        groups: dict[Any, list[int]] = {}
        first: dict[int, int] = {}  # gradient -> where it was seen
        again: list[int] = []
        before: list[int] = []
        with unobserved():
            for position, gradient in enumerate(gradients):
                if gradient._version != versions[position]:
                    self.overwritten += 1
                    continue
                if (seen := first.setdefault(id(gradient), position)) != position:
                    again.append(position)
                    before.append(seen)
                    continue
                kind = _kind(gradient)
                if (group := groups.get(kind)) is None:
                    group = groups[kind] = []
                group.append(position)
            for (_, _, device, layout), positions in groups.items():
                if layout is torch.strided and device.type != "meta":
                    self._look_at_alike(edges[positions], [gradients[position] for position in positions])
                else:
                    for position in positions:
                        self._one(int(edges[position]), gradients[position])
        self.copy(edges[again], edges[before])

    def _look_at_alike(self, edges: Array, gradients: list[torch.Tensor]) -> None:
        first, size = gradients[0], gradients[0].numel()
        if size > _SMALL and first.dim() == 2:
            across = [not gradient.is_contiguous() for gradient in gradients]
            if any(across) and not all(across):
                for transposed in (False, True):
                    positions = [position for position, each in enumerate(across) if each is transposed]
                    self._look_at_alike(edges[positions], [gradients[position] for position in positions])
                return
            if across[0]:  # numbers that lie side by side are brought together three times as fast
                gradients = [gradient.t() for gradient in gradients]
        rows = _ROOM // size if size else 0
        for begin in range(0, len(gradients) if size else 0, rows or 1):
            self._note(edges[begin : begin + rows], self._of_alike(gradients[begin : begin + rows]))

    def _of_alike(self, gradients: list[torch.Tensor]) -> Array:
        first, count = gradients[0], len(gradients)
        if first.dtype is torch.float32 and first.is_cpu:
            together, numbers = self._memory((count, *first.shape))
            torch.stack(gradients, out=together)
            figures = _of_each_row(numbers)
        else:
            figures = _of_rows(_real(torch.stack(gradients)).reshape(count, -1))
        for row in np.flatnonzero(~np.isfinite(figures[0])).tolist():
            figures[:, row] = _of_finite(_real(gradients[row]))
        return figures

    def _memory(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, Array]:
        """The scratch memory as a tensor of some shape, and as rows of numbers."""
        views = self._rooms.get(shape)
        if views is None:
            if self._room is None:
                self._room = torch.empty(_ROOM, dtype=torch.float32, device="cpu")  # whatever the program's default is
            room = self._room[: math.prod(shape)]
            views = self._rooms[shape] = room.view(shape), room.numpy().reshape(shape[0], -1)
        return views

    def _one(self, edge: int, gradient: torch.Tensor) -> None:
        if has_no_numbers(gradient):
            self.without_numbers += 1
            return
        with unobserved(), no_transforms():
            numbers = _real(numbers_of(gradient))
            if numbers.numel():
                as_they_lie = numbers.permute(sorted(range(numbers.dim()), key=numbers.stride, reverse=True))
                figures = _of_rows(as_they_lie.reshape(1, -1))  # without a copy, if they lie side by side
                self._note([edge], figures if math.isfinite(figures[0, 0]) else _of_finite(numbers)[:, None])

    def _note(self, edges: list[int] | Array, figures: Array) -> None:
        self._figures[:, edges] = figures
        self._known[edges] = True


def has_no_numbers(gradient: torch.Tensor) -> bool:
    return gradient.is_meta or isinstance(gradient, FakeTensor) or is_batched(gradient)


def _of_each_row(numbers: Array) -> Array:
    """Norm, smallest, largest and 0 of each row of float32 numbers, which it overwrites: that needs no new memory.

    numpy begins to compute five times sooner than torch does.
    """
    figures = np.zeros((4, len(numbers)))
    with np.errstate(all="ignore"):
        figures[1], figures[2] = numbers.min(1), numbers.max(1)
        scale = _scale_of(figures, _FLOAT32)
        if scale is not None:
            numbers *= scale.astype(np.float32)[:, None]
        for begin in range(0, numbers.shape[1], _BLOCK):
            part = numbers[:, begin : begin + _BLOCK]
            figures[0] += np.matmul(part[:, None, :], part[:, :, None]).reshape(-1)  # twice as fast as squares and sum
        figures[0] = np.sqrt(figures[0])
        if scale is not None:
            figures[0] /= scale
    return figures


def _of_rows(numbers: torch.Tensor) -> Array:
    """Norm, smallest, largest and 0 of each row of numbers of any type, on any device; they are left alone."""
    figures = np.zeros((4, len(numbers)))
    figures[1], figures[2] = numbers.amin(1).cpu().numpy(), numbers.amax(1).cpu().numpy()
    with np.errstate(all="ignore"):
        scale = _scale_of(figures, _FLOAT64 if numbers.dtype is torch.float64 else _FLOAT32)
    if scale is not None:
        numbers = numbers * torch.from_numpy(scale).to(numbers.dtype).to(numbers.device)[:, None]
    figures[0] = _norms(numbers).cpu().numpy()
    if scale is not None:
        figures[0] /= scale
    return figures


def _norms(numbers: torch.Tensor) -> torch.Tensor:
    """The norm of each row. Long rows in blocks: one sum of float32 loses digits, and not all devices have float64."""
    norm, whole = torch.linalg.vector_norm, numbers.shape[1] // _BLOCK * _BLOCK
    norms: torch.Tensor = norm(numbers[:, whole:], dim=1, keepdim=True)
    if whole:
        blocks = norm(numbers[:, :whole].reshape(len(numbers), -1, _BLOCK), dim=2).cpu().double()
        norms = norm(torch.cat([blocks, norms.cpu().double()], 1), dim=1, keepdim=True)
    return norms[:, 0]


def _scale_of(figures: Array, most: int) -> Array | None:
    """A factor for each row that keeps the sum of its squares in range; None if no row needs one.

    A power of two, `most` at most, changes no digit.
    """
    largest = np.maximum(-figures[1], figures[2])
    if largest.min() > _SAFE[0] and largest.max() < _SAFE[1]:
        return None
    scale: Array = np.ldexp(1.0, np.clip(-np.frexp(largest)[1], -most, most))
    return scale


def _real(numbers: torch.Tensor) -> torch.Tensor:
    """The numbers in a type whose norm is exact enough; the absolute values of complex ones."""
    numbers = numbers.abs() if numbers.is_complex() else numbers
    return numbers if numbers.dtype in (torch.float32, torch.float64) else numbers.float()


def _of_finite(numbers: torch.Tensor) -> Array:
    """Norm, smallest and largest of the finite numbers, and how many are not finite."""
    array = numbers.cpu().double().numpy()
    finite = array[np.isfinite(array)]
    bad = array.size - finite.size
    if not finite.size:
        return np.array([math.nan, math.nan, math.nan, bad])
    most = float(np.abs(finite).max()) or 1.0  # whose squares may not fit
    norm = most * float(np.sqrt(np.square(finite / most).sum()))
    return np.array([norm, finite.min(), finite.max(), bad])


def all_finite(numbers: torch.Tensor) -> bool:
    """True if all numbers are finite; call it `unobserved`. A sum is the quickest to tell, but it may overflow."""
    return cmath.isfinite(numbers.sum().item()) or bool(numbers.isfinite().all())


def numbers_of(gradient: torch.Tensor) -> torch.Tensor:
    """All numbers of a gradient as a plain tensor, detached; call it `unobserved` and outside of transforms."""
    gradient = unwrapped(gradient).detach()
    if gradient.is_nested:
        return (
            gradient.values() if gradient.layout is torch.jagged else torch.cat([part.reshape(-1) for part in gradient])
        )
    if gradient.is_sparse:
        return gradient.coalesce().values()
    return gradient if gradient.layout is torch.strided else gradient.to_dense()
