"""Graph -> when each node could run at the earliest (levels), its critical path, and the slack of every node.

Nodes are in execution order, so every edge leads from a lower id to a higher one: no sorting, no search for cycles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from torchatlas.analysis.devices import Device, device_named
from torchatlas.analysis.path_lengths import finish_times, heaviest_path, slack_and_remaining
from torchatlas.analysis.totals import operations_mask
from torchatlas.errors import InvalidInputError, NotAvailableError
from torchatlas.graph import EdgeKind, Graph, GraphNode
from torchatlas.graph.columns import EDGE_KINDS, Array
from torchatlas.graph.names import short_line
from torchatlas.graph.shown import Shown
from torchatlas.sections import Lines, Section, Table
from torchatlas.units import format_bytes, format_flops, format_ns, format_seconds

_MOST_ROWS = 20


def levels(graph: Graph, kinds: Iterable[EdgeKind | str] = EDGE_KINDS) -> Array:
    """For every node the number of edges on the longest path to it: 0 where nothing comes before.

    Nodes of one level do not depend on each other. `kinds` chooses the edges that count.
    """
    source, target = _edges(graph, kinds)
    level: Array = finish_times(np.ones(len(graph), np.int64), source, target) - 1
    return level.astype(np.int32)


def longest_path(
    graph: Graph,
    weight: str | Array | None = None,
    *,
    kinds: Iterable[EdgeKind | str] = EDGE_KINDS,
) -> tuple[list[int], int | float]:
    """The heaviest chain of dependent nodes: their ids in order, and its length.

    Without `weight` the length is counted in edges, as `levels` does. "time_ns" (or another node column) and an array
    with one number per node sum the numbers of the nodes on the path; a node whose time is unknown adds nothing, so
    that the length is then "at least". Of equal chains, the one whose edges come first in the graph is taken.
    """
    if not len(graph):
        return [], 0
    weights = _weights(graph, weight)
    source, target = _edges(graph, kinds)
    path, finish = heaviest_path(weights, source, target)
    length = finish[path[-1]].item()
    return path, length - 1 if weight is None else length


def widest_level(graph: Graph, kinds: Iterable[EdgeKind | str] = EDGE_KINDS) -> list[GraphNode]:
    """The operations of the level that has most of them: none depends on another. Of equal levels, the first."""
    is_op = operations_mask(graph)
    if not is_op.any():
        return []
    level = levels(graph, kinds)
    widest = int(np.bincount(level[is_op]).argmax())
    return [graph.nodes[int(node)] for node in np.flatnonzero(is_op & (level == widest))]


@dataclass(frozen=True, eq=False, repr=False)
class CriticalPath(Shown):
    """The heaviest chain of dependent nodes: no number of workers finishes sooner."""

    graph: Graph = field(repr=False)
    by: str
    ids: list[int] = field(repr=False)
    length: int | float  # the span
    work: int | float  # of all nodes
    slack: Array = field(repr=False)  # per node, how much later it could end without making the whole longer
    weights: Array = field(repr=False)  # per node
    at_least: bool  # whether the weight of some node is unknown, and taken as nothing

    @property
    def nodes(self) -> list[GraphNode]:
        return [self.graph.nodes[node] for node in self.ids]

    @property
    def speedup(self) -> float | None:
        """No number of workers can be faster than one by more than this: work / span. None when nothing weighs."""
        return self.work / self.length if self.length else None

    def _sections(self) -> Iterator[Section]:
        yield Lines([self._headline()])
        if not self.ids:
            return
        weights = self.weights[self.ids]
        heaviest = sorted(np.argsort(-weights, kind="stable")[:_MOST_ROWS].tolist())
        rows = []
        for at in heaviest:
            node = self.graph.nodes[self.ids[at]]
            share = f"{100 * weights[at] / self.length:.1f} %" if self.length else ""
            rows.append(
                [node.name, node.operation, _weight(weights[at].item(), self.by), share, short_line(node.source)]
            )
        left = len(self.ids) - len(rows)
        below = f"{left:,} more nodes on it weigh less" if left else ""
        yield Table(["on the path, in order", "operation", f">{self.by}", ">share", "made at"], rows, below=below)

    def _headline(self) -> str:
        sign = "at least " if self.at_least else ""
        speedup = "" if self.speedup is None else f"; at most {self.speedup:.3g} times faster in parallel"
        lengths = f"{sign}{self.length:,} of {self.work:,}"
        measured = self.graph.measured(np.array(self.ids, np.int64)) if self.by == "time" else None
        if measured is not None:
            lengths = f"{sign}{format_ns(self.length)} of {format_ns(self.work)} ({measured.what})"
        return f"critical path by {self.by}: {len(self.ids):,} nodes, {lengths}{speedup}"


def critical_path(
    graph: Graph,
    by: str | Array = "time",
    *,
    device: Device | str | None = None,
    kinds: Iterable[EdgeKind | str] = EDGE_KINDS,
) -> CriticalPath:
    """The heaviest chain of dependent nodes, with the slack of every node.

    `by` is "time" (as measured, in nanoseconds), "roofline" (best seconds on `device`), "flops" (matmul-like and
    other arithmetic), "bytes" (moved), "count" (nodes), or an array with one number per node.
    """
    known = _weights(graph, by) if not isinstance(by, str) else _measure(graph, by, device)
    missing = bool((known < 0).any() or np.isnan(known).any())
    weights = np.maximum(np.nan_to_num(known), 0)
    source, target = _edges(graph, kinds)
    name = by if isinstance(by, str) else "given weights"
    if not len(graph):
        return CriticalPath(graph, name, [], 0, 0, weights, weights, False)
    path, finish = heaviest_path(weights, source, target)
    slack, _ = slack_and_remaining(weights, source, target, finish)
    return CriticalPath(graph, name, path, finish.max().item(), weights.sum().item(), slack, weights, missing)


def _measure(graph: Graph, by: str, device: Device | str | None) -> Array:
    """One number per node; below zero or nan where unknown."""
    if by == "count":
        return np.ones(len(graph), np.int64)
    if by == "time":
        time_ns = graph.columns["node_time_ns"]
        if not (time_ns >= 0).any():
            raise NotAvailableError("Nothing in this graph was timed; ask by='roofline', 'flops' or 'bytes' instead.")
        return np.where(operations_mask(graph), time_ns, 0)
    if by not in ("flops", "bytes", "roofline"):
        raise InvalidInputError(f"critical_path(by={by!r}): one of time, roofline, flops, bytes, count, or an array.")
    from torchatlas.analysis.node_work import count  # the formulas are many, and levels need none
    from torchatlas.analysis.roofline import roofline

    counts = count(graph)
    if by == "roofline":
        return roofline(graph, counts, device_named(device)).seconds
    if by == "bytes":
        return counts.bytes
    return np.where(counts.macs < 0, -1, 2 * counts.macs + counts.elementwise_flops)


def _weight(number: float, by: str) -> str:
    known = {"time": format_ns, "roofline": format_seconds, "flops": format_flops, "bytes": format_bytes}
    return known[by](number) if by in known else f"{number:,}"


def _edges(graph: Graph, kinds: Iterable[EdgeKind | str]) -> tuple[Array, Array]:
    """Sources and targets of the edges of these kinds."""
    chosen = {EDGE_KINDS.index(EdgeKind(kind)) for kind in kinds}
    columns = graph.columns
    if len(chosen) == len(EDGE_KINDS):
        return columns["edge_source"], columns["edge_target"]
    keep = np.isin(columns["edge_kind"], list(chosen))
    return columns["edge_source"][keep], columns["edge_target"][keep]


def _weights(graph: Graph, weight: str | Array | None) -> Array:
    """One number per node, none negative; whole numbers as int64, others as float64."""
    if weight is None:
        return np.ones(len(graph), np.int64)
    if isinstance(weight, str):
        column = graph.columns.get(f"node_{weight}")
        if column is None or not (column >= 0).any():
            known = [
                name[5:] for name in graph.columns if name.startswith("node_") and name.endswith(("_ns", "_bytes"))
            ]
            raise NotAvailableError(f"No node of this graph has a {weight!r}; columns of numbers: {', '.join(known)}.")
        return np.maximum(column, 0).astype(np.int64)
    weights = np.asarray(weight)
    if weights.shape != (len(graph),) or weights.dtype.kind not in "biuf":
        raise InvalidInputError(
            f"weight needs {len(graph)} numbers, one per node; got {weights.dtype} {weights.shape}."
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise InvalidInputError("weight holds a negative or infinite number; the longest path is defined without.")
    return weights.astype(np.float64 if weights.dtype.kind == "f" else np.int64)
