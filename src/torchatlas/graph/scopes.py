"""The module tree of a graph, with roll-ups: what happened in a module is the sum of what happened in its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from torchatlas.graph.columns import KINDS, PHASES, ROLES, Array
from torchatlas.graph.nouns import NodeKind, Phase, Role
from torchatlas.graph.timing import Measured

if TYPE_CHECKING:
    from torchatlas.graph.graph import Graph
    from torchatlas.graph.items import GraphNode

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Scope:
    """One module, or the root (path ""). Sums include everything below; the `own_` ones only the module itself."""

    path: str
    type: str
    kind: str = "module"
    parent: Scope | None = field(default=None, repr=False)
    children: list[Scope] = field(default_factory=list, repr=False)
    calls: int = 0
    own_operations: int = 0
    operations: int = 0
    own_time_ns: int | None = None
    time_ns: int | None = None
    time_spread_ns: int | None = None  # the sum of the operations' spreads; None of one run
    untimed: int = 0  # operations whose time is unknown: time_ns is then "at least"
    operations_by_phase: dict[Phase, int] = field(default_factory=dict, repr=False)
    parameters: int = 0  # elements, tied ones once
    parameter_bytes: int = 0
    _graph: Graph | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def nodes(self) -> list[GraphNode]:
        """Every node in it and below, in execution order."""
        return self._graph.where(scope=self.path) if self._graph is not None else []

    @property
    def measured(self) -> Measured | None:
        """Its time with what it is: one run, or a median with its spread. None when nothing in it was timed."""
        timing = self._graph.timing if self._graph is not None else None
        if timing is None or self.time_ns is None:
            return None
        return Measured(self.time_ns, timing.runs, self.time_spread_ns)

    def walk(self) -> Iterator[Scope]:
        """This scope and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


class ScopeTree(Mapping[str, Scope]):
    """All scopes by path, in the order of the model's definition."""

    def __init__(self, graph: Graph) -> None:
        self._scopes: dict[str, Scope] = {"": Scope("", "", _graph=graph)}
        for module in graph.tables.modules:
            self._scope(module.path, graph)
        for module in graph.tables.modules:
            scope = self._scopes[module.path]
            scope.type, scope.kind = scope.type or module.type, module.kind
        self._fill(graph)
        self._sum_spreads(graph)
        self._count_parameters(graph)

    def _scope(self, path: str, graph: Graph) -> Scope:
        found = self._scopes.get(path)
        if found is None:
            parent = self._scope(path.rpartition(".")[0], graph)
            found = self._scopes[path] = Scope(path, "", parent=parent, _graph=graph)
            parent.children.append(found)
        return found

    def _fill(self, graph: Graph) -> None:
        columns, index = graph.columns, graph.index
        is_op = columns["node_kind"] == KINDS.index(NodeKind.OP)
        path = index.path_of_call[columns["node_call"][is_op]]
        time, phase, size = columns["node_time_ns"][is_op], columns["node_phase"][is_op], len(index.paths)
        timed = time >= 0
        operations = np.bincount(path, minlength=size)
        known = np.bincount(path[timed], minlength=size)
        total = np.zeros(size, np.int64)
        np.add.at(total, path[timed], time[timed])
        phases = np.bincount(path * len(PHASES) + phase, minlength=size * len(PHASES)).reshape(size, -1)
        for position, name in enumerate(index.paths):
            scope = self._scopes[name]
            scope.own_operations = scope.operations = int(operations[position])
            scope.own_time_ns = scope.time_ns = int(total[position]) if known[position] else None
            scope.untimed = int(operations[position] - known[position])
            scope.operations_by_phase = {PHASES[p]: int(count) for p, count in enumerate(phases[position]) if count}
        calls = np.bincount(index.path_of_call[:-1], minlength=size)
        for position, name in enumerate(index.paths):
            self._scopes[name].calls = int(calls[position])
        for scope in self._bottom_up():
            parent = scope.parent
            if parent is None:
                continue
            parent.operations += scope.operations
            parent.untimed += scope.untimed
            if scope.time_ns is not None:
                parent.time_ns = (parent.time_ns or 0) + scope.time_ns
            for key, count in scope.operations_by_phase.items():
                parent.operations_by_phase[key] = parent.operations_by_phase.get(key, 0) + count

    def _sum_spreads(self, graph: Graph) -> None:
        columns, index = graph.columns, graph.index
        timed = np.flatnonzero((columns["node_kind"] == KINDS.index(NodeKind.OP)) & (columns["node_time_ns"] >= 0))
        path, spread = index.path_of_call[columns["node_call"][timed]], columns["node_time_spread_ns"][timed]
        if (spread < 0).all():
            return
        total = np.zeros(len(index.paths), np.int64)
        np.add.at(total, path, spread)
        unknown = {index.paths[position] for position in path[spread < 0].tolist()}
        sums = dict(zip(index.paths, total.tolist(), strict=True))
        for scope in self._bottom_up():
            if scope.time_ns is None:
                continue
            if scope.path in unknown:
                unknown.add(scope.parent.path if scope.parent is not None else "")
            else:
                scope.time_spread_ns = sums.get(scope.path, 0)
            if scope.parent is not None:
                sums[scope.parent.path] = sums.get(scope.parent.path, 0) + sums.get(scope.path, 0)

    def _count_parameters(self, graph: Graph) -> None:
        for value in _parameter_values(graph):
            item = graph.values[value]
            elements = 1
            for size in item.shape:
                elements *= size if isinstance(size, int) else 0  # nobody can count a symbolic size
            scope: Scope | None = self._owner(item.parameter or "")
            while scope is not None:
                scope.parameters += elements
                storage = item.storage
                scope.parameter_bytes += (storage.bytes or 0) if storage is not None else 0
                scope = scope.parent

    def _owner(self, parameter: str) -> Scope:
        """The deepest scope whose path begins the parameter's name."""
        path = parameter.rpartition(".")[0]
        while path not in self._scopes:
            path = path.rpartition(".")[0]
        return self._scopes[path]

    def _bottom_up(self) -> list[Scope]:
        return list(self._scopes[""].walk())[::-1]

    def totals(self, own: Mapping[str, T], zero: T) -> dict[str, T]:
        """Per module the sum of what it has itself, as `own` says, and of what all modules below it have."""
        found = {path: own.get(path, zero) for path in self}
        for scope in self._bottom_up():
            for child in scope.children:
                found[scope.path] = found[scope.path] + found[child.path]  # type: ignore[operator]
        return found

    def __getitem__(self, path: str) -> Scope:
        return self._scopes[path]

    def __iter__(self) -> Iterator[str]:
        return iter(scope.path for scope in self._scopes[""].walk())

    def __len__(self) -> int:
        return len(self._scopes)


def _parameter_values(graph: Graph) -> Array:
    """One value per storage that holds a parameter: the first."""
    columns = graph.columns
    values = np.flatnonzero((columns["value_role"] == ROLES.index(Role.PARAMETER)) & (columns["value_view_of"] < 0))
    _, first = np.unique(columns["value_storage"][values], return_index=True)
    return values[np.sort(first)]
