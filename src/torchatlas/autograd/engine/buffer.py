"""Where gradients meet before a node runs. Mirrors input_buffer.cpp."""

from __future__ import annotations

import torch

Gradient = torch.Tensor | None  # None is a gradient that is zero and was never computed


class InputBuffer:
    """The gradients that have come for a node so far, by its input.

    A tensor that was used twice gets two gradients, over two edges that lead to the same input of the same node: this
    is where they are added. No node of the graph stands for that sum, which is why it is called implicit.
    """

    def __init__(self) -> None:
        self.gradients: dict[int, torch.Tensor] = {}

    def add(self, input_nr: int, gradient: Gradient) -> None:
        """Let a gradient in: the first is kept as it is, not copied; later ones are added. Order decides the bits.

        Args:
            input_nr: The input of the node.
            gradient: The gradient; None is zero, and changes nothing.
        """
        if gradient is None:
            return
        there = self.gradients.get(input_nr)
        self.gradients[input_nr] = gradient if there is None else _sum(there, gradient)

    def __getitem__(self, input_nr: int) -> Gradient:
        """What has come for an input; None if nothing has."""
        return self.gradients.get(input_nr)


def _sum(there: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    # torch adds in place where nothing else holds the tensor. That saves memory and gives the same bits, so it is left
    # out. Sparse gradients come second in the sum: torch refuses sparse + dense, and takes dense + sparse.
    compressed = there.layout in (torch.sparse_csr, torch.sparse_coo)
    return gradient + there if compressed and not torch.is_grad_enabled() else there + gradient
