"""A partition -> what can run at the same time: stages, the widest set, the critical path, how far workers help."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torchatlas.analysis.path_lengths import heaviest_path, slack_and_remaining
from torchatlas.analysis.reports import Report, fields_as_json
from torchatlas.argument_errors import explains_arguments
from torchatlas.errors import InvalidInputError, NotAvailableError
from torchatlas.graph.columns import Array
from torchatlas.partition.antichain import widest
from torchatlas.partition.branes_names import ConcurrencyNames
from torchatlas.partition.report import PartitionReport, Subgraph
from torchatlas.registry import check_choice
from torchatlas.sections import Lines, Section, Table
from torchatlas.units import format_count, format_flops, format_ns, format_seconds

WEIGHTS = ("flops", "roofline", "time", "count")
WORKERS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, eq=False, repr=False)
class ConcurrencyReport(ConcurrencyNames, Report):
    """What can run at once. `span`, `work` and `slack` are in FLOPs, seconds, nanoseconds or subgraphs: see `by`."""

    num_stages: int  # how many stages there are
    stages: tuple[tuple[str, ...], ...] = field(repr=False)  # ids; in one stage none depends on another
    max_parallel_ops_per_stage: int  # subgraphs in the widest stage
    mean_parallel_ops_per_stage: float  # subgraphs in a stage on average
    antichain_width: int  # the most that could ever run at once; stages are only one arrangement
    antichain: tuple[str, ...] = field(repr=False)  # the most subgraphs of which none waits for another
    by: str
    critical_path: tuple[str, ...] = field(repr=False)  # ids of the subgraphs on it
    critical_path_names: tuple[str, ...] = field(repr=False)  # their names
    critical_path_length: int  # how many subgraphs are on it
    critical_path_flops: int  # of matmul-like work on it: two per multiply-add
    span: float  # what the critical path weighs: nothing finishes sooner
    work: float  # what all subgraphs weigh
    at_least: bool  # the weight of some is unknown, and taken as nothing
    slack: dict[str, float] = field(repr=False)  # how much later each could end without making the whole longer
    speedup_bound: float | None  # work / span: no number of workers does better. None when nothing weighs
    speedups: dict[int, float]  # by number of workers: list scheduling, the longest remaining path first
    batch_parallelism: int  # samples, which do not depend on each other
    glue: tuple[str, ...] = field(repr=False)  # joins and views that take no stage
    times: str | None  # of by="time": "one run", or the median of how many

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        speedups = {str(workers): speedup for workers, speedup in self.speedups.items()}
        return fields_as_json(self) | {"speedups": speedups}

    def _sections(self) -> Iterator[Section]:
        return concurrency_sections(self)


class ConcurrencyAnalyzer:
    """Finds the subgraphs of a partition that can run at the same time.

    Args:
        by: What a subgraph weighs on the critical path: "flops" (all arithmetic), "roofline" (best seconds on the
            report's device), "time" (as measured) or "count".
        workers: Numbers of workers to schedule the subgraphs on, for `ConcurrencyReport.speedups`.
    Raises:
        InvalidInputError: `by` is none of these, or `workers` are no numbers from 1.
    Example:
        >>> import torch, torchatlas as atlas
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> report = atlas.GraphPartitioner().partition(model, torch.ones(1, 4))
        >>> concurrency = atlas.ConcurrencyAnalyzer().analyze(report)
        >>> concurrency.num_stages, concurrency.speedup_bound
        (2, 1.0)
    """

    @explains_arguments
    def __init__(self, by: str = "flops", workers: int | Iterable[int] = WORKERS) -> None:
        check_choice("by", by, WEIGHTS)
        self.by, self.workers = by, tuple(workers) if isinstance(workers, Iterable) else (workers,)
        if wrong := [count for count in self.workers if not isinstance(count, int) or count < 1]:
            raise InvalidInputError(f"workers={wrong[0]!r} is no number of workers.")

    def __repr__(self) -> str:
        return f"<ConcurrencyAnalyzer by {self.by}, for {', '.join(map(str, self.workers))} workers>"

    @explains_arguments
    def analyze(self, report: PartitionReport) -> ConcurrencyReport:
        """Stages, widths, critical path, slack and speed-ups of a partition.

        Args:
            report: The partition.
        Returns:
            A ConcurrencyReport. Print it.
        Raises:
            InvalidInputError: It is not a PartitionReport.
            NotAvailableError: `by="time"` of a graph that was not timed.
        """
        if not isinstance(report, PartitionReport):
            raise InvalidInputError(
                f"analyze takes the report of a partition, not {type(report).__name__}: "
                "analyze(GraphPartitioner().partition(x))."
            )
        subgraphs = report.subgraphs
        number = {subgraph.node_id: at for at, subgraph in enumerate(subgraphs)}
        before = [[number[other] for other in subgraph.depends_on] for subgraph in subgraphs]
        takes_stage = np.array([not subgraph.is_glue for subgraph in subgraphs], bool)
        stages = _stages(before, takes_stage)
        sizes = [len(stage) for stage in stages] or [0]
        antichain = widest(before, takes_stage.tolist())
        weights, missing = _weights(subgraphs, self.by)
        source, target = _edges(before)
        path, finish = heaviest_path(weights, source, target)
        slack, remaining = slack_and_remaining(weights, source, target, finish)
        length, work = finish.max(initial=0).item(), weights.sum().item()
        spans = {workers: makespan(weights.tolist(), before, remaining.tolist(), workers) for workers in self.workers}
        ids, measured = [subgraph.node_id for subgraph in subgraphs], report.graph.measured()
        return ConcurrencyReport(
            num_stages=len(stages),
            stages=tuple(tuple(ids[at] for at in stage) for stage in stages),
            max_parallel_ops_per_stage=max(sizes),
            mean_parallel_ops_per_stage=sum(sizes) / len(sizes),
            antichain_width=len(antichain),
            antichain=tuple(ids[at] for at in antichain),
            by=self.by,
            critical_path=tuple(ids[at] for at in path),
            critical_path_names=tuple(subgraphs[at].node_name for at in path),
            critical_path_length=len(path),
            critical_path_flops=sum(subgraphs[at].flops for at in path),
            span=length,
            work=work,
            at_least=missing,
            slack=dict(zip(ids, slack.tolist(), strict=True)),
            speedup_bound=work / length if length else None,
            speedups={workers: work / span for workers, span in spans.items() if span},
            batch_parallelism=_batch(report),
            glue=tuple(subgraph.node_id for subgraph in subgraphs if subgraph.is_glue),
            times=measured.what if self.by == "time" and measured is not None else None,
        )


def _stages(before: list[list[int]], takes_stage: Array) -> list[list[int]]:
    """Put each subgraph into the earliest stage possible. Glue takes no stage: it passes on when it is ready."""
    ready: list[int] = []  # per subgraph, the number of stages that must be over when it is
    stages: list[list[int]] = []
    for at, needed in enumerate(before):
        stage = max((ready[earlier] for earlier in needed), default=0)
        if takes_stage[at]:
            if stage == len(stages):
                stages.append([])
            stages[stage].append(at)
            stage += 1
        ready.append(stage)
    return stages


def makespan(weights: Sequence[float], before: list[list[int]], remaining: Sequence[float], workers: int) -> float:
    """When the last subgraph ends if a free worker always takes the ready one with the heaviest path still ahead."""
    after: list[list[int]] = [[] for _ in before]
    for at, needed in enumerate(before):
        for earlier in needed:
            after[earlier].append(at)
    missing = [len(needed) for needed in before]
    ready = [(-remaining[at], at) for at, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < workers:
            _, at = heapq.heappop(ready)
            heapq.heappush(running, (now + weights[at], at))
        now, done = heapq.heappop(running)
        for later in after[done]:
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(ready, (-remaining[later], later))
    return now


def _weights(subgraphs: Sequence[Subgraph], by: str) -> tuple[Array, bool]:
    """What each subgraph weighs, and whether some weight is unknown."""
    if by == "count":
        return np.array([int(not subgraph.is_glue) for subgraph in subgraphs], np.int64), False
    if by == "time":
        if all(subgraph.time_ns is None for subgraph in subgraphs if subgraph.ops):
            raise NotAvailableError("Nothing in this partition was timed; weigh by='roofline' or 'flops' instead.")
        missing = any(subgraph.time_ns is None and subgraph.kernels for subgraph in subgraphs)
        return np.array([subgraph.time_ns or 0 for subgraph in subgraphs], np.int64), missing
    missing = any(subgraph.uncosted for subgraph in subgraphs)
    if by == "roofline":
        return np.array([subgraph.seconds for subgraph in subgraphs], np.float64), missing
    return np.array([subgraph.flops + subgraph.elementwise_flops for subgraph in subgraphs], np.int64), missing


def _edges(before: list[list[int]]) -> tuple[Array, Array]:
    pairs = [(earlier, at) for at, needed in enumerate(before) for earlier in needed]
    edges = np.array(pairs, np.int32).reshape(-1, 2)
    return edges[:, 0].copy(), edges[:, 1].copy()


def _batch(report: PartitionReport) -> int:
    """The first size of the first input, which is the batch by custom; 1 where there is none."""
    for node in report.graph.where(kind="input"):
        for value in node.outputs:
            if value.shape:
                first = value.shape[0]
                return first if isinstance(first, int) else report.sizes.get(first, 1)
    return 1


def concurrency_sections(report: ConcurrencyReport) -> Iterator[Section]:
    """Widths, the critical path, and how far workers help."""
    lines = [
        f"{report.num_stages:,} stages, {report.max_parallel_ops_per_stage:,} subgraphs in the widest, "
        f"{report.mean_parallel_ops_per_stage:.3g} on average; at most {report.antichain_width:,} could run at once",
        f"critical path by {report.by}: {report.critical_path_length:,} subgraphs, "
        f"{'at least ' if report.at_least else ''}{_length(report.span, report.by)} "
        f"of {_length(report.work, report.by)}",
    ]
    if report.speedup_bound is not None:
        lines.append(f"no number of workers is more than {report.speedup_bound:.3g} times faster than one")
    if report.times is not None:
        lines.append(f"times as measured: {report.times}")
    if report.batch_parallelism > 1:
        lines.append(f"the {report.batch_parallelism:,} samples of the batch do not depend on each other")
    rows = [[f"{workers:,}", f"{speedup:.3g}"] for workers, speedup in report.speedups.items()]
    yield Lines(lines)
    if rows:
        yield Table([">workers", ">speed-up"], rows)


def _length(number: float, by: str) -> str:
    if by == "flops":
        return format_flops(number)
    if by == "time":
        return format_ns(number)
    return format_seconds(number) if by == "roofline" else format_count(number)
