"""The times of two graphs -> what differs, and what is only noise.

A time differs if its medians lie further apart than both spreads together: median ± spread of the one and of the other
do not overlap. One run has no spread, so that nothing can be said about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from torchatlas.analysis.reports import Report, fields_as_json
from torchatlas.graph import Graph, GraphNode
from torchatlas.graph.timing import Measured
from torchatlas.units import format_ns

LONGER, SHORTER, ALIKE, NOT_COMPARED = "longer", "shorter", "no difference", "not compared"


@dataclass(frozen=True, slots=True, repr=False)
class TimeChange(Report):
    """A time before and after; None where it is not known."""

    before: Measured | None
    after: Measured | None

    @property
    def verdict(self) -> str:
        """longer, shorter, no difference, or not compared."""
        if self.before is None or self.after is None or self.before.spread_ns is None or self.after.spread_ns is None:
            return NOT_COMPARED
        change = self.after.ns - self.before.ns
        if abs(change) <= self.before.spread_ns + self.after.spread_ns:
            return ALIKE
        return LONGER if change > 0 else SHORTER

    @property
    def differs(self) -> bool:
        return self.verdict in (LONGER, SHORTER)

    def to_dict(self) -> dict[str, Any]:
        return {**fields_as_json(self), "verdict": self.verdict}

    def __str__(self) -> str:
        if self.before is None or self.after is None:
            known = [f"{side} {name}" for name, side in (("before", self.before), ("after", self.after)) if side]
            return f"{known[0] if known else 'unknown'}: {NOT_COMPARED}"
        if self.before.runs == self.after.runs == 1:
            return f"{format_ns(self.before.ns)} and {format_ns(self.after.ns)}, one run each: {NOT_COMPARED}"
        if self.verdict == NOT_COMPARED:
            return f"{self.before} and {self.after}: {NOT_COMPARED}"
        change = "no difference beyond the spread"
        if self.differs:
            change = f"{self.verdict} by {format_ns(abs(self.after.ns - self.before.ns))}"
        return f"{self.before} -> {self.after}: {change}"


@dataclass(frozen=True, slots=True, repr=False)
class OperationTime(Report):
    """An operation that both graphs have and that takes longer, or shorter, beyond the spread."""

    before: GraphNode
    after: GraphNode
    change: TimeChange

    def to_dict(self) -> dict[str, Any]:
        return {"name_before": self.before.name, "name_after": self.after.name, **self.change.to_dict()}

    def __str__(self) -> str:
        return f"{self.after.name}: {self.change}"


def changed_operations(before: Graph, after: Graph, pairs: list[tuple[int, int]]) -> list[OperationTime]:
    """Of the operations that both have, by their ids, those whose times differ; the largest difference first."""
    if not pairs or before.timing is None or after.timing is None:
        return []
    ids = np.array(pairs, np.int64).T
    times, spreads = (
        [graph.columns[name][side] for graph, side in zip((before, after), ids, strict=True)]
        for name in ("node_time_ns", "node_time_spread_ns")
    )
    known = (np.stack([*times, *spreads]) >= 0).all(axis=0)
    change = np.abs(times[1] - times[0])
    differing = np.flatnonzero(known & (change > spreads[0] + spreads[1]))
    differing = differing[np.argsort(-change[differing], kind="stable")]
    return [
        OperationTime(
            before.nodes[int(ids[0][at])],
            after.nodes[int(ids[1][at])],
            TimeChange(
                Measured(int(times[0][at]), before.timing.runs, int(spreads[0][at])),
                Measured(int(times[1][at]), after.timing.runs, int(spreads[1][at])),
            ),
        )
        for at in differing.tolist()
    ]


def changed_modules(before: Graph, after: Graph) -> dict[str, TimeChange]:
    """The time of every module, itself and below, in both graphs."""
    paths = dict.fromkeys([*before.scopes, *after.scopes])
    return {path: TimeChange(_module(before, path), _module(after, path)) for path in paths}


def _module(graph: Graph, path: str) -> Measured | None:
    """The time of a module; one that is not there takes none."""
    if path in graph.scopes:
        return graph.scopes[path].measured
    runs = 0 if graph.timing is None else graph.timing.runs
    return Measured(0, runs, 0 if runs > 1 else None) if runs else None
