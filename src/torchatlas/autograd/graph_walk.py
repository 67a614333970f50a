"""Tensors -> the nodes that backward would run, in the order in which it would run them.

Nothing recurses, and graphs of a million nodes can be walked and freed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from torchatlas.capturing.deep_graphs import Edges, edges_behind, keep_until_freed, nodes_behind
from torchatlas.errors import AnalysisError, InvalidInputError

FIRST = 1 << 62  # before all others: what accumulates gradients runs as soon as it can


def roots_of(outputs: Any, called: str) -> list[Any]:
    """The nodes that gradients of these tensors enter first."""
    tensors = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs) if isinstance(outputs, Iterable) else []
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        kind = type(outputs).__name__
        raise InvalidInputError(f"{called} takes a tensor or several, not {kind}: {called}(loss).")
    roots = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    if not roots:
        raise AnalysisError(
            "This tensor has no autograd graph: it does not require a gradient, or it is a leaf. Compute it from a "
            "parameter, outside torch.no_grad() and without detach()."
        )
    return roots


def starting_node(output: Any) -> Any:
    """The node that the gradient of a tensor, or of a GradientEdge, enters first."""
    if not isinstance(output, torch.Tensor):
        return output.node
    return output.grad_fn if output.grad_fn is not None else torch.autograd.graph.get_gradient_edge(output).node


def starting_nodes(outputs: Any, called: str) -> list[Any]:
    """The nodes that backward begins with, each once. Raises an error for what backward cannot begin with."""
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    for output in outputs:
        if isinstance(output, torch.Tensor) and not output.requires_grad:
            roots_of(output, called)  # says why
        elif not isinstance(output, (torch.Tensor, torch.autograd.graph.GradientEdge)):
            raise InvalidInputError(f"{called} takes a tensor or several, not {type(output).__name__}: {called}(loss).")
    return list(dict.fromkeys(map(starting_node, outputs)))


def reached(roots: Iterable[Any]) -> list[Any]:
    """All nodes behind some roots, which come first. The graph can still be freed."""
    return list(nodes_behind(roots))


@dataclass(eq=False)
class Walk:
    """Nodes in the order in which the engine would run them, and their edges."""

    nodes: list[Any]
    number: dict[Any, int] = field(repr=False)
    source: list[int] = field(repr=False)
    target: list[int] = field(repr=False)
    index: list[int] = field(repr=False)  # which input of the target


def walk(roots: list[Any]) -> Walk:
    """All nodes behind some roots, each once, in the order in which the engine would run them."""
    walked = _in_order(*edges_behind(roots))
    keep_until_freed(roots, walked.nodes, walked.source, walked.target)
    return walked


def _in_order(following: dict[Any, Edges], waiting: dict[Any, int]) -> Walk:
    ready = [(-sequence_nr(node), arrival, node) for arrival, node in enumerate(waiting) if not waiting[node]]
    heapq.heapify(ready)
    order: list[Any] = []
    number: dict[Any, int] = {}
    source: list[int] = []
    index: list[int] = []
    came: list[Any] = []
    arrival = len(waiting)
    while ready:
        *_, node = heapq.heappop(ready)
        mine = number[node] = len(order)
        order.append(node)
        for after, slot in following[node]:
            if after is None:
                continue
            source.append(mine)
            came.append(after)
            index.append(slot)
            left = waiting[after] - 1
            waiting[after] = left
            if not left:
                arrival += 1
                heapq.heappush(ready, (-sequence_nr(after), arrival, after))
    target = [number[after] for after in came]
    return Walk(order, number, source, target, index)


def leaf_of(node: Any) -> torch.Tensor | None:
    """The tensor whose gradient a node accumulates."""
    return node.variable if type(node).__name__ == "AccumulateGrad" else None  # asking others for it raises


def sequence_nr(node: Any) -> int:
    """Nodes are numbered as they are made; those that accumulate gradients have the largest number there is."""
    number = int(node._sequence_nr())
    return FIRST if number > FIRST else number
