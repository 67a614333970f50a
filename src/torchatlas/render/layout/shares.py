"""Items -> how much of a program each stands for, by its parameters and ops, and what opening some of them tells."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from typing import NamedTuple

from torchatlas.render.layout.labels import Labels
from torchatlas.render.layout.outline import CONTAINERS, Item, Outline

FORWARD = "forward"
PHASES = {FORWARD: 1.0, "backward": 0.25, "optimizer": 0.05, "other": 0.25}  # what they stand for, beside each other
_AGAIN, _SAME = 0.4, 0.15  # what the inside of a group is worth when one of its class, or its equal, is open already


class _Inside(NamedTuple):
    """What is in a group."""

    many: int  # boxes
    evenness: float  # of their shares, as an entropy
    largest: float  # share of the group that one of them has


class _Fact(NamedTuple):
    """What counts of an open group, so that those of several are in order."""

    share: float  # less than zero
    start: int
    depth: int  # no two groups begin together at the same depth
    news: float
    kinds: list[object]


class Shares:
    """The shares of all items that a search has come to; from the outside in, as groups are opened."""

    def __init__(self, outline: Outline, labels: Labels) -> None:
        self.outline, self.labels = outline, labels
        root = outline.root
        self.has_lanes = any(item.kind == "lane" for item in outline.children(root))
        self.items = {id(root): root}  # by id
        self.of = {id(root): 1.0}  # by the ids of items
        self._spread: set[int] = set()  # the ids of groups
        self._known: dict[Hashable, _Inside] = {}  # by structure
        self._inside: dict[int, _Inside] = {}  # the same by the ids of groups
        self._facts: dict[int, _Fact] = {}  # by the ids of items
        self._known_kinds: dict[int, list[object]] = {}  # by the ids of items, as below
        self._known_parameters: dict[int, int] = {}

    def spread(self, group: Item) -> None:
        """Give the boxes of a group their parts of its share."""
        if id(group) in self._spread:
            return
        self._spread.add(id(group))
        share, boxes = self.of[id(group)], self.outline.children(group)
        sizes = self._sizes(boxes)
        whole = sum(sizes) or 1.0
        for box, size in zip(boxes, sizes, strict=True):
            self.items[id(box)], self.of[id(box)] = box, share * size / whole
        self._known[self.structure(group)] = _Inside(
            len(boxes),
            -sum(size / whole * math.log(size / whole) for size in sizes if size),
            max(sizes, default=0.0) / whole,
        )

    def inside(self, group: Item) -> _Inside:
        """What is in a group. Equal ones are looked into once: there may be thousands of them."""
        found = self._inside.get(id(group))
        if found is None:
            structure = self.structure(group)
            if structure not in self._known:
                self.spread(group)
            found = self._inside[id(group)] = self._known[structure]
        return found

    def structure(self, group: Item) -> Hashable:
        """The same for groups that have the same inside."""
        return group.kind, group.hash, group.stop - group.start, self.lane(group).name

    def news(self, group: Item) -> float:
        """What opening a group tells: its share of the program times how evenly its boxes share it, as an entropy."""
        return self.of[id(group)] * self.inside(group).evenness

    def told(self, groups: frozenset[int], seen: Collection[object] = ()) -> float:
        """What open groups tell together beside kinds that were seen: those that look alike inside tell less."""
        total, own, known = 0.0, set[object](), self._facts
        for _, _, _, news, kinds in sorted([known.get(number) or self._fact(number) for number in groups]):
            same, alike = kinds[0], kinds[-1]
            if same in own or same in seen:
                total += news * _SAME
            elif alike in own or alike in seen:
                total += news * _AGAIN
            else:
                total += news
            own.update(kinds)
        return total

    def _fact(self, number: int) -> _Fact:
        """What of a group, by its id, counts for what it tells; the largest come first."""
        found = self._facts.get(number)
        if found is None:
            item = self.items[number]
            found = self._facts[number] = _Fact(
                -self.of[number], item.start, item.depth, self.news(item), self.kinds(item)
            )
        return found

    def kinds(self, item: Item) -> list[object]:
        """By what a group is the same as another, and by what it looks like another."""
        found = self._known_kinds.get(id(item))
        if found is None:
            is_named = bool(item.type) and item.type not in CONTAINERS
            found = [item.hash, (self.lane(item).name, item.type)] if is_named else [item.hash]
            self._known_kinds[id(item)] = found
        return found

    def lane(self, item: Item) -> Item:
        """The phase an item lies in; the root if there is only one."""
        if not self.has_lanes:
            return self.outline.root
        while item.kind != "lane" and item.parent is not None:
            item = item.parent
        return item

    def _sizes(self, boxes: list[Item]) -> list[float]:
        """How large boxes of one group are beside each other: all rounds of a repeat, inputs and outputs nothing."""
        if any(box.kind == "lane" for box in boxes):
            return [PHASES.get(box.name, 0.0) for box in boxes]
        lane = self.lane(boxes[0]) if boxes else self.outline.root
        all_ops, all_parameters = lane.stop - lane.start, max(self.labels.parameters_of(""), 1)
        return [
            0.0
            if self.outline.is_marker(box)
            else (box.end - box.start) / all_ops + self._parameters(box) * box.repeat / all_parameters
            for box in boxes
        ]

    def _parameters(self, item: Item) -> int:
        """Those of its modules; of a repeat those of one round."""
        if item.call >= 0:
            return self.labels.parameters(item)
        found = self._known_parameters.get(id(item))
        if found is None:
            found = sum(self._parameters(part) * part.repeat for part in item.parts or ())
            self._known_parameters[id(item)] = found
        return found
