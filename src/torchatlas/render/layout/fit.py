"""A page and a smallest text size -> which groups are open, so that as much as possible is shown and all is readable.

Every group stands for a share of the program, by its parameters and ops. A beam search: from a few best sets of open
groups at a time, open one more class of groups, or one group as an example, the largest share first. Opening one by one
without looking back would let the picture jump when the page grows by a hair.
"""

from __future__ import annotations

import math
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
_MOST_TRIALS = 50
_EXAMPLES = 2  # so many of a class are tried when not all of it fits
_MOST_WORK = 1_800  # lines between ranks: a third of a second or so
_USUAL_PAGE = 1600 * 1200
_MISSES = 12  # so many groups that do not fit any more, and the page is full
_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")  # classes that say nothing of what is in them
_FIRST = "forward"
_SHARES = {"forward": 1.0, "backward": 0.25, "optimizer": 0.05, "other": 0.25}  # of the phases, beside each other
_AGAIN, _SAME = 0.4, 0.15  # what the inside of a group is worth when one of its class, or its equal, is open already
_ALL, _MANY = 0.85, 20  # a box that stands for so much of its group is opened with it, if it has no more boxes
_LOSS = 0.03  # opening a group where there is room left may lose so much of what all is worth
_CROSSING, _CUT = 0.12, 0.1  # what a crossing, or a cut into columns, costs of what a box is worth


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
        self._most_work = _MOST_WORK * max(1.0, width * height / _USUAL_PAGE)  # a poster is worth more of it
        self._failed: set[frozenset[int]] = set()
        self._refused: dict[frozenset[int], list[frozenset[int]]] = {}  # moves -> what was open when they did not fit
        self._areas: dict[int, float] = {}  # of closed items, with the gaps around them
        root = outline.root
        self._items = {id(root): root}  # all that a search has come to, by id
        self._share = {id(root): 1.0}  # how much of the program each of them stands for
        self._known_news: dict[int, float] = {}
        self._known_parameters: dict[int, int] = {}

    def fit(self) -> Fit:
        start = frozenset({id(self.outline.root)})
        first = self._scaled(start, _QUICK, enough=self.least)
        if first.scale < self.least:  # not even the outermost boxes fit: somebody must cut them first
            return first
        best = beam = [(self._worth(first), start)]
        seen = {start}
        if self._has_lanes:  # they find their places best when all are open
            lanes = [item for item in self._closed(start) if item.kind == "lane"]
            spread = start | self._through([item for item in lanes if item.name == _FIRST], math.inf)
            spread |= self._through(lanes, self._deepest(spread))
            seen.add(spread)
            fit = self._tried(spread)
            if fit is not None and fit.scale >= self.least:
                best = beam = [(self._worth(fit), spread), *beam]
        while beam and not self._is_spent:
            found = []
            for _, opened in beam:
                fitting = 0
                for move in self._moves(opened):
                    trial = opened | move
                    if trial in seen or self._is_refused(move, opened):
                        continue
                    seen.add(trial)
                    fit = self._tried(trial)
                    if fit is not None and fit.scale >= self.least:
                        found.append((self._worth(fit), trial))
                        fitting += 1
                    else:
                        self._refuse(move, opened, fit)
                    if fitting == self._width or self._is_spent:
                        break
            found.sort(key=lambda entry: -entry[0])
            beam = found[: self._width]
            if beam and beam[0][0] > best[0][0] * (1.0 - _LOSS):  # as good, and more is open
                best = beam[:1]
        return self._scaled(self._filled(*best[0]), _HEIGHTS)

    @property
    def _is_spent(self) -> bool:
        return self.trials >= _MOST_TRIALS or self.maker.work >= self._most_work

    @property
    def _width(self) -> int:
        """How many sets are kept, and how many moves of each: one where every trial is dear."""
        return 1 if self.maker.work * _MOST_TRIALS > 2 * self._most_work * self.trials else 2

    def _filled(self, worth: float, opened: frozenset[int]) -> frozenset[int]:
        """Spend what room is left on single groups, the largest share first, where that does not tangle the picture."""
        misses = 0
        while misses < _MISSES and self.maker.work < 1.5 * self._most_work:
            for move in self._moves(opened, every=True):
                if self._is_refused(move, opened):
                    continue
                trial = opened | move
                fit = self._tried(trial)
                # What is inside may be worth the cut that opening it costs; nothing is worth a thicket of lines.
                if fit is not None and fit.scale >= self.least and self._worth(fit) > worth * (1.0 - _LOSS):
                    worth, opened = self._worth(fit), trial
                    break
                self._refuse(move, opened, fit)
                misses += 1
                if misses == _MISSES:
                    break
            else:
                break
        return opened

    def _refuse(self, move: frozenset[int], opened: frozenset[int], fit: Fit | None) -> None:
        """Remember what did not fit: for this set only, if another place for the rest might still help."""
        self._failed.add(opened | move)
        if fit is None or fit.scale < self.least * _HOPELESS:
            self._refused.setdefault(move, []).append(opened)

    def _is_refused(self, move: frozenset[int], opened: frozenset[int]) -> bool:
        """Whether there was no room for a move when less was open."""
        return opened | move in self._failed or any(before <= opened for before in self._refused.get(move, ()))

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

    # -- what is shown -------------------------------------------------------------------------------------------------

    def _worth(self, fit: Fit) -> float:
        """As how many boxes a picture counts that would all stand for equally much, less what makes it hard to read.

        So a box that stands for most of the program counts for little, however many others there are.
        """
        list(self._closed(fit.opened))  # all of them have their shares
        total = self._told(fit.opened, set())
        hard = _CROSSING * fit.box.crossings + _CUT * fit.box.wraps
        return math.exp(total) * (1.0 - hard / max(fit.box.boxes, 1))

    def _news(self, group: Item) -> float:
        """What opening a group tells: its share of the program times how evenly its boxes share it, as an entropy."""
        news = self._known_news.get(id(group))
        if news is None:
            share, boxes = self._share[id(group)], self.outline.children(group)
            sizes = self._sizes(boxes)
            whole = sum(sizes) or 1.0
            for box, size in zip(boxes, sizes, strict=True):
                self._items[id(box)], self._share[id(box)] = box, share * size / whole
            news = -share * sum(size / whole * math.log(size / whole) for size in sizes if size)
            self._known_news[id(group)] = news
        return news

    def _sizes(self, boxes: list[Item]) -> list[float]:
        """How large boxes of one group are beside each other: all rounds of a repeat, inputs and outputs nothing."""
        if any(box.kind == "lane" for box in boxes):
            return [_SHARES.get(box.name, 0.0) for box in boxes]
        lane = self._lane(boxes[0]) if boxes else self.outline.root
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

    def _told(self, groups: frozenset[int], seen: set[object]) -> float:
        """What open groups tell together beside those that were seen: those that look alike inside tell less."""
        total = 0.0
        items = map(self._items.__getitem__, groups)
        for item in sorted(items, key=lambda item: (-self._share[id(item)], item.start, item.depth)):
            kinds = self._kinds(item)
            alike = [kind in seen for kind in kinds]
            total += self._news(item) * (_SAME if alike[0] else _AGAIN if any(alike) else 1.0)
            seen.update(kinds)
        return total

    def _kinds(self, item: Item) -> list[object]:
        """By what a group is the same as another, and by what it looks like another."""
        is_named = bool(item.type) and item.type not in _CONTAINERS
        return [item.hash, (self._lane(item).name, item.type)] if is_named else [item.hash]

    def _lane(self, item: Item) -> Item:
        """The phase an item lies in; the root if there is only one."""
        while item.kind != "lane" and item.parent is not None:
            item = item.parent
        return item

    def _gain(self, move: frozenset[int], seen: set[object]) -> float:
        """What opening some groups tells, for each box that it adds."""
        boxes = sum(len(self.outline.children(self._items[number])) - 1 for number in move)
        return self._told(move, set(seen)) / max(boxes, 1)

    # -- moves ---------------------------------------------------------------------------------------------------------

    def _closed(self, opened: frozenset[int]) -> Iterator[Item]:
        stack = [self.outline.root]
        while stack:
            group = stack.pop()
            self._news(group)  # tells its boxes their shares
            for item in self.outline.children(group):
                if id(item) in opened:
                    stack.append(item)
                elif self.outline.can_open(item):
                    yield item

    def _moves(self, opened: frozenset[int], every: bool = False) -> list[frozenset[int]]:
        """What could be opened next: whole classes of groups, and some of each, or every one, as examples.

        What tells most for each box comes first.
        """
        classes: dict[tuple[int, str, str, str], list[Item]] = {}
        deepest = self._deepest(opened)
        for item in self._closed(opened):
            if self._may_open(item, deepest):
                key = (item.depth, self._lane(item).name, item.kind, item.type or item.name)
                classes.setdefault(key, []).append(item)
        seen: set[object] = {kind for number in opened for kind in self._kinds(self._items[number])}
        ranked: list[tuple[float, list[frozenset[int]]]] = []
        for items in classes.values():
            siblings: dict[int, list[Item]] = {}
            for item in sorted(items, key=lambda item: -self._share[id(item)]):
                siblings.setdefault(id(item.parent), []).append(item)
            largest = sorted(siblings.values(), key=lambda some: -sum(self._share[id(item)] for item in some))[
                :_EXAMPLES
            ]
            examples = [items, *largest, *([item] for some in largest for item in some[:_EXAMPLES])]
            through = [self._through(some, deepest) for some in examples]
            plain = [frozenset(map(id, some)) for some in examples]
            rest = [frozenset({id(item)}) for item in items] if every else []
            for moves in (through, plain, *([move] for move in rest)):
                ranked.append((max(self._gain(move, seen) for move in moves), moves))
        ranked.sort(key=lambda entry: -entry[0])
        return list(dict.fromkeys(move for _, moves in ranked for move in moves))

    def _deepest(self, opened: frozenset[int]) -> float:
        """How deep the phases after forward may be opened: as deep as forward is, for what they do follows from it."""
        if all(self._lane(item).name != _FIRST for item in self._closed(opened)):
            return math.inf  # all of it, or there is none
        found = map(self._items.__getitem__, opened)
        return max((item.depth for item in found if self._lane(item).name == _FIRST), default=1)

    def _may_open(self, item: Item, deepest: float) -> bool:
        return item.depth <= deepest or self._lane(item).name in ("", _FIRST)

    def _through(self, items: list[Item], deepest: float) -> frozenset[int]:
        """Groups, with those inside that are nearly all of them: a frame around one closed box tells little."""
        opened, stack = set[int](), list(items)
        while stack:
            item = stack.pop()
            opened.add(id(item))
            self._news(item)
            for box in self.outline.children(item):
                is_all = self._share[id(box)] >= _ALL * self._share[id(item)] and self.outline.can_open(box)
                if is_all and self._may_open(box, deepest) and len(self.outline.children(box)) <= _MANY:
                    stack.append(box)
        return frozenset(opened)
