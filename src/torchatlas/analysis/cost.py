"""Graph -> what it costs: multiply-adds, other arithmetic and bytes, in all, by phase, by module, by operation.

What has no formula is listed, and every sum it belongs to says "at least".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from torchatlas.analysis.autograd_bytes import autograd_text, captured_for_cost, recorded_with_autograd
from torchatlas.analysis.devices import GENERIC, Device, device_named
from torchatlas.analysis.node_work import Counts, count
from torchatlas.analysis.reports import as_json, sum_of
from torchatlas.analysis.roofline import BOUNDS, Roofline, roofline
from torchatlas.analysis.totals import run_times
from torchatlas.argument_errors import explains_arguments
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.escapes import clean
from torchatlas.graph import Graph, GraphNode
from torchatlas.graph.columns import PHASES, Array
from torchatlas.graph.formats import imported
from torchatlas.graph.graph_like import GraphLike, as_graph
from torchatlas.graph.names import short_name
from torchatlas.graph.shown import Shown, ShownPart
from torchatlas.registry import check_choice
from torchatlas.sections import Lines, Section, Table, text_of
from torchatlas.units import format_bytes, format_count, format_flops, format_seconds

if TYPE_CHECKING:
    import pandas
    from torch import nn


@dataclass(frozen=True, slots=True)
class Amount(ShownPart):
    """What some operations take together. With `uncosted` of them unknown, all other figures are "at least"."""

    operations: int = 0
    macs: int = 0
    elementwise_flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    saved_for_backward_bytes: int = 0  # of the bytes written: results that only backward needs, such as pool indices
    seconds: float = 0.0  # at best, on the report's device, one op after the other
    time_ns: int | None = None  # as measured; None when nothing was timed
    uncosted: int = 0

    @property
    def flops(self) -> int:
        """Of matmul-like work: two per multiply-add."""
        return 2 * self.macs

    @property
    def bytes(self) -> int:
        """Read and written together."""
        return self.bytes_read + self.bytes_written

    @property
    def arithmetic_intensity(self) -> float | None:
        """All arithmetic per byte moved; None when nothing moves."""
        return (self.flops + self.elementwise_flops) / self.bytes if self.bytes else None

    def __add__(self, other: Amount) -> Amount:
        return sum_of((self, other))

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        names = ["operations", "macs", "flops", "elementwise_flops", "bytes_read", "bytes_written"]
        names += ["saved_for_backward_bytes", "arithmetic_intensity"]
        figures = {name: getattr(self, name) for name in names}
        return figures | {"seconds_at_best": self.seconds, "time_ns": self.time_ns, "uncosted": self.uncosted}


@dataclass(frozen=True, slots=True, repr=False)
class NodeCost(ShownPart):
    """What one node takes."""

    node: GraphNode = field(repr=False)
    name: str
    operation: str
    macs: int | None
    elementwise_flops: int | None
    bytes_read: int | None
    bytes_written: int | None
    parallelism: int | None
    seconds: float | None
    bound: str | None
    achieved: float | None  # best time / measured time

    @property
    def flops(self) -> int | None:
        """Of matmul-like work: two per multiply-add; None if unknown."""
        return None if self.macs is None else 2 * self.macs

    def _headline(self) -> str:
        moved = None if self.bytes_read is None or self.bytes_written is None else self.bytes_read + self.bytes_written
        work = f"{format_count(self.macs)} MACs, {format_bytes(moved)} moved, {format_seconds(self.seconds)} at best"
        return clean(f"{self.name}: {work}")


@dataclass(frozen=True, eq=False, repr=False)
class CostReport(Shown):
    """What a graph costs. Sums over parts equal the totals."""

    graph: Graph = field(repr=False)
    counts: Counts = field(repr=False)
    roofline: Roofline = field(repr=False)
    total: Amount
    by_phase: dict[str, Amount] = field(repr=False)
    by_module: dict[str, Amount] = field(repr=False)  # each with everything below it; "" is all
    by_operation_type: dict[str, Amount] = field(repr=False)
    by_operation: dict[str, Amount] = field(repr=False)
    by_bound: dict[str, Amount] = field(repr=False)
    uncosted: dict[str, int]
    parameters: int
    sizes: dict[str, int]

    @property
    def device(self) -> Device:
        """The profile that best times are for."""
        return self.roofline.device

    @property
    def macs(self) -> int:
        """Multiply-adds of matmul-like work."""
        return self.total.macs

    @property
    def flops(self) -> int:
        """Of matmul-like work: two per multiply-add."""
        return self.total.flops

    @property
    def elementwise_flops(self) -> int:
        """All arithmetic that is not matmul-like."""
        return self.total.elementwise_flops

    @property
    def at_least(self) -> bool:
        """Whether some operations have no formula, so that there may be more."""
        return bool(self.uncosted)

    @cached_property
    def with_autograd(self) -> bool:
        """Whether the graph was recorded with autograd on, so that its bytes include autograd's copies."""
        return recorded_with_autograd(self.graph)

    @cached_property
    def work_weighted_intensity(self) -> float | None:
        """The mean of the operations' arithmetic intensities, each weighted by its arithmetic."""
        work, moved = self._work_and_bytes()
        return float((work * work / moved).sum() / work.sum()) if work.sum() else None

    @cached_property
    def mean_intensity(self) -> float | None:
        """The plain mean over operations that move bytes, in which a tiny op weighs as much as a large one."""
        work, moved = self._work_and_bytes()
        return float((work / moved).mean()) if len(moved) else None

    def _work_and_bytes(self) -> tuple[Array, Array]:
        counts = self.counts
        moves = counts.bytes > 0
        work = 2.0 * counts.macs[moves] + counts.elementwise_flops[moves]
        return work, counts.bytes[moves].astype(float)

    def node(self, node: GraphNode | str | int) -> NodeCost:
        """What one node takes.

        Args:
            node: The node, its name or its id.
        Returns:
            A NodeCost; what is unknown is None.
        Raises:
            NodeNotFoundError: There is no such node.
        """
        node = node if isinstance(node, GraphNode) else self.graph[node]
        at = node.id
        counts, best = self.counts, float(self.roofline.seconds[at])
        bound, measured = int(self.roofline.bound[at]), node.time_ns

        def known(column: Array) -> int | None:
            number = int(column[at])
            return None if number < 0 else number

        return NodeCost(
            node,
            node.name,
            node.operation,
            known(counts.macs),
            known(counts.elementwise_flops),
            known(counts.bytes_read),
            known(counts.bytes_written),
            known(counts.parallelism),
            None if np.isnan(best) else best,
            None if bound < 0 else str(BOUNDS[bound]),
            None if np.isnan(best) or not measured else best * 1e9 / measured,
        )

    def top(self, number: int = 10, by: str = "seconds") -> list[NodeCost]:
        """The most expensive operations.

        Args:
            number: How many.
            by: "seconds" at best, "macs", "elementwise_flops", "bytes" or "time_ns".
        Returns:
            The costs, the largest first.
        Raises:
            InvalidInputError: `by` is none of these, or `number` is negative.
        """
        columns: dict[str, Callable[[], Array]] = {
            "seconds": lambda: np.nan_to_num(self.roofline.seconds),
            "macs": lambda: self.counts.macs,
            "elementwise_flops": lambda: self.counts.elementwise_flops,
            "bytes": lambda: self.counts.bytes,
            "time_ns": lambda: self.graph.columns["node_time_ns"],
        }
        check_choice("by", by, columns)
        column, work = columns[by](), self.counts.flops + self.counts.elementwise_flops + self.counts.bytes
        order = np.lexsort((-work, -column))[:number]  # of equals, the one with more to do
        return [self.node(int(node)) for node in order if column[node] > 0]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single operations, as JSON holds it."""
        groups = ("by_phase", "by_module", "by_operation_type", "by_operation", "by_bound")
        return {
            "device": self.device.name,
            "device_source": self.device.source,
            "times": run_times(self.graph),
            "at_least": self.at_least,
            "with_autograd": self.with_autograd,
            "total": self.total.to_dict(),
            "parameters": self.parameters,
            "work_weighted_intensity": self.work_weighted_intensity,
            "mean_intensity": self.mean_intensity,
            "sizes": self.sizes,
            "uncosted": self.uncosted,
            **{name: as_json(getattr(self, name)) for name in groups},
        }

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas.DataFrame with one row per operation; what is unknown is <NA>."""
        pandas = imported("pandas", "to_pandas needs")
        chosen, counts = np.flatnonzero(self.counts.is_op), self.counts
        names, bound = self.graph.index.names(), self.roofline.bound
        operations = [self.graph.tables.operations[row].name for row in self.graph.columns["node_operation"][chosen]]
        table = {
            "id": chosen,
            "name": pandas.array([names[node] for node in chosen], dtype="string"),
            "operation": pandas.Categorical(operations),
        }
        for name in ("macs", "flops", "elementwise_flops", "bytes_read", "bytes_written", "parallelism"):
            column = getattr(counts, name)[chosen]
            table[name] = pandas.array(column, dtype="Int64")
            table[name][column < 0] = pandas.NA
        table["seconds_at_best"] = self.roofline.seconds[chosen]
        table["bound"] = pandas.Categorical.from_codes(bound[chosen], [str(one) for one in BOUNDS])
        return pandas.DataFrame(table)

    def _sections(self) -> Iterator[Section]:
        return cost_sections(self)


@explains_arguments
def cost(
    graph: GraphLike | nn.Module,
    device: Device | str | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    inputs: Any = None,
    gradients: bool | None = None,
) -> CostReport:
    """What a graph costs: multiply-adds, other arithmetic, bytes and the best time on a device.

    Args:
        graph: A graph, or a file, recording or traced model that holds one; or a model together with `inputs`.
        device: The profile that best times are for: a name ("a100-80gb"), a Device, "here" to measure this machine, or
            None for a generic one.
        sizes: Numbers for symbolic sizes, such as {"s0": 256}; without, those of the traced example.
        inputs: What to run a model with, once: a tensor, a tuple of positional or a dictionary of keyword arguments.
        gradients: Whether a model runs with autograd on; None: only in training mode.
    Returns:
        A CostReport: totals, and the same by phase, module, operation and bound. Print it.
    Raises:
        InvalidInputError: A model comes without inputs, a graph with some, or it has no symbolic size of that name.
        UnknownNameError: There is no device profile of that name.
        AnalysisError: A formula failed on a node.
    Example:
        >>> import torch, torchatlas as atlas
        >>> report = atlas.cost(torch.nn.Linear(4, 2, bias=False), "a100-80gb", inputs=torch.ones(8, 4))
        >>> report.macs, report.flops
        (64, 128)
    """
    if inputs is not None and not isinstance(graph, Graph):
        graph = captured_for_cost(graph, inputs, gradients)
    elif hasattr(graph, "forward"):
        raise InvalidInputError(f"cost takes a {type(graph).__name__} with its inputs: cost(model, inputs=x).")
    elif inputs is not None or gradients is not None:
        raise InvalidInputError("inputs= and gradients= are for a model: a graph was recorded already.")
    graph = as_graph(graph, "cost")
    if graph.source == "autograd":
        raise AnalysisError("An autograd graph has no arguments to cost; capture the run instead: atlas.capture(...).")
    profile = device_named(device)
    counts = count(graph, sizes)
    best = roofline(graph, counts, profile)
    columns, tables = graph.columns, graph.tables

    def amounts(group: Array, names: Iterable[str]) -> dict[str, Amount]:
        return _amounts(graph, counts, best, group, list(names))

    def by_operation(names: list[str]) -> dict[str, Amount]:
        """`names` has one entry per row of the table of operations; equal ones are added up."""
        number = {name: position for position, name in enumerate(dict.fromkeys(names))}
        return amounts(np.array([number[name] for name in names] or [0])[columns["node_operation"]], number)

    own = amounts(graph.index.path_of_call[columns["node_call"]], graph.index.paths)
    return CostReport(
        graph,
        counts,
        best,
        total=amounts(np.zeros(len(graph), np.int64), [""]).get("", Amount()),
        by_phase=amounts(columns["node_phase"], map(str, PHASES)),
        by_module={path: one for path, one in graph.scopes.totals(own, Amount()).items() if one.operations},
        by_operation_type=by_operation([str(op.type) for op in tables.operations]),
        by_operation=by_operation([op.name for op in tables.operations]),
        by_bound=amounts(best.bound, map(str, BOUNDS)),
        uncosted=counts.uncosted,
        parameters=graph.scopes[""].parameters,
        sizes=counts.sizes,
    )


def _amounts(graph: Graph, counts: Counts, best: Roofline, group: Array, names: list[str]) -> dict[str, Amount]:
    """The sums per group, in the order of `names`; groups without operations are left out, and group -1."""
    chosen = np.flatnonzero(counts.is_op & (group >= 0))
    is_known, time_ns, size = counts.macs[chosen] >= 0, graph.columns["node_time_ns"], len(names)
    known, timed = chosen[is_known], chosen[time_ns[chosen] >= 0]

    def number(nodes: Array) -> list[int]:
        return [int(one) for one in np.bincount(group[nodes], minlength=size)]

    def total(column: Array, nodes: Array = known) -> list[int]:
        totals = np.zeros(size, np.int64)
        np.add.at(totals, group[nodes], column[nodes])
        return [int(one) for one in totals]

    sums: dict[str, list[Any]] = {
        "operations": number(chosen),
        "macs": total(counts.macs),
        "elementwise_flops": total(counts.elementwise_flops),
        "bytes_read": total(counts.bytes_read),
        "bytes_written": total(counts.bytes_written),
        "saved_for_backward_bytes": total(counts.saved_bytes),
        "seconds": np.bincount(group[known], best.seconds[known], minlength=size).tolist(),
        "time_ns": [time if runs else None for time, runs in zip(total(time_ns, timed), number(timed), strict=True)],
        "uncosted": number(chosen[~is_known]),
    }
    rows = (Amount(**{key: column[at] for key, column in sums.items()}) for at in range(size))
    return {name: row for name, row in zip(names, rows, strict=True) if row.operations}


# -- as text -----------------------------------------------------------------------------------------------------------


def caveats(sizes: Mapping[str, int], uncosted: Mapping[str, int]) -> list[str]:
    """Lines that say what figures were made for, and what is in none of them."""
    lines = []
    if sizes:
        lines.append("sizes: " + ", ".join(f"{name} = {size}" for name, size in sizes.items()))
    if uncosted:
        listed = ", ".join(f"{name} ({times})" for name, times in uncosted.items())
        lines.append(f"without a formula, so in no figure here: {listed}")
    return lines


def cost_text(report: CostReport, *, depth: int = 2, top: int = 10) -> str:
    """The report as plain text; see `cost_sections`."""
    return text_of(cost_sections(report, depth=depth, top=top))


def cost_sections(report: CostReport, *, depth: int = 2, top: int = 10) -> Iterator[Section]:
    """Totals, phases, modules down to `depth`, kinds of operation, the `top` operations."""
    total = report.total
    sign = "at least " if report.at_least else ""
    lines = [
        f"{sign}{format_count(total.macs)} multiply-adds = {format_flops(total.flops)}, "
        f"and {format_flops(total.elementwise_flops)} of other arithmetic",
        f"{sign}{format_bytes(total.bytes_read)} read, {format_bytes(total.bytes_written)} written, "
        f"{ratio_text(total.arithmetic_intensity)} FLOPs per byte; {format_count(report.parameters)} parameters",
        f"at best {format_seconds(total.seconds)} on {report.device.name!r} ({report.device.source})",
        autograd_text(report.with_autograd),
    ]
    if saved := total.saved_for_backward_bytes:
        lines.append(f"{format_bytes(saved)} of the bytes written are results that only backward needs")
    lines += caveats(report.sizes, report.uncosted)
    modules = {path: one for path, one in report.by_module.items() if path.count(".") < depth}
    achieved = report.device is not GENERIC and report.graph.timing is not None
    if achieved:
        lines.append(f"achieved is the best against the measured time: {run_times(report.graph)}")
    yield Lines(lines)
    yield _amounts_table("phase", report.by_phase)
    if len(modules) > 1:
        yield _amounts_table("module", {path or "(all)": one for path, one in modules.items()})
    kinds = dict(sorted(report.by_operation_type.items(), key=lambda item: -item[1].seconds))
    yield _amounts_table("kind", kinds)
    yield _amounts_table("limited by", report.by_bound)
    if costly := report.top(top):
        yield _operations(costly, achieved=achieved)


def _amounts_table(title: str, groups: dict[str, Amount]) -> Table:
    rows = [
        [
            name,
            f"{one.operations:,}",
            _figure(format_count(one.macs), one),
            _figure(format_flops(one.elementwise_flops), one),
            _figure(format_bytes(one.bytes), one),
            ratio_text(one.arithmetic_intensity),
            _figure(format_seconds(one.seconds), one),
        ]
        for name, one in groups.items()
    ]
    return Table([title, ">ops", ">MACs", ">other", ">moved", ">FLOPs/B", ">at best"], rows)


def _operations(costly: list[NodeCost], achieved: bool) -> Table:
    rows = [
        [
            one.name,
            short_name(one.operation),
            format_count(one.macs),
            format_bytes((one.bytes_read or 0) + (one.bytes_written or 0)),
            one.bound or "",
            format_seconds(one.seconds),
            *(["" if one.achieved is None else f"{100 * one.achieved:.3g} %"] if achieved else []),
        ]
        for one in costly
    ]
    headings = ["most expensive", "op", ">MACs", ">moved", "limited by", ">at best"]
    return Table(headings + [">achieved"] * achieved, rows)


def _figure(text: str, amount: Amount) -> str:
    return f"≥ {text}" if amount.uncosted else text


def ratio_text(number: float | None) -> str:
    """FLOPs per byte as text; a dash where nothing moves."""
    return "-" if number is None else f"{number:.3g}"
