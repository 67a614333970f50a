"""Graph -> a number for every box of a picture, to colour it by: time, memory, FLOPs, intensity, gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torchatlas.analysis.counting import count
from torchatlas.analysis.gradients import gradient_norms
from torchatlas.errors import AnalysisError
from torchatlas.graph import Graph
from torchatlas.graph.columns import Array
from torchatlas.registry import Registry
from torchatlas.render.layout.outline import Item, Outline
from torchatlas.units import format_bytes, format_flops, format_ns


@dataclass(frozen=True)
class Measure:
    """What a box is worth, NaN where nobody knows, and how to write it."""

    title: str
    value: Callable[[Item], float]
    text: Callable[[float], str]


MEASURES: Registry[Callable[[Outline], Measure]] = Registry("measure to colour by")


@MEASURES.add("time")
def _time(outline: Outline) -> Measure:
    """Measured, summed over what is in the box."""
    times = outline.tree.graph.columns["node_time_ns"].astype(float)
    if not (times >= 0).any():
        raise AnalysisError("No op of this graph was timed, so it cannot be coloured by time: capture it without fake.")
    return Measure("time", _sums(outline, np.where(times < 0, 0.0, times)), format_ns)


@MEASURES.add("memory")
def _memory(outline: Outline) -> Measure:
    """Bytes allocated in the box."""
    graph = outline.tree.graph
    born, size = graph.columns["storage_born"], graph.columns["storage_bytes"]
    made = (born >= 0) & (size > 0)
    allocated = np.bincount(born[made], size[made].astype(float), minlength=len(graph))
    return Measure("memory allocated", _sums(outline, allocated), format_bytes)


@MEASURES.add("flops")
def _flops(outline: Outline) -> Measure:
    """Two per multiply-add, and the arithmetic of everything else."""
    flops, _ = _work(outline.tree.graph)
    return Measure("FLOPs", _sums(outline, flops), format_flops)


@MEASURES.add("intensity")
def _intensity(outline: Outline) -> Measure:
    """FLOPs per byte moved."""
    flops, moved = _work(outline.tree.graph)
    work, traffic = _sums(outline, flops), _sums(outline, moved)

    def value(item: Item) -> float:
        return work(item) / traffic(item) if traffic(item) else math.nan

    return Measure("FLOPs per byte", value, lambda number: f"{number:.3g}")


@MEASURES.add("gradient")
def _gradient(outline: Outline) -> Measure:
    """The L2 norm of the gradients of a module's parameters."""
    graph = outline.tree.graph
    norms = gradient_norms(graph)

    def value(item: Item) -> float:
        if item.call < 0:
            return math.nan
        path = graph.tables.modules[graph.columns["call_module"][item.call]].path
        mine = [norm for name, norm in norms.items() if not path or name.startswith(path + ".")]
        return math.sqrt(sum(norm * norm for norm in mine)) if mine else math.nan

    return Measure("gradient norm", value, lambda number: f"{number:.3g}")


def _work(graph: Graph) -> tuple[Array, Array]:
    counts = count(graph)
    flops = np.maximum(counts.flops, 0) + np.maximum(counts.elementwise_flops, 0)
    return flops.astype(float), np.maximum(counts.bytes, 0).astype(float)


def _sums(outline: Outline, per_node: Array) -> Callable[[Item], float]:
    """Sums over the leaves of an item, all its repeats included. What has no box counts where its tensor comes from."""
    tree = outline.tree
    home = tree.leaf_of_node
    known = home >= 0
    totals = np.zeros(len(tree.node) + 1)
    totals[1:] = np.cumsum(np.bincount(home[known], per_node[known], minlength=len(tree.node)))
    return lambda item: float(totals[item.end] - totals[item.start])
