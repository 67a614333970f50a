"""A graph, or torch.fx's graph with it -> units, the smallest pieces of a partition, and their dependencies.

A unit is one operation of a graph, or one node of torch.fx with all the operations that it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from torchatlas.analysis.totals import operations_mask
from torchatlas.graph import Graph
from torchatlas.graph.columns import Array
from torchatlas.graph.nouns import OperationType
from torchatlas.operations import of, operation_type

if TYPE_CHECKING:
    from torch import fx

# Operators that people write between modules. Other functions (relu, cat, flatten) go with the module they follow.
_ARITHMETIC = frozenset([
    "add", "sub", "mul", "truediv", "matmul", "pow", "neg", "iadd", "isub", "imul", "itruediv", "imatmul",
    "bmm", "baddbmm", "einsum",
])  # fmt: skip
_HEAVY = (OperationType.CONVOLUTION, OperationType.MATMUL, OperationType.ATTENTION, OperationType.RECURRENT)


@dataclass(frozen=True, eq=False)
class Units:
    """Units in execution order, and which must come before which: every dependency leads to a higher number."""

    graph: Graph
    names: list[str]
    ops: list[list[int]]  # the operations each runs, by node id; none for a Dropout when evaluating
    is_head: Array  # whether it counts as an operation of its own; else it belongs to another
    source: Array
    target: Array

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def of_op(self) -> Array:
        """Per node of the graph its unit; -1 for inputs and outputs of the program."""
        units = np.full(len(self.graph), -1, np.int64)
        for unit, ops in enumerate(self.ops):
            units[ops] = unit
        return units

    @cached_property
    def before(self) -> list[list[int]]:
        """Per unit those it depends on directly, in order."""
        return _neighbours(self.target, self.source, len(self))

    @cached_property
    def after(self) -> list[list[int]]:
        return _neighbours(self.source, self.target, len(self))


def units_of_graph(graph: Graph) -> Units:
    """Each operation is a unit."""
    nodes = np.flatnonzero(operations_mask(graph))
    unit = np.full(len(graph), -1, np.int64)
    unit[nodes] = np.arange(len(nodes))
    names = graph.index.names()
    yes = np.ones(len(nodes), bool)
    listed = nodes.tolist()
    source, target = _edges(graph, unit, ((int(unit[a]), int(unit[b])) for a, b in _around_copies(graph)))
    return Units(graph, [names[node] for node in listed], [[node] for node in listed], yes, source, target)


def _around_copies(graph: Graph) -> Iterator[tuple[int, int]]:
    """Writes that a `reshape` must come after, or before.

    An exported graph has it as a view, which may be taken at any time; but where no view can be had, it copies what
    the memory holds then.
    """
    columns = graph.columns
    may_copy = np.array([of(op.name).may_copy for op in graph.tables.operations] or [False])
    node = graph.index.node_of_input
    storage = columns["value_storage"][columns["input_value"]]
    copies = may_copy[columns["node_operation"]][node]
    writers: dict[int, list[int]] = {}
    written = columns["input_written"].astype(bool)
    for writer, memory in zip(node[written].tolist(), storage[written].tolist(), strict=True):
        writers.setdefault(memory, []).append(writer)
    for copy, memory in zip(node[copies].tolist(), storage[copies].tolist(), strict=True):
        for writer in writers.get(memory, ()):
            if writer != copy:
                yield min(writer, copy), max(writer, copy)


def units_of_fx(module: fx.GraphModule, graph: Graph) -> Units:
    """Each call of torch.fx's graph that hands on a tensor is a unit. `graph` is what `from_fx` made of it.

    What only computes with sizes (`x.shape[0] // 2`, an assertion) is no unit; dependencies lead through it.
    """
    ran: dict[str, list[int]] = graph.metadata["fx_nodes"]
    names, ops, heads, pairs = list[str](), list[list[int]](), list[bool](), list[tuple[int, int]]()
    leads_to: dict[Any, list[int]] = {}  # node of torch.fx -> its unit, or those whose results it computes with
    for node in module.graph.nodes:
        before = sorted({unit for argument in node.all_input_nodes for unit in leads_to[argument]})
        mine = ran.get(node.name, [])
        if not node.op.startswith("call_") or not (mine or _gives_tensor(node)):
            leads_to[node] = before
            continue
        leads_to[node] = [len(names)]
        pairs += [(earlier, len(names)) for earlier in before]
        names.append(node.name)
        ops.append(mine)
        heads.append(_is_head(node, graph, mine))
    unit = np.full(len(graph), -1, np.int64)
    for number, nodes in enumerate(ops):
        unit[nodes] = number
    return Units(graph, names, ops, np.array(heads, bool), *_edges(graph, unit, pairs))


def _edges(graph: Graph, unit: Array, more: Iterable[tuple[int, int]] = ()) -> tuple[Array, Array]:
    """Which unit must come before which: by data, by the order of writes, and as `more` says."""
    source, target = unit[graph.columns["edge_source"]], unit[graph.columns["edge_target"]]
    between_units = (source >= 0) & (target >= 0) & (source != target)
    pairs = np.stack([source[between_units], target[between_units]], axis=1)
    extra = np.array(list(more), np.int64).reshape(-1, 2)
    edges = np.unique(np.concatenate([pairs, extra]), axis=0)
    return edges[:, 0], edges[:, 1]


def _neighbours(key: Array, other: Array, count: int) -> list[list[int]]:
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for unit, neighbour in zip(key.tolist(), other.tolist(), strict=True):
        neighbours[unit].append(neighbour)
    return neighbours


def _gives_tensor(node: Any) -> bool:
    """Whether a node that ran no operation hands on a tensor, as ShapeProp saw it."""
    return "tensor_meta" in node.meta or node.op == "call_module"


def _is_head(node: Any, graph: Graph, ops: list[int]) -> bool:
    if node.op == "call_module":
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name.strip("_") in _ARITHMETIC:
        return True
    # A convolution or product called as a function is one too; a function of several operations (the attention of
    # torchvision's Swin) is part of the module it is called from.
    return operation_type(name) in _HEAVY and sum(_is_heavy(graph, op) for op in ops) == 1


def _is_heavy(graph: Graph, op: int) -> bool:
    return graph.tables.operations[int(graph.columns["node_operation"][op])].type in _HEAVY
