"""Where gradients meet before a node runs, and what they must look like when they do.

Mirrors input_buffer.cpp, and validate_outputs of engine.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchatlas.autograd.engine.edge import Edge
from torchatlas.errors import AnalysisError

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


def validate_outputs(edges: Sequence[Edge], gradients: Sequence[Gradient]) -> list[Gradient]:
    """Gradients as their receivers take them: summed to the shape, and cast to the dtype, of what they are for.

    Every op that broadcasts leans on this: its backward returns the large gradient, and here it becomes as small as the
    operand was. Mixed precision leans on the cast.

    Args:
        edges: Where each gradient goes.
        gradients: The gradients; None is zero.
    Returns:
        The gradients, one for each edge.
    Raises:
        AnalysisError: There are not as many gradients as edges, or a shape cannot be summed to what is needed.
    Example:
        >>> import torch
        >>> from torchatlas.autograd import engine
        >>> edge = engine.gradient_edge(torch.ones(1, requires_grad=True), "x")
        >>> engine.validate_outputs([edge], [torch.ones(3)])
        [tensor([3.])]
    """
    if len(gradients) != len(edges):
        raise AnalysisError(f"A node returned {len(gradients)} gradients for {len(edges)} inputs of its forward op.")
    return [_validated(*pair, index) for index, pair in enumerate(zip(edges, gradients, strict=True))]


def _validated(edge: Edge, gradient: Gradient, index: int) -> Gradient:
    if edge.node is None or gradient is None:
        return gradient
    known: Any = edge.node._input_metadata[edge.input_nr]
    if not known.is_nested_tensor and list(gradient.shape) != list(known.shape):
        try:
            gradient = gradient.sum_to_size(known.shape)
        except RuntimeError as error:
            got, expected = list(gradient.shape), list(known.shape)
            message = f"Gradient {index} has shape {got} and cannot be summed to {expected}, the shape of its tensor."
            raise AnalysisError(message) from error
    if gradient.dtype != known.dtype:
        gradient = gradient.to(known.dtype)
    if gradient.device != known.device and gradient.dim() == 0:
        gradient = gradient.to(known.device)
    return gradient
