"""Rounds of items that follow each other -> how many of them can be folded into one repeat.

A round is `period` items in a row; `items` are whole rounds. Its wiring is the set of its edges: what each of its
leaves reads, and what reads each of them. Every function here returns the length of the longest prefix of rounds that
have the same wiring. `folds` are repeats that were folded before: an edge to any of their rounds counts as one to the
first. In the code `unit` is the number of a round.

A leaf may read one that stands after it: leaves are in order of their calls, and a gradient is added by the call that
first used the parameter, to which a later backward pass hands its own. So a reader may also stand before the rounds. A
round that reads the next one is no repeat: the box of the first round would read itself.

`Readers` comes before all that: which items read others before them decides which rounds are compared at all.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from torchatlas.graph.columns import Array
from torchatlas.render.layout.tree import Tree

if TYPE_CHECKING:
    from torchatlas.render.layout.outline import Item

FEWEST_DENSE = 4  # so many modules of which each reads all before it
_FAR = 1 << 40  # beyond every leaf: marks what comes from outside of the rounds


def rounds_in_a_row(tree: Tree, items: list[Item], period: int, folds: list[Item]) -> int:
    """The prefix of rounds that each read the one before in the same way, and otherwise have the same wiring.

    The hashes of items do not see how the items are joined, and do not tell f(a, b) from f(b, a). So every edge is
    compared, in the order of its reader's inputs.
    """
    start, size, most = items[0].start, items[period - 1].end - items[0].start, len(items) // period
    bounds = tree.first_edge[start : start + size * most + 1 : size]  # edges are in order of their targets
    edges, each = slice(bounds[0], bounds[-1]), np.diff(bounds)
    source, output = tree.source[edges], tree.output[edges]
    unit = np.repeat(np.arange(most), each)
    begin = start + unit * size
    far = _first_rounds(source, folds) + _FAR
    # Code of a source: 0 or more in the same round, below 0 in the one before, `far` elsewhere, also in later rounds.
    near = (source >= begin - size) & (source >= start) & (source < begin + size)
    code = np.where(near, source - begin, far)
    rows = np.empty((len(source), 3), np.int64)
    rows[:, 0], rows[:, 1], rows[:, 2] = tree.target[edges] - begin, code, output
    first = each[0]
    count = 1 + _alike(rows[first:], unit[first:] - 1, most - 1)
    if count < 2 or not _begins_alike(rows[:first], rows[first : first + each[1]], size):
        return 1
    later = source[:first][source[:first] >= start + size]  # the first may read anything, but no round of the repeat
    if len(later):
        count = min(count, (int(later.min()) - start) // size)
    return _send_alike(tree, start, size, count) if count > 1 else 1


def _begins_alike(first: Array, second: Array, size: int) -> bool:
    """True if the first round reads what the second reads; where the second reads the first, it may read anything.

    A row is one edge: the leaf that reads, the leaf that is read, and which output of it.
    """
    odd = np.bincount(first[:, 0], minlength=size) != np.bincount(second[:, 0], minlength=size)
    of_first, of_second = first[~odd[first[:, 0]]], second[~odd[second[:, 0]]]
    given_instead = (of_second[:, 1] < 0) & (of_first[:, 1] >= _FAR)
    if not ((of_first == of_second).all(axis=1) | given_instead).all():
        return False
    # A first state may also be a parameter, from which no edge leads, or be written in parts, with an edge from each.
    of_first, of_second = first[odd[first[:, 0]]], second[odd[second[:, 0]]]
    carried = set(of_second[of_second[:, 1] < 0, 0].tolist())
    given, shared = set(map(tuple, of_first.tolist())), set(map(tuple, of_second[of_second[:, 1] >= 0].tolist()))
    return shared <= given and all(row[0] in carried and row[1] >= _FAR for row in given - shared)


def _send_alike(tree: Tree, start: int, size: int, count: int) -> int:
    """The prefix of rounds whose edges to leaves beyond the next round, or before the first, are the same. The last may
    have more of them."""
    leaving = tree.by_source[tree.first_read[start] : tree.first_read[start + size * count]]
    source, target, output = tree.source[leaving], tree.target[leaving], tree.output[leaving]
    unit = (source - start) // size
    rows = np.stack([source - start - unit * size, target, output], axis=1)
    before = target < start
    far = before | (target >= start + (unit + 2) * size)
    alike = _alike(rows[far], unit[far], count)
    sent = set(map(tuple, rows[far & (unit == 0)].tolist()))
    if alike < count:
        after = (unit == alike) & (before | (target >= start + (alike + 1) * size))
        alike += sent <= set(map(tuple, rows[after].tolist()))
    # These edges must lead out of the repeat, not to one of the rounds. Of two rounds that are read together, as in
    # x + f(x), neither is a repeat of the other.
    outside = all(where < start or where >= start + size * alike for _, where, _ in sent)
    return alike if outside and (not sent or alike > 2) else 1


def rounds_side_by_side(tree: Tree, items: list[Item], period: int, folds: list[Item], begin: int = 0) -> int:
    """The prefix of rounds that read the same leaves and are read by the same leaves, and do not read each other.

    The last round may have more readers. Instead of one reader for all, each round may have a reader of its own, if
    these follow each other at equal distances: they may be rounds side by side themselves. Rounds may read different
    outputs of one op, as of foreach kernels, unless that op lies before `begin`, outside of their group: a line to
    another round would enter the group and end there.
    """
    start, size, most = items[0].start, items[period - 1].end - items[0].start, len(items) // period
    edges = slice(tree.first_edge[start], tree.first_edge[start + size * most])
    source, target, output = tree.source[edges], tree.target[edges], tree.output[edges]
    unit = (target - start) // size
    first = start + unit * size
    within = (source >= first) & (source < first + size)
    tensor = np.where(source < begin, output, 0)
    source = np.where(within, source, _first_rounds(source, folds))
    rows = np.stack([target - first, np.where(within, source - first, source - _FAR), tensor], axis=1)
    count = _alike(rows, unit, most)  # what all read lies in no round: one would read itself
    leaving = tree.by_source[tree.first_read[start] : tree.first_read[start + size * count]]
    source, target, output = tree.source[leaving], tree.target[leaving], tree.output[leaving]
    unit = (source - start) // size
    far = (target < start + unit * size) | (target >= start + (unit + 1) * size)
    source, target, output, unit = source[far], target[far], output[far], unit[far]
    step = int(target[unit == 1][0] - target[unit == 0][0]) if (unit == 0).any() and (unit == 1).any() else 0
    rows = np.stack([source - start - unit * size, target - step * unit, output], axis=1)
    return min(count, _alike_but_for_the_last(rows, unit, count))


def rounds_in_a_dense_block(tree: Tree, items: list[Item], period: int, folds: list[Item]) -> int:
    """The prefix of rounds that each read the one before and all that it reads, and are read by the same leaves.

    If one edge were missing, or one round read elsewhere, the box of the repeat would be wrong.
    """
    start, size, most = items[0].start, items[period - 1].stop - items[0].start, len(items) // period
    edges = slice(tree.first_edge[start], tree.first_edge[start + size * most])
    source, target, output = tree.source[edges], tree.target[edges], tree.output[edges]
    unit = (target - start) // size
    begin = start + unit * size
    within = (source >= begin) & (source < begin + size)
    code = np.where(within, source - begin, _first_rounds(source, folds) + _FAR)
    rows = np.stack([target - begin, code, output], axis=1)
    new = (source >= begin - size) & (source >= start) & (source < begin)
    links = np.stack([target - begin, source - begin, output], axis=1)[new]
    count = 1 + _alike(links, unit[new] - 1, most - 1)
    old = ~new & (unit > 0)
    count = min(count, 1 + _same_rows(rows[old], unit[old] - 1, rows[unit < most - 1], unit[unit < most - 1], most - 1))
    while count >= FEWEST_DENSE:  # fewer have more readers: those that are left out
        alike = _read_alike(tree, start, size, count)
        if alike == count:
            return count
        count = alike
    return 1


def _read_alike(tree: Tree, start: int, size: int, count: int) -> int:
    """The prefix of rounds that have the same readers outside of the rounds. The last may have more of them."""
    leaving = tree.by_source[tree.first_read[start] : tree.first_read[start + size * count]]
    leaving = leaving[(tree.target[leaving] < start) | (tree.target[leaving] >= start + size * count)]
    unit = (tree.source[leaving] - start) // size
    rows = np.stack([tree.source[leaving] - start - unit * size, tree.target[leaving], tree.output[leaving]], axis=1)
    return _alike_but_for_the_last(rows, unit, count)


def _first_rounds(leaves: Array, folds: list[Item]) -> Array:
    """Replace leaves in any round of a folded repeat by those of its first round: the rounds are alike."""
    if not folds:
        return leaves
    start, stop, end = (np.array(column) for column in zip(*((f.start, f.stop, f.end) for f in folds), strict=True))
    at = np.searchsorted(start, leaves, side="right") - 1
    inside = (at >= 0) & (leaves < end[at])
    return np.where(inside, start[at] + (leaves - start[at]) % (stop - start)[at], leaves)


def _same_rows(rows: Array, unit: Array, others: Array, other_unit: Array, units: int) -> int:
    """The prefix of rounds whose rows are equal to those of the same round in `others`."""
    counts, other_counts = (np.bincount(each, minlength=units)[:units] for each in (unit, other_unit))
    differ = np.flatnonzero(counts != other_counts)
    same = int(differ[0]) if len(differ) else units
    until = int(counts[:same].sum())
    differ = np.flatnonzero((rows[:until] != others[:until]).any(axis=1))
    return int(unit[differ[0]]) if len(differ) else same


def _alike(rows: Array, unit: Array, units: int) -> int:
    """The prefix of rounds that have the same rows as the first round."""
    counts = np.bincount(unit, minlength=units)[:units]
    differ = np.flatnonzero(counts != counts[0])
    same = int(differ[0]) if len(differ) else units
    if not counts[0]:
        return same
    block = rows[: same * counts[0]].reshape(same, int(counts[0]), -1)
    differ = np.flatnonzero((block != block[0]).any(axis=(1, 2)))
    return int(differ[0]) if len(differ) else same


def _alike_but_for_the_last(rows: Array, unit: Array, units: int) -> int:
    """The prefix of rounds that have the same readers; the last may be read by others as well, as the loss of the last
    batch is."""
    alike = _alike(rows, unit, units)
    if alike == units - 1:
        alike += set(map(tuple, rows[unit == 0].tolist())) <= set(map(tuple, rows[unit == alike].tolist()))
    return alike


# -- which items read which --------------------------------------------------------------------------------------------


class Readers:
    """Which items read items before them."""

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
        item_of_leaf = np.repeat(np.arange(len(items)), np.diff(starts))  # leaf -> which item it is in
        reader = item_of_leaf[tree.target[edges][inside] - begin]
        back = reader - item_of_leaf[tree.source[edges][inside] - begin]
        far = back > 0  # the others lie within one item
        return reader[far], back[far]

    def linked(self, wanted: Array) -> Array:
        """For each period and place, whether the items of one period from there on are read by those of the next.

        Only for periods of which any place is wanted.
        """
        (reader, back), count = self._pairs, len(self.items)
        linked = np.zeros_like(wanted)
        for period in (np.flatnonzero(wanted.any(axis=1)) + 1).tolist():
            # The reader has some place in its period; what it reads is in the one before, from one place to another.
            near = back < 2 * period
            first = (reader - period - np.minimum(period, back) + 1)[near]
            last = (reader - period - np.maximum(0, back - period))[near]
            first = first.clip(0)
            real = first <= last
            change = np.bincount(first[real], minlength=count + 1) - np.bincount(last[real] + 1, minlength=count + 1)
            linked[period - 1] = np.cumsum(change[:count]) > 0
        return linked


def chained(linked: Array) -> Array:
    """The places from which each period reads the one before wherever one begins to count.

    Else they lie side by side: of mul, relu, mul, relu, where each mul reads x, relu and mul would seem to be a chain.
    """
    periods, count = linked.shape
    gaps = np.zeros((periods, count + 1), np.int64)  # how many places before each are not linked
    np.cumsum(~linked, axis=1, out=gaps[:, 1:])
    ends = np.minimum(np.arange(count) + np.arange(1, periods + 1)[:, None], count)
    is_chained: Array = np.take_along_axis(gaps, ends, axis=1) == gaps[:, :-1]
    return is_chained
