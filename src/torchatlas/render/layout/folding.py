"""Items in a row that repeat -> one item "x 12", if they are wired alike: each reads only itself, the one before it and
what all read; what it makes goes to itself, to the next one, or where all of them send theirs. Many side by side, of
which none reads another, are one item too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from torchatlas.graph.columns import Array
from torchatlas.render.layout.repeat_keys import (
    exact_key,
    iteration_keys,
    keys_but_for_numbers,
    kind_keys,
    module_kind_keys,
)
from torchatlas.render.layout.repeat_wiring import (
    FEWEST_DENSE,
    Readers,
    chained,
    rounds_in_a_dense_block,
    rounds_in_a_row,
    rounds_side_by_side,
)
from torchatlas.render.layout.tree import Tree

if TYPE_CHECKING:
    from torchatlas.render.layout.outline import Item

_LONGEST, _LONGEST_OF_MANY = 48, 8  # items in the body of a loop, and where there are more to look at than this:
_MANY = 4_000
_FEWEST_NUMBERED = 3  # so many modules that differ in numbers only are worth folding
_FEWEST_OPS, FEWEST_LOOPS = 4, 3  # so many equal single ops in a row, or rounds of several items, are worth folding
_LAYER_ITEMS = 4  # two equal rounds with a module in each are worth it if each has so many items: two layers of a net
_FEWEST_BRANCHES = 12  # so many equal items side by side are worth folding
_FEWEST_DIFFERENT = 40  # and so many that differ in sizes or numbers
_FAR = 1 << 40


def folded(tree: Tree, items: list[Item]) -> list[Item]:
    """The items with repeats folded: first where very many are of one kind, then equal rounds in a row."""
    if len(items) < 2:
        return items
    readers = Readers(tree, items)
    items = _many(tree, items, readers)
    hashes = [exact_key(item, index) for index, item in enumerate(items)]
    if len(set(hashes)) == len(hashes):
        return items
    is_op = np.array([item.is_leaf and item.call < 0 for item in items])
    is_repeat = np.array([item.repeat > 1 for item in items])
    readers = readers if readers.items is items else Readers(tree, items)
    fewest = np.where(is_repeat, _FAR, np.where(is_op, _FEWEST_OPS, 2))
    return _rows_of(tree, items, readers, np.array(hashes, np.int64), fewest, two_layers=True)


def _rows_of(
    tree: Tree,
    items: list[Item],
    readers: Readers,
    keys: Array,
    fewest_alone: Array,
    *,
    with_calls: bool = False,
    two_layers: bool = False,
) -> list[Item]:
    """The items with those in a row folded that have equal keys and are wired alike.

    `fewest_alone` says for each place how many single items are worth folding. `with_calls`: only rounds that call a
    module; `two_layers`: of such rounds two are enough if they have several items.
    """
    periods = _periods(items)
    runs = _runs(keys, periods)
    fewest = np.where(periods > 1, FEWEST_LOOPS, np.broadcast_to(fewest_alone, len(items)))
    can_begin = runs >= periods
    if with_calls or two_layers:
        calls = _calling(items, periods)
        if with_calls:
            can_begin &= calls
        if two_layers:
            fewest = np.where(calls & (periods >= _LAYER_ITEMS), 2, fewest)
    can_begin &= runs >= (fewest - 1) * periods  # most items begin no repeat
    if not can_begin.any():
        return items
    can_begin &= chained(readers.linked(can_begin))
    folds = [item for item in items if item.repeat > 1]
    alike = _Alike(tree, items, keys) if two_layers else None

    def repeat(at: int, lengths: list[int]) -> tuple[Item | None, int]:
        times, period = 1, 1
        for length in lengths:
            most = 1 + int(runs[length - 1, at]) // length
            if most * length <= times * period:
                continue
            count = _longest(rounds_in_a_row, tree, items, at, length, most, folds)
            if count * length > times * period and count >= fewest[length - 1, at]:
                times, period = count, length
        if times == 1 or (alike is not None and alike.are_more(at, times, period)):
            return None, 0
        return _unit(items[at : at + times * period], times, period), times * period

    return _replaced(items, can_begin, repeat)


class _Alike:
    """Tells whether equal rounds belong to a longer run that is alike but for numbers: two of eight experts may happen
    to get equally many tokens, and all eight are one repeat."""

    def __init__(self, tree: Tree, items: list[Item], keys: Array) -> None:
        self.tree, self.items, self.keys = tree, items, keys
        self.times = Counter(item.type for item in items if item.call >= 0)

    def are_more(self, at: int, times: int, period: int) -> bool:
        """True if only the two rounds at `at` are equal, but twice as many around them differ only in numbers."""
        calls = [item.type for item in self.items[at : at + period] if item.call >= 0]
        if times > 2 or not calls or max(self.times[name] for name in calls) < 2 * times:
            return False
        return _rounds_around(self._alike, at, period) >= 2 * _rounds_around(self.keys, at, period)

    @cached_property
    def _alike(self) -> Array:
        return keys_but_for_numbers(self.tree, self.items)


def _rounds_around(keys: Array, at: int, period: int) -> int:
    """How many rounds with equal keys lie in a row around a place."""
    equal = keys[:-period] == keys[period:]
    before, after = np.flatnonzero(~equal[:at]), np.flatnonzero(~equal[at:])
    first = int(before[-1]) + 1 if len(before) else 0
    last = at + int(after[0]) if len(after) else len(equal)
    return (last - first) // period + 1


def _replaced(
    items: list[Item], can_begin: Array, repeat: Callable[[int, list[int]], tuple[Item | None, int]]
) -> list[Item]:
    """The items with repeats in the place of what they stand for.

    `repeat(place, periods)` is the one that begins at a place, if there is one, and how many items it takes.
    """
    replaced: list[Item] = []
    at = 0
    for start in np.flatnonzero(can_begin.any(axis=0)).tolist():
        if start < at:
            continue
        unit, taken = repeat(start, (np.flatnonzero(can_begin[:, start]) + 1).tolist())
        if unit is not None:
            replaced += [*items[at:start], unit]
            at = start + taken
    return replaced + items[at:]


def hands_on(tree: Tree, item: Item) -> bool:
    """Whether each round of a repeat reads the one before; else they lie side by side."""
    edges = slice(tree.first_edge[item.stop], tree.first_edge[2 * item.stop - item.start])
    source = tree.source[edges]
    return item.repeat > 1 and bool(((source >= item.start) & (source < item.stop)).any())


def gathered_alike(tree: Tree, items: list[Item]) -> list[Item]:
    """Modules in a row that are alike but not equal, as one that says so; and rounds of a loop with a module in each.

    Either each reads all before it, as in a dense block, whatever their sizes: drawn one by one their lines would be a
    thicket. Or they differ in a few numbers only, as blocks do whose probability of being dropped grows, or steps that
    are weighted by a schedule.
    """
    called = Counter(item.type for item in items if item.call >= 0 and item.repeat == 1)
    if max(called.values(), default=0) < _FEWEST_NUMBERED:
        return items
    items = _dense(tree, items)
    keys = keys_but_for_numbers(tree, items)
    if np.bincount(keys).max() < _FEWEST_NUMBERED:
        return items
    is_module = np.array([item.kind == "module" for item in items])
    fewest = np.where(is_module, _FEWEST_NUMBERED, _FAR)
    return _rows_of(tree, items, Readers(tree, items), keys, fewest, with_calls=True)


def _dense(tree: Tree, items: list[Item]) -> list[Item]:
    runs = _runs(module_kind_keys(tree, items), np.array([[1]]))
    can_begin = runs >= FEWEST_DENSE - 1
    if not can_begin.any():
        return items
    can_begin &= Readers(tree, items).linked(can_begin)
    folds = [item for item in items if item.repeat > 1]

    def dense(at: int, lengths: list[int]) -> tuple[Item | None, int]:
        times = _longest(rounds_in_a_dense_block, tree, items, at, 1, 1 + int(runs[0, at]), folds)
        if times < FEWEST_DENSE:
            return None, 0
        unit = _unit(items[at : at + times], times, 1)
        unit.alike_only = True  # what they are given grows, even if it is summed and no size tells
        return unit, times

    return _replaced(items, can_begin, dense)


def _many(tree: Tree, items: list[Item], readers: Readers) -> list[Item]:
    """The items with those folded of which there are too many of one kind to draw each.

    Side by side, if all read the same and are read by the same; in a row, if most differ in sizes or numbers.
    """
    if len(items) < _FEWEST_BRANCHES:
        return items
    kinds = kind_keys(tree, items)
    if np.bincount(kinds).max() < _FEWEST_BRANCHES:
        return items
    periods = _periods(items)
    runs = _runs(kinds, periods)
    can_begin = runs >= (_FEWEST_BRANCHES - 1) * periods
    if not can_begin.any():
        return items
    linked = readers.linked(can_begin)
    is_long = can_begin & (runs >= (_FEWEST_DIFFERENT - 1) * periods)
    can_begin &= ~linked
    if is_long.any():
        differ = (runs - _equal(items, runs)) * 2 * periods >= runs  # in half of the periods at least one item does
        can_begin |= is_long & differ & chained(linked)
    folds: list[Item] = []
    side_by_side = partial(rounds_side_by_side, begin=items[0].start)

    def repeat(at: int, lengths: list[int]) -> tuple[Item | None, int]:
        for period in lengths:
            most = 1 + int(runs[period - 1, at]) // period
            in_a_row = bool(linked[period - 1, at])
            times = _longest(rounds_in_a_row if in_a_row else side_by_side, tree, items, at, period, most, folds)
            if times < _FEWEST_BRANCHES:
                continue
            units = items[at : at + times * period]
            if _are_equal(units, period) or times >= _FEWEST_DIFFERENT:
                unit = _unit(units, times, period)
                folds.append(unit)
                return unit, times * period
        return None, 0

    return _replaced(items, can_begin, repeat)


def batches_folded(tree: Tree, items: list[Item]) -> list[Item]:
    """What a training script does in one phase, with equal rounds folded that call the same modules on one batch each
    before the optimizer steps. In a model such twins are drawn: there they are two branches."""
    called = [item.call for item in items if item.call >= 0 and item.repeat == 1]
    modules = tree.graph.columns["call_module"][called]
    if len(modules) == len(np.unique(modules)):
        return items
    module = [tree.graph.columns["call_module"].item(item.call) if item.call >= 0 else -1 for item in items]
    numbers: dict[Hashable, int] = {}
    keys = [(exact_key(item, index), which) for index, (item, which) in enumerate(zip(items, module, strict=True))]
    return side_by_side_folded(
        tree, items, np.array([numbers.setdefault(key, len(numbers)) for key in keys]), with_calls=True
    )


def side_by_side_folded(tree: Tree, items: list[Item], keys: Array, *, with_calls: bool = False) -> list[Item]:
    """The items with those in a row folded that have equal keys and lie side by side, from two on; or several of them,
    again and again. `with_calls`: only rounds that call a module."""
    if len(items) < 2:
        return items
    periods = _periods(items)
    runs = _runs(keys, periods)
    can_begin = runs >= periods
    if with_calls:
        can_begin &= _calling(items, periods)
    folds: list[Item] = []
    counted = partial(rounds_side_by_side, begin=items[0].start)

    def repeat(at: int, lengths: list[int]) -> tuple[Item | None, int]:
        times, period = 1, 1
        for length in lengths:
            most = 1 + int(runs[length - 1, at]) // length
            if most * length > times * period:
                count = _longest(counted, tree, items, at, length, most, folds)
                if count > 1 and count * length > times * period:
                    times, period = count, length
        if times == 1:
            return None, 0
        folds.append(_unit(items[at : at + times * period], times, period))
        return folds[-1], times * period

    return _replaced(items, can_begin, repeat)


def _calling(items: list[Item], periods: Array) -> Array:
    """For each period and place, whether one of that many items from there on calls a module."""
    before = np.cumsum([0, *(item.call >= 0 for item in items)])
    calls: Array = before[np.minimum(np.arange(len(items)) + periods, len(items))] > before[:-1]
    return calls


def has_iterations(item: Item) -> bool:
    """Whether an item is a repeat of several iterations, such as nine and one that also logs."""
    return item.kind == "loop" and any(part.kind == "iteration" for part in item.parts or ())


def iterations_folded(tree: Tree, items: list[Item]) -> list[Item]:
    """Iterations of a training loop in a row that ran the same ops, as one; or the same several, again and again.

    What they hand on are parameters and the state of optimizers, which have no lines: only what is in them counts.
    Batches may differ in size, and a schedule in its numbers: then the repeat says so.
    """
    if sum(item.kind == "iteration" for item in items) < 2:
        return items
    keys = iteration_keys(tree, items)
    periods = _periods(items)
    runs = _runs(keys, periods)

    def repeat(at: int, lengths: list[int]) -> tuple[Item | None, int]:
        times, period = max(((1 + int(runs[length - 1, at]) // length, length) for length in lengths), key=_covered)
        rounds = items[at : at + times * period]
        unit = _unit(rounds, times, period)
        if unit.kind == "loop":
            unit.parts = iterations_folded(tree, rounds[:period])
        else:
            first, last = (tree.iteration.item(iteration.group) for iteration in (rounds[0], rounds[-1]))
            unit.name = f"iterations {first:,} … {last:,}"
        return unit, times * period

    return _replaced(items, runs >= periods, repeat)


def _covered(repeat: tuple[int, int]) -> tuple[int, int]:
    """Sort key of a repeat (rounds, items in each): the one that covers most items, then the one of shorter rounds."""
    times, period = repeat
    return times * period, -period


def _longest(
    counted: Callable[[Tree, list[Item], int, list[Item]], int],
    tree: Tree,
    items: list[Item],
    at: int,
    period: int,
    most: int,
    folds: list[Item],
) -> int:
    """The number of rounds that are wired alike. A few are compared first: a long run of equal items is often no
    repeat."""
    few = _FEWEST_BRANCHES
    while few < most:
        count = counted(tree, items[at : at + few * period], period, folds)
        if count < few:
            return count
        few *= 4
    return counted(tree, items[at : at + most * period], period, folds)


def _periods(items: list[Item]) -> Array:
    """The numbers of items that a round may have, as a column."""
    longest = _LONGEST if len(items) <= _MANY else _LONGEST_OF_MANY
    return np.arange(1, min(longest, len(items) - 1) + 1)[:, None]


def _equal(items: list[Item], runs: Array) -> Array:
    """How many items of each run equal the one a period later also in sizes and numbers: those fold as equal ones."""
    count, equal_counts = len(items), np.zeros_like(runs)
    hashes = np.array([item.hash % (1 << 63) for item in items], np.int64)
    for period in (np.flatnonzero(runs.any(axis=1)) + 1).tolist():
        sums = np.concatenate([[0], np.cumsum(hashes[:-period] == hashes[period:]), np.zeros(period, np.int64)])
        equal_counts[period - 1] = sums[np.arange(count) + runs[period - 1]] - sums[:count]
    return equal_counts


def _runs(hashes: Array, periods: Array) -> Array:
    """For each period and place, how many items from there on equal the one a period later."""
    count, places = len(hashes), np.arange(len(hashes))
    later = places + periods
    equal = (later < count) & (hashes[np.minimum(later, count - 1)] == hashes)
    next_break = np.minimum.accumulate(np.where(equal, count, places)[:, ::-1], axis=1)[:, ::-1]
    runs: Array = next_break - places
    return runs


def _are_equal(items: list[Item], period: int) -> bool:
    return all(one.hash == other.hash for one, other in zip(items, items[period:], strict=False))


def _unit(items: list[Item], times: int, period: int) -> Item:
    from torchatlas.render.layout.outline import Item

    first, last = items[0], items[(times - 1) * period]
    equal = _are_equal(items, period)
    if period == 1:
        first.repeat, first.alike_only = times, not equal
        if first.name != last.name:
            first.name = f"{first.name} … {last.name}"
        return first
    body = items[:period]
    total = 0
    for item in body:
        total = (total * 1_000_003 + item.hash + item.repeat - 1) % (1 << 64)
    return Item("loop", first.start, items[period - 1].end, total, parts=body, repeat=times, alike_only=not equal)
