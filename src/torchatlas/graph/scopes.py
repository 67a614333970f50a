"""The module tree of a graph, with roll-ups: what happened in a module is the sum of what happened in its parts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from torchatlas.errors import NodeNotFoundError
from torchatlas.graph import item_sections
from torchatlas.graph.columns import KINDS, PHASES, ROLES, Array
from torchatlas.graph.nouns import NodeKind, Phase, Role
from torchatlas.graph.shown import Shown
from torchatlas.graph.timing import Measured, Timing
from torchatlas.registry import did_you_mean
from torchatlas.sections import Section

if TYPE_CHECKING:
    from torchatlas.graph.graph import Graph
    from torchatlas.graph.objects import GraphNode

T = TypeVar("T")


@dataclass(slots=True, eq=False, repr=False)
class Scope(Shown):
    """One module, or the root (path ""). Sums include everything below; the `own_` ones only the module itself."""

    path: str
    type: str
    kind: str = "module"  # module, or optimizer
    parent: Scope | None = field(default=None, repr=False)  # the module it is in; None of the root
    children: list[Scope] = field(default_factory=list, repr=False)  # the modules in it
    calls: int = 0
    own_operations: int = 0  # without those of modules below
    operations: int = 0
    own_time_ns: int | None = None  # without modules below; None if nothing was timed
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
        if self._graph is None or self.time_ns is None:
            return None
        timing = self._graph._timing or Timing()  # graph.timing would look through all times, for every scope
        return Measured(self.time_ns, timing.runs, self.time_spread_ns)

    @property
    def device_time_ns(self) -> int | None:
        """The sum of kernels in it and below, as `atlas.join_profile` found them; None where no kernel is known."""
        return None if self._graph is None else self._graph.scopes.device_times(self._graph).get(self.path)

    def walk(self) -> Iterator[Scope]:
        """This scope and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def _sections(self) -> Iterator[Section]:
        return item_sections.scope_sections(self)


class ScopeTree(Shown, Mapping[str, Scope]):
    """All scopes by path, in the order of the model's definition."""

    def __init__(self, graph: Graph) -> None:
        self._scopes: dict[str, Scope] = {"": Scope("", "", _graph=graph)}
        self._device_times: tuple[int, int, dict[str, int]] | None = None  # and of which times: see `device_times`
        for module in graph.tables.modules:
            self._scope(module.path, graph)
        for module in graph.tables.modules:
            scope = self._scopes[module.path]
            scope.type, scope.kind = scope.type or module.type, module.kind
        self._fill(graph)
        self._count_parameters(graph)

    def _scope(self, path: str, graph: Graph) -> Scope:
        scope = self._scopes.get(path)
        if scope is None:
            parent = self._scope(path.rpartition(".")[0], graph)
            scope = self._scopes[path] = Scope(path, "", parent=parent, _graph=graph)
            parent.children.append(scope)
        return scope

    def _fill(self, graph: Graph) -> None:
        """Count operations, times and spreads per module, and sum them over what is below it."""
        columns, index = graph.columns, graph.index
        is_op = columns["node_kind"] == KINDS.index(NodeKind.OP)
        path, size = index.path_of_call[columns["node_call"][is_op]], len(index.paths)
        time, spread = columns["node_time_ns"][is_op], columns["node_time_spread_ns"][is_op]
        timed = time >= 0
        amounts = [np.ones(len(path), bool), timed, np.where(timed, time, 0)]
        amounts += [np.where(timed, spread, 0), timed & (spread < 0)]
        amounts += [columns["node_phase"][is_op] == phase for phase in range(len(PHASES))]
        own = np.zeros((size, len(amounts)), np.int64)
        for column, amount in zip(own.T, amounts, strict=True):
            if amount.dtype == bool:
                column[:] = np.bincount(path[amount], minlength=size)
            else:
                np.add.at(column, path, amount)
        calls = np.bincount(index.path_of_call[:-1], minlength=size).tolist()
        for name, row, called in zip(index.paths, own.tolist(), calls, strict=True):
            scope = self._scopes[name]
            scope.calls, scope.own_operations, scope.own_time_ns = called, row[0], row[2] if row[1] else None
        has_spreads = bool((spread[timed] >= 0).any())
        rows = self.totals(dict(zip(index.paths, own, strict=True)), np.zeros(len(amounts), np.int64))
        for name, total in rows.items():
            scope, (operations, known, time_ns, spread_ns, without_spread, *phases) = self._scopes[name], total.tolist()
            scope.operations, scope.untimed = operations, operations - known
            scope.time_ns = time_ns if known else None
            scope.time_spread_ns = spread_ns if known and has_spreads and not without_spread else None
            scope.operations_by_phase = {PHASES[at]: count for at, count in enumerate(phases) if count}

    def _count_parameters(self, graph: Graph) -> None:
        for value in _parameter_values(graph):
            item = graph.values[value]
            elements = math.prod(size if isinstance(size, int) else 0 for size in item.shape)  # symbolic: no number
            storage, scope = item.storage, self._owner(item.parameter or "")
            while scope is not None:
                scope.parameters += elements
                scope.parameter_bytes += (storage.bytes or 0) if storage is not None else 0
                scope = scope.parent

    def _owner(self, parameter: str) -> Scope | None:
        """The deepest scope whose path begins the parameter's name."""
        path = parameter.rpartition(".")[0]
        while path not in self._scopes:
            path = path.rpartition(".")[0]
        return self._scopes[path]

    def device_times(self, graph: Graph) -> dict[str, int]:
        """The sum of kernels in each module and below, of those in which one is known. Computed for all at once."""
        if "device_times" not in graph.metadata:
            return {}
        by_node: dict[str, int] = graph.metadata["device_times"]["by_node"]
        if self._device_times is None or self._device_times[:2] != (id(by_node), len(by_node)):
            paths, path_of_call = graph.index.paths, graph.index.path_of_call
            own, counts = Counter[str](), Counter[str]()
            for node, call in enumerate(graph.columns["node_call"].tolist()):
                if (time_ns := by_node.get(str(node))) is not None:
                    path = paths[path_of_call[call]]
                    own[path] += time_ns
                    counts[path] += 1
            known = self.totals(counts, 0)
            times = {path: time_ns for path, time_ns in self.totals(own, 0).items() if known[path]}
            self._device_times = id(by_node), len(by_node), times
        return self._device_times[2]

    def totals(self, own: Mapping[str, T], zero: T) -> dict[str, T]:
        """Per module the sum of what it has itself, as `own` says, and of what all modules below it have."""
        totals = {path: own.get(path, zero) for path in self}
        for scope in reversed(list(self._scopes[""].walk())):  # children before parents
            for child in scope.children:
                totals[scope.path] = totals[scope.path] + totals[child.path]  # type: ignore[operator]
        return totals

    def __getitem__(self, path: str) -> Scope:
        try:
            return self._scopes[path]
        except KeyError:
            hint = did_you_mean(path, self._scopes) or ". graph.scopes lists those that ran."
            raise NodeNotFoundError(f"no module is named {path!r}{hint}") from None

    def __contains__(self, path: object) -> bool:
        return path in self._scopes  # what Mapping has would look for near names first

    def __iter__(self) -> Iterator[str]:
        return iter(scope.path for scope in self._scopes[""].walk())

    def __len__(self) -> int:
        return len(self._scopes)

    def _sections(self) -> Iterator[Section]:
        return item_sections.tree_sections(self)


def _parameter_values(graph: Graph) -> Array:
    """One value per storage that holds a parameter: the first."""
    columns = graph.columns
    values = np.flatnonzero((columns["value_role"] == ROLES.index(Role.PARAMETER)) & (columns["value_view_of"] < 0))
    _, first = np.unique(columns["value_storage"][values], return_index=True)
    return values[np.sort(first)]
