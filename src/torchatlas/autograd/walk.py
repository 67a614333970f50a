"""Tensor -> Graph: the nodes that backward would run, in the order in which it would run them.

Edges go as gradients do, from the loss to the leaves, and carry the engine's input index.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.graph import EdgeKind, Graph, NodeKind, Phase, Role
from torchatlas.graph.arguments import Call, encode
from torchatlas.graph.columns import COLUMNS, EDGE_KINDS, KINDS, PHASES, ROLES, Array, Layout, Operation, Tables
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


def _in_order(roots: list[Any]) -> tuple[list[Any], list[tuple[int, int, int, int]]]:
    """Nodes as the engine would run them, and edges: from, which of its outputs, to, which of its inputs."""
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
    edges: list[tuple[int, int, int, int]] = []
    came: list[tuple[Any, int, Any, int]] = []
    place = len(waiting)
    while ready:
        *_, node = heapq.heappop(ready)
        order[node] = len(order)
        for output, (following, index) in enumerate(seen[node]):
            if following is None:
                continue
            came.append((node, output, following, index))
            waiting[following] -= 1
            if not waiting[following]:
                place += 1
                heapq.heappush(ready, (-_number(following), place, following))
    edges = [(order[node], output, order[following], index) for node, output, following, index in came]
    return list(order), edges


def _number(node: Any) -> int:
    number = int(node._sequence_nr())
    return _FIRST if number > _FIRST else number


def _graph(nodes: list[Any], edges: list[tuple[int, int, int, int]], names: dict[int, str]) -> Graph:
    tables = Tables(arguments=[encode(Call())], threads=[""], devices=[])
    operations: dict[str, int] = {}
    layouts: dict[Layout, int] = {}
    texts: dict[str, int] = {}
    devices: dict[str, int] = {}
    values: list[tuple[int, int, int, int]] = []  # layout, producer, output, name
    storages: dict[int, tuple[int, int]] = {}  # value of a leaf -> bytes, device
    inputs: list[list[int]] = [[] for _ in nodes]
    outputs: list[list[int]] = [[] for _ in nodes]
    rows: list[tuple[int, int, int, int, int]] = []
    for source, output, target, index in edges:
        layout = _layout(nodes[target], index)
        value = len(values)
        values.append((layouts.setdefault(layout, len(layouts)), source, len(outputs[source]), -1))
        outputs[source].append(value)
        rows.append((source, target, len(outputs[source]) - 1, len(inputs[target]), value))
        inputs[target].append(value)
        del output
    for number, node in enumerate(nodes):
        leaf = getattr(node, "variable", None)
        if leaf is None:
            continue
        name = names.get(id(leaf), "")
        layout = Layout(
            tuple(leaf.shape), tuple(leaf.stride()), str(leaf.dtype).removeprefix("torch."), str(leaf.device)
        )
        values.append(
            (layouts.setdefault(layout, len(layouts)), -1, -1, texts.setdefault(name, len(texts)) if name else -1)
        )
        inputs[number].append(len(values) - 1)
        size = leaf.numel() * leaf.element_size()
        storages[len(values) - 1] = size, devices.setdefault(str(leaf.device), len(devices))
    found = [operations.setdefault(node.name(), len(operations)) for node in nodes]
    tables.operations = [Operation(name, operation_type(name)) for name in operations]
    tables.layouts, tables.names, tables.devices = list(layouts), list(texts), list(devices)
    count, many = len(nodes), len(values)
    leaf_value = np.array([producer < 0 for _, producer, _, _ in values], bool)
    place = {value: number for number, value in enumerate(storages)}
    sequence = [_number(node) for node in nodes]
    columns: dict[str, Any] = {
        name: np.full(_length(unit, count, many, len(rows)), -1) for name, (_, unit) in COLUMNS.items()
    }
    columns |= {
        "node_kind": np.full(count, KINDS.index(NodeKind.OP)),
        "node_operation": found,
        "node_phase": np.full(count, PHASES.index(Phase.BACKWARD)),
        "node_arguments": np.zeros(count),
        "node_sequence_nr": [number if number < _FIRST else -1 for number in sequence],
        "node_iteration": np.zeros(count),
        "node_thread": np.zeros(count),
        "input_ptr": np.cumsum([0, *map(len, inputs)]),
        "output_ptr": np.cumsum([0, *map(len, outputs)]),
        "input_value": [value for mine in inputs for value in mine],
        "input_written": np.zeros(sum(map(len, inputs))),
        "output_value": [value for mine in outputs for value in mine],
        "value_storage": [place.get(value, -1) for value in range(many)],
        "storage_bytes": [size for size, _ in storages.values()],
        "storage_device": [device for _, device in storages.values()],
        "storage_born": np.full(len(storages), -1),
        "storage_died": np.full(len(storages), -1),
        "storage_role": np.full(len(storages), ROLES.index(Role.PARAMETER)),
        "value_layout": [value[0] for value in values],
        "value_producer": [value[1] for value in values],
        "value_output_index": [value[2] for value in values],
        "value_parameter": [value[3] for value in values],
        "value_role": np.where(leaf_value, ROLES.index(Role.PARAMETER), ROLES.index(Role.TEMPORARY)),
        "value_offset": np.zeros(many),
        "value_version": np.zeros(many),
    }
    for number, name in enumerate(("source", "target", "output_index", "input_index", "value")):
        columns[f"edge_{name}"] = [row[number] for row in rows]
    columns["edge_kind"] = np.full(len(rows), EDGE_KINDS.index(EdgeKind.DATA))
    typed: dict[str, Array] = {name: np.ascontiguousarray(columns[name], dtype) for name, (dtype, _) in COLUMNS.items()}
    metadata = {"torch": torch.__version__.partition("+")[0]}
    return Graph(typed, tables, source="autograd", metadata=metadata)


def _length(unit: str, nodes: int, values: int, edges: int) -> int:
    return {"node": nodes, "node+1": nodes + 1, "value": values, "edge": edges}.get(unit, 0)


def _layout(node: Any, index: int) -> Layout:
    """What arrives at an input of a node: the shape of what its forward op made."""
    known = node._input_metadata
    if index >= len(known):  # a Function's own node may say less than it takes
        return Layout((), None, "unknown", "unknown", "unknown")
    found = known[index]
    shape = tuple(int(size) if isinstance(size, int) else str(size) for size in found.shape)
    return Layout(shape, None, str(found.dtype).removeprefix("torch."), str(found.device), "gradient")
