"""Graph -> a number for every box of a picture, to colour it by: time, memory, FLOPs, intensity, gradient.

A box counts all its rounds: its own repeats, times those of every open repeat around it. So the boxes of a picture sum
to what ran. Gradient norms do not add up: there a box shows its largest round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchatlas.analysis.gradients import gradient_norms
from torchatlas.errors import AnalysisError
from torchatlas.graph import Graph, Phase, Role
from torchatlas.graph.columns import PHASES, ROLES, Array
from torchatlas.registry import Registry
from torchatlas.render.layout.outline import Item, Outline
from torchatlas.units import format_bytes, format_flops, format_ns

if TYPE_CHECKING:
    from torchatlas.analysis.node_work import Counts


@dataclass(frozen=True)
class BoxMeasure:
    """The value of each box, and how to write it. NaN is unknown; infinity stands for all that is not finite."""

    title: str
    value: Callable[[Item], float]
    text: Callable[[float], str]
    grey: str  # why a box has no colour
    least: Callable[[Item], float] | None = None  # the value of the smallest round, if `value` is that of the largest

    def tooltip(self, item: Item) -> str:
        """The value of a box in words."""
        value, many = self.value(item), len(_rounds(item))
        if math.isnan(value):
            return f"{self.title}: {self.grey}"
        words = self._text(value)
        if self.least is not None and many > 1:
            words = f"{self._text(self.least(item))} to {words} in {many:,} rounds"
        elif many > 1:
            words = f"{words} in {many:,} rounds together"
        return f"{self.title}: {words}"

    def of_rounds(self, items: Iterable[Item]) -> str:
        """How boxes of repeats combine their rounds, in words; empty if no box repeats."""
        repeated = [item for item in items if len(_rounds(item)) > 1]
        if not repeated or self.least is None:
            return "all rounds together" if repeated else ""
        smallest = [value for value in map(self.least, repeated) if not math.isnan(value)]
        return "the largest round" + (f" (smallest: {self._text(min(smallest))})" if smallest else "")

    def _text(self, value: float) -> str:
        return "not finite" if math.isinf(value) else self.text(value)


BOX_MEASURES: Registry[Callable[[Outline], BoxMeasure]] = Registry("measure to colour by")


def node_counts(graph: Graph) -> Counts:
    """The work of every node. Imports the formulas only now: that takes as long as a small picture."""
    from torchatlas.analysis.node_work import count

    return count(graph)


@BOX_MEASURES.add("time")
def _time(outline: Outline) -> BoxMeasure:
    """The measured time of the ops in a box."""
    times = outline.tree.graph.columns["node_time_ns"].astype(float)
    if not (times >= 0).any():
        raise AnalysisError("No op of this graph was timed, so it cannot be coloured by time: capture it without fake.")
    time = outline.tree.graph.measured()
    assert time is not None
    return BoxMeasure(f"time ({time.what})", _sums(outline, times), format_ns, "not timed")


@BOX_MEASURES.add("memory")
def _memory(outline: Outline) -> BoxMeasure:
    """The bytes that the ops in a box allocated."""
    graph = outline.tree.graph
    born, size = graph.columns["storage_born"], graph.columns["storage_bytes"]
    made = (born >= 0) & (size > 0)
    allocated = np.bincount(born[made], size[made].astype(float), minlength=len(graph))
    return BoxMeasure("memory allocated", _sums(outline, allocated), format_bytes, "unknown")


@BOX_MEASURES.add("flops")
def _flops(outline: Outline) -> BoxMeasure:
    """Two per multiply-add, as the footer, atlas.cost and published tables count: ops without any have none."""
    flops = node_counts(outline.tree.graph).flops.astype(float)
    return BoxMeasure("FLOPs (2 per multiply-add)", _sums(outline, flops), format_flops, "unknown")


@BOX_MEASURES.add("intensity")
def _intensity(outline: Outline) -> BoxMeasure:
    """All arithmetic per byte moved: multiply-adds, twice, and everything else."""
    arithmetic, moved = _work(outline.tree.graph)
    work, traffic = _sums(outline, arithmetic), _sums(outline, moved)

    def value(item: Item) -> float:
        return work(item) / traffic(item) if traffic(item) else math.nan

    return BoxMeasure(
        "all arithmetic per byte moved", value, lambda number: f"{number:.3g}", "unknown, or nothing moved"
    )


@BOX_MEASURES.add("gradient")
def _gradient(outline: Outline) -> BoxMeasure:
    """The L2 norm of the gradients, as backward left them, of the parameters that the ops in a box work on.

    An op of backward works on the parameters whose gradients it makes, any other op on those that it reads. The norm is
    infinite where one gradient is not finite. A repeat shows its largest round: the norm of all rounds together would
    hide a round whose gradient vanished, and could not be compared with the boxes beside it.
    """
    tree = outline.tree
    norms = gradient_norms(tree.graph)
    rows = [row for row, name in enumerate(tree.graph.tables.names) if name in norms]
    leaves, names = worked_on(outline, rows)
    lengths = np.array([norms.get(name, 0.0) for name in tree.graph.tables.names])
    lengths[np.isnan(lengths)] = math.inf

    def by_round(item: Item) -> list[float]:
        starts = _rounds(item)
        first, last = (np.searchsorted(leaves, ends) for ends in (starts, starts + item.stop - item.start))
        per_round = [
            lengths[np.unique(names[a:b])] for a, b in zip(first.tolist(), last.tolist(), strict=True) if a < b
        ]
        return [math.hypot(*some.tolist()) for some in per_round] or [math.nan]

    return BoxMeasure(
        "gradient norm of parameters",
        lambda item: max(by_round(item)),
        lambda number: f"{number:.3g}",
        "none",
        least=lambda item: min(by_round(item)),
    )


def worked_on(outline: Outline, wanted: list[int]) -> tuple[Array, Array]:
    """Leaves, in order, each paired with a wanted parameter (its row in the table of names) that it works on."""
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
    """The arithmetic and the bytes of every node; below zero where they are unknown."""
    counts = node_counts(graph)
    arithmetic = np.maximum(counts.flops, 0) + np.maximum(counts.elementwise_flops, 0)
    arithmetic = np.where((counts.flops < 0) & (counts.elementwise_flops < 0), -1, arithmetic)
    return arithmetic.astype(float), counts.bytes.astype(float)


def _sums(outline: Outline, per_node: Array) -> Callable[[Item], float]:
    """A function that sums `per_node` over the leaves of an item in all its rounds; NaN if no leaf is known (negative).

    Nodes without a box count in the box that made their tensor.
    """
    tree = outline.tree
    home = tree.leaf_of_node
    known = (home >= 0) & (per_node >= 0)
    totals, known_before = np.zeros(len(tree.node) + 1), np.zeros(len(tree.node) + 1)
    totals[1:] = np.cumsum(np.bincount(home[known], per_node[known], minlength=len(tree.node)))
    known_before[1:] = np.cumsum(np.bincount(home[known], minlength=len(tree.node)))

    def value(item: Item) -> float:
        starts = _rounds(item)
        stops = starts + item.stop - item.start
        if not (known_before[stops] > known_before[starts]).any():
            return math.nan
        return float((totals[stops] - totals[starts]).sum())

    return value


def _rounds(item: Item) -> Array:
    """The first leaf of every round of a box: its own repeats, times those of the open repeats around it."""
    starts, around = np.array([item.start]), item
    while True:
        if around.repeat > 1:
            starts = (starts[:, None] + np.arange(around.repeat) * (around.stop - around.start)).ravel()
        if around.parent is None:
            return starts
        around = around.parent
