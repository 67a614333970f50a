"""The gradients that a node returns -> the same in the shape and dtype of what they are for.

Mirrors validate_outputs of engine.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchatlas.autograd.engine.buffer import Gradient
from torchatlas.autograd.engine.edge import Edge
from torchatlas.errors import AnalysisError


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
