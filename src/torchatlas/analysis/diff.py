"""Two graphs -> what changed: operations added, removed and changed, and what that does to every module."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchatlas.analysis.alignment import Alignment, aligned
from torchatlas.analysis.cost import Amount, CostReport, cost
from torchatlas.analysis.devices import Device
from torchatlas.analysis.fail_on import STRUCTURE, TIME, Figure, Violation, judged, judged_time, parse_condition
from torchatlas.analysis.module_figures import own_allocated_bytes
from torchatlas.analysis.reports import as_json
from torchatlas.analysis.time_changes import (
    NOT_COMPARED,
    OperationTime,
    TimeChange,
    changed_modules,
    changed_operations,
)
from torchatlas.argument_errors import explains_arguments
from torchatlas.errors import FileFormatError
from torchatlas.escapes import clean
from torchatlas.graph import GraphNode, Value, formats
from torchatlas.graph.graph_like import GraphLike, as_graph
from torchatlas.graph.shown import Shown, ShownPart
from torchatlas.sections import Lines, Section, Table, text_of
from torchatlas.units import format_bytes, format_count, format_ns


@dataclass(frozen=True, slots=True, repr=False)
class Change(ShownPart):
    """An operation that both graphs have in the same module, and what differs: its arguments or its shapes."""

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

    @property
    def totals(self) -> dict[str, Delta]:
        """The figures of the whole graphs, by name: flops, macs, parameters, ops and peak_bytes."""
        sides = [(one.flops, one.macs, one.parameters, one.total.operations) for one in (self.before, self.after)]
        peaks = [one.graph.peak_bytes for one in (self.before, self.after)]
        names = ("flops", "macs", "parameters", "ops", "peak_bytes")
        old, new = ([*side, peak] for side, peak in zip(sides, peaks, strict=True))
        return {name: Delta(*pair) for name, *pair in zip(names, old, new, strict=True)}

    def violations(self, conditions: str | Iterable[str]) -> list[Violation]:
        """Which of some conditions hold, such as "flops>+1%", for a check that fails then.

        `structure` holds if any operation differs. Else a condition is a figure (flops, macs, parameters, ops,
        peak_bytes, time), an operator (>, >=, <, <=, !=) and an amount: with a sign the change from the first graph
        (+1%, +16MiB), without one the second graph's own figure (4.2e9, 80GB). A time has to differ beyond the spread.

        Args:
            conditions: One condition, or several.
        Returns:
            Those that hold, with both figures.
        Raises:
            InvalidInputError: A condition cannot be read.
            AnalysisError: A figure is unknown that decides, or a time has no spread, because it is of one run.
        """
        listed = [conditions] if isinstance(conditions, str) else list(conditions)
        violations = [self._violation(text) for text in dict.fromkeys(listed)]
        return [one for one in violations if one is not None]

    def _violation(self, text: str) -> Violation | None:
        condition = parse_condition(text)
        if condition.figure == STRUCTURE:
            if not self.same:
                return Violation(text, None, None, summary(self))
            joined = "the same operations, but their edges or strides differ"
            return None if self.before.graph == self.after.graph else Violation(text, None, None, joined)
        if condition.figure == TIME:
            return judged_time(condition, self.eager.before, self.eager.after)
        delta = self.totals[condition.figure]
        costed = condition.figure in ("flops", "macs")
        figures = [
            Figure(number, report.uncosted if costed else {})
            for number, report in ((delta.before, self.before), (delta.after, self.after))
        ]
        return judged(condition, *figures)

    def to_markdown(self, *, title: str = "", conditions: Iterable[str] = (), rows: int = 20) -> str:
        """A summary for a pull request: the totals, what was violated, and the modules and operations that differ.

        Names are escaped: none becomes markup, a link or a mention.

        Args:
            title: The heading.
            conditions: As for `violations`; those that hold are listed first.
            rows: Modules, and operations of a kind, to list.
        Returns:
            Markdown, as GitHub and GitLab show it.
        Raises:
            InvalidInputError: A condition cannot be read.
            AnalysisError: A condition cannot be judged.
        """
        conditions = list(conditions)
        violations = self.violations(conditions)
        return str(formats.view("markdown", self, title=title, conditions=conditions, violations=violations, rows=rows))

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
        after: The graph to look for changes in.
        device: The device profile for best times, as for `atlas.cost`.
    Returns:
        A Comparison: what was added, removed and changed, and the figures of every module in both. Print it.
    Raises:
        InvalidInputError: One of them is not a graph.
        UnknownNameError: There is no device profile of that name.
    Example:
        >>> import torch, torchatlas as atlas
        >>> small, large = (atlas.capture(torch.nn.Linear(4, size), torch.ones(1, 4)) for size in (2, 8))
        >>> comparison = atlas.compare(small, large)
        >>> comparison.same, comparison.modules[""]["macs"].before, comparison.modules[""]["macs"].after
        (False, 8, 32)
    """
    return compared(before, after, device)[0]


def compared(before: GraphLike, after: GraphLike, device: Device | str | None = None) -> tuple[Comparison, Alignment]:
    """What is different, and which nodes are paired."""
    before, after = as_graph(before, "compare"), as_graph(after, "compare")
    alignment = aligned(before, after)
    eager = [None if graph.timing is None else graph.timing.eager for graph in (before, after)]
    costs = cost(before, device), cost(after, device)
    comparison = Comparison(
        *costs,
        [after.nodes[node] for node in alignment.added],
        [before.nodes[node] for node in alignment.removed],
        [_change(before.nodes[old], after.nodes[new]) for old, new in alignment.changed],
        len(alignment.pairs) - len(alignment.changed),
        _modules(*costs),
        changed_modules(before, after),
        TimeChange(*eager),
        changed_operations(before, after, alignment.pairs),
    )
    return comparison, alignment


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
    deltas = {}
    for path in dict.fromkeys([*figures[0], *figures[1]]):
        old, new = (side.get(path, {}) for side in figures)
        names = dict.fromkeys([*old, *new])
        deltas[path] = {name: Delta(old.get(name, 0), new.get(name, 0)) for name in names}
    return deltas


def _figures(report: CostReport) -> dict[str, dict[str, float | None]]:
    """Per module what is compared; the peak only for the whole, since peaks of parts do not add up."""
    graph = report.graph
    made: dict[str, int] | None = None
    if graph.peak_bytes is not None:
        made = graph.scopes.totals(dict(zip(graph.index.paths, own_allocated_bytes(graph), strict=True)), 0)
    figures: dict[str, dict[str, float | None]] = {}
    for path, scope in graph.scopes.items():
        amount = report.by_module.get(path, Amount())
        if not amount.operations and not scope.parameters:
            continue
        figures[path] = {
            "operations": amount.operations,
            "macs": amount.macs,
            "elementwise_flops": amount.elementwise_flops,
            "bytes": amount.bytes,
            "time_ns": amount.time_ns,
            "allocated_bytes": None if made is None else made[path],
            "parameters": scope.parameters,
        }
    figures.setdefault("", {})["peak_bytes"] = graph.peak_bytes
    return figures


# -- as text -----------------------------------------------------------------------------------------------------------


def summary(comparison: Comparison) -> str:
    """How many nodes were added, removed and changed, in words."""
    if comparison.same:
        return f"the same {comparison.unchanged:,} nodes in both"
    return (
        f"{len(comparison.added):,} added, {len(comparison.removed):,} removed, {len(comparison.changed):,} changed, "
        f"{comparison.unchanged:,} unchanged"
    )


def recorders_differ(comparison: Comparison) -> list[str]:
    names = {report.graph.metadata.get("recorder") for report in (comparison.before, comparison.after)}
    if names != {"python", "native"}:
        return []
    return [
        "one graph is of the recorder in Python, the other of the native one: that alone changes operations, bytes and "
        "times. Capture both with native=False."
    ]


def comparison_text(comparison: Comparison, *, most: int = 20) -> str:
    """The comparison as plain text; see `comparison_sections`."""
    return text_of(comparison_sections(comparison, most=most))


def comparison_sections(comparison: Comparison, *, most: int = 20) -> Iterator[Section]:
    """Figures of the modules that differ, then the operations, `most` of each."""
    yield Lines([summary(comparison), *recorders_differ(comparison)])
    total = comparison.times[""]
    timed = total.verdict != NOT_COMPARED
    rows = [
        _module_row(path or "(all)", figures, comparison.times.get(path) if timed else None)
        for path, figures in comparison.modules.items()
        if not path
        or any(figures[name].change for name in ("operations", "macs", "bytes", "parameters"))
        or (path in comparison.times and comparison.times[path].differs)
    ]
    headings = ["module", ">ops", ">MACs", ">moved", ">allocated", *([">time"] if timed else []), ">params"]
    yield Table(headings, rows[: most + 1])
    times = [f"time in operations: {total}"] if total.before or total.after else []
    times += [f"eager: {comparison.eager}"] if comparison.eager.before or comparison.eager.after else []
    yield Lines(times)
    peak = comparison.modules[""]["peak_bytes"]
    if peak.before is not None and peak.after is not None:
        yield Lines([f"peak {format_bytes(peak.before)} -> {format_bytes(peak.after)}"])
    for title, lines in {
        "added": list(map(described, comparison.added)),
        "removed": list(map(described, comparison.removed)),
        "changed": list(map(str, comparison.changed)),
        "times that differ": list(map(str, comparison.operation_times)),
    }.items():
        if lines:
            more = [f"  ... and {len(lines) - most:,} more"] if len(lines) > most else []
            yield Lines([f"{title}:", *(f"  {line}" for line in lines[:most]), *more])


def described(node: GraphNode) -> str:
    """A node with what it makes, in one line."""
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
