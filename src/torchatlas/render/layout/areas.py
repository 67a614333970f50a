"""Open groups -> how much of a page the closed boxes take, with the gaps around them, before anything is laid out."""

from __future__ import annotations

import math
from collections.abc import Hashable

from torchatlas.render.layout.boxes import LEAST_HEIGHT, LEAST_WIDTH, BoxMaker
from torchatlas.render.layout.layered import BOX_GAP, RANK_GAP
from torchatlas.render.layout.outline import Item, Outline
from torchatlas.render.layout.shares import Shares

SMALLEST = (LEAST_WIDTH + BOX_GAP) * (LEAST_HEIGHT + RANK_GAP)  # what a closed box takes at least


class Areas:
    """What was found is remembered: a search asks for nearly the same again and again."""

    def __init__(self, outline: Outline, maker: BoxMaker, shares: Shares) -> None:
        self.outline, self.maker, self.shares = outline, maker, shares
        self._sets: dict[frozenset[int], float] = {}  # of open groups
        self._groups: dict[Hashable, float] = {}  # open ones in which nothing is open, by structure
        self._boxes: dict[int, float] = {}  # by the ids of items

    def of(self, opened: frozenset[int], most: float = math.inf) -> float:
        """What all closed boxes take together. What is more than the most is not counted."""
        if opened in self._sets:
            return self._sets[opened]
        area, stack = 0.0, [self.outline.root]
        around = {id(self.shares.items[number].parent) for number in opened}
        while stack and area <= most:
            item = stack.pop()
            if id(item) not in around:
                area += self._inside(item)
                continue
            self.outline.wiring(item)
            for child in self.outline.children(item):
                if id(child) in opened:
                    stack.append(child)
                else:
                    area += self._closed(child)
        if area <= most:
            self._sets[opened] = area
        return area

    def _inside(self, group: Item) -> float:
        """The same of a group in which nothing is open: equal ones are looked into once."""
        structure = self.shares.structure(group)
        found = self._groups.get(structure)
        if found is None:
            self.outline.wiring(group)  # tells the boxes how many lines meet them
            found = self._groups[structure] = sum(map(self._closed, self.outline.children(group)))
        return found

    def _closed(self, item: Item) -> float:
        found = self._boxes.get(id(item))
        if found is None:
            box = self.maker.box(item, (), 0.0)
            found = self._boxes[id(item)] = (box.width + BOX_GAP) * (box.height + RANK_GAP)
        return found
