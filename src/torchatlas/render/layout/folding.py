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

from torchatlas.graph.columns import KINDS, ROLES, Array, Operation
from torchatlas.graph.names import short_name
from torchatlas.graph.nouns import NodeKind, OperationType, Role
from torchatlas.render.layout.readers import Readers, chained
from torchatlas.render.layout.tree import LANES, Tree

if TYPE_CHECKING:
    from torchatlas.render.layout.outline import Item

_LONGEST, _LONGEST_OF_MANY = 48, 8  # items in the body of a loop, and where there are more to look at than this:
_MANY = 4_000
_FEWEST_DENSE = 4  # so many modules of which each reads all before it
_FEWEST_NUMBERED = 3  # so many that differ in numbers only: as many as rounds of several items
_FREE_NUMBERS = (OperationType.RANDOM, OperationType.POINTWISE)
_FILLING = frozenset({"full_like", "new_full", "fill", "fill_", "masked_fill", "masked_fill_"})  # with a number
_FEWEST_OPS, FEWEST_LOOPS = 4, 3  # so many equal single ops in a row, or rounds of several items, are worth folding
_LAYER_ITEMS = 4  # two equal rounds with a module in each are worth it if each has so many items: two layers of a net
_FEWEST_BRANCHES = 12  # so many equal ones side by side say no more than one of them
_FEWEST_DIFFERENT = 40  # the same for those that differ in sizes or numbers
_FAR = 1 << 40
_IS_HELD = np.array([role in (Role.PARAMETER, Role.BUFFER) for role in ROLES])  # by the row of a role


def folded(tree: Tree, items: list[Item]) -> list[Item]:
    """The items with repeats folded: first very many of a kind, in a row or side by side, then equal ones in a row."""
    if len(items) < 2:
        return items
    readers = Readers(tree, items)
    items = _many(tree, items, readers)
    hashes = [_exact(item, place) for place, item in enumerate(items)]
    if len(set(hashes)) == len(hashes):
        return items
    is_op = np.array([item.is_leaf and item.call < 0 for item in items])
    is_repeat = np.array([item.repeat > 1 for item in items])
    readers = readers if readers.items is items else Readers(tree, items)
    fewest = np.where(is_repeat, _FAR, np.where(is_op, _FEWEST_OPS, 2))
    return _rows_of(tree, items, readers, np.array(hashes, np.int64), fewest, two_layers=True)


def _exact(item: Item, place: int) -> int:
    """Equal for equal items. A repeat may be part of a round if its own rounds are equal."""
    if item.repeat > 1 and item.alike_only:
        return -1 - place
    return (item.hash + (item.repeat - 1) * 1_000_003) % (1 << 62)


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

    How many are worth it depends on where they begin, if it is one item that repeats. `with_calls`: only rounds that
    call a module; `two_layers`: of such rounds two are enough if they have several items.
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
            count = _longest(_in_a_row, tree, items, at, length, most, folds)
            if count * length > times * period and count >= fewest[length - 1, at]:
                times, period = count, length
        if times == 1 or (alike is not None and alike.are_more(at, times, period)):
            return None, 0
        return _unit(items[at : at + times * period], times, period), times * period

    return _replaced(items, can_begin, repeat)


class _Alike:
    """How many rounds are alike but for numbers where some are equal: two of eight experts may happen to get as many
    tokens, and all eight are one repeat."""

    def __init__(self, tree: Tree, items: list[Item], keys: Array) -> None:
        self.tree, self.items, self.keys = tree, items, keys
        self.times = Counter(item.type for item in items if item.call >= 0)

    def are_more(self, at: int, times: int, period: int) -> bool:
        """Whether only two rounds from a place on are equal, and at least twice as many around it are alike."""
        calls = [item.type for item in self.items[at : at + period] if item.call >= 0]
        if times > 2 or not calls or max(self.times[name] for name in calls) < 2 * times:
            return False
        return _rounds_around(self._alike, at, period) >= 2 * _rounds_around(self.keys, at, period)

    @cached_property
    def _alike(self) -> Array:
        return but_for_numbers(self.tree, self.items)


def _rounds_around(keys: Array, at: int, period: int) -> int:
    """How many rounds with equal keys there are in a row, of which one begins at a place."""
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
    found: list[Item] = []
    at = 0
    for start in np.flatnonzero(can_begin.any(axis=0)).tolist():
        if start < at:
            continue
        unit, taken = repeat(start, (np.flatnonzero(can_begin[:, start]) + 1).tolist())
        if unit is not None:
            found += [*items[at:start], unit]
            at = start + taken
    return found + items[at:]


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
    keys = but_for_numbers(tree, items)
    if np.bincount(keys).max() < _FEWEST_NUMBERED:
        return items
    is_module = np.array([item.kind == "module" for item in items])
    fewest = np.where(is_module, _FEWEST_NUMBERED, _FAR)
    return _rows_of(tree, items, Readers(tree, items), keys, fewest, with_calls=True)


def _dense(tree: Tree, items: list[Item]) -> list[Item]:
    runs = _runs(_module_kinds(tree, items), np.array([[1]]))
    can_begin = runs >= _FEWEST_DENSE - 1
    if not can_begin.any():
        return items
    can_begin &= Readers(tree, items).linked(can_begin)
    folds = [item for item in items if item.repeat > 1]

    def dense(at: int, lengths: list[int]) -> tuple[Item | None, int]:
        times = _longest(_densely, tree, items, at, 1, 1 + int(runs[0, at]), folds)
        if times < _FEWEST_DENSE:
            return None, 0
        unit = _unit(items[at : at + times], times, 1)
        unit.alike_only = True  # what they are given grows, even if it is summed and no size tells
        return unit, times

    return _replaced(items, can_begin, dense)


def _module_kinds(tree: Tree, items: list[Item]) -> Array:
    """Equal for modules that differ in sizes and numbers only."""
    is_module = [item.kind == "module" and item.repeat == 1 for item in items]
    return np.where(is_module, _kinds(tree, items), -1 - np.arange(len(items)))


def _densely(tree: Tree, items: list[Item], period: int, folds: list[Item]) -> int:
    """How many of the units from the first on read what the one before reads, and that one, and are read by the same.

    With one link left out, or one unit that is read elsewhere, the box would tell what is not so.
    """
    start, size, most = items[0].start, items[period - 1].stop - items[0].start, len(items) // period
    edges = slice(tree.first_edge[start], tree.first_edge[start + size * most])
    source, target, output = tree.source[edges], tree.target[edges], tree.output[edges]
    unit = (target - start) // size
    begin = start + unit * size
    code = np.where(source >= begin, source - begin, _first_rounds(source, folds) + _FAR)
    rows = np.stack([target - begin, code, output], axis=1)
    new = (source >= begin - size) & (source >= start) & (source < begin)
    links = np.stack([target - begin, source - begin, output], axis=1)[new]
    count = 1 + _alike(links, unit[new] - 1, most - 1)
    old = ~new & (unit > 0)
    count = min(count, 1 + _same_rows(rows[old], unit[old] - 1, rows[unit < most - 1], unit[unit < most - 1], most - 1))
    while count >= _FEWEST_DENSE:  # fewer have more readers: those that are left out
        alike = _read_alike(tree, start, size, count)
        if alike == count:
            return count
        count = alike
    return 1


def _read_alike(tree: Tree, start: int, size: int, count: int) -> int:
    """How many of the units from the first on are read by the same beyond the last; that one may have more readers."""
    leaving = tree.by_source[tree.first_read[start] : tree.first_read[start + size * count]]
    leaving = leaving[tree.target[leaving] >= start + size * count]
    unit = (tree.source[leaving] - start) // size
    rows = np.stack([tree.source[leaving] - start - unit * size, tree.target[leaving], tree.output[leaving]], axis=1)
    alike = _alike(rows, unit, count)
    if alike == count - 1:
        alike += set(map(tuple, rows[unit == 0].tolist())) <= set(map(tuple, rows[unit == alike].tolist()))
    return alike


def but_for_numbers(tree: Tree, items: list[Item]) -> Array:
    """Equal for items whose ops take and make tensors of the same shapes, and have the same arguments, but for numbers
    of ops that draw at random, work element by element or only make tensors: a probability, a factor, a time.

    Others say what a reader looks for: over how far a convolution is spread, along which axis a sum is taken. The first
    size of what is no parameter, but for ones, may differ: how many tokens an expert gets depends on the data.
    """
    columns, tables = tree.graph.columns, tree.graph.tables
    kinds = _kinds(tree, items, exactly=False)
    if np.bincount(kinds).max() == 1:
        return kinds
    begin = items[0].start
    nodes = tree.node[begin : items[-1].end]
    operation = columns["node_operation"][nodes]
    free = [row for row in np.unique(operation).tolist() if _has_free_numbers(tables.operations[row])]
    is_given = columns["input_ptr"][nodes + 1] > columns["input_ptr"][nodes]  # the others make tensors of numbers only
    arguments = np.where(np.isin(operation, free) | ~is_given, -1, columns["node_arguments"][nodes])
    each = np.arange(len(nodes) + 1)
    parts = [(each, arguments), (each, operation)]  # what leaves have, and where that of each begins
    for name in ("input", "output"):
        ptr = columns[f"{name}_ptr"].astype(np.int64)
        taken = ptr[nodes + 1] - ptr[nodes]
        first = np.concatenate([[0], np.cumsum(taken)])
        value = columns[f"{name}_value"][np.arange(first[-1]) + np.repeat(ptr[nodes] - first[:-1], taken)]
        is_held = _IS_HELD[columns["value_role"][value]]
        layout, which = np.unique(columns["value_layout"][value] * 2 + is_held, return_inverse=True)
        shapes: dict[Hashable, int] = {}
        rows = ((tables.layouts[row // 2], row % 2) for row in layout.tolist())
        cells = ((row.shape if held else _but_for_first(row.shape), row.dtype) for row, held in rows)
        shape = np.array([shapes.setdefault(cell, len(shapes)) for cell in cells], np.int64)
        parts += [(each, taken), (first, shape[which])]
    numbers: dict[Hashable, int] = {}
    found = []
    for item, kind in zip(items, kinds.tolist(), strict=True):
        one, last = item.start - begin, item.stop - begin
        key = (kind, *(cells[at[one] : at[last]].tobytes() for at, cells in parts))
        found.append(numbers.setdefault(key, len(numbers)))
    return np.array(found, np.int64)


def _but_for_first(shape: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    """How many sizes there are, and those after the first that is not one."""
    at = next((at for at, size in enumerate(shape) if size != 1), len(shape))
    return len(shape), *shape[at + 1 :]


def _has_free_numbers(operation: Operation) -> bool:
    return operation.type in _FREE_NUMBERS or short_name(operation.name) in _FILLING


def _many(tree: Tree, items: list[Item], readers: Readers) -> list[Item]:
    """The items with those folded of which there are too many of a kind to look at each.

    Side by side, if all read the same and are read by the same; in a row, if most differ in sizes or numbers.
    """
    if len(items) < _FEWEST_BRANCHES:
        return items
    kinds = _kinds(tree, items)
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

    def repeat(at: int, lengths: list[int]) -> tuple[Item | None, int]:
        for period in lengths:
            most = 1 + int(runs[period - 1, at]) // period
            in_a_row = bool(linked[period - 1, at])
            times = _longest(_in_a_row if in_a_row else _side_by_side, tree, items, at, period, most, folds)
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
    keys = [(_exact(item, place), which) for place, (item, which) in enumerate(zip(items, module, strict=True))]
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
    counted = partial(_side_by_side, begin=items[0].start)

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
    """For each period and place, whether any of so many items from there on calls a module."""
    before = np.cumsum([0, *(item.call >= 0 for item in items)])
    found: Array = before[np.minimum(np.arange(len(items)) + periods, len(items))] > before[:-1]
    return found


def _kinds(tree: Tree, items: list[Item], *, exactly: bool = True) -> Array:
    """Equal for items that differ in sizes and numbers only; of ops gathered into one only if they do not, unless that
    need not be exact. What the program is given and returns is never equal."""
    columns = tree.graph.columns
    leaf = tree.node[[item.start for item in items]]
    is_op = columns["node_kind"][leaf] == KINDS.index(NodeKind.OP)
    numbers: dict[Hashable, int] = {}
    found = []
    for place, (item, operation) in enumerate(zip(items, columns["node_operation"][leaf].tolist(), strict=True)):
        key: Hashable = place
        if item.repeat == 1 and item.kind not in ("lane", "iteration") and is_op[place]:
            inside = operation if item.group < 0 else int(tree.alike[item.group])
            key = (item.kind, item.type, item.end - item.start, inside)
            if item.parts is not None and item.group < 0 and exactly:
                key = (*key, item.hash)
        found.append(numbers.setdefault(key, len(numbers)))
    return np.array(found, np.int64)


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
    keys = _iteration_keys(tree, items)
    periods = _periods(items)
    runs = _runs(keys, periods)

    def repeat(at: int, lengths: list[int]) -> tuple[Item | None, int]:
        times, period = max(((1 + int(runs[length - 1, at]) // length, length) for length in lengths), key=_covered)
        rounds = items[at : at + times * period]
        unit = _unit(rounds, times, period)
        if unit.kind == "loop":
            unit.parts = iterations_folded(tree, rounds[:period])
        else:
            first, last = (tree.iteration.item(one.group) for one in (rounds[0], rounds[-1]))
            unit.name = f"iterations {first:,} … {last:,}"
        return unit, times * period

    return _replaced(items, runs >= periods, repeat)


def _covered(repeat: tuple[int, int]) -> tuple[int, int]:
    """How many items a repeat of so many rounds of so many items takes; of two that take as many, the shorter round."""
    times, period = repeat
    return times * period, -period


def _iteration_keys(tree: Tree, items: list[Item]) -> Array:
    """Equal for iterations with the same ops, wired alike, in calls of the same modules; for nothing else."""
    module = np.append(tree.graph.columns["call_module"], -1)[tree.call]
    numbers: dict[Hashable, int] = {}
    found = []
    for place, item in enumerate(items):
        key: Hashable = place
        if item.kind == "iteration" and item.repeat == 1:
            first, last = np.searchsorted(tree.start, [item.start, item.stop])
            inside = slice(max(item.group + 1, int(first)), int(last))
            lanes = np.where(tree.lane[inside] >= 0, tree.lane[inside] % len(LANES), -1)
            lengths = tree.stop[inside] - tree.start[inside]
            key = (int(tree.alike[item.group]), module[inside].tobytes(), lanes.tobytes(), lengths.tobytes())
        found.append(numbers.setdefault(key, len(numbers)))
    return np.array(found, np.int64)


def _side_by_side(tree: Tree, items: list[Item], period: int, folds: list[Item], begin: int = 0) -> int:
    """How many of the units from the first on read the same and are read by the same, and by no other of them; the last
    may be read by more.

    What reads them may also be one thing for each, at equal distances: those may be side by side themselves. They may
    read different tensors of one op, as of foreach kernels, unless it lies before `begin`, outside of their group:
    a line to another round would enter the group and end there.
    """
    start, size, most = items[0].start, items[period - 1].end - items[0].start, len(items) // period
    edges = slice(tree.first_edge[start], tree.first_edge[start + size * most])
    source, target, output = tree.source[edges], tree.target[edges], tree.output[edges]
    unit = (target - start) // size
    first = start + unit * size
    within = source >= first
    tensor = np.where(source < begin, output, 0)
    source = np.where(within, source, _first_rounds(source, folds))
    rows = np.stack([target - first, np.where(within, source - first, source - _FAR), tensor], axis=1)
    count = _alike(rows, unit, most)  # the first reads none of the others, so none does
    leaving = tree.by_source[tree.first_read[start] : tree.first_read[start + size * count]]
    source, target, output = tree.source[leaving], tree.target[leaving], tree.output[leaving]
    unit = (source - start) // size
    far = target >= start + (unit + 1) * size
    source, target, output, unit = source[far], target[far], output[far], unit[far]
    step = int(target[unit == 1][0] - target[unit == 0][0]) if (unit == 0).any() and (unit == 1).any() else 0
    rows = np.stack([source - start - unit * size, target - step * unit, output], axis=1)
    alike = _alike(rows, unit, count)
    if alike == count - 1:  # the last may be read by others as well, as the loss of the last batch is
        alike += set(map(tuple, rows[unit == 0].tolist())) <= set(map(tuple, rows[unit == alike].tolist()))
    return min(count, alike)


def _in_a_row(tree: Tree, items: list[Item], period: int, folds: list[Item]) -> int:
    """How many of the equal units from the first on are wired alike, within and to each other and to the rest.

    Equal items may be joined differently, and hashes do not tell f(a, b) from f(b, a): every edge is looked at, in the
    order of its reader's inputs.
    """
    start, size, most = items[0].start, items[period - 1].end - items[0].start, len(items) // period
    bounds = tree.first_edge[start : start + size * most + 1 : size]  # edges are in order of their targets
    edges, each = slice(bounds[0], bounds[-1]), np.diff(bounds)
    source, output = tree.source[edges], tree.output[edges]
    unit = np.repeat(np.arange(most), each)
    begin = start + unit * size
    far = _first_rounds(source, folds) + _FAR
    # From itself 0 or more, from the one before less, from elsewhere far.
    code = np.where((source >= begin - size) & (source >= start), source - begin, far)
    rows = np.empty((len(source), 3), np.int64)
    rows[:, 0], rows[:, 1], rows[:, 2] = tree.target[edges] - begin, code, output
    first = each[0]
    count = 1 + _alike(rows[first:], unit[first:] - 1, most - 1)
    if count < 2 or not _begins_alike(rows[:first], rows[first : first + each[1]], size):
        return 1
    return _send_alike(tree, start, size, count)


def _begins_alike(first: Array, second: Array, size: int) -> bool:
    """Whether the first unit reads what all read, and in the place of what others get from the one before anything.

    Rows of what units read: where, from where, and which output.
    """
    odd = np.bincount(first[:, 0], minlength=size) != np.bincount(second[:, 0], minlength=size)
    one, other = first[~odd[first[:, 0]]], second[~odd[second[:, 0]]]
    given_instead = (other[:, 1] < 0) & (one[:, 1] >= _FAR)
    if not ((one == other).all(axis=1) | given_instead).all():
        return False
    # A first state may also be a parameter, which no edge leads from, or written in parts, from each of which one does.
    one, other = first[odd[first[:, 0]]], second[odd[second[:, 0]]]
    carried = set(other[other[:, 1] < 0, 0].tolist())
    given, shared = set(map(tuple, one.tolist())), set(map(tuple, other[other[:, 1] >= 0].tolist()))
    return shared <= given and all(row[0] in carried and row[1] >= _FAR for row in given - shared)


def _send_alike(tree: Tree, start: int, size: int, count: int) -> int:
    """How many units from the first on send the same to the same, beyond the next unit; the last may send more."""
    leaving = tree.by_source[tree.first_read[start] : tree.first_read[start + size * count]]
    source, target, output = tree.source[leaving], tree.target[leaving], tree.output[leaving]
    unit = (source - start) // size
    rows = np.stack([source - start - unit * size, target, output], axis=1)
    far = target >= start + (unit + 2) * size
    alike = _alike(rows[far], unit[far], count)
    sent = set(map(tuple, rows[far & (unit == 0)].tolist()))
    if alike < count:
        after = (unit == alike) & (target >= start + (alike + 1) * size)
        alike += sent <= set(map(tuple, rows[after].tolist()))
    # What all send far away goes beyond the last, not to one of the units themselves. Of two units that are read
    # together, as in x + f(x), neither is a repeat of the other.
    beyond = all(where >= start + size * alike for _, where, _ in sent)
    return alike if beyond and (not sent or alike > 2) else 1


def _longest(
    counted: Callable[[Tree, list[Item], int, list[Item]], int],
    tree: Tree,
    items: list[Item],
    at: int,
    period: int,
    most: int,
    folds: list[Item],
) -> int:
    """How many units are wired alike: a few are looked at first, as a long run of equal items often is no repeat."""
    few = _FEWEST_BRANCHES
    while few < most:
        count = counted(tree, items[at : at + few * period], period, folds)
        if count < few:
            return count
        few *= 4
    return counted(tree, items[at : at + most * period], period, folds)


def _periods(items: list[Item]) -> Array:
    """How many items a repeat may have, one below the other."""
    longest = _LONGEST if len(items) <= _MANY else _LONGEST_OF_MANY
    return np.arange(1, min(longest, len(items) - 1) + 1)[:, None]


def _equal(items: list[Item], runs: Array) -> Array:
    """Of the items in each run, how many are exactly those a period later: repeats of these are folded as such."""
    count, found = len(items), np.zeros_like(runs)
    hashes = np.array([item.hash % (1 << 63) for item in items], np.int64)
    for period in (np.flatnonzero(runs.any(axis=1)) + 1).tolist():
        sums = np.concatenate([[0], np.cumsum(hashes[:-period] == hashes[period:]), np.zeros(period, np.int64)])
        found[period - 1] = sums[np.arange(count) + runs[period - 1]] - sums[:count]
    return found


def _runs(hashes: Array, periods: Array) -> Array:
    """For each period and place, how many items from there on equal the one a period later."""
    count, places = len(hashes), np.arange(len(hashes))
    later = places + periods
    equal = (later < count) & (hashes[np.minimum(later, count - 1)] == hashes)
    next_break = np.minimum.accumulate(np.where(equal, count, places)[:, ::-1], axis=1)[:, ::-1]
    found: Array = next_break - places
    return found


def _first_rounds(leaves: Array, folds: list[Item]) -> Array:
    """Leaves of folded repeats as the same ones of the first round: it does not matter which of many alike is read."""
    if not folds:
        return leaves
    start, stop, end = (np.array(column) for column in zip(*((f.start, f.stop, f.end) for f in folds), strict=True))
    at = np.searchsorted(start, leaves, side="right") - 1
    inside = (at >= 0) & (leaves < end[at])
    return np.where(inside, start[at] + (leaves - start[at]) % (stop - start)[at], leaves)


def _same_rows(rows: Array, unit: Array, others: Array, other_unit: Array, units: int) -> int:
    """How many units from the first on have the same rows here and there."""
    counts, other_counts = (np.bincount(each, minlength=units)[:units] for each in (unit, other_unit))
    differ = np.flatnonzero(counts != other_counts)
    same = int(differ[0]) if len(differ) else units
    until = int(counts[:same].sum())
    differ = np.flatnonzero((rows[:until] != others[:until]).any(axis=1))
    return int(unit[differ[0]]) if len(differ) else same


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
