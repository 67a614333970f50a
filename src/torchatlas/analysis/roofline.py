"""The work of a graph on a device -> how long each op takes at best, and what holds it back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from torchatlas.analysis.devices import Device
from torchatlas.analysis.node_work import Counts
from torchatlas.graph import Graph, OperationType
from torchatlas.graph.columns import Array

_EVEN = 1.25  # computing and moving are called balanced when neither takes this much longer than the other


class Bound(StrEnum):
    """What an op waits for."""

    COMPUTE = "compute_bound"
    MEMORY = "memory_bound"
    BALANCED = "balanced"
    OVERHEAD = "overhead_bound"  # so small that starting it takes longer than doing it


BOUNDS = tuple(Bound)


@dataclass(frozen=True, eq=False)
class Roofline:
    """Per node: seconds at best (nan where the work is unknown) and what bounds it (-1 where unknown or no op)."""

    device: Device
    seconds: Array
    bound: Array  # -> BOUNDS

    def achieved(self, graph: Graph) -> Array:
        """Best time divided by measured time, per node; nan where either is unknown."""
        measured = np.where(graph.columns["node_time_ns"] > 0, graph.columns["node_time_ns"], np.nan) / 1e9
        return self.seconds / measured


def roofline(graph: Graph, counts: Counts, device: Device) -> Roofline:
    """Time of every op if nothing but its own arithmetic and its own bytes held it back.

    Multiply-adds run at the device's rate for the dtype, other arithmetic at its vector rate, bytes at its bandwidth
    (those of collectives at its link's); computing and moving overlap. No op is faster than the device's overhead, but
    a view takes no time at all.
    """
    unknown = counts.macs < 0
    rate = np.array([device.flops_for(layout.dtype) for layout in graph.tables.layouts] or [1.0])
    compute = 2 * counts.macs / rate[_layouts(graph)] + counts.elementwise_flops / device.vector_flops
    remote = np.array([op.type is OperationType.COMMUNICATION for op in graph.tables.operations] or [False])
    speed = np.where(remote[graph.columns["node_operation"]], device.link, device.bandwidth)
    memory = counts.bytes / speed
    longer = np.maximum(compute, memory)
    idle = (longer == 0) & ~unknown
    seconds = np.where(unknown, np.nan, np.where(idle, 0, np.maximum(longer, device.overhead_s)))
    bound = bounds(compute, memory, device.overhead_s)
    return Roofline(device, seconds, np.where(unknown | ~counts.is_op, -1, bound))


def bounds(compute: Array | float, memory: Array | float, overhead: float) -> Array:
    """What holds back work that computes and moves bytes for so many seconds: positions in BOUNDS."""
    bound = np.where(compute > memory * _EVEN, BOUNDS.index(Bound.COMPUTE), BOUNDS.index(Bound.BALANCED))
    bound = np.where(memory > compute * _EVEN, BOUNDS.index(Bound.MEMORY), bound)
    return np.where(np.maximum(compute, memory) < overhead, BOUNDS.index(Bound.OVERHEAD), bound)


def _layouts(graph: Graph) -> Array:
    """Per node the layout that decides how fast it computes: of its first input, else of its first output."""
    columns, nodes = graph.columns, len(graph)
    layouts = np.zeros(nodes, np.int64)
    for side in ("output", "input"):
        ptr, values = columns[f"{side}_ptr"], columns[f"{side}_value"]
        some = np.flatnonzero(np.diff(ptr) > 0)
        first = values[ptr[some]]
        layouts[some[first >= 0]] = columns["value_layout"][first[first >= 0]]
    return layouts
