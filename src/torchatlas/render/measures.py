"""Graph -> a number for every box of a picture, to colour it by: time, memory, FLOPs, intensity, gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torchatlas.analysis.counting import count
from torchatlas.analysis.gradients import gradient_norms
from torchatlas.errors import AnalysisError
from torchatlas.graph import Graph, Phase, Role
from torchatlas.graph.columns import PHASES, ROLES, Array
from torchatlas.registry import Registry
from torchatlas.render.layout.outline import Item, Outline
from torchatlas.units import format_bytes, format_flops, format_ns


@dataclass(frozen=True)
class Measure:
    """What a box is worth, NaN where nobody knows, and how to write it."""

    title: str
    value: Callable[[Item], float]
    text: Callable[[float], str]
    grey: str  # what a box without a colour has not


MEASURES: Registry[Callable[[Outline], Measure]] = Registry("measure to colour by")


@MEASURES.add("time")
def _time(outline: Outline) -> Measure:
    """Measured, summed over what is in the box."""
    times = outline.tree.graph.columns["node_time_ns"].astype(float)
    if not (times >= 0).any():
        raise AnalysisError("No op of this graph was timed, so it cannot be coloured by time: capture it without fake.")
    return Measure("time", _sums(outline, times), format_ns, "not timed")


@MEASURES.add("memory")
def _memory(outline: Outline) -> Measure:
    """Bytes allocated in the box."""
    graph = outline.tree.graph
    born, size = graph.columns["storage_born"], graph.columns["storage_bytes"]
    made = (born >= 0) & (size > 0)
    allocated = np.bincount(born[made], size[made].astype(float), minlength=len(graph))
    return Measure("memory allocated", _sums(outline, allocated), format_bytes, "unknown")


@MEASURES.add("flops")
def _flops(outline: Outline) -> Measure:
    """Two per multiply-add, as the footer, atlas.cost and published tables count: ops without any have none."""
    flops = count(outline.tree.graph).flops.astype(float)
    return Measure("FLOPs (2 per multiply-add)", _sums(outline, flops), format_flops, "unknown")


@MEASURES.add("intensity")
def _intensity(outline: Outline) -> Measure:
    """All arithmetic per byte moved: multiply-adds, twice, and everything else."""
    arithmetic, moved = _work(outline.tree.graph)
    work, traffic = _sums(outline, arithmetic), _sums(outline, moved)

    def value(item: Item) -> float:
        return work(item) / traffic(item) if traffic(item) else math.nan

    return Measure("all arithmetic per byte moved", value, lambda number: f"{number:.3g}", "unknown, or nothing moved")


@MEASURES.add("gradient")
def _gradient(outline: Outline) -> Measure:
    """The L2 norm of the gradients, as backward left them, of the parameters that the ops in a box work on.

    An op of backward works on those whose gradients it makes, any other on those that it reads.
    """
    tree = outline.tree
    norms = gradient_norms(tree.graph)
    rows = [row for row, name in enumerate(tree.graph.tables.names) if name in norms]
    leaves, names = _worked_on(outline, rows)
    squares = np.array([norms.get(name, 0.0) for name in tree.graph.tables.names]) ** 2

    def value(item: Item) -> float:
        found = np.unique(names[np.searchsorted(leaves, item.start) : np.searchsorted(leaves, item.end)])
        return math.sqrt(float(squares[found].sum())) if len(found) else math.nan

    return Measure("gradient norm of parameters", value, lambda number: f"{number:.3g}", "none")


def _worked_on(outline: Outline, wanted: list[int]) -> tuple[Array, Array]:
    """Pairs of a leaf and which of the wanted names is that of a parameter it works on, in order of leaves."""
    tree = outline.tree
    columns, count = tree.graph.columns, len(tree.graph)
    is_backward = columns["node_phase"] == PHASES.index(Phase.BACKWARD)
    pairs = []
    for side, role, nodes in (("input", Role.PARAMETER, ~is_backward), ("output", Role.GRADIENT, is_backward)):
        node = np.repeat(np.arange(count), np.diff(columns[f"{side}_ptr"]))
        value = columns[f"{side}_value"]
        chosen = (value >= 0) & nodes[node] & (tree.leaf_of_node[node] >= 0)
        node, value = node[chosen], value[chosen]
        chosen = columns["value_role"][value] == ROLES.index(role)
        pairs.append((tree.leaf_of_node[node[chosen]], columns["value_parameter"][value[chosen]]))
    leaves, names = (np.concatenate(columns) for columns in zip(*pairs, strict=True))
    chosen = np.isin(names, wanted)
    order = np.argsort(leaves[chosen], kind="stable")
    return leaves[chosen][order], names[chosen][order]


def _work(graph: Graph) -> tuple[Array, Array]:
    """The arithmetic and the bytes of every node, below zero where they are not known."""
    counts = count(graph)
    arithmetic = np.maximum(counts.flops, 0) + np.maximum(counts.elementwise_flops, 0)
    arithmetic = np.where((counts.flops < 0) & (counts.elementwise_flops < 0), -1, arithmetic)
    return arithmetic.astype(float), counts.bytes.astype(float)


def _sums(outline: Outline, per_node: Array) -> Callable[[Item], float]:
    """Sums over the leaves of an item, all its repeats included; NaN if none of them is known (is below zero).

    What has no box counts where its tensor comes from.
    """
    tree = outline.tree
    home = tree.leaf_of_node
    known = (home >= 0) & (per_node >= 0)
    totals, counted = np.zeros(len(tree.node) + 1), np.zeros(len(tree.node) + 1)
    totals[1:] = np.cumsum(np.bincount(home[known], per_node[known], minlength=len(tree.node)))
    counted[1:] = np.cumsum(np.bincount(home[known], minlength=len(tree.node)))
    return lambda item: (
        float(totals[item.end] - totals[item.start]) if counted[item.end] > counted[item.start] else math.nan
    )
