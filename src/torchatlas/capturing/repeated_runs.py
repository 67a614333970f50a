"""Recording a program several times from the same state -> one graph with the medians and spreads of its times.

Runs that nothing records are timed in between, one after each recorded run, so that what slows the machine down for a
while slows down both. They are the program's own time; a recorded run takes longer, as recording has a cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchatlas.capturing.restore import Restorer
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph
from torchatlas.graph.columns import Array
from torchatlas.graph.timing import Timing
from torchatlas.inputs import named_tensors


def check_runs(warmup: int, repeat: int, *, untimed: str = "") -> None:
    """Refuse what is no number of runs. `untimed` is the option, if any, for which there will be no times."""
    for name, number, least in (("warmup", warmup, 0), ("repeat", repeat, 1)):
        if type(number) is not int or number < least:  # True and 2.0 are slips
            raise InvalidInputError(f"{name}={number!r}: a whole number of runs is expected, {least} or more.")
    if untimed and (warmup or repeat > 1):
        name = f"warmup={warmup}" if warmup else f"repeat={repeat}"
        raise InvalidInputError(f"{name} is for times, and {untimed} takes none. Leave one of them out.")


@dataclass(frozen=True)
class Runs:
    """A program to run again and again.

    `record` runs it once under a recording and returns that; it is told whether the run is the last, the one whose
    values are kept. `plain` makes ready to run it alone, and returns what does. `tensors` tell on which devices.
    """

    record: Callable[[bool], Any]
    plain: Callable[[], Callable[[], None]]
    restorer: Restorer
    tensors: Any

    def graph(self, warmup: int, repeat: int) -> Graph:
        """The graph of the last run; its times are the medians over all recorded runs that took the same operations."""
        for _ in range(warmup):
            self.record(False)
            self.restorer.rewind()
        others: list[_Run] = []
        eager: list[int] = []
        for number in range(1, repeat + 1):
            graph: Graph = self.record(number == repeat).graph
            if repeat > 1:
                self.restorer.rewind()
                eager.append(self._eager_ns())
            if number < repeat:
                self.restorer.rewind()
                others.append(_Run.of(graph))
        if graph.time_ns is not None and (warmup or repeat > 1):
            _merge(graph, others, warmup, eager)
        return graph

    def _eager_ns(self) -> int:
        run = self.plain()
        self._wait()
        began = time.perf_counter_ns()
        run()
        self._wait()
        return time.perf_counter_ns() - began

    def _wait(self) -> None:
        """Wait for accelerators, which go on when the host is done. Each kind has its module: torch.cuda, torch.xpu."""
        for kind in {tensor.device.type for _, tensor in named_tensors(self.tensors)} - {"cpu", "meta"}:
            getattr(torch, kind).synchronize()


@dataclass(frozen=True)
class _Run:
    """The operations and the times of a recorded run."""

    hash: str
    start_ns: Array
    time_ns: Array
    recorded_ns: tuple[int, ...]

    @classmethod
    def of(cls, graph: Graph) -> _Run:
        recorded_ns = graph.timing.recorded_ns if graph.timing is not None else ()
        return cls(graph.hash, graph.columns["node_start_ns"], graph.columns["node_time_ns"], recorded_ns)


def _merge(graph: Graph, others: list[_Run], warmup: int, eager_ns: list[int]) -> None:
    """Replace the times of the last run by those of all runs with the same operations."""
    last = _Run.of(graph)
    runs = [*(run for run in others if run.hash == last.hash), last]
    if missing := len(others) + 1 - len(runs):
        graph.notes.append(
            f"{missing:,} of {len(others) + 1:,} recorded runs took other operations than the last one and are not in "
            "its times: the program keeps a state of its own between runs"
        )
    times = np.stack([run.time_ns for run in runs])
    known = (times >= 0).all(axis=0)
    if len(runs) > 1:
        low, middle, high = np.percentile(times, (25, 50, 75), axis=0)
        graph.columns["node_time_ns"] = np.where(known, np.rint(middle), -1).astype(np.int64)
        graph.columns["node_time_spread_ns"] = np.where(known, np.rint(high - low), -1).astype(np.int64)
        starts = np.rint(np.median([run.start_ns for run in runs], axis=0))
        graph.columns["node_start_ns"] = np.where(last.start_ns >= 0, starts, -1).astype(np.int64)
    graph.timing = Timing(
        runs=len(runs),
        warmup=warmup,
        recorded_ns=tuple(ns for run in runs for ns in run.recorded_ns),
        eager_ns=tuple(eager_ns),
    )
