"""Tensor -> Graph: the nodes that backward would run, in the order in which it would run them.

Edges go as gradients do, from the loss to the leaves, and carry the engine's input index.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.graph import Graph, Phase, Role
from torchatlas.graph.builder import Builder
from torchatlas.graph.columns import Layout, Operation
from torchatlas.operations import operation_type

# Freeing a graph that Python has looked at recurses in C, and at 50,000 nodes in a row the stack is gone. Until walking
# can take the freeing upon itself, graphs that could be that deep are refused.
MOST_NODES = 20_000
_FIRST = 1 << 62  # before all others: what accumulates gradients runs as soon as it can


def autograd_graph(
    outputs: torch.Tensor | Iterable[torch.Tensor],
    params: Mapping[str, torch.Tensor] | None = None,
    model: nn.Module | None = None,
) -> Graph:
    """The autograd graph behind one tensor or several. `params` or `model` name the leaves."""
    tensors = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs) if isinstance(outputs, Iterable) else []
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        found = type(outputs).__name__
        raise InvalidInputError(f"autograd_graph takes a tensor or several, not {found}: autograd_graph(loss).")
    roots = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    if not roots:
        raise AnalysisError(
            "This tensor has no autograd graph: it does not require a gradient, or it is a leaf. Compute it from a "
            "parameter, outside torch.no_grad() and without detach()."
        )
    names = {id(tensor): name for name, tensor in (params or {}).items()}
    if model is not None:
        names |= {id(tensor): name for name, tensor in model.named_parameters()}
    nodes, edges = _in_order(roots)
    return _graph(nodes, edges, names)


def _in_order(roots: list[Any]) -> tuple[list[Any], list[tuple[int, int, int]]]:
    """Nodes as the engine would run them, and edges: from, to, to which of its inputs."""
    seen: dict[Any, list[tuple[Any, int]]] = {}
    waiting: dict[Any, int] = dict.fromkeys(roots, 0)
    stack = list(waiting)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        if len(seen) == MOST_NODES:
            raise AnalysisError(
                f"This autograd graph has more than {MOST_NODES:,} nodes: looking at it from Python would make freeing "
                "it overflow the stack. Look at a part of it, such as one step of the loop."
            )
        seen[node] = list(node.next_functions)
        for following, _ in seen[node]:
            if following is not None:
                waiting[following] = waiting.get(following, 0) + 1
                stack.append(following)
    ready = [(-_number(node), place, node) for place, node in enumerate(waiting) if not waiting[node]]
    heapq.heapify(ready)
    order: dict[Any, int] = {}
    came: list[tuple[Any, Any, int]] = []
    place = len(waiting)
    while ready:
        *_, node = heapq.heappop(ready)
        order[node] = len(order)
        for following, index in seen[node]:
            if following is None:
                continue
            came.append((node, following, index))
            waiting[following] -= 1
            if not waiting[following]:
                place += 1
                heapq.heappush(ready, (-_number(following), place, following))
    return list(order), [(order[node], order[following], index) for node, following, index in came]


def _number(node: Any) -> int:
    number = int(node._sequence_nr())
    return _FIRST if number > _FIRST else number


def _graph(nodes: list[Any], edges: list[tuple[int, int, int]], names: dict[int, str]) -> Graph:
    builder = Builder()
    arriving: list[list[int]] = [[] for _ in nodes]
    leaving: list[list[tuple[int, int]]] = [[] for _ in nodes]
    for source, target, index in edges:
        leaving[source].append((target, index))
    for number, node in enumerate(nodes):
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            arriving[number].append(_leaf(builder, leaf, names.get(id(leaf), "")))
        outputs = []
        for output, (target, index) in enumerate(leaving[number]):
            layout = _layout(nodes[target], index)
            outputs.append(builder.value(layout, Role.TEMPORARY, producer=number, output=output))
            arriving[target].append(outputs[-1])
        operation = Operation(node.name(), operation_type(node.name()))
        sequence = _number(node)
        builder.node(
            operation,
            phase=Phase.BACKWARD,
            inputs=arriving[number],
            outputs=outputs,
            sequence_nr=sequence if sequence < _FIRST else -1,
        )
    return builder.graph("autograd", metadata={"torch": torch.__version__.partition("+")[0]})


def _leaf(builder: Builder, leaf: torch.Tensor, name: str) -> int:
    """The tensor whose gradient a node accumulates."""
    dtype, device = str(leaf.dtype).removeprefix("torch."), str(leaf.device)
    strided = leaf.layout is torch.strided
    layout = Layout(tuple(leaf.shape), tuple(leaf.stride()) if strided else None, dtype, device)
    storage = builder.storage(leaf.numel() * leaf.element_size(), device, Role.PARAMETER)
    return builder.value(layout, Role.PARAMETER, storage=storage, name=name)


def _layout(node: Any, index: int) -> Layout:
    """What arrives at an input of a node: the shape of what its forward op made."""
    known = node._input_metadata
    if index >= len(known):  # a Function's own node may say less than it takes
        return Layout((), None, "unknown", "unknown", "unknown")
    found = known[index]
    shape = tuple(int(size) if isinstance(size, int) else str(size) for size in found.shape)
    return Layout(shape, None, str(found.dtype).removeprefix("torch."), str(found.device), "gradient")
