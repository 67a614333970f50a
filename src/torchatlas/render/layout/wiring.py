"""A group and its items -> the lines between them, and which tensors enter and leave each item."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torchatlas.graph.columns import Array
from torchatlas.render.layout.folding import has_iterations
from torchatlas.render.layout.tree import Tree

if TYPE_CHECKING:
    from torchatlas.render.layout.outline import Item

OUTPUTS = 1024  # a tensor is numbered by its leaf times this, plus which output it is


class Ends(NamedTuple):
    """The tensors that enter and leave an item, as its parent numbers them."""

    inputs: list[int]
    outputs: list[int]


@dataclass(frozen=True, eq=False)
class Wiring:
    """The lines inside a group: (from, to, tensor) between its items, from -1 for what enters it."""

    edges: list[tuple[int, int, int]]
    ends: dict[Item, Ends]  # of its items
    inside: dict[int, tuple[int, int]]  # a tensor that leaves -> the item it comes from and its number in there
    bundles: dict[int, int]  # lines that stand for many tensors, by number -> how many
    pattern: tuple[tuple[int, ...], ...]  # equal for groups that are wired alike, within and to the outside


def wired(tree: Tree, item: Item, items: list[Item], own: Ends) -> Wiring:
    """The lines inside a group, given its items and what enters and leaves it."""
    edges = slice(int(tree.first_edge[item.start]), int(tree.first_edge[item.stop]))
    source, target, output = tree.source[edges], tree.target[edges], tree.output[edges]
    starts = np.array([child.start for child in items], np.int64)
    to = np.searchsorted(starts, target, side="right") - 1
    stops = np.array([child.stop for child in items], np.int64)
    drawn = target < stops[to] if len(items) else np.zeros(0, bool)  # else in a repeat: drawn with the first
    source, to, output = source[drawn], to[drawn], output[drawn]
    inside = (source >= item.start) & (source < item.stop)
    for above in _ancestors(item):
        source = first_of_repeats(source, above.parts or ())
    source = first_of_repeats(source, items)
    come = np.where(inside, np.searchsorted(starts, source, side="right") - 1, -1)
    between = come != to
    tensor = source * OUTPUTS + np.minimum(output, OUTPUTS - 1)
    lines = zip(come[between].tolist(), to[between].tolist(), tensor[between].tolist(), strict=True)
    links, bundles = list(dict.fromkeys(lines)), {}
    for number, ((u, v), count) in enumerate(_bundles(tree, items).items(), 1):
        links.append((u, v, -number))
        bundles[-number] = count
    leaving: dict[int, tuple[int, int]] = {}
    for number in own.outputs:
        leaf, which = divmod(number, OUTPUTS)
        index = bisect_right(items, leaf, key=start_of) - 1
        leaving[number] = index, _first_of_rounds(leaf, items[index]) * OUTPUTS + which
    return Wiring(links, _ends(items, links, leaving), leaving, bundles, _pattern(own, links, leaving))


def _bundles(tree: Tree, items: list[Item]) -> dict[tuple[int, int], int]:
    """(item, item) -> how many tensors one lane takes from another, or one iteration from those before."""
    phases = [item.kind in ("lane", "iteration") or has_iterations(item) for item in items]
    if not any(phases):
        return {}
    starts = np.array([item.start for item in items], np.int64)
    source, output, target = tree.kept_source, tree.kept_output, tree.kept_target
    first, last = items[0].start, items[-1].end
    here = (source >= first) & (source < last) & (target >= first) & (target < last)
    come = np.searchsorted(starts, source[here], side="right") - 1
    to = np.searchsorted(starts, target[here], side="right") - 1
    tensors = np.unique(np.stack([come, to, source[here], output[here]]), axis=1)  # one may be taken many times
    pairs, counts = np.unique(tensors[:2], axis=1, return_counts=True)
    return {
        (int(u), int(v)): int(count)
        for (u, v), count in zip(pairs.T, counts, strict=True)
        if u != v and phases[u] and phases[v]
    }


def _ends(
    items: list[Item], lines: list[tuple[int, int, int]], leaving: dict[int, tuple[int, int]]
) -> dict[Item, Ends]:
    """The tensors that enter and leave the items of a group, given its lines and what leaves it."""
    inputs: list[dict[int, None]] = [{} for _ in items]
    outputs: list[dict[int, None]] = [{} for _ in items]
    for come, to, tensor in lines:
        if tensor < 0:  # a bundle ends at the frame
            continue
        inputs[to][tensor] = None
        if come >= 0:
            outputs[come][tensor] = None
    for index, tensor in leaving.values():
        outputs[index][tensor] = None
    return {item: Ends(list(come), list(go)) for item, come, go in zip(items, inputs, outputs, strict=True)}


def _pattern(
    ends: Ends, lines: list[tuple[int, int, int]], leaving: dict[int, tuple[int, int]]
) -> tuple[tuple[int, ...], ...]:
    """Cache key of the lines of a group: its tensors are numbered in the order of the lines."""
    number: dict[int, int] = {}
    inner = [(come, to, number.setdefault(tensor, len(number))) for come, to, tensor in lines]
    outer = [(index, number.setdefault(tensor, len(number))) for index, tensor in leaving.values()]
    return (*inner, *outer, tuple(number.get(tensor, -1) for tensor in ends.inputs))


def _ancestors(item: Item) -> list[Item]:
    ancestors = []
    above = item.parent
    while above is not None:
        ancestors.append(above)
        above = above.parent
    return ancestors[::-1]


def first_of_repeats(leaves: Array, items: list[Item] | tuple[Item, ...]) -> Array:
    """Replace leaves in any round of a repeat by the same leaves of its first round."""
    repeats = [item for item in items if item.repeat > 1]
    if not repeats or not len(leaves):
        return leaves
    least, most = int(leaves.min()), int(leaves.max())  # mostly these are near each other: few repeats lie between
    for item in repeats:
        if item.stop <= most and least < item.end:
            again = (leaves >= item.stop) & (leaves < item.end)
            leaves = np.where(again, item.start + (leaves - item.start) % (item.stop - item.start), leaves)
    return leaves


def _first_of_rounds(leaf: int, item: Item) -> int:
    """A leaf of a repeat as the same one of its first round, given the item that it is in."""
    return item.start + (leaf - item.start) % (item.stop - item.start) if leaf < item.end else leaf


def start_of(item: Item) -> int:
    return item.start
