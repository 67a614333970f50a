"""Two graphs -> what changed: operations added, removed and changed, and what that does to every module."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from torchatlas.analysis.cost import Amount, CostReport, cost
from torchatlas.analysis.devices import Device
from torchatlas.analysis.module_figures import own_allocated_bytes
from torchatlas.analysis.reports import as_json
from torchatlas.analysis.time_changes import (
    NOT_COMPARED,
    OperationTime,
    TimeChange,
    changed_modules,
    changed_operations,
)
from torchatlas.calls import explains_arguments
from torchatlas.errors import FileFormatError
from torchatlas.escapes import clean
from torchatlas.graph import Graph, GraphNode, Value, formats
from torchatlas.graph.columns import PHASES
from torchatlas.graph.given import GraphLike, as_graph
from torchatlas.graph.shown import Shown, ShownPart
from torchatlas.sections import Lines, Section, Table, text_of
from torchatlas.units import format_bytes, format_count, format_ns

_LONGEST = 4000  # runs of unequal operations longer than this are paired by position: comparing all takes too long


@dataclass(frozen=True, slots=True, repr=False)
class Change(ShownPart):
    """An operation that both graphs have, in the same module, but not alike: what was, and what is."""

    before: GraphNode
    after: GraphNode
    what: dict[str, tuple[Any, Any]]  # what differs, by name: before and after

    def __str__(self) -> str:
        listed = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in self.what.items())
        return clean(f"{self.after.name}: {listed}")


@dataclass(frozen=True, slots=True)
class Delta(ShownPart):
    """A figure in both graphs; None where one of them does not know it."""

    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        """After minus before; None where one of them is unknown."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Shown):
    """What is different between two graphs."""

    before: CostReport = field(repr=False)
    after: CostReport = field(repr=False)
    added: list[GraphNode] = field(repr=False)  # only in the second graph
    removed: list[GraphNode] = field(repr=False)  # only in the first graph
    changed: list[Change] = field(repr=False)  # in both, but not alike
    unchanged: int  # how many are alike
    modules: dict[str, dict[str, Delta]] = field(repr=False)  # path -> figure -> both; "" is the whole
    times: dict[str, TimeChange] = field(repr=False)  # changed times: those that differ by more than their spread
    eager: TimeChange = field(repr=False)  # wall time of the programs alone
    operation_times: list[OperationTime] = field(repr=False)  # operations of both whose time differs beyond the spread

    @property
    def same(self) -> bool:
        """Whether both run the same operations on the same shapes with the same arguments."""
        return not (self.added or self.removed or self.changed)

    def save(self, path: str | os.PathLike[str], *, title: str = "") -> Path:
        """Write a page of the viewer that shows both graphs side by side.

        Args:
            path: Where; it ends with .html.
            title: The heading of the page.
        Returns:
            The path.
        Raises:
            FileFormatError: It has another suffix.
            FileSystemError: The file cannot be written.
        """
        path = formats.as_path(path)
        if formats.suffix_of(path) not in (".html", ".htm"):
            raise FileFormatError(f"{path.name}: a comparison is saved as .html; to_dict() has it as data.")
        return formats.save(self, path, title=title)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "same": self.same,
            "unchanged": self.unchanged,
            "added": as_json(self.added),
            "removed": as_json(self.removed),
            "changed": as_json(self.changed),
            "modules": {
                path: {name: [delta.before, delta.after] for name, delta in figures.items()}
                for path, figures in self.modules.items()
            },
            "times": {path: change.to_dict() for path, change in self.times.items()},
            "eager": self.eager.to_dict(),
            "operation_times": as_json(self.operation_times),
        }

    def _sections(self) -> Iterator[Section]:
        return comparison_sections(self)


@explains_arguments
def compare(before: GraphLike, after: GraphLike, *, device: Device | str | None = None) -> Comparison:
    """Align two graphs by module and order, and say what is different.

    Operations are paired within the same module, phase and iteration. A module under another name counts as removed and
    added. Times differ if their medians lie further apart than both spreads together; graphs of one run have no spread,
    and their times are not compared.

    Args:
        before: The graph to compare with.
        after: The graph whose changes are told.
        device: The device profile for best times, as for `atlas.cost`.
    Returns:
        A Comparison: what was added, removed and changed, and the figures of every module in both. Print it.
    Raises:
        InvalidInputError: One of them is not a graph.
        UnknownNameError: There is no device profile of that name.
    Example:
        >>> import torch, torchatlas as atlas
        >>> small, large = (atlas.capture(torch.nn.Linear(4, size), torch.ones(1, 4)) for size in (2, 8))
        >>> found = atlas.compare(small, large)
        >>> found.same, found.modules[""]["macs"].before, found.modules[""]["macs"].after
        (False, 8, 32)
    """
    return compared(before, after, device)[0]


def compared(before: GraphLike, after: GraphLike, device: Device | str | None = None) -> tuple[Comparison, Alignment]:
    """What is different, and which nodes are paired."""
    before, after = as_graph(before, "compare"), as_graph(after, "compare")
    found = aligned(before, after)
    eager = [None if graph.timing is None else graph.timing.eager for graph in (before, after)]
    costs = cost(before, device), cost(after, device)
    comparison = Comparison(
        *costs,
        [after.nodes[node] for node in found.added],
        [before.nodes[node] for node in found.removed],
        [_change(before.nodes[old], after.nodes[new]) for old, new in found.changed],
        len(found.pairs) - len(found.changed),
        _modules(*costs),
        changed_modules(before, after),
        TimeChange(*eager),
        changed_operations(before, after, found.pairs),
    )
    return comparison, found


# -- alignment ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alignment:
    """Ids of nodes: which of one graph stand for which of the other, and which stand alone."""

    pairs: list[tuple[int, int]]  # by module and order
    changed: list[tuple[int, int]]  # of the pairs, those that are not alike; in order of the second graph
    removed: list[int]  # only in the first, in order
    added: list[int]  # only in the second, in order


def aligned(before: Graph, after: Graph) -> Alignment:
    """Pair the nodes of two graphs within the same module, phase, call and iteration."""
    rows_before, rows_after = _by_place(before), _by_place(after)
    added, removed, changed, pairs = list[int](), list[int](), list[tuple[int, int]](), list[tuple[int, int]]()
    for place in dict.fromkeys([*rows_before, *rows_after]):
        for old, new in _aligned(rows_before.get(place, []), rows_after.get(place, [])):
            if old is not None and new is not None:
                pairs.append((old.id, new.id))
                if old.alike != new.alike:
                    changed.append((old.id, new.id))
            elif new is not None:
                added.append(new.id)
            elif old is not None:
                removed.append(old.id)
    return Alignment(pairs, sorted(changed, key=lambda pair: pair[1]), sorted(removed), sorted(added))


@dataclass(frozen=True, slots=True)
class _Row:
    id: int
    operation: str
    alike: tuple[Any, ...]  # all that makes two operations the same: operation, arguments, layouts


Place = tuple[str, str, int, int]  # module path, phase, call, iteration


def _by_place(graph: Graph) -> dict[Place, list[_Row]]:
    columns, tables, index = graph.columns, graph.tables, graph.index
    path, call = index.path_of_call[columns["node_call"]].tolist(), columns["node_call"].tolist()
    call_index = [*columns["call_index"].tolist(), 0]
    layout = np.append(columns["value_layout"], -1)
    shown = [(one.shape, one.dtype, one.device, one.kind) for one in tables.layouts] + [None]
    values = [[shown[one] for one in layout[columns[f"{side}_value"]].tolist()] for side in ("input", "output")]
    ins, outs = columns["input_ptr"].tolist(), columns["output_ptr"].tolist()
    operations, arguments = columns["node_operation"].tolist(), columns["node_arguments"].tolist()
    found: dict[Place, list[_Row]] = {}
    phases, iterations = columns["node_phase"].tolist(), columns["node_iteration"].tolist()
    for node, (phase, iteration) in enumerate(zip(phases, iterations, strict=True)):
        operation = tables.operations[operations[node]].name
        text = tables.arguments[arguments[node]] if arguments[node] >= 0 else ""
        taken = tuple(values[0][ins[node] : ins[node + 1]])
        made = tuple(values[1][outs[node] : outs[node + 1]])
        place = (index.paths[path[node]], str(PHASES[phase]), call_index[call[node]], iteration)
        found.setdefault(place, []).append(_Row(node, operation, (operation, text, taken, made)))
    return found


def _aligned(old: list[_Row], new: list[_Row]) -> Iterator[tuple[_Row | None, _Row | None]]:
    """Pairs in order; None where one side has no partner."""
    for _, low, high, first, last in _blocks([row.alike for row in old], [row.alike for row in new]):
        left, right = old[low:high], new[first:last]
        if len(left) == len(right) and all(a.alike == b.alike for a, b in zip(left, right, strict=True)):
            yield from zip(left, right, strict=True)
            continue
        names = [row.operation for row in left], [row.operation for row in right]
        for tag, begin, end, start, stop in _blocks(*names):  # the same operation, other arguments or shapes
            if tag == "equal":
                yield from zip(left[begin:end], right[start:stop], strict=True)
            else:
                yield from ((row, None) for row in left[begin:end])
                yield from ((None, row) for row in right[start:stop])


def _blocks(old: list[Any], new: list[Any]) -> list[tuple[str, int, int, int, int]]:
    """difflib's opcodes, after the equal ends are taken off: most graphs differ in a few places."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    low, high, first, last = head, len(old) - tail, head, len(new) - tail
    blocks = [("equal", 0, head, 0, head)] if head else []
    if max(high - low, last - first) > _LONGEST:
        blocks += _by_position(old, new, low, high, first, last)
    elif high > low or last > first:
        matcher = SequenceMatcher(None, old[low:high], new[first:last], autojunk=False)
        blocks += [(tag, low + a, low + b, first + c, first + d) for tag, a, b, c, d in matcher.get_opcodes()]
    return blocks + ([("equal", high, len(old), last, len(new))] if tail else [])


def _by_position(
    old: list[Any], new: list[Any], low: int, high: int, first: int, last: int
) -> Iterator[tuple[str, int, int, int, int]]:
    shared = min(high - low, last - first)
    runs = groupby(range(shared), lambda at: old[low + at] == new[first + at])
    for equal, positions in runs:
        spots = list(positions)
        begin, end = spots[0], spots[-1] + 1
        yield "equal" if equal else "replace", low + begin, low + end, first + begin, first + end
    if high - low > shared or last - first > shared:
        yield "replace", low + shared, high, first + shared, last


def _change(before: GraphNode, after: GraphNode) -> Change:
    what: dict[str, tuple[Any, Any]] = {}
    if before.operation != after.operation:
        what["operation"] = before.operation, after.operation
    old, new = before.attributes, after.attributes
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            what[name] = old.get(name), new.get(name)
    for side in ("inputs", "outputs"):
        old_shapes, new_shapes = (", ".join(_shapes(getattr(node, side))) for node in (before, after))
        if old_shapes != new_shapes:
            what[side] = old_shapes, new_shapes
    return Change(before, after, what or {"arguments": (str(before.arguments), str(after.arguments))})


# -- figures -----------------------------------------------------------------------------------------------------------


def _modules(before: CostReport, after: CostReport) -> dict[str, dict[str, Delta]]:
    figures = _figures(before), _figures(after)
    found = {}
    for path in dict.fromkeys([*figures[0], *figures[1]]):
        old, new = (side.get(path, {}) for side in figures)
        names = dict.fromkeys([*old, *new])
        found[path] = {name: Delta(old.get(name, 0), new.get(name, 0)) for name in names}
    return found


def _figures(report: CostReport) -> dict[str, dict[str, float | None]]:
    """Per module what is compared; the peak only for the whole, since peaks of parts do not add up."""
    graph = report.graph
    made: dict[str, int] | None = None
    if graph.peak_bytes is not None:
        made = graph.scopes.totals(dict(zip(graph.index.paths, own_allocated_bytes(graph), strict=True)), 0)
    found: dict[str, dict[str, float | None]] = {}
    for path, scope in graph.scopes.items():
        amount = report.by_module.get(path, Amount())
        if not amount.operations and not scope.parameters:
            continue
        found[path] = {
            "operations": amount.operations,
            "macs": amount.macs,
            "elementwise_flops": amount.elementwise_flops,
            "bytes": amount.bytes,
            "time_ns": amount.time_ns,
            "allocated_bytes": None if made is None else made[path],
            "parameters": scope.parameters,
        }
    found.setdefault("", {})["peak_bytes"] = graph.peak_bytes
    return found


# -- as text -----------------------------------------------------------------------------------------------------------


def summary(found: Comparison) -> str:
    """How many nodes were added, removed and changed, in words."""
    if found.same:
        return f"the same {found.unchanged:,} nodes in both"
    return (
        f"{len(found.added):,} added, {len(found.removed):,} removed, {len(found.changed):,} changed, "
        f"{found.unchanged:,} unchanged"
    )


def _recorders_differ(found: Comparison) -> list[str]:
    names = {report.graph.metadata.get("recorder") for report in (found.before, found.after)}
    if names != {"python", "native"}:
        return []
    return [
        "one graph is of the recorder in Python, the other of the native one: that alone changes operations, bytes and "
        "times. Capture both with native=False."
    ]


def comparison_text(found: Comparison, *, most: int = 20) -> str:
    """The comparison as plain text; see `comparison_sections`."""
    return text_of(comparison_sections(found, most=most))


def comparison_sections(found: Comparison, *, most: int = 20) -> Iterator[Section]:
    """Figures of the modules that differ, then the operations, `most` of each."""
    yield Lines([summary(found), *_recorders_differ(found)])
    timed = found.times[""].verdict != NOT_COMPARED
    rows = [
        _module_row(path or "(all)", figures, found.times.get(path) if timed else None)
        for path, figures in found.modules.items()
        if not path
        or any(figures[name].change for name in ("operations", "macs", "bytes", "parameters"))
        or (path in found.times and found.times[path].differs)
    ]
    headings = ["module", ">ops", ">MACs", ">moved", ">allocated", *([">time"] if timed else []), ">params"]
    yield Table(headings, rows[: most + 1])
    times = [f"time in operations: {found.times['']}"] if found.times[""].before or found.times[""].after else []
    times += [f"eager: {found.eager}"] if found.eager.before or found.eager.after else []
    yield Lines(times)
    peak = found.modules[""]["peak_bytes"]
    if peak.before is not None and peak.after is not None:
        yield Lines([f"peak {format_bytes(peak.before)} -> {format_bytes(peak.after)}"])
    for title, lines in {
        "added": list(map(_described, found.added)),
        "removed": list(map(_described, found.removed)),
        "changed": list(map(str, found.changed)),
        "times that differ": list(map(str, found.operation_times)),
    }.items():
        if lines:
            more = [f"  ... and {len(lines) - most:,} more"] if len(lines) > most else []
            yield Lines([f"{title}:", *(f"  {line}" for line in lines[:most]), *more])


def _described(node: GraphNode) -> str:
    return f"{node.name}: {', '.join(_shapes(node.outputs))}"


def _shapes(values: Iterable[Value]) -> list[str]:
    return [f"{value.dtype}{list(value.shape)}" for value in values]


def _module_row(path: str, figures: dict[str, Delta], time: TimeChange | None) -> list[str]:
    def shown(name: str, text: Any) -> str:
        delta = figures.get(name, Delta(None, None))
        if delta.change is None:
            return "unknown"
        return text(delta.after) if not delta.change else f"{text(delta.before)} -> {text(delta.after)}"

    return [
        path,
        shown("operations", lambda n: f"{n:,}"),
        shown("macs", format_count),
        shown("bytes", format_bytes),
        shown("allocated_bytes", format_bytes),
        *([] if time is None else [shown("time_ns", format_ns) if time.differs else time.verdict]),
        shown("parameters", format_count),
    ]
