"""Graph -> what every module has and did: parameters, multiply-adds, time, memory, and the shapes of its outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from torchatlas.analysis.node_work import count
from torchatlas.analysis.reports import Report
from torchatlas.analysis.storages import KEYS, storages_of
from torchatlas.analysis.totals import module_calls_only, operations_mask
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.graph import Graph, Layout, NodeKind, Phase, Role, Scope
from torchatlas.graph.columns import KINDS, PHASES, ROLES, Array

Shape = tuple[int | str, ...]

NO_MACS = "no MACs: "
_UNDERWAY = (Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER)  # what runs then takes no output of a module's call


@dataclass(frozen=True, slots=True)
class Figures(Report):
    """What modules have and did. None is unknown, or does not apply; the counts say when a sum is "at least"."""

    parameters: int = 0  # elements, tied ones once
    trained: int | None = None  # of them, those that got a gradient; None where backward was not recorded
    macs: int | None = None  # multiply-adds of all phases
    forward_macs: int | None = None
    uncosted: int = 0  # operations without a cost formula: the MACs are "at least"
    forward_uncosted: int = 0
    time_ns: int | None = None
    untimed: int = 0  # operations that were not timed
    allocated_bytes: int | None = None  # by its operations, in all
    kept_bytes: int | None = None  # of them, activations that backward found alive
    unsized: int = 0  # allocations whose size is unknown


class OwnFigures:
    """The figures of each module without what is below it, by path."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int] | None) -> None:
        self.graph, self.notes = graph, list[str]()
        self._paths = graph.index.paths
        columns = {**self._macs(sizes), **self._memory(), **self._trained()}  # what is unknown has no column
        number = {path: position for position, path in enumerate(self._paths)}
        self.by_path = {
            scope.path: self._figures(scope, number.get(scope.path), columns) for scope in graph.scopes.values()
        }

    def _figures(self, scope: Scope, at: int | None, columns: dict[str, list[int]]) -> Figures:
        return Figures(
            parameters=scope.parameters - sum(child.parameters for child in scope.children),
            time_ns=scope.own_time_ns,
            untimed=scope.untimed - sum(child.untimed for child in scope.children),
            **{name: 0 if at is None else column[at] for name, column in columns.items()},
        )

    def _macs(self, sizes: Mapping[str, int] | None) -> dict[str, list[int]]:
        try:
            if self.graph.source == "autograd":
                raise AnalysisError("an autograd graph has no arguments to cost")
            counts = count(self.graph, sizes)
        except (AnalysisError, InvalidInputError) as error:
            if sizes is not None:
                raise
            self.notes.append(f"{NO_MACS}{error}")  # all else is known: the table is worth having without them
            return {}
        known = np.flatnonzero(counts.is_op & (counts.macs >= 0))
        unknown = np.flatnonzero(counts.is_op & (counts.macs < 0))
        if counts.uncosted:
            listed = ", ".join(f"{name} ({times:,})" for name, times in counts.uncosted.items())
            self.notes.append(f"without a cost formula, so in no MACs: {listed}")
        if not len(known) and len(unknown):
            return {}
        forward = self.graph.columns["node_phase"] == PHASES.index(Phase.FORWARD)
        return {
            "macs": own_sums(self.graph, known, counts.macs[known]),
            "forward_macs": own_sums(self.graph, known, counts.macs[known] * forward[known]),
            "uncosted": own_sums(self.graph, unknown, np.ones(len(unknown), np.int64)),
            "forward_uncosted": own_sums(self.graph, unknown, forward[unknown]),
        }

    def _memory(self) -> dict[str, list[int]]:
        if self.graph.peak_bytes is None:
            return {}
        graph, born = self.graph, self.graph.columns["storage_born"]
        made = born >= 0
        unsized = own_sums(graph, born[made], graph.columns["storage_bytes"][made] < 0)
        sums = {"allocated_bytes": own_allocated_bytes(graph), "unsized": unsized}
        if self._sees_backward:
            storages = storages_of(graph)
            saved = made & (storages.category == KEYS.index("saved_activations"))
            sums["kept_bytes"] = own_sums(graph, born[saved], storages.bytes[saved])
        return sums

    @property
    def _sees_backward(self) -> bool:
        """Whether the graph has the ops of a backward that ran, not one node for all of them, nor those yet to run."""
        ran = Phase.BACKWARD in self.graph.scopes[""].operations_by_phase
        return ran and self.graph.source != "autograd" and not module_calls_only(self.graph)

    def _trained(self) -> dict[str, list[int]]:
        """How many elements of parameters got a gradient. The graph does not know which of the others are frozen."""
        if not self._sees_backward:
            return {}
        columns, names = self.graph.columns, self.graph.tables.names
        role, named = columns["value_role"], columns["value_parameter"]
        gradients = named[(role == ROLES.index(Role.GRADIENT)) & (named >= 0)]
        reached = {names[one] for one in np.unique(gradients).tolist()}
        trained, seen = [0] * len(self._paths), set[int]()
        whole = (role == ROLES.index(Role.PARAMETER)) & (columns["value_view_of"] < 0) & (named >= 0)
        for value in np.flatnonzero(whole).tolist():
            name, storage = names[int(named[value])], int(columns["value_storage"][value])
            if name not in reached or storage in seen:
                continue
            seen.add(storage)
            shape = self.graph.tables.layouts[int(columns["value_layout"][value])].shape
            elements = math.prod(size if isinstance(size, int) else 0 for size in shape)
            trained[self.graph.index.path_of_parameter(name)] += elements
        return {"trained": trained}


def own_sums(graph: Graph, nodes: Array, amount: Array) -> list[int]:
    """Per module, in the order of `graph.index.paths`, the sum of the amounts of nodes that ran in it, not below it."""
    sums = np.zeros(len(graph.index.paths), np.int64)
    np.add.at(sums, graph.index.path_of_call[graph.columns["node_call"][nodes]], amount)
    return [int(one) for one in sums]


def own_allocated_bytes(graph: Graph) -> list[int]:
    """Per module, in the order of `graph.index.paths`, the bytes that its own operations allocated."""
    born, size = graph.columns["storage_born"], graph.columns["storage_bytes"]
    made = born >= 0
    return own_sums(graph, born[made], np.maximum(size[made], 0))


# -- inputs and outputs of a module's call -----------------------------------------------------------------------------


def outputs_by_path(graph: Graph) -> dict[str, tuple[Shape, ...]]:
    """Per module, the shapes of the results of its first call that operations outside it read, latest made first.

    A call that made nothing (a Dropout in eval mode) has none. Where nothing outside reads its results, these are the
    results of its last operation.
    """
    return {path: tuple(layout.shape for layout in layouts) for path, layouts in output_layouts(graph).items()}


def output_layouts(graph: Graph) -> dict[str, list[Layout]]:
    """As `outputs_by_path`, with dtypes."""
    last = _last_made(graph)
    values = {path: handed or last.get(call, []) for path, call, handed in _of_first_calls(graph, outwards=True)}
    if len(leaving := np.flatnonzero(graph.columns["node_kind"] == KINDS.index(NodeKind.OUTPUT))):
        values[""] = graph.index.inputs(int(leaving[0])).tolist()  # in the order the model returns them
    return _layouts(graph, values)


def input_layouts(graph: Graph) -> dict[str, list[Layout]]:
    """Per module, the layouts of the values from outside that its first call reads, in the order they were made."""
    values = {path: taken for path, _, taken in _of_first_calls(graph, outwards=False)}
    if len(arriving := np.flatnonzero(graph.columns["node_kind"] == KINDS.index(NodeKind.INPUT))):
        made = (value for node in arriving.tolist() for value in graph.index.outputs(node).tolist())
        values[""] = [int(value) for value in made if value >= 0]
    return _layouts(graph, values)


def _of_first_calls(graph: Graph, *, outwards: bool) -> Iterator[tuple[str, int, list[int]]]:
    """Each module with its first call, and the values that leave that call or enter it."""
    if len(graph.columns["call_parent"]):
        numbers, first = np.unique(graph.index.path_of_call[:-1], return_index=True)
        crossing = _crossing(graph, first, outwards=outwards)
        for number, call in zip(numbers.tolist(), first.tolist(), strict=True):
            yield graph.index.paths[number], call, crossing.get(call, [])


def _layouts(graph: Graph, values: Mapping[str, list[int]]) -> dict[str, list[Layout]]:
    layout = graph.columns["value_layout"]
    return {path: [graph.tables.layouts[int(layout[value])] for value in ids] for path, ids in values.items()}


def _crossing(graph: Graph, wanted: Array, *, outwards: bool) -> dict[int, list[int]]:
    """Per call, the values of forward that leave it (made inside, read outside) or, not `outwards`, that enter it."""
    columns = graph.columns
    parent, (begin, end) = columns["call_parent"], _intervals(columns["call_parent"])
    is_wanted = np.zeros(len(parent) + 1, bool)
    is_wanted[wanted] = True
    late = np.isin(columns["node_phase"], [PHASES.index(phase) for phase in _UNDERWAY])
    taker = graph.index.node_of_input
    value, producer = columns["input_value"], columns["value_producer"][columns["input_value"]]
    # A buffer that a call writes is not its result, although the next call reads it.
    state = np.isin(
        columns["value_role"][value], [ROLES.index(r) for r in (Role.BUFFER, Role.GRADIENT, Role.OPTIMIZER_STATE)]
    )
    chosen = (producer >= 0) & ~late[taker] & ~late[producer] & ~state
    if module_calls_only(graph):  # a view that a function between modules made has the module as its producer
        chosen &= np.isin(value, columns["output_value"])
    value, inside, outside = value[chosen], columns["node_call"][producer[chosen]], columns["node_call"][taker[chosen]]
    if not outwards:
        inside, outside = outside, inside
    pairs = []
    while len(value):  # climb from the call inside until the one that also holds the outside
        leaves = (inside >= 0) & ~((begin[inside] <= begin[outside]) & (begin[outside] < end[inside]))
        value, inside, outside = value[leaves], inside[leaves], outside[leaves]
        pairs.append(np.stack([inside, value])[:, is_wanted[inside]])
        inside = parent[inside]
    crossing: dict[int, list[int]] = {}
    if not pairs:
        return crossing
    call, value = np.unique(np.concatenate(pairs, axis=1), axis=1)
    made, slot = columns["value_producer"][value], columns["value_output_index"][value]
    order = np.lexsort((slot, -made if outwards else made, call))
    for one, handed in zip(call[order].tolist(), value[order].tolist(), strict=True):
        crossing.setdefault(one, []).append(handed)
    return crossing


def _intervals(parent: Array) -> tuple[Array, Array]:
    """Per call an interval that contains those of the calls inside it and no others; the last entry is for no call."""
    calls = len(parent)
    above, size = parent.tolist(), [1] * calls
    for call in range(calls - 1, -1, -1):
        if above[call] >= 0:
            size[above[call]] += size[call]
    begin, free = [0] * calls, [*[0] * calls, 0]  # the last is for calls that no call encloses
    for call in range(calls):
        begin[call] = free[above[call]]
        free[above[call]] += size[call]
        free[call] = begin[call] + 1
    return np.array([*begin, -1]), np.array([*(np.array(begin, np.int64) + np.array(size, np.int64)), -1])


def _last_made(graph: Graph) -> dict[int, list[int]]:
    """Per call the results of its last operation of forward.

    Where only module calls were recorded, they are known of innermost modules alone.
    """
    columns = graph.columns
    late = np.isin(columns["node_phase"], [PHASES.index(phase) for phase in _UNDERWAY])
    makes = np.flatnonzero(operations_mask(graph) & ~late & (np.diff(columns["output_ptr"]) > 0))
    last = np.full(len(columns["call_parent"]) + 1, -1, np.int64)
    last[columns["node_call"][makes]] = makes  # in order: the last assignment stays
    last[-1] = -1
    above, latest = columns["call_parent"].tolist(), last.tolist()
    if not module_calls_only(graph):
        for call in range(len(above) - 1, -1, -1):
            if above[call] >= 0:
                latest[above[call]] = max(latest[above[call]], latest[call])
    made = {call: graph.index.outputs(node) for call, node in enumerate(latest[:-1]) if node >= 0}
    return {call: values[values >= 0].tolist() for call, values in made.items()}
