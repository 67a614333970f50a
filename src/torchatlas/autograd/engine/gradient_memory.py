"""Gradients that wait -> bytes. The source of the gradient-memory timeline."""

from __future__ import annotations

from typing import NamedTuple

import torch

from torchatlas.autograd.engine.buffer import InputBuffer
from torchatlas.capturing.tensors import parts, storages_of


class Moment(NamedTuple):
    """After a node ran: the bytes of all gradients in buffers, and of those captured."""

    name: str
    gradient_bytes: int


class GradientMemory:
    """Bytes of the gradients that are held, each storage once.

    One storage is often held several times: the backward of an addition hands the same gradient to both operands, and
    that of a sum hands out one number, expanded.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self._held: dict[int, tuple[int, int]] = {}  # by storage: how often, and its bytes

    def hold(self, gradient: torch.Tensor | None) -> None:
        """Count a gradient that begins to wait.

        Args:
            gradient: The gradient; None is nothing.
        """
        for key, size_bytes in _storages(gradient):
            times, known = self._held.get(key, (0, size_bytes))
            if not times:
                self.held_bytes += known
            self._held[key] = (times + 1, known)

    def let_go(self, gradient: torch.Tensor | None) -> None:
        """Uncount a gradient that waits no more.

        Args:
            gradient: The gradient; None is nothing.
        """
        for key, _ in _storages(gradient):
            times, known = self._held.pop(key)
            if times > 1:
                self._held[key] = (times - 1, known)
            else:
                self.held_bytes -= known

    def let_go_of(self, buffer: InputBuffer) -> None:
        """Uncount all gradients of a buffer.

        Args:
            buffer: The buffer.
        """
        for gradient in buffer.gradients.values():
            self.let_go(gradient)


def _storages(gradient: torch.Tensor | None) -> list[tuple[int, int]]:
    if gradient is None:
        return []
    storages = [storage for _, part in parts(gradient) for storage in storages_of(part)]
    return [(storage._cdata, storage.nbytes()) for storage in storages]
