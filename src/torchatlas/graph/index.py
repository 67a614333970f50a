"""Look-ups over a graph's columns that are worth computing once: names, neighbours, consumers, the module of a call."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from torchatlas.graph.columns import EDGE_KINDS, Array
from torchatlas.graph.names import NodeNames
from torchatlas.graph.nouns import EdgeKind
from torchatlas.graph.scopes import Scope, ScopeTree

if TYPE_CHECKING:
    from torchatlas.graph.graph import Graph

_DATA = EDGE_KINDS.index(EdgeKind.DATA)


class Index:
    """Derived, lazy, never saved."""

    def __init__(self, graph: Graph) -> None:
        self.columns = graph.columns
        self.tables = graph.tables
        self.graph = graph

    @cached_property
    def scopes(self) -> ScopeTree:
        return ScopeTree(self.graph)

    def scope_of_call(self, call: int) -> Scope:
        return self.scopes[self.tables.modules[int(self.columns["call_module"][call])].path if call >= 0 else ""]

    @cached_property
    def path_of_call(self) -> Array:
        """Per call (and, last, for no call) the number of its module's path in `paths`."""
        of_module = np.array([self._number_of_path[module.path] for module in self.tables.modules] or [0], np.int64)
        of_call = of_module[self.columns["call_module"]] if len(self.columns["call_module"]) else np.zeros(0, np.int64)
        return np.append(of_call, 0)  # call -1 indexes the last row: the root

    @cached_property
    def paths(self) -> list[str]:
        return list(dict.fromkeys(["", *(module.path for module in self.tables.modules)]))

    @cached_property
    def _number_of_path(self) -> dict[str, int]:
        return {path: position for position, path in enumerate(self.paths)}

    def path_of_parameter(self, name: str) -> int:
        """The number in `paths` of the innermost module whose path begins a parameter's name."""
        path = name.rpartition(".")[0]
        while path not in self._number_of_path:
            path = path.rpartition(".")[0]
        return self._number_of_path[path]

    # -- names ---------------------------------------------------------------------------------------------------

    @cached_property
    def _node_names(self) -> NodeNames:
        return NodeNames(self.columns, self.tables, self.paths, self.path_of_call)

    def name(self, node: int) -> str:
        return self.names(node, node + 1)[0]

    def names(self, start: int = 0, stop: int | None = None) -> list[str]:
        """The names of the nodes start:stop, many times faster than one by one."""
        return self._node_names.between(start, stop)

    @cached_property
    def by_name(self) -> dict[str, int]:
        return {name: node for node, name in enumerate(self.names())}

    # -- neighbours ----------------------------------------------------------------------------------------------

    @cached_property
    def node_of_input(self) -> Array:
        """Per row of `input_value` the node that takes it."""
        return self._owners("input_ptr")

    @cached_property
    def node_of_output(self) -> Array:
        """Per row of `output_value` the node that made it."""
        return self._owners("output_ptr")

    def _owners(self, ptr: str) -> Array:
        counts = np.diff(self.columns[ptr])
        return np.repeat(np.arange(len(counts)), counts)

    def inputs(self, node: int) -> Array:
        return self.columns["input_value"][self._slice("input_ptr", node)]

    def outputs(self, node: int) -> Array:
        return self.columns["output_value"][self._slice("output_ptr", node)]

    def writes(self, node: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self.columns["input_written"][self._slice("input_ptr", node)]).tolist())

    def _slice(self, ptr: str, node: int) -> slice:
        return slice(int(self.columns[ptr][node]), int(self.columns[ptr][node + 1]))

    @cached_property
    def _outgoing(self) -> _Grouped:
        return self._data_edges("edge_source", "edge_target")

    @cached_property
    def _incoming(self) -> _Grouped:
        return self._data_edges("edge_target", "edge_source")

    def _data_edges(self, key: str, other: str) -> _Grouped:
        data = self.columns["edge_kind"] == _DATA
        return _Grouped(self.columns[key][data], self.columns[other][data], len(self.columns["node_kind"]))

    def successors(self, node: int) -> Array:
        return np.unique(self._outgoing[node])

    def predecessors(self, node: int) -> Array:
        return np.unique(self._incoming[node])

    @cached_property
    def _backward(self) -> _Grouped:
        forward = self.columns["node_forward"]
        linked = np.flatnonzero(forward >= 0)
        return _Grouped(forward[linked], linked, len(forward))

    def backward_of(self, node: int) -> Array:
        return self._backward[node]

    @cached_property
    def _consumers(self) -> _Grouped:
        return _Grouped(self.columns["input_value"], self.node_of_input, len(self.columns["value_storage"]))

    def consumers(self, value: int) -> list[int]:
        return [int(node) for node in np.unique(self._consumers[value])]


class _Grouped:
    """Items by key, a number below `count`."""

    def __init__(self, keys: Array, items: Array, count: int) -> None:
        self._items = items[np.argsort(keys, kind="stable")]
        self._starts = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(keys, minlength=count), out=self._starts[1:])

    def __getitem__(self, key: int) -> Array:
        return self._items[self._starts[key] : self._starts[key + 1]]
