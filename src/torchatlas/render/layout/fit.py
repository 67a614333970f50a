"""A page and a smallest text size -> which groups are open, so that as much as possible is shown and all is readable.

A beam search: from a few best sets of open groups at a time, open one more class of groups, or one group as an example.
Opening one by one without looking back would let the picture jump when the page grows by a hair.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from torchatlas.render.layout.boxes import SMALL, Box, BoxMaker
from torchatlas.render.layout.labels import Labels
from torchatlas.render.layout.layered import BOX_GAP, RANK_GAP
from torchatlas.render.layout.outline import Item, Outline

_HEIGHTS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72, 0.68, 0.62, 0.56, 0.5, 0.44, 0.38, 0.32)
_QUICK = (1.0, 0.92, 0.84)  # lower ones are only wider
_HOPELESS = 0.88  # at less than this of the smallest, or the best, scale another height does not help
_COMFORTABLE = 11.0  # text of this size is large enough
_LARGEST = 24.0
_FULL = 0.42  # boxes with their gaps never filled more of a page than this
_BEAM, _MOVES, _MOST_TRIALS = 2, 2, 50
_MOST_WORK = 2_600  # lines between ranks: a third of a second or so
_MISSES = 8  # so many groups that do not fit any more, and the page is full
_GROUP, _AGAIN = 0.5, 0.4  # what a closed group, and a box like one shown before, are worth beside a new one
_CROSSING, _CUT = 0.12, 0.1  # and what a crossing, or a cut into columns, costs


@dataclass(frozen=True)
class Fit:
    """A layout, how much it is to be scaled, and the groups that are open in it."""

    box: Box = field(repr=False)
    scale: float
    opened: frozenset[int] = field(repr=False)  # by the ids of items

    @property
    def smallest_text(self) -> float:
        """In pixels."""
        return SMALL * self.scale

    @property
    def score(self) -> float:
        """How well it can be read: once text is large enough, fewer cuts count more than larger text."""
        comfortable = _COMFORTABLE / SMALL
        return min(self.scale, comfortable) + 0.25 * max(self.scale - comfortable, 0) - 0.05 * self.box.wraps


class Fitter:
    """Tries what can be open on a page."""

    def __init__(
        self, outline: Outline, labels: Labels, width: float, height: float, font: float, smallest_box: float = 0.0
    ) -> None:
        self.outline, self.labels, self.width, self.height = outline, labels, width, height
        self.least = font / SMALL  # the smallest scale at which all text can be read
        self.maker = BoxMaker(outline, labels, smallest_box / self.least, width / self.least)
        self.trials = 0
        self._failed: set[frozenset[int]] = set()
        self._areas: dict[int, float] = {}  # of closed items, with the gaps around them

    def fit(self) -> Fit:
        start = frozenset({id(self.outline.root)})
        first = self._scaled(start, _QUICK, enough=self.least)
        if first.scale < self.least:  # not even the outermost boxes fit: somebody must cut them first
            return first
        best = beam = [(self._worth(first), start)]
        seen = {start}
        while beam and not self._is_spent:
            found = []
            for _, opened in beam:
                fitting = 0
                for move in self._moves(opened):
                    trial = opened | move
                    if trial in seen:
                        continue
                    seen.add(trial)
                    fit = self._tried(trial)
                    if fit is not None and fit.scale >= self.least:
                        found.append((self._worth(fit), trial))
                        fitting += 1
                    else:
                        self._failed.add(trial)
                    if fitting == _MOVES or self._is_spent:
                        break
            found.sort(key=lambda entry: -entry[0])
            beam = found[:_BEAM]
            best = max(best, beam[:1], key=lambda entry: entry[0][0] if entry else -1e9)
        return self._scaled(self._filled(*best[0]), _HEIGHTS)

    @property
    def _is_spent(self) -> bool:
        return self.trials >= _MOST_TRIALS or self.maker.work >= _MOST_WORK

    def _filled(self, worth: float, opened: frozenset[int]) -> frozenset[int]:
        """Spend what room is left on single groups, from the outside in, where that does not tangle the picture."""
        misses = 0
        while misses < _MISSES and self.maker.work < 1.5 * _MOST_WORK:
            left = sorted(self._closed(opened), key=lambda item: (item.depth, item.start - item.stop))
            for item in left:
                trial = opened | {id(item)}
                fit = None if trial in self._failed else self._tried(trial)
                # What is inside may be worth the cut that opening it costs; nothing is worth a thicket of lines.
                if fit is not None and fit.scale >= self.least and self._worth(fit) > worth - _GROUP:
                    worth, opened = self._worth(fit), trial
                    break
                self._failed.add(trial)
                misses += 1
                if misses == _MISSES:
                    break
            else:
                break
        return opened

    @cached_property
    def _has_lanes(self) -> bool:
        """Whether what is drawn lies side by side already: such a picture may become narrower when it is lower."""
        return any(item.kind == "lane" for item in self.outline.children(self.outline.root))

    # -- trying --------------------------------------------------------------------------------------------------------

    def _tried(self, opened: frozenset[int]) -> Fit | None:
        """How a set of open groups fits; None if it plainly cannot."""
        if len(opened) > 1 and not self._has_room(opened):
            return None
        self.trials += 1
        return self._scaled(opened, _QUICK, enough=self.least)

    def _scaled(self, opened: frozenset[int], heights: tuple[float, ...], enough: float = 1e9) -> Fit:
        """The best of several heights, or the first that is good enough."""
        best: Fit | None = None
        for part in heights:
            box = self.maker.box(self.outline.root, opened, self.height / self.least * part)
            across, down = self.width / max(box.width, 1), self.height / max(box.height, 1)
            scale = min(across, down, max(_LARGEST / SMALL, self.least))
            if box.tangles:  # lines on each other are as bad as text that cannot be read
                scale = min(scale, self.least * 0.99)
            fit = Fit(box, scale, opened)
            if best is None or fit.score > best.score:
                best = fit
            too_wide = across < down and across < best.scale * _HOPELESS  # and wider still when it is lower
            if scale >= enough or too_wide or (heights is _QUICK and scale < self.least * _HOPELESS):
                break
            if heights is _QUICK and across < min(down, self.least) and not self._has_lanes:
                break
        assert best is not None
        return best

    def _has_room(self, opened: frozenset[int]) -> bool:
        """Whether a page can hold the closed boxes, with the gaps around them. What is far too much is not counted."""
        room = _FULL * self.width * self.height / self.least**2
        stack = [self.outline.root]
        while stack and room >= 0:
            item = stack.pop()
            self.outline.wiring(item)
            for child in self.outline.children(item):
                if id(child) in opened:
                    stack.append(child)
                    continue
                area = self._areas.get(id(child))
                if area is None:
                    box = self.maker.box(child, opened, 0.0)
                    area = self._areas[id(child)] = (box.width + BOX_GAP) * (box.height + RANK_GAP)
                room -= area
        return room >= 0

    def _worth(self, fit: Fit) -> float:
        """How much is shown, and how clearly. Opening a group is always worth something; what is new is worth more."""
        total, shown = 0.0, set[int]()
        stack = [self.outline.root]
        while stack:
            for item in self.outline.children(stack.pop()):
                if id(item) in fit.opened:
                    stack.append(item)
                elif not item.is_leaf:
                    total += _GROUP
                else:
                    total += _AGAIN if item.hash in shown else 1.0
                    shown.add(item.hash)
        return total - _CROSSING * fit.box.crossings - _CUT * fit.box.wraps

    # -- moves ---------------------------------------------------------------------------------------------------------

    def _closed(self, opened: frozenset[int]) -> Iterator[Item]:
        stack = [self.outline.root]
        while stack:
            for item in self.outline.children(stack.pop()):
                if id(item) in opened:
                    stack.append(item)
                elif self.outline.can_open(item):
                    yield item

    def _moves(self, opened: frozenset[int]) -> list[frozenset[int]]:
        """What could be opened next: whole classes from the outside in, then single groups, the largest first."""
        classes: dict[tuple[int, str, str], list[Item]] = {}
        for item in self._closed(opened):
            classes.setdefault((item.depth, item.kind, item.type or item.name), []).append(item)
        found: list[frozenset[int]] = []
        singles: list[frozenset[int]] = []
        for key in sorted(classes, key=lambda key: self._order(key, classes[key])):
            items = classes[key]
            found.append(frozenset(map(id, items)))
            if len(items) > 1:
                distinct = {item.hash: item for item in reversed(items)}
                by_size = sorted(distinct.values(), key=lambda item: item.start - item.stop)
                some = by_size if len(by_size) < 4 else [by_size[0], by_size[len(by_size) // 2], by_size[-1]]
                singles += [frozenset({id(item)}) for item in some]
        return found + singles

    def _order(self, key: tuple[int, str, str], items: list[Item]) -> tuple[int, int, int]:
        """The outermost first, then the one with the most parameters, then with the most ops."""
        parameters = max(self.labels.parameters(item) for item in items)
        return key[0], -parameters, -sum(item.stop - item.start for item in items)
