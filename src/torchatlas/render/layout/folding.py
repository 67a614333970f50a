"""Items in a row that repeat -> one item "x 12", if they are wired alike: each reads only itself, the one before it and
what all read; what it makes goes to itself, to the next one, or where all of them send theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchatlas.graph.columns import Array
from torchatlas.render.layout.tree import Tree

if TYPE_CHECKING:
    from torchatlas.render.layout.outline import Item

_LONGEST = 8  # items in the body of a loop
_FEWEST_ALIKE = 4
_DENSE = 0.6  # the share of earlier modules that are read
_FEWEST_OPS = 4  # so many equal single ops in a row are worth folding
_FAR = 1 << 40


def folded(tree: Tree, items: list[Item]) -> list[Item]:
    """The items with repeats folded."""
    if len(items) < 2:
        return items
    runs = _runs(np.array([item.hash % (1 << 63) for item in items], np.int64))
    found: list[Item] = []
    at = 0
    while at < len(items):
        times, period = 1, 1
        for length in range(1, min(_LONGEST, (len(items) - at) // 2) + 1):
            if runs[length - 1, at] < length:
                continue
            most = 1 + int(runs[length - 1, at]) // length
            if most * length <= times * period:
                continue
            count = _repeats(tree, items[at : at + length * most], length, most)
            if count * length > times * period and count > 1:
                times, period = count, length
        if times > 1 and _worth_it(items[at], times, period):
            found.append(_unit(items[at : at + times * period], times, period))
            at += times * period
        else:
            found.append(items[at])
            at += 1
    return found


def gathered_alike(tree: Tree, items: list[Item]) -> list[Item]:
    """Modules in a row that differ in sizes only and read nearly all before them, as in a dense block, as one.

    Drawn one by one their lines would be a thicket. The box of the first stands for them all.
    """
    found: list[Item] = []
    at = 0
    while at < len(items):
        last = at + 1
        while last < len(items) and _same_kind(tree, items[at], items[last]):
            last += 1
        run = items[at:last]
        if len(run) >= _FEWEST_ALIKE and _is_dense(tree, run):
            run[0].repeat, run[0].alike_only = len(run), True
            run[0].name = f"{run[0].name} … {run[-1].name}"
            run = run[:1]
        found += run
        at = last
    return found


def _same_kind(tree: Tree, one: Item, other: Item) -> bool:
    return (
        one.kind == other.kind == "module"
        and one.type == other.type
        and one.repeat == other.repeat == 1
        and one.stop - one.start == other.stop - other.start
        and bool(tree.alike[one.group] == tree.alike[other.group])
    )


def _is_dense(tree: Tree, run: list[Item]) -> bool:
    """Whether most of them read most of those before."""
    start, size = run[0].start, run[0].stop - run[0].start
    edges = slice(tree.first_edge[start], tree.first_edge[run[-1].stop])
    source, target = (tree.source[edges] - start) // size, (tree.target[edges] - start) // size
    near = (source >= 0) & (source < target)
    pairs = len(np.unique(source[near] * len(run) + target[near]))
    return pairs > _DENSE * len(run) * (len(run) - 1) / 2


def _runs(hashes: Array) -> Array:
    """For each period and place, how many items from there on equal the one a period later."""
    count = len(hashes)
    found = np.zeros((_LONGEST, count), np.int64)
    for period in range(1, min(_LONGEST, count - 1) + 1):
        equal = np.concatenate([hashes[:-period] == hashes[period:], np.zeros(period, bool)])
        places = np.arange(count)
        next_break = np.minimum.accumulate(np.where(equal, count, places)[::-1])[::-1]
        found[period - 1] = next_break - places
    return found


def _worth_it(first: Item, times: int, period: int) -> bool:
    if period > 1:
        return times >= 3
    return times >= _FEWEST_OPS if first.is_leaf and first.call < 0 else times >= 2


def _repeats(tree: Tree, items: list[Item], period: int, most: int) -> int:
    """How many of the equal units from the first on are wired alike."""
    if any(item.repeat > 1 for item in items):
        return 1
    start, size = items[0].start, items[period - 1].stop - items[0].start
    edges = slice(tree.first_edge[start + size], tree.first_edge[start + size * most])
    source, target, output = tree.source[edges], tree.target[edges], tree.output[edges]
    unit = (target - start) // size
    begin = start + unit * size
    code = np.where(source >= begin - size, source - begin, source + _FAR)  # within, or before, the unit; or anywhere
    entering = source < begin
    rows, unit = np.stack([target - begin, code, output], axis=1)[entering], unit[entering]
    if not (rows[unit == 1, 1] < 0).any():  # not a chain
        return 1
    count = 1 + _alike(rows, unit - 1, most - 1)
    leaving = tree.by_source[tree.first_read[start] : tree.first_read[start + size * count]]
    source, target, output = tree.source[leaving], tree.target[leaving], tree.output[leaving]
    unit = (source - start) // size
    far = target >= start + (unit + 2) * size
    rows, unit = np.stack([source - start - unit * size, target, output], axis=1)[far], unit[far]
    count = min(count, 1 + _alike(rows, unit, count))  # the last may send what it makes anywhere
    # What all but the last send far away goes beyond the last, not to one of the units themselves.
    return count if not (rows[unit == 0, 1] < start + size * count).any() else 1


def _alike(rows: Array, unit: Array, units: int) -> int:
    """How many units from the first on have the same rows as the first."""
    counts = np.bincount(unit, minlength=units)[:units]
    differ = np.flatnonzero(counts != counts[0])
    same = int(differ[0]) if len(differ) else units
    if not counts[0]:
        return same
    block = rows[: same * counts[0]].reshape(same, int(counts[0]), -1)
    differ = np.flatnonzero((block != block[0]).any(axis=(1, 2)))
    return int(differ[0]) if len(differ) else same


def _unit(items: list[Item], times: int, period: int) -> Item:
    from torchatlas.render.layout.outline import Item

    first, last = items[0], items[(times - 1) * period]
    if period == 1:
        first.repeat = times
        if first.name != last.name:
            first.name = f"{first.name} … {last.name}"
        return first
    body = items[:period]
    total = 0
    for item in body:
        total = (total * 1_000_003 + item.hash) % (1 << 64)
    return Item("loop", first.start, items[period - 1].stop, total, parts=body, repeat=times)
