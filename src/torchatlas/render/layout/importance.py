"""Items -> their importance: the share of the program that each stands for, by its ops and parameters."""

from __future__ import annotations

import math
from collections.abc import Hashable

from torchatlas.render.layout.box_words import BoxWords
from torchatlas.render.layout.folding import has_iterations
from torchatlas.render.layout.outline import Item, Outline

# Each phase weighs a quarter of the one before it: what backward does follows from forward.
_PHASES = {"forward": 1.0, "backward": 1 / 4, "other": 1 / 16, "optimizer": 1 / 16}


class Importance:
    """The shares of all items that were asked for. The root has 1; the children of a group share what it has."""

    def __init__(self, outline: Outline, words: BoxWords) -> None:
        self.outline, self.words = outline, words
        self._shares = {outline.root: 1.0}
        self._counts: dict[Hashable, int] = {}  # children, by structure
        self._parameters: dict[Item, int] = {}
        self._asides: dict[Item, bool] = {}
        self._has_lanes = bool(outline.tree.lanes)

    def share(self, item: Item) -> float:
        """The part of the program an item stands for; inputs and outputs stand for nothing."""
        if item not in self._shares:
            assert item.parent is not None
            siblings = self.outline.children(item.parent)
            sizes = [self._size(sibling) for sibling in siblings]
            unit = self.share(item.parent) / (sum(sizes) or 1.0)
            self._shares.update((sibling, size * unit) for sibling, size in zip(siblings, sizes, strict=True))
        return self._shares[item]

    def count(self, group: Item) -> int:
        """How many children a group has. Equal groups are looked into once: there may be thousands of them."""
        kind = self.kind(group)
        if kind not in self._counts:
            self._counts[kind] = len(self.outline.children(group))
        return self._counts[kind]

    def kind(self, group: Item) -> Hashable:
        """Groups of equal structure in one phase have equal kinds."""
        return group.kind, group.hash, group.stop - group.start, self.phase(group), self.is_aside(group)

    def told(self, opened: frozenset[Item]) -> float:
        """How much a picture with these groups open shows, as a number of boxes of equal share: e to the entropy of the
        shares of its closed boxes."""
        closed = (child for group in opened for child in self.outline.children(group) if child not in opened)
        return math.exp(-sum(share * math.log(share) for share in map(self.share, closed) if share))

    def phase(self, item: Item) -> str:
        """The name of the phase that an item lies in; empty if the graph has only one."""
        return self._lane(item).name

    def is_aside(self, item: Item) -> bool:
        """Whether an item lies in an iteration of a training loop that is not the one that shows most."""
        if item.parent is None or not self._has_lanes:
            return False
        if item not in self._asides:
            is_aside = self.is_aside(item.parent)
            if item.kind == "iteration" or has_iterations(item):
                is_aside = is_aside or item is not max(self.outline.children(item.parent), key=self._weight)
            self._asides[item] = is_aside
        return self._asides[item]

    def _weight(self, item: Item) -> float:
        """How much an iteration shows compared with others. Half of the first may be there only because the model and
        the state of its optimizer are made in it."""
        is_first = item.kind == "iteration" and self.outline.tree.iteration.item(item.group) == 0
        return self.share(item) / (2 if is_first and item.repeat == 1 else 1)

    def _lane(self, item: Item) -> Item:
        """The item of a phase that an item lies in; the root if there is only one phase."""
        if not self._has_lanes:
            return self.outline.root
        while item.kind != "lane" and item.parent is not None:
            item = item.parent
        return item

    def _size(self, item: Item) -> float:
        """The size of an item compared with its siblings, with all rounds of a repeat."""
        if item.kind == "lane":
            return _PHASES.get(item.name, 0.0)
        if self.outline.is_marker(item):
            return 0.0
        lane = self._lane(item)
        ops = (item.end - item.start) / (lane.stop - lane.start)
        return ops + self._parameter_count(item) * item.repeat / max(self.words.parameters_of(""), 1)

    def _parameter_count(self, item: Item) -> int:
        """The parameters of the modules in an item; of a repeat those of one round."""
        if item.call >= 0:
            return self.words.parameters(item)
        if item not in self._parameters:
            self._parameters[item] = sum(self._parameter_count(part) * part.repeat for part in item.parts or ())
        return self._parameters[item]
