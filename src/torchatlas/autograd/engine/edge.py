"""Where a gradient goes: to one input of one node. Mirrors edge.h, and GraphRoot of functions/basic_ops.h.

A node here is torch's own: `tensor.grad_fn`, or what its `next_functions` lead to. Inputs and outputs are those of the
backward: an input of a node is the gradient of an output of the forward op that made it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from torchatlas.errors import AnalysisError


class Edge(NamedTuple):
    """Which node, and which of its inputs. An edge without a node stands where no gradient is wanted."""

    node: Any
    input_nr: int


def gradient_edge(tensor: torch.Tensor | GradientEdge, which: str) -> Edge:
    """Where the gradient of a tensor enters the graph: its grad_fn, or for a leaf the node that adds to its .grad.

    torch makes that node, AccumulateGrad, when it is first asked for. Mirrors impl::gradient_edge of variable.cpp.

    Args:
        tensor: The tensor, or torch's own edge.
        which: What the error calls it, such as "Output 0".
    Returns:
        The edge.
    Raises:
        AnalysisError: The tensor does not require a gradient.
    Example:
        >>> import torch
        >>> from torchatlas.autograd import engine
        >>> engine.gradient_edge(torch.ones(3, requires_grad=True), "x").node.name()
        'torch::autograd::AccumulateGrad'
    """
    if isinstance(tensor, GradientEdge):
        return Edge(tensor.node, tensor.output_nr)
    if not tensor.requires_grad:
        raise AnalysisError(
            f"{which} does not require a gradient and has no grad_fn: nothing leads from it into an autograd graph. "
            "Compute it from a tensor that requires one, outside torch.no_grad() and without detach()."
        )
    edge = get_gradient_edge(tensor)
    return Edge(edge.node, edge.output_nr)


class GraphRoot:
    """One node above several roots, so that the rest of the engine has to know one way to begin only.

    Run, it hands each root the gradient that the caller gave for it. With a single root torch makes none: the root is
    queued at once, with its gradient in its buffer.

    Args:
        edges: One to each root.
        gradients: One for each root.
    """

    def __init__(self, edges: list[Edge], gradients: list[torch.Tensor | None]) -> None:
        self.next_functions = tuple(edges)
        self.gradients = tuple(gradients)

    def name(self) -> str:
        """What torch calls it."""
        return "GraphRoot"

    def _sequence_nr(self) -> int:
        return 0  # it is alone in the queue: no number is compared with it
