"""A graph -> k pipeline stages: contiguous cuts of its execution order that make the slowest stage as quick as can be.

Exact for that order: cut_search.py does as well as trying every cut, as tests check. Other orders of the same
operations are not considered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from torchatlas.analysis.devices import Device, device_named
from torchatlas.analysis.reports import Report, as_json, fields_as_json
from torchatlas.argument_errors import explains_arguments
from torchatlas.deprecation import old_arguments, old_attribute
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.escapes import clean
from torchatlas.graph import Graph
from torchatlas.graph.columns import Array
from torchatlas.partition.cut_search import Balance, Measure, Memory, best_cuts
from torchatlas.partition.front_ends import graph_in, opened
from torchatlas.partition.stage_costs import OpCosts
from torchatlas.partition.traffic import ledger
from torchatlas.registry import check_choice
from torchatlas.sections import Lines, Section, Table
from torchatlas.units import byte_limit, byte_rate, format_bytes, format_flops, format_seconds

MEASURES = ("time", "flops", "memory")
_MOST_STEPS = 2**27  # stages times places: above that the search would take minutes and a gigabyte; docs/limits.md


@dataclass(frozen=True, repr=False)
class Stage(Report):
    """Operations that one device runs. Times are at best, on the plan's device."""

    number: int
    ops: tuple[int, ...] = field(repr=False)  # ids in the plan's graph
    first: str  # the names of its first and last operation
    last: str  # the name of its last operation
    flops: int
    elementwise_flops: int
    seconds: float  # to compute
    received_bytes: int  # from the stage before it, what is only handed on included
    sent_bytes: int
    communication_s: float  # to receive and to send
    weight_bytes: int
    activation_bytes: int  # the most that is alive at once, without weights
    cost: float  # what was balanced: seconds, FLOPs or bytes, communication included

    @property
    def memory_bytes(self) -> int:
        """Weights, and activations alive at once."""
        return self.weight_bytes + self.activation_bytes

    def _headline(self) -> str:
        return clean(f"{self.number}: {len(self.ops):,} ops from {self.first}, {format_seconds(self.seconds)} at best")

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {**fields_as_json(self), "memory_bytes": self.memory_bytes}


@dataclass(frozen=True, eq=False, repr=False)
class PipelinePlan(Report):
    """Where to cut. `bottleneck` is the cost of the slowest stage, which decides how fast the pipeline runs."""

    stages: tuple[Stage, ...] = field(repr=False)
    by: str
    bottleneck: float  # the cost of the slowest stage
    total: float  # of one device that does it all, without communication
    device: str
    bandwidth: float  # bytes per second between stages
    limit_bytes: int | None  # that no stage may exceed
    considered: str  # which cuts were tried
    graph: Graph = field(repr=False)
    origin: Any = field(repr=False, default=None)
    memory_limit = old_attribute("limit_bytes")

    @property
    def cuts(self) -> tuple[str, ...]:
        """The names of the operations that stages begin with, but for the first."""
        return tuple(stage.first for stage in self.stages[1:])

    @property
    def balance(self) -> float:
        """The mean cost of a stage divided by that of the slowest: 1 is perfect."""
        costs = [stage.cost for stage in self.stages]
        return sum(costs) / len(costs) / self.bottleneck if self.bottleneck else 1.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        fields = fields_as_json(self, ("stages", "graph", "origin"))
        fields |= {"balance": self.balance, "memory_limit": self.limit_bytes}  # the last is an old name
        return fields | {"cuts": list(self.cuts), "stages": as_json(self.stages)}

    def _sections(self) -> Iterator[Section]:
        return plan_sections(self)


@old_arguments(memory_limit="limit")
@explains_arguments
def pipeline_stages(
    x: Any,
    stages: int,
    *,
    by: str = "time",
    bandwidth: float | str | None = None,
    limit: float | str | None = None,
    device: Device | str | None = None,
    sizes: Mapping[str, int] | None = None,
    begins: Collection[int] | None = None,
) -> PipelinePlan:
    """Cut a traced model or a graph, also a saved one, into stages: one for each device.

    Args:
        x: A traced model, a graph, or the path of a saved one.
        stages: How many stages.
        by: What the worst stage should have least of: "time" (best seconds on `device`, sending and receiving
            included), "flops" or "memory" (weights, and activations alive at once).
        bandwidth: Bytes per second between stages; None takes the link of the device.
        limit: The memory that a stage may take at most, in bytes or as text such as "16GiB".
        device: The device profile, as for `atlas.cost`.
        sizes: Numbers for symbolic sizes, as for `atlas.cost`.
        begins: Ids of the operations that a stage may begin with; None allows all.
    Returns:
        A PipelinePlan: its stages with their figures, where to cut, how even they are. Print it.
    Raises:
        InvalidInputError: An argument is none of these, or there are more stages than operations.
        AnalysisError: There is no cut that keeps each stage below `limit`.
    Example:
        >>> import torch, torchatlas as atlas
        >>> model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
        >>> plan = atlas.pipeline_stages(atlas.capture(model, torch.ones(8, 64)), stages=2, by="flops")
        >>> len(plan.stages), plan.balance
        (2, 1.0)
    """
    check_choice("by", by, MEASURES)
    graph, origin = graph_in(x), None
    if graph is None:
        units, _, origin, _ = opened(x, (), {})
        graph = units.graph
    profile = device_named(device)
    op_ledger = ledger(graph, profile, sizes)
    speed = profile.link if bandwidth is None else byte_rate(bandwidth)
    limit_bytes = None if limit is None else byte_limit(limit)
    ops = np.flatnonzero(op_ledger.is_op)
    if not isinstance(stages, int) or stages < 1:
        raise InvalidInputError(f"stages={stages!r} is no number of stages; pass a whole number from 1 on.")
    if stages > len(ops):
        raise InvalidInputError(f"stages={stages}, but there are {len(ops)} operations to divide among them.")
    places = _places(ops, begins)
    if len(places) - 1 < stages:
        raise InvalidInputError(f"stages={stages}, but there are {len(places) - 1} operations that one may begin with.")
    if stages * len(places) > _MOST_STEPS:
        raise AnalysisError(
            f"{stages:,} stages among {len(places) - 1:,} operations to begin with: the search would take minutes and "
            f"a gigabyte or more, as their product is above {_MOST_STEPS:,}. Ask for fewer stages, or name the "
            "operations that one may begin with, such as the first of each block: begins=."
        )
    figures = OpCosts(op_ledger, ops, places)
    memory = figures.memory() if by == "memory" or limit_bytes is not None else None
    measure: Balance | Memory
    if by == "memory":
        assert memory is not None
        measure = memory
    else:
        earliest = None if memory is None or limit_bytes is None else memory.earliest(limit_bytes)
        measure = figures.balance(by, speed, earliest)
    cuts = best_cuts(measure, len(places), stages)
    if memory is not None and limit_bytes is not None and (cuts is None or by == "memory"):
        least = best_cuts(memory, len(places), stages) if cuts is None else cuts
        assert least is not None
        need = max(memory.cost(a, b) for a, b in pairwise(least))
        if need > limit_bytes:
            raise AnalysisError(
                f"No {stages} stages in this order fit in {format_bytes(limit_bytes)} each; with {format_bytes(need)} "
                f"({need} bytes) each they do. Raise limit, or ask for more stages."
            )
    assert cuts is not None
    return _plan(figures, cuts, measure, by, speed, limit_bytes, graph, origin)


def _places(ops: Array, begins: Collection[int] | None) -> Array:
    """The positions at which a stage may begin, the first of them 0, and the end."""
    may_begin = np.ones(len(ops), bool) if begins is None else np.isin(ops, list(begins))
    may_begin[0] = True
    return np.append(np.flatnonzero(may_begin), len(ops))


def _plan(
    figures: OpCosts,
    cuts: list[int],
    measure: Measure,
    by: str,
    speed: float,
    limit: int | None,
    graph: Graph,
    origin: Any,
) -> PipelinePlan:
    ledger, ops, crossing, places = figures.ledger, figures.ops, figures.crossing_bytes(), figures.places
    names = graph.index.names()
    stages = []
    for number, (begin, end) in enumerate(pairwise(cuts)):
        a, b = int(places[begin]), int(places[end])
        mine = ops[a:b]
        known = mine[ledger.is_known[mine]]
        stages.append(
            Stage(
                number=number,
                ops=tuple(mine.tolist()),
                first=names[int(mine[0])],
                last=names[int(mine[-1])],
                flops=int(2 * ledger.counts.macs[known].sum()),
                elementwise_flops=int(ledger.counts.elementwise_flops[known].sum()),
                seconds=float(np.nan_to_num(ledger.best.seconds[mine]).sum()),
                received_bytes=int(crossing[a]),
                sent_bytes=int(crossing[b]),
                communication_s=float((crossing[a] + crossing[b]) / speed),
                weight_bytes=figures.weight_bytes(a, b),
                activation_bytes=int(figures.alive[a:b].max()),
                cost=float(measure.cost(begin, end)),
            )
        )
    total = float(measure.cost(0, len(places) - 1))
    return PipelinePlan(
        stages=tuple(stages),
        by=by,
        bottleneck=max(stage.cost for stage in stages),
        total=total,
        device=ledger.device.name,
        bandwidth=speed,
        limit_bytes=limit,
        considered=f"every way to cut {len(ops):,} operations in execution order at {len(places) - 2:,} places; "
        "no other order",
        graph=graph,
        origin=origin,
    )


def plan_sections(plan: PipelinePlan) -> Iterator[Section]:
    """The slowest stage, and a row for each stage."""
    rows = [
        [
            f"{stage.number}",
            f"{len(stage.ops):,}",
            stage.first,
            format_flops(stage.flops),
            format_seconds(stage.seconds),
            format_bytes(stage.sent_bytes),
            format_seconds(stage.communication_s),
            format_bytes(stage.weight_bytes),
            format_bytes(stage.activation_bytes),
        ]
        for stage in plan.stages
    ]
    shown = {"time": format_seconds, "flops": format_flops, "memory": format_bytes}[plan.by]
    head = [
        f"{len(plan.stages)} stages by {plan.by}: the slowest takes {shown(plan.bottleneck)} of {shown(plan.total)}, "
        f"balance {plan.balance:.3g}",
        f"on {plan.device!r}, {format_bytes(plan.bandwidth)}/s between stages; considered: {plan.considered}",
    ]
    headings = ["stage", ">ops", "begins with", ">FLOPs", ">computes", ">sends", ">moving", ">weights", ">activations"]
    yield Lines(head)
    yield Table(headings, rows)
