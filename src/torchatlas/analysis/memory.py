"""Graph -> what fills memory: the bytes alive after every node, the peak, and what the peak is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from torchatlas.analysis.memory_text import memory_sections
from torchatlas.analysis.reports import Report, as_json, fields_as_json
from torchatlas.analysis.storages import KEYS, Storages, peak_of, storages_of
from torchatlas.analysis.totals import MemoryUsage, memory_usage, operations_mask, run_times
from torchatlas.argument_errors import explains_arguments
from torchatlas.errors import InvalidInputError
from torchatlas.escapes import clean
from torchatlas.graph import Graph, GraphNode, SourceLine
from torchatlas.graph.columns import PHASES, Array
from torchatlas.graph.formats import imported
from torchatlas.graph.graph_like import GraphLike, as_graph
from torchatlas.graph.shown import Shown
from torchatlas.sections import Section
from torchatlas.units import format_bytes

if TYPE_CHECKING:
    import pandas

_MADE_AND_KEPT = [KEYS.index(key) for key in ("saved_activations", "activations", "temporaries")]
_UNATTRIBUTED = KEYS.index("unattributed")


@dataclass(frozen=True, repr=False)
class TensorMemory(Report):
    """One allocation. If it outlived the recording, its lifetime ends with the recording."""

    name: str  # in the model, else that of the node that made it
    category: str
    bytes: int | None  # the most it ever held
    bytes_at_peak: int | None
    shape: tuple[int | str, ...]
    dtype: str
    device: str | None
    module: str
    born: GraphNode | None = field(repr=False)  # None: it was there before
    died: GraphNode | None = field(repr=False)  # None: it outlived the recording
    last_used: GraphNode | None = field(repr=False)  # the last node that reads it
    read_in_backward: bool  # whether backward reads it
    lifetime_nodes: int  # how many nodes ran while it was alive
    lifetime_ns: int | None  # None where nothing was timed

    @property
    def source(self) -> SourceLine | None:
        """The user's line that made it."""
        return None if self.born is None else self.born.source

    def _headline(self) -> str:
        tensor = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        return clean(f"{self.name}: {format_bytes(self.bytes)}, {self.category.replace('_', ' ')}, {tensor}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {**fields_as_json(self), "source": as_json(self.source)}


@dataclass(frozen=True, repr=False)
class ModuleMemory(Report):
    """What a module and all below it hold at the peak; `own_bytes` without what is below."""

    path: str
    type: str
    bytes: int
    own_bytes: int
    unknown: int  # tensors among them whose size is unknown: with any, the bytes are "at least"
    categories: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return fields_as_json(self, leave_out=("path",))

    def _headline(self) -> str:
        return clean(f"{self.path or '(all)'}: {format_bytes(self.bytes)}")


@dataclass(frozen=True, repr=False)
class LineMemory(Report):
    """The bytes alive at the peak that one line of the program allocated. `source` None: those that existed before."""

    source: SourceLine | None
    bytes: int
    unknown: int
    categories: dict[str, int]

    def _headline(self) -> str:
        return clean(f"{self.source or '(there before)'}: {format_bytes(self.bytes)}")


@dataclass(frozen=True, eq=False, repr=False)
class MemoryReport(Shown):
    """What fills memory. Print it.

    Every division of the peak sums to `peak_bytes` exactly: by category, device and line, and the `own_bytes` of all
    modules. `timeline` holds the bytes alive after each node by category, which sum to `live_bytes`.
    """

    peak_bytes: int
    at_least: bool  # some sizes are unknown, or only module calls were recorded: there may be more
    unknown_storages: int  # in the whole run
    node: GraphNode = field(repr=False)  # right after it the peak is reached
    peak_by_phase: dict[str, int]  # the most in each phase
    by_category: dict[str, int]
    unknown_by_category: dict[str, int]  # tensors alive at the peak whose size is unknown
    by_device: dict[str, int]
    by_module: dict[str, ModuleMemory] = field(repr=False)  # by path, parents first; those that hold nothing left out
    by_line: tuple[LineMemory, ...] = field(repr=False)  # largest first
    largest: tuple[TensorMemory, ...] = field(repr=False)  # alive at the peak
    longest_held: tuple[TensorMemory, ...] = field(repr=False)  # made in the run; by bytes times lifetime
    usage: MemoryUsage = field(repr=False)  # the figures of the summary
    live_bytes: Array = field(repr=False)  # after each node
    timeline: dict[str, Array] = field(repr=False)  # bytes alive after each node, by category
    notes: tuple[str, ...] = field(repr=False)
    graph: Graph = field(repr=False)
    storages: Storages = field(repr=False)

    def _sections(self) -> Iterator[Section]:
        return memory_sections(self)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON holds it, with the same keys for every graph; the timeline is left out."""
        node = self.node
        where = {"id": node.id, "name": node.name, "operation": node.operation, "phase": str(node.phase)}
        left_out = ("node", "live_bytes", "timeline", "graph", "storages", "usage")
        return fields_as_json(self, left_out) | {
            "peak_node": {**where, "module": node.scope.path, "source": as_json(node.source)},
            "usage": dict(self.usage),
            "times": run_times(self.graph),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with one row per allocation, in order of birth; <NA> is what is unknown or absent."""
        return _frame(self)


@explains_arguments
def memory(graph: GraphLike, *, top: int = 10) -> MemoryReport:
    """What fills memory, when it is fullest, and what that is made of.

    Bytes are those of the tensors: what kernels take and give back inside, and what an allocator rounds up or keeps, is
    not in them.

    Args:
        graph: A graph, or a file, recording or traced model that holds one.
        top: How many tensors `largest` and `longest_held` list.
    Returns:
        A MemoryReport: the peak by category, module, line and device. Print it.
    Raises:
        InvalidInputError: `graph` is not a graph, or `top` no number from 0.
        AnalysisError: Memory was not followed when the graph was recorded: `track_memory=False`.
    Example:
        >>> import torch, torchatlas as atlas
        >>> report = atlas.memory(atlas.capture(torch.nn.Linear(4, 2), torch.ones(1, 4), backward=True))
        >>> report.by_category["parameters"], report.by_category["gradients"]
        (40, 40)
    """
    graph = as_graph(graph, "memory")
    if isinstance(top, bool) or not isinstance(top, int) or top < 0:
        raise InvalidInputError(f"top={top!r} is not a number of tensors to list; pass a whole number from 0 on.")
    peak_bytes = peak_of(graph)
    storages, live = storages_of(graph), graph.columns["node_memory_bytes"]
    rows = storages.timeline(len(graph))
    rows[_UNATTRIBUTED] = np.where(live < 0, 0, live - rows.sum(axis=0))  # the recording's own count is right
    node = int(live.argmax())
    peak = _Peak(graph, storages, node, missing=int(rows[_UNATTRIBUTED, node]))
    clock, usage = _clock(graph), memory_usage(graph)

    def tensors(cost: Array) -> tuple[TensorMemory, ...]:
        order = np.argsort(-cost, kind="stable")[:top]
        return tuple(_tensor(peak, int(one), clock) for one in order if cost[one] > 0)

    return MemoryReport(
        peak_bytes=peak_bytes,
        at_least=usage["at_least"],
        unknown_storages=int(storages.unknown.sum()),
        node=graph.nodes[node],
        peak_by_phase=_peak_by_phase(graph),
        by_category={key: int(row[node]) for key, row in zip(KEYS, rows, strict=True)},
        unknown_by_category=_words(np.bincount(storages.category[peak.unknown], minlength=len(KEYS))),
        by_device=_by_device(peak),
        by_module=_by_module(peak),
        by_line=_by_line(peak),
        largest=tensors(peak.held),
        longest_held=tensors(_cost_of_holding(graph, storages, clock)),
        usage=usage,
        live_bytes=live,
        timeline=dict(zip(KEYS, rows, strict=True)),
        notes=_notes(peak, usage["at_least"]),
        graph=graph,
        storages=storages,
    )


def _peak_by_phase(graph: Graph) -> dict[str, int]:
    """The most bytes alive after any operation of each phase."""
    is_op, phase = operations_mask(graph), graph.columns["node_phase"]
    most = np.full(len(PHASES), -1, np.int64)
    np.maximum.at(most, phase[is_op], graph.columns["node_memory_bytes"][is_op])
    return {str(one): int(size) for one, size in zip(PHASES, most, strict=True) if size >= 0}


# -- what the peak is made of ------------------------------------------------------------------------------------------


class _Peak:
    """What is alive right after one node. `missing` bytes of it are in no storage."""

    def __init__(self, graph: Graph, storages: Storages, node: int, missing: int) -> None:
        alive = storages.alive_at(node)
        self.graph, self.storages, self.missing = graph, storages, missing
        self.held = np.where(alive, storages.bytes_at(node), 0)
        self.unknown = alive & storages.unknown

    def grouped(self, key: Array, count: int, rest: int) -> Array:
        """Bytes by key (rows, one more for -1) and category (columns, one more that counts unknown sizes).

        What is missing goes to the row `rest`.
        """
        table = np.zeros((count + 1, len(KEYS) + 1), np.int64)
        np.add.at(table, (key, self.storages.category), self.held)
        np.add.at(table[:, -1], key[self.unknown], 1)
        table[rest, _UNATTRIBUTED] += self.missing
        return table


def _words(row: Array) -> dict[str, int]:
    return {key: int(size) for key, size in zip(KEYS, row[: len(KEYS)], strict=True)}


def _bytes(row: Array) -> int:
    return int(row[:-1].sum())


def _by_device(peak: _Peak) -> dict[str, int]:
    names = [*peak.graph.tables.devices, "unknown"]
    rows = peak.grouped(peak.graph.columns["storage_device"], len(names) - 1, rest=-1)
    return {name: _bytes(row) for name, row in zip(names, rows, strict=True) if _bytes(row)}


def _by_module(peak: _Peak) -> dict[str, ModuleMemory]:
    graph, paths = peak.graph, peak.graph.index.paths
    rows = peak.grouped(peak.storages.module, len(paths), rest=0)  # the first path is the whole program's
    own = dict(zip(paths, rows, strict=False))
    modules = {}
    for path, row in graph.scopes.totals(own, rows[-1]).items():
        if row.any() or not path:
            mine, kind = _bytes(own.get(path, rows[-1])), graph.scopes[path].type
            modules[path] = ModuleMemory(path, kind, _bytes(row), mine, int(row[-1]), _words(row))
    return modules


def _by_line(peak: _Peak) -> tuple[LineMemory, ...]:
    """A line may be in the table several times: once for each of its instructions."""
    first: dict[tuple[str, int], SourceLine] = {}
    for source in peak.graph.tables.sources:
        first.setdefault((source.file, source.line), source)
    number = {file_and_line: position for position, file_and_line in enumerate(first)}
    merged = np.array([*(number[source.file, source.line] for source in peak.graph.tables.sources), -1])
    rows = peak.grouped(merged[peak.storages.line], len(first), rest=-1)
    lines: list[SourceLine | None] = [*first.values(), None]
    order = np.argsort(-rows[:, :-1].sum(axis=1), kind="stable")
    return tuple(
        LineMemory(lines[one], _bytes(rows[one]), int(rows[one, -1]), _words(rows[one]))
        for one in order
        if rows[one].any()
    )


# -- tensors -----------------------------------------------------------------------------------------------------------


def _clock(graph: Graph) -> Array | None:
    """When each node was done; None where nothing was timed."""
    if graph.time_ns is None:
        return None
    start, time = graph.columns["node_start_ns"], graph.columns["node_time_ns"]
    return np.maximum.accumulate(np.where(start < 0, 0, start + np.maximum(time, 0)))


def _cost_of_holding(graph: Graph, storages: Storages, clock: Array | None) -> Array:
    """Bytes times lifetime of what the run itself made, but for gradients and optimizer state, which have to stay."""
    cost = storages.cost_of_holding(np.arange(len(graph)) if clock is None else clock)
    made = (graph.columns["storage_born"] >= 0) & np.isin(storages.category, _MADE_AND_KEPT)
    return np.where(made, cost, 0)


def _tensor(peak: _Peak, one: int, clock: Array | None) -> TensorMemory:
    graph, storages = peak.graph, peak.storages
    storage, value = graph.storages[one], graph.values[int(storages.value[one])] if storages.value[one] >= 0 else None
    start, end, last = int(storages.start[one]), int(storages.end[one]), int(storages.last_read[one])
    return TensorMemory(
        name=_storage_name(graph, storages, one, graph.index.name),
        category=KEYS[int(storages.category[one])],
        bytes=storage.bytes,
        bytes_at_peak=None if storage.bytes is None else int(peak.held[one]),
        shape=() if value is None else value.shape,
        dtype="" if value is None else value.dtype,
        device=storage.device,
        module=graph.index.paths[int(storages.module[one])],
        born=storage.born,
        died=storage.died,
        last_used=None if last < 0 else graph.nodes[last],
        read_in_backward=bool(storages.read_in_backward[one]),
        lifetime_nodes=end - start,
        lifetime_ns=None if clock is None else int(clock[end] - clock[start]),
    )


def _storage_name(graph: Graph, storages: Storages, one: int, name_of: Callable[[int], str]) -> str:
    """What to call a storage: its name in the model, else the node (by `name_of`) that made the first tensor on it."""
    if storages.name[one] >= 0:
        return graph.tables.names[int(storages.name[one])]
    value = int(storages.value[one])
    producer = int(graph.columns["value_producer"][value]) if value >= 0 else -1
    if producer < 0:
        return f"storage {one}"
    output = int(graph.columns["value_output_index"][value])
    return name_of(producer) + (f":{output}" if output > 0 else "")


def _frame(report: MemoryReport) -> Any:
    """A DataFrame with one row per storage."""
    pandas = imported("pandas", "to_pandas needs")
    graph, storages = report.graph, report.storages
    columns, tables, names = graph.columns, graph.tables, graph.index.names()
    order = np.argsort(storages.start, kind="stable")
    layout = np.append(columns["value_layout"], -1)[storages.value]

    def chosen(items: Sequence[str], position: Array) -> Any:
        """Text by position; -1 is <NA>."""
        return pandas.Categorical(pandas.array(np.array([*items, None], object)[position[order]], dtype="string"))

    def whole(column: Array) -> Any:
        return pandas.array(pandas.Series(column[order]).where(column[order] >= 0).astype("Int64"))

    return pandas.DataFrame(
        {
            "name": pandas.array([_storage_name(graph, storages, one, names.__getitem__) for one in order.tolist()]),
            "category": chosen(KEYS, storages.category),
            "bytes": whole(columns["storage_bytes"]),
            "dtype": chosen([row.dtype for row in tables.layouts], layout),
            "shape": chosen(["[" + ", ".join(map(str, row.shape)) + "]" for row in tables.layouts], layout),
            "device": chosen(tables.devices, columns["storage_device"]),
            "module": chosen(graph.index.paths, storages.module),
            "line": chosen([f"{row.file}:{row.line}" for row in tables.sources], storages.line),
            "born": whole(columns["storage_born"]),
            "died": whole(columns["storage_died"]),
            "last_used": whole(storages.last_read),
            "alive_at_peak": storages.alive_at(report.node.id)[order],
        }
    )


# -- notes -------------------------------------------------------------------------------------------------------------


def _notes(peak: _Peak, at_least: bool) -> tuple[str, ...]:
    storages, notes = peak.storages, []
    saved = storages.category == KEYS.index("saved_activations")
    idle = int(peak.held[saved & ~storages.read_in_backward].sum())
    if idle:
        notes.append(
            f"{format_bytes(idle)} of the activations saved for backward are read by no op of backward: the program "
            "itself holds them, such as the outputs of the model"
        )
    if unknown := int(storages.unknown.sum()):
        notes.append(f"{unknown:,} tensors do not tell their size: totals that they belong to are marked ≥, at least")
    elif at_least:
        notes.append("only module calls were recorded: what they and backward take inside is not in the totals")
    if peak.missing:
        notes.append(
            f"{peak.missing:+,} bytes of the peak, as the recording counted it, belong to no storage of this graph: "
            "it is part of a larger one, or older than the note of storages that were resized"
        )
    if sum(device != "meta" for device in peak.graph.tables.devices) > 1:
        notes.append("there are several devices: the peak is the most of all of them together")
    return (*notes, *peak.graph.notes)
