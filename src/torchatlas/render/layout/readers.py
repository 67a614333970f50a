"""Items side by side -> which of them read which before, as far as repeats are concerned."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from torchatlas.graph.columns import Array
from torchatlas.render.layout.tree import Tree

if TYPE_CHECKING:
    from torchatlas.render.layout.outline import Item


class Readers:
    """Which items read which before them."""

    def __init__(self, tree: Tree, items: list[Item]) -> None:
        self.tree, self.items = tree, items

    @cached_property
    def _pairs(self) -> tuple[Array, Array]:
        """The items that read others, and how far before them those lie."""
        tree, items = self.tree, self.items
        begin, end = items[0].start, items[-1].end
        edges = slice(tree.first_edge[begin], tree.first_edge[end])
        # Gradients that accumulate are read by leaves that stand before those that made them.
        inside = (tree.source[edges] >= begin) & (tree.source[edges] < end)
        starts = np.array([item.start for item in items] + [end])
        place = np.repeat(np.arange(len(items)), np.diff(starts))  # leaf -> which item it is in
        reader = place[tree.target[edges][inside] - begin]
        back = reader - place[tree.source[edges][inside] - begin]
        far = back > 0  # the others lie within one item
        return reader[far], back[far]

    def linked(self, wanted: Array) -> Array:
        """For each period and place, whether the items of one period from there on are read by those of the next.

        Only for periods of which any place is wanted.
        """
        (reader, back), count = self._pairs, len(self.items)
        found = np.zeros_like(wanted)
        for period in (np.flatnonzero(wanted.any(axis=1)) + 1).tolist():
            # The reader has some place in its period; what it reads is in the one before, from one place to another.
            near = back < 2 * period
            first = (reader - period - np.minimum(period, back) + 1)[near]
            last = (reader - period - np.maximum(0, back - period))[near]
            first = first.clip(0)
            real = first <= last
            change = np.bincount(first[real], minlength=count + 1) - np.bincount(last[real] + 1, minlength=count + 1)
            found[period - 1] = np.cumsum(change[:count]) > 0
        return found


def chained(linked: Array) -> Array:
    """The places from which each period reads the one before wherever one begins to count.

    Else they lie side by side: of mul, relu, mul, relu, where each mul reads x, relu and mul would seem to be a chain.
    """
    periods, count = linked.shape
    gaps = np.zeros((periods, count + 1), np.int64)  # so many places before each from which the next does not read
    np.cumsum(~linked, axis=1, out=gaps[:, 1:])
    ends = np.minimum(np.arange(count) + np.arange(1, periods + 1)[:, None], count)
    found: Array = np.take_along_axis(gaps, ends, axis=1) == gaps[:, :-1]
    return found
