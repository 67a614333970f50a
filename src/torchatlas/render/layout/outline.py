"""Tree -> items: what a reader sees in a group. Modules, single ops, repeats folded into one, runs of small ops closed.

Lazy: only groups that are opened, or might be, get items. Items of a group lie side by side in the order of leaves.
Where only modules are shown, single ops without lines are left out.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from torchatlas.graph.columns import KINDS, Array
from torchatlas.graph.nouns import NodeKind, OperationType
from torchatlas.render.layout import folding, optimizers, repeat_keys
from torchatlas.render.layout.text_fitting import shared_start
from torchatlas.render.layout.tree import LANES, Tree
from torchatlas.render.layout.wiring import OUTPUTS, Ends, Wiring, start_of, wired

MOST_CHILDREN = 120  # more than this in one group: cut into segments
_SEGMENTS = 24
CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")  # classes that say nothing of what is in them
_RUN, _SHORT_RUN = 5, 2  # so many small ops in a row between modules are drawn as one closed box
HEAVY = frozenset(  # ops that characterize those around them: gathered into a box only where just modules are shown
    {
        OperationType.CONVOLUTION,
        OperationType.MATMUL,
        OperationType.ATTENTION,
        OperationType.NORM,
        OperationType.POOLING,
        OperationType.RECURRENT,
        OperationType.EMBEDDING,
        OperationType.LOSS,
        OperationType.COMMUNICATION,
    }
)


@dataclass(eq=False, slots=True)
class Item:
    """One box of a picture: a leaf, or a group that may be opened. `repeat` of them in a row are drawn as one."""

    kind: str  # leaf | module | iteration | lane | loop | functional | segment | group | update
    start: int  # its leaves; of a repeat those of the first
    stop: int
    hash: int
    group: int = -1
    call: int = -1
    type: str = ""  # the class of a module
    name: str = ""
    repeat: int = 1
    alike_only: bool = False  # the repeats differ in sizes
    depth: int = 0
    parent: Item | None = field(default=None, repr=False)
    # Known from the start for what is no group of the tree; else made when first asked for.
    parts: list[Item] | None = field(default=None, repr=False)

    @property
    def end(self) -> int:
        """After the last leaf of the last repeat."""
        return self.start + (self.stop - self.start) * self.repeat

    @property
    def is_leaf(self) -> bool:
        return self.kind == "leaf"


class Outline:
    """The items of a tree."""

    def __init__(
        self, tree: Tree, *, most_children: int = MOST_CHILDREN, modules_only: bool = False, gathers: bool = False
    ) -> None:
        self.tree, self.most_children, self.modules_only = tree, most_children, modules_only
        self.shortest_run = _SHORT_RUN if modules_only or gathers else _RUN
        self._wirings: dict[Item, Wiring] = {}
        self._inner = np.argsort(tree.parent, kind="stable")
        self._first_inner = np.searchsorted(tree.parent[self._inner], np.arange(len(tree.parent) + 1))

    @cached_property
    def root(self) -> Item:
        tree = self.tree
        root = Item("module", 0, len(tree.node), int(tree.group_hash[0]), group=0)
        items = self._items(root)
        groups = [item for item in items if item.kind == "module"]
        if len(groups) == 1 and all(self.is_marker(item) for item in items if item is not groups[0]):
            only = groups[0]  # the model itself: the page is its frame
            root.type, root.call = only.type, only.call
            at = items.index(only)
            items = [*items[:at], *self._items(only), *items[at + 1 :]]
        root.parts = self._arranged(root, items)
        return root

    def children(self, item: Item) -> list[Item]:
        """What is drawn in a group, in the order in which it ran."""
        if item.parts is None:
            item.parts = self._arranged(item, self._items(item))
        return item.parts

    def is_marker(self, item: Item) -> bool:
        """Whether an item is an input or output of the program."""
        return item.is_leaf and bool(self.tree.graph.columns["node_kind"][self.tree.node[item.start]] != _OP)

    def operation_type(self, item: Item) -> OperationType:
        columns = self.tree.graph.columns
        operation = int(columns["node_operation"][self.tree.node[item.start]])
        return self.tree.graph.tables.operations[operation].type

    def own_name(self, call: int) -> str:
        """What a module is called in the one that called it: its path from there on, such as `d.0` in a list `d`.

        The last part alone would not tell `d.0` from `u.0`. A module that belongs elsewhere, as a shared one does, has
        the part of its path that the two do not have in common.
        """
        columns, modules = self.tree.graph.columns, self.tree.graph.tables.modules
        path: str = modules[columns["call_module"].item(call)].path
        parent = columns["call_parent"].item(call)
        around: str = modules[columns["call_module"].item(parent)].path if parent >= 0 else ""
        if not around:
            return path
        if path.startswith(f"{around}."):
            return path[len(around) + 1 :]
        return path[len(shared_start([f"{path}.", f"{around}."], ".")) :] or path.rpartition(".")[2]

    # -- items ---------------------------------------------------------------------------------------------------

    def _items(self, item: Item) -> list[Item]:
        """The modules called in a group and the ops between them."""
        if item.is_leaf:
            return []
        tree, group = self.tree, item.group
        inner = self._inner[self._first_inner[group] : self._first_inner[group + 1]]
        items: list[Item] = []
        at = item.start
        for child, start, stop in zip(
            inner.tolist(), tree.start[inner].tolist(), tree.stop[inner].tolist(), strict=True
        ):
            if at < start:
                items += [self._leaf(leaf) for leaf in range(at, start)]
            items.append(self._module(child))
            at = stop
        items += [self._leaf(leaf) for leaf in range(at, item.stop)]
        return (
            optimizers.items_of_step(tree, item, items) if optimizers.is_step(tree, item) and not len(inner) else items
        )

    def _leaf(self, leaf: int) -> Item:
        return Item("leaf", leaf, leaf + 1, self.tree.leaf_hash.item(leaf))

    def _module(self, group: int, name: str = "", outer: str = "") -> Item:
        """A module call. One that only calls another stands for it, with both names; one with one op is that op."""
        tree = self.tree
        start, stop, call, lane = (
            tree.start.item(group),
            tree.stop.item(group),
            tree.call.item(group),
            tree.lane.item(group),
        )
        if (iteration := tree.iteration.item(group)) >= 0:
            return Item("iteration", start, stop, tree.group_hash.item(group), group, name=f"iteration {iteration:,}")
        if lane >= 0:
            return Item("lane", start, stop, tree.group_hash.item(group), group, name=LANES[lane % len(LANES)])
        module = tree.graph.tables.modules[tree.graph.columns["call_module"].item(call)]
        own = self.own_name(call)
        name = f"{name}.{own}" if name and own else name or own
        kind = outer if outer and module.type in CONTAINERS else module.type  # InvertedResidual says more
        first, last = self._first_inner.item(group), self._first_inner.item(group + 1)
        if last - first == 1:
            only = self._inner.item(first)
            if tree.start.item(only) == start and tree.stop.item(only) == stop:
                return self._module(only, name, kind)
        if stop - start == 1:
            return Item("leaf", start, stop, tree.leaf_hash.item(start) ^ 1, -1, call, kind, name)
        return Item("module", start, stop, tree.group_hash.item(group), group, call, kind, name)

    def _arranged(self, parent: Item, items: list[Item]) -> list[Item]:
        items = [self._unwrapped(item) for item in self._with_runs_gathered(items)]
        items = folding.gathered_alike(self.tree, folding.folded(self.tree, items))
        items = folding.iterations_folded(self.tree, items)
        if parent.kind == "lane":
            items = folding.batches_folded(self.tree, items)
        if self.modules_only:
            items = self._without_idle(items)
        if len(items) > self.most_children:
            items = self._cut(items)
        stack = [(parent, items)]
        while stack:
            above, below = stack.pop()
            for item in below:
                item.parent, item.depth = above, above.depth + 1
                if item.parts is not None:
                    stack.append((item, item.parts))
        return items

    def _unwrapped(self, item: Item) -> Item:
        """Replace a module that holds nothing but a repeat, such as a Sequential of equal blocks, by that repeat."""
        if item.kind != "module":
            return item
        hashes = self.tree.group_hash
        first, last = self._first_inner.item(item.group), self._first_inner.item(item.group + 1)
        if last - first < 2 or hashes.item(self._inner.item(first)) != hashes.item(self._inner.item(first + 1)):
            return item
        inner = self._inner[first:last]
        if (hashes[inner] != hashes[inner[0]]).any():
            return item
        if (self.tree.stop[inner] - self.tree.start[inner]).sum() < item.stop - item.start:
            return item
        items = self.children(item)
        if len(items) > 1:
            return item
        items[0].name = f"{item.name}.{items[0].name}"
        return items[0]

    def _with_runs_gathered(self, items: list[Item]) -> list[Item]:
        """Gather cheap ops between modules, such as those that build masks and positions, into closed boxes."""
        has_modules = any(item.kind == "module" or item.call >= 0 for item in items)
        if not has_modules or (len(items) < 2 * self.shortest_run and not self.modules_only):
            return items
        runs = [(is_small, list(run)) for is_small, run in itertools.groupby(items, self._is_small_op)]
        if max((len(run) for is_small, run in runs if is_small), default=0) < self.shortest_run:
            return items
        parts: list[list[Item]] = []
        for is_small, run in runs:
            parts += self._with_idle_gathered(self._connected(run)) if is_small else [[item] for item in run]
        if sum(len(part) > 1 for part in parts) > 2:  # else there are no rounds
            parts = _cut_at_rounds(parts, repeat_keys.keys_but_for_numbers(self.tree, items).tolist())
        arranged: list[Item] = []
        for part in parts:
            arranged += self._closed(part)
        return arranged

    def _closed(self, part: list[Item]) -> list[Item]:
        """Gather small ops that depend on each other into one closed box. Rounds of a loop among them become a
        repeat instead: a loop says more than that there are ops."""
        if len(part) < self.shortest_run:
            return part
        closed: list[Item] = []
        for is_loop, run in itertools.groupby(folding.folded(self.tree, part), lambda item: item.kind == "loop"):
            items = list(run)
            if not is_loop and items[-1].end - items[0].start >= self.shortest_run:
                items = [gathered("functional", self._leaves(items))]
            closed += items
        return closed

    def _leaves(self, items: list[Item]) -> list[Item]:
        """The single ops in some items, or in repeats of ops."""
        return [self._leaf(leaf) for leaf in range(items[0].start, items[-1].end)]

    def _with_idle_gathered(self, parts: list[list[Item]]) -> list[list[Item]]:
        """Join ops in a row without lines to or from them, such as those that set parameters, into one part."""
        joined: list[list[Item]] = []
        was_idle = False
        for part in parts:
            is_idle = all(map(self._is_idle, part))
            if is_idle and was_idle:
                joined[-1] = [*joined[-1], *part]
            else:
                joined.append(part)
            was_idle = is_idle
        return joined

    def _is_idle(self, item: Item) -> bool:
        """Whether no line leads to an item or from it."""
        first, read = self.tree.first_edge, self.tree.first_read
        return bool(first[item.start] == first[item.end] and read[item.start] == read[item.end])

    def _is_small_op(self, item: Item) -> bool:
        return item.is_leaf and item.call < 0 and not self._stands_alone(item)

    def _without_idle(self, items: list[Item]) -> list[Item]:
        """Without single ops beside modules that read nothing and that nobody reads, as what is left of a mask that was
        not needed. After folding, for a repeat has no gaps between its rounds."""
        if not any(item.kind == "module" or item.call >= 0 for item in items):
            return items
        return [
            item
            for item in items
            if not item.is_leaf or item.call >= 0 or self.is_marker(item) or not self._is_idle(item)
        ]

    def _connected(self, run: list[Item]) -> list[list[Item]]:
        """Split ops in a row wherever nothing later reads anything earlier: in one box they would seem to depend on
        each other."""
        groups: list[list[Item]] = []
        start, stop = run[0].start, run[-1].stop
        first = list(range(start, stop))  # per leaf the earliest that it, or a later one, reads
        edges = slice(self.tree.first_edge[start], self.tree.first_edge[stop])
        for source, target in zip(self.tree.source[edges].tolist(), self.tree.target[edges].tolist(), strict=True):
            if start <= source < first[target - start]:
                first[target - start] = source
        for at in range(len(first) - 2, -1, -1):
            first[at] = min(first[at], first[at + 1])
        for leaf, earliest in zip(run, first, strict=True):
            if not groups or earliest >= leaf.start:
                groups.append([])
            groups[-1].append(leaf)
        return groups

    def _stands_alone(self, item: Item) -> bool:
        if self.is_marker(item):
            return True
        return not self.modules_only and self.operation_type(item) in HEAVY

    def can_open(self, item: Item) -> bool:
        """Whether a group is opened to show more: not the small ops between modules, unless they are most of what is
        around them, and of modules only such as hold others where the architecture is drawn."""
        if item.is_leaf:
            return False
        if item.kind == "functional":
            around = item.parent
            return (
                not self.modules_only
                and around is not None
                and 2 * (item.stop - item.start) > around.stop - around.start
            )
        if self.modules_only and item.kind == "module":
            return bool(self._first_inner[item.group] < self._first_inner[item.group + 1])
        return True

    def _cut(self, items: list[Item]) -> list[Item]:
        """Cut more items than one picture can show into segments, between the inputs and outputs.

        Inputs and outputs stay themselves; if there are too many of them, they are in segments of their own; only a
        page that has no room for that many mixes them with ops.
        """
        crossing = self._crossings(items).tolist()
        runs = [
            (is_marker, list(run))
            for is_marker, run in itertools.groupby(range(len(items)), lambda k: self.is_marker(items[k]))
        ]
        markers = sum(len(run) for is_marker, run in runs if is_marker)
        others = sum(not is_marker for is_marker, _ in runs)
        most = min(_SEGMENTS, self.most_children)
        are_shown = markers + others <= self.most_children
        if not are_shown and len(runs) > self.most_children:
            return self._segments(items, crossing, most)
        share = max(most - markers, 1) / (len(items) - markers) if are_shown else most / len(items)
        segments: list[Item] = []
        for is_marker, run in runs:
            part = items[run[0] : run[-1] + 1]
            if is_marker and are_shown:
                segments += part
            else:
                segments += self._segments(part, crossing[run[0] : run[-1] + 1], max(int(share * len(part)), 1))
        return segments

    def _segments(self, items: list[Item], crossing: list[int], count: int) -> list[Item]:
        """Cut items into about `count` segments, where few tensors cross."""
        size = -(-len(items) // count)
        cuts, at = [0], 0
        while len(items) - at > size * 1.3:
            window = range(at + max(2, int(size * 0.75)), min(at + int(size * 1.25) + 1, len(items) - 1))
            at = min(window, key=lambda k: (crossing[k], abs(k - at - size)), default=at + size)
            cuts.append(at)
        cuts.append(len(items))
        segments = []
        again = min(_SEGMENTS, self.most_children)
        for first, last in itertools.pairwise(cuts):
            part = items[first:last]
            if len(part) == 1:
                segments += part
                continue
            segment = gathered("segment", part)
            if max(self.most_children // 2, 1) < len(part) and (len(part) < len(items) or count < again):
                segment.parts = self._segments(part, crossing[first:last], again)
            segments.append(segment)
        return segments

    def _crossings(self, items: list[Item]) -> Array:
        """How many tensors cross the place before each item; one with many readers crosses once."""
        tree = self.tree
        edges = slice(tree.first_edge[items[0].start], tree.first_edge[items[-1].end])
        starts = np.array([item.start for item in items])
        tensor = tree.source[edges] * OUTPUTS + np.minimum(tree.output[edges], OUTPUTS - 1)
        _, last = np.unique(tensor[::-1], return_index=True)  # edges are in order of their targets
        last = len(tensor) - 1 - last
        source = np.searchsorted(starts, tree.source[edges][last], side="right") - 1
        target = np.searchsorted(starts, tree.target[edges][last], side="right") - 1
        change = np.bincount(source.clip(0) + 1, minlength=len(items) + 2)
        change[: len(items) + 2] -= np.bincount(target + 1, minlength=len(items) + 2)[: len(items) + 2]
        crossings: Array = np.cumsum(change)
        return crossings

    # -- lines ---------------------------------------------------------------------------------------------------

    def wiring(self, item: Item) -> Wiring:
        """The lines inside a group."""
        wiring = self._wirings.get(item)
        if wiring is None:
            wiring = self._wirings[item] = wired(self.tree, item, self.children(item), self.ends(item))
        return wiring

    def ends(self, item: Item) -> Ends:
        """The tensors that enter and leave an item; empty for the root."""
        return Ends([], []) if item.parent is None else self.wiring(item.parent).ends[item]

    def net(self, tensor: int) -> int:
        """One number for a tensor at all depths, given its number in a group: that of the box that makes it."""
        if tensor < 0:
            return tensor
        leaf = tensor // OUTPUTS
        for item, first, _ in self.around(leaf):
            leaf = first
            if item.parts is None:  # nobody looked into it: nothing is drawn there
                break
        return leaf * OUTPUTS + tensor % OUTPUTS

    def around(self, leaf: int) -> Iterator[tuple[Item, int, int]]:
        """The items that a leaf lies in, from the outermost on, down to itself; none in which it was left out.

        With each, the leaf of the first round that stands for it there, and in which round it is itself.
        """
        item = self.root
        while not item.is_leaf:
            parts = self.children(item)
            item = parts[bisect_right(parts, leaf, key=start_of) - 1]
            if leaf >= item.end:
                return
            turn, within = divmod(leaf - item.start, item.stop - item.start)
            leaf = item.start + within
            yield item, leaf, turn


_OP = KINDS.index(NodeKind.OP)


def _cut_at_rounds(parts: list[list[Item]], keys: Iterable[int]) -> list[list[Item]]:
    """Cut runs of small ops where rounds of a loop begin and end. `keys` has a key for every item, in order.

    Ops before a loop may run into those of its first round, ops after it into those of its last, and the end of each
    round into the beginning of the next: as one box they would make some round differ from the others. They are cut
    where both halves stand by themselves elsewhere, or where at least two other rounds begin or end. What comes as
    often as rounds do is a part of them as it is.
    """
    following_key = iter(keys)
    hashes = [tuple(next(following_key) for _ in part) for part in parts]
    times = Counter(hashes)
    if all(count == 1 or len(part) == 1 for part, count in times.items()):
        return parts
    before = [(), *(part[-1:] for part in hashes[:-1])]
    after = [*(part[:1] for part in hashes[1:]), ()]
    starts = Counter(zip(hashes, after, strict=True))
    stops = Counter(zip(before, hashes, strict=True))
    lengths = sorted({len(part) for part, count in times.items() if count > 1 and len(part) > 1}, reverse=True)
    cut_parts: list[list[Item]] = []
    for part, own, last, following in zip(parts, hashes, before, after, strict=True):
        cut = next(
            (at for at in range(1, len(own)) if (last, own[:at]) in stops and (own[at:], following) in starts), 0
        )
        if not cut and times[own] < folding.FEWEST_LOOPS:
            shorter = [length for length in lengths if length < len(own)]
            tail = next((length for length in shorter if starts[own[-length:], following] > 1), 0)
            head = next((length for length in shorter if stops[last, own[:length]] > 1), 0)
            cut = len(own) - tail if tail else head
        cut_parts += [part[:cut], part[cut:]] if cut else [part]
    return cut_parts


def gathered(kind: str, items: list[Item]) -> Item:
    """Neighbouring items as one group."""
    total = 0
    for item in items:
        total = (total * 1_000_003 + item.hash + item.repeat) % (1 << 64)
    return Item(kind, items[0].start, items[-1].end, total, parts=items)
