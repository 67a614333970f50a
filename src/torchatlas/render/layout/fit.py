"""A page and a smallest text size -> which groups are open, so that as much as possible is shown and all is readable.

A beam search: from a few best sets of open groups at a time, open one more class of groups, or one group as an example,
what tells most first. Then room that is left is filled, and what was opened first is given up where something else
would tell more. Opening one by one without looking back would let the picture jump when the page grows by a hair.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

from torchatlas.render.layout.areas import SMALLEST, Areas
from torchatlas.render.layout.boxes import Box, BoxMaker, Share
from torchatlas.render.layout.labels import Labels
from torchatlas.render.layout.outline import Item, Outline
from torchatlas.render.layout.shares import FORWARD, PHASES, Shares
from torchatlas.render.layout.words import SMALL, WIDEST

_HEIGHTS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72, 0.68, 0.62, 0.56, 0.5, 0.44, 0.38, 0.32)
_QUICK = (1.0, 0.92, 0.84)  # lower ones are only wider
_HOPELESS = 0.88  # at less than this of the smallest, or the best, scale another height does not help
_COMFORTABLE = 11.0  # text of this size is large enough
_LARGEST = 24.0
_FULL = 0.42  # boxes with their gaps never filled more of a page than this
_CROWDED = 1.2  # nearly nothing ever fitted that would take more of a page than this by what fitted before
_TIGHT = 2.2  # boxes that take more of the page than this hardly fit however they are laid out
_PROMISING = 1.1  # and only for what would tell so much more than the best so far
_SPARE_MISSES, _SPARE_WORK = 8, 900  # so much for trials with all the height there is
_MOST_TRIALS = 50
_FRUITLESS, _HARDLY_MORE = 6, 1.01  # after so many misses, what would tell less than so much more is not tried
_BEHIND = 0.5  # a set that is worth less than so much of the best one is not followed any further
_EXAMPLES = 2  # so many of a class are tried when not all of it fits
_MOST_WORK = 1_800  # lines between ranks: a third of a second or so
_THICKET = 2.0  # times that, and nothing is searched for in a single group either
_USUAL_PAGE = 1600 * 1200
_MISSES = 8  # so many groups that do not fit any more, and the page is full
_ALL, _MANY = 0.85, 20  # a box that stands for so much of its group is opened with it, if it has no more boxes
_LOSS = 0.03  # opening a group where there is room left may lose so much of what all is worth
_MORE = 1.05  # a miss of what would not tell so much more counts twice
_FILLED, _SWAPPED = 1.5, 1.0  # of the most work: when filling, and swapping after it, end
_FEW_MISSES = 4
_SWAPS = 12  # so many are tried
_LOOKED_AT = 8  # so many that tell least are looked at, to be closed, and so many that tell most, to be opened
_LARGER = 3.0  # what it counts against a swap if boxes take more of the page than before
_SMALL_OPS = 6  # so many boxes of small ops are tried to be opened
_LITTLE = 0.25  # a phase that adds less than this may be closed again
_POOR = 6.0  # a picture that counts as fewer boxes than this tells little
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
        self,
        outline: Outline,
        labels: Labels,
        width: float,
        height: float,
        font: float,
        smallest_box: float = 0.0,
        text_room: float = WIDEST,
    ) -> None:
        self.outline, self.labels, self.width, self.height = outline, labels, width, height
        self.least = font / SMALL  # the smallest scale at which all text can be read
        self.maker = BoxMaker(outline, labels, smallest_box / self.least, width / self.least, text_room)
        self.trials = 0
        self._spare_work, self._spare_misses = 0, 0.0
        self._misses = 0  # since something fitted
        self._best = 0.0  # what the best set that fits is worth
        self._shares_of: dict[frozenset[int], Share] = {}  # sets that fit -> with which share of the height, if unusual
        self._most_work = _MOST_WORK * max(1.0, width * height / _USUAL_PAGE)  # a poster is worth more of it
        self.maker.limit(_THICKET * self._most_work)
        self._failed: set[frozenset[int]] = set()
        self._refused: dict[frozenset[int], list[frozenset[int]]] = {}  # moves -> what was open when they did not fit
        self._hopeless: set[tuple[frozenset[int], Hashable]] = set()  # what was open, and the kind of move
        self._taken: dict[frozenset[int], tuple[float, float]] = {}  # sets that fit -> their boxes, and of the page
        self._told: dict[frozenset[int], float] = {}  # what sets of open groups tell
        self._classes: dict[int, tuple[int, str, str, str]] = {}  # by the ids of items
        self.shares = Shares(outline, labels)
        self._areas = Areas(outline, self.maker, self.shares)
        self._items, self._share, self._lane = self.shares.items, self.shares.of, self.shares.lane

    def fit(self) -> Fit:
        start = frozenset({id(self.outline.root)})
        first = self._scaled(start, _QUICK, enough=self.least)
        if first.scale < self.least:  # not even the outermost boxes fit: somebody must cut them first
            return first
        best = beam = [(self.worth(first), start)]
        seen = {start}
        for spread in self._spreads(start):
            seen.add(spread)
            fit = self._tried(spread)
            if self._fits(fit):
                best = beam = [(self.worth(fit), spread), *beam]
                break
        while beam and not self._is_spent:
            found = []
            for _, opened in beam:
                fitting = 0
                for move in self._moves(opened):
                    trial = opened | move
                    if trial in seen or self._is_refused(move, opened) or self._is_idle(trial):
                        continue
                    seen.add(trial)
                    fit = self._tried(trial)
                    if self._fits(fit):
                        found.append((self.worth(fit), trial))
                        fitting += 1
                    else:
                        self._refuse(move, opened, fit)
                    if fitting == self._width or self._is_spent:
                        break
            found.sort(key=lambda entry: -entry[0])
            beam = [entry for entry in found[: self._width] if entry[0] > _BEHIND * best[0][0]]
            if beam and beam[0][0] > best[0][0] * (1.0 - _LOSS):  # as good, and more is open
                best = beam[:1]
        _, opened = self._swapped(*self._without_lanes(*self._filled(*best[0], _MISSES)))
        share = self._shares_of.get(opened, Share.GUESSED)
        return self._with_small_ops(self._scaled(opened, _HEIGHTS if share == Share.GUESSED else _QUICK, share=share))

    def _with_small_ops(self, fit: Fit) -> Fit:
        """Small ops between modules are opened last, those of forward first, where text stays large enough all the
        same: they may be what a model is about, but seldom are."""
        enough = max(_COMFORTABLE / SMALL, self.least)
        if self.outline.modules_only or fit.scale < enough:
            return fit
        for item in self._small_ops(fit.opened)[:_SMALL_OPS]:
            opened = fit.opened | {id(item)}
            trial = self._scaled(opened, _HEIGHTS, enough)
            if trial.scale >= enough and self.worth(trial) > self.worth(fit) * (1.0 - _LOSS):
                fit = self._scaled(opened, _HEIGHTS)
        return fit

    def _small_ops(self, opened: frozenset[int]) -> list[Item]:
        """The closed boxes of small ops, the largest first."""
        groups = [self._items[number] for number in opened]
        found = [item for group in groups for item in self.outline.children(group) if item.kind == "functional"]
        found = [item for item in found if id(item) not in opened]
        return sorted(found, key=lambda item: (self._lane(item).name != FORWARD, -self._share[id(item)], item.start))

    def _fits(self, fit: Fit | None) -> TypeGuard[Fit]:
        return fit is not None and fit.scale >= self.least

    def _rank(self, fit: Fit) -> tuple[float, float]:
        """What can be read comes before what reads well: a cut less does not make up for text that is too small."""
        return min(fit.scale, self.least), fit.score

    def _spreads(self, start: frozenset[int]) -> Iterator[frozenset[int]]:
        """Phases find their places best when they are open from the start: all of them or, where they do not fit, the
        first ones."""
        lanes = [item for item in self._closed(start) if item.kind == "lane"]
        forward = [item for item in lanes if item.name == FORWARD]
        after = [item for item in lanes if item.name != FORWARD]
        spread = start | self._through(forward, math.inf)
        for names in (PHASES, ("backward",), ()):
            more = [item for item in after if item.name in names]
            if more or (forward and not names):
                yield spread | self._through(more, self._deepest(spread))

    @property
    def _work(self) -> int:
        return self.maker.work - self._spare_work

    @property
    def _is_spent(self) -> bool:
        return self.trials >= _MOST_TRIALS or self._work >= self._most_work

    @property
    def _width(self) -> int:
        """How many sets are kept, and how many moves of each: one where every trial is dear."""
        return 1 if self._work * _MOST_TRIALS > 2 * self._most_work * self.trials else 2

    def _filled(self, worth: float, opened: frozenset[int], most: int) -> tuple[float, frozenset[int]]:
        """Spend what room is left on single groups, the largest share first, where that does not tangle the picture."""
        misses = 0
        while misses < most and self._work < _FILLED * self._most_work:
            for move in self._moves(opened, every=True):
                trial = opened | move
                if self._is_refused(move, opened) or self._is_idle(trial):
                    continue
                fit = self._tried(trial)
                # What is inside may be worth the cut that opening it costs; nothing is worth a thicket of lines.
                if self._fits(fit) and self.worth(fit) > worth * (1.0 - _LOSS):
                    worth, opened = self.worth(fit), trial
                    break
                self._refuse(move, opened, fit)
                misses += 1 if self._tells(trial) > worth * _MORE else 2
                if misses >= most or self._work >= _FILLED * self._most_work:
                    return worth, opened
            else:
                break
        return worth, opened

    def _without_lanes(self, worth: float, opened: frozenset[int]) -> tuple[float, frozenset[int]]:
        """Close a phase that tells little if what can be opened instead tells more: it may take half of the page."""
        lanes = [item for item in self.outline.children(self.outline.root) if item.kind == "lane"]
        for lane in lanes[::-1]:
            trial = opened - self._inside(lane, opened)
            lost = self.shares.told(opened) - self.shares.told(trial)
            if lane.name == FORWARD or not 0 < lost < _LITTLE or self._work >= _SWAPPED * self._most_work:
                continue
            fit = self._tried(trial)
            if self._fits(fit):
                filled = self._filled(self.worth(fit), trial, _FEW_MISSES)
                worth, opened = filled if filled[0] > worth * (1.0 + _LOSS) else (worth, opened)
        return worth, opened

    def _swapped(self, worth: float, opened: frozenset[int]) -> tuple[float, frozenset[int]]:
        """Close something and open something else instead, while that tells more: what came first took the room."""
        left = _SWAPS
        found = self._swaps(worth, opened)
        while found and left and self._work < _SWAPPED * self._most_work:
            trial, left = found.pop(0), left - 1
            fit = self._tried(trial)
            if self._fits(fit) and self.worth(fit) > worth * (1.0 + _LOSS):
                worth, opened = self._filled(self.worth(fit), trial, _FEW_MISSES)
                found = self._swaps(worth, opened)
            else:
                self._failed.add(trial)
        return worth, opened

    def _swaps(self, worth: float, opened: frozenset[int]) -> list[frozenset[int]]:
        """Sets with one group, or one class of them, closed and others opened, that would tell more; the best first."""
        groups = [self._items[number] for number in opened if number != id(self.outline.root)]
        groups.sort(key=lambda item: (item.start, item.depth))
        inside = {id(item): self._inside(item, opened) for item in groups}
        classes: dict[object, frozenset[int]] = {}
        for item in groups:
            key = self._class(item)
            classes[key] = classes.get(key, frozenset()) | inside[id(item)]
        told, area = self.shares.told(opened), self._areas.of(opened)
        losses: dict[frozenset[int], float] = {}
        for closed in (*inside.values(), *classes.values()):
            if closed not in losses:
                losses[closed] = (told - self.shares.told(opened - closed)) / self._added(closed)
        victims = sorted(losses, key=lambda closed: losses[closed])[:_LOOKED_AT]
        victims += [inside[id(item)] for item in groups if item.kind == "lane" and inside[id(item)] not in victims]
        moves = self._moves(opened, every=True)[:_LOOKED_AT]
        trials = {(opened - closed) | move: None for closed in victims for move in moves if not move & closed}
        for item in self._closed(opened):  # the larger of two alike
            for other in groups:
                if self._class(item) == self._class(other) and self._share[id(item)] > self._share[id(other)]:
                    trials[(opened - inside[id(other)]) | self._like(other, item, opened)] = None
        found: dict[frozenset[int], float] = {}
        for trial in trials:
            if trial not in self._failed and self._is_whole(trial):
                tells = self._tells(trial)
                if tells > worth * (1.0 + _LOSS):
                    found[trial] = math.log(tells) - _LARGER * max(0.0, self._areas.of(trial) / area - 1.0)
        return sorted(found, key=lambda trial: -found[trial])

    def _like(self, other: Item, item: Item, opened: frozenset[int]) -> frozenset[int]:
        """A group, open as far as another of its class is."""
        found, stack = set[int](), [(other, item)]
        while stack:
            model, copy = stack.pop()
            found.add(id(copy))
            self.shares.spread(copy)
            for one, two in zip(self.outline.children(model), self.outline.children(copy), strict=False):
                if id(one) in opened and self._class(one) == self._class(two) and self.outline.can_open(two):
                    stack.append((one, two))
        return frozenset(found)

    def _class(self, item: Item) -> tuple[int, str, str, str]:
        found = self._classes.get(id(item))
        if found is None:
            found = item.depth, self._lane(item).name, item.kind, item.type or item.name
            self._classes[id(item)] = found
        return found

    def _inside(self, item: Item, opened: frozenset[int]) -> frozenset[int]:
        """An open group and all that is open in it."""
        found, stack = set[int](), [item]
        while stack:
            group = stack.pop()
            found.add(id(group))
            stack += [child for child in self.outline.children(group) if id(child) in opened]
        return frozenset(found)

    def _is_whole(self, opened: frozenset[int]) -> bool:
        """Whether every open group lies in an open one, and none after forward is deeper than that."""
        deepest = self._deepest(opened)
        inner = [item for item in map(self._items.__getitem__, opened) if item.parent is not None]
        return all(id(item.parent) in opened and self._may_open(item, deepest) for item in inner)

    def _refuse(self, move: frozenset[int], opened: frozenset[int], fit: Fit | None) -> None:
        """Remember what did not fit: for this set only, if another place for the rest might still help."""
        self._failed.add(opened | move)
        self._misses += 1
        if fit is None or fit.scale < self.least * _HOPELESS:
            self._refused.setdefault(move, []).append(opened)
            self._hopeless.add((opened, self._kind(move)))

    def _is_refused(self, move: frozenset[int], opened: frozenset[int]) -> bool:
        """Whether there was no room for a move when less was open, or for one that is just like it."""
        if opened | move in self._failed or (len(move) > 1 and (opened, self._kind(move)) in self._hopeless):
            return True
        return any(before <= opened for before in self._refused.get(move, ()))

    def _kind(self, move: frozenset[int]) -> frozenset[tuple[object, int]]:
        """How many groups of each class a move opens."""
        return frozenset(Counter(self._class(self._items[number]) for number in move).items())

    # -- trying --------------------------------------------------------------------------------------------------------

    def _tried(self, opened: frozenset[int]) -> Fit | None:
        """How a set of open groups fits; None if it plainly cannot."""
        if len(opened) > 1 and (not self._has_room(opened) or self._is_crowded(opened)):
            return None
        self.trials += 1
        before = self.maker.work
        fit = self._scaled(opened, _QUICK, self.least)
        cost = self.maker.work - before
        if self._fits(fit):
            self._note(fit)
            return fit
        if not self._is_cramped(fit.box) or self._tells(opened) < _PROMISING * self._best:
            return fit
        for share in (Share.WHOLE, Share.MEASURED):
            if not self._may_spare(cost):
                break
            before = self.maker.work
            other = self._scaled(opened, _QUICK, self.least, share=share)
            self._spare_work += self.maker.work - before
            self._spare_misses += 0.5 * (not self._fits(other))
            if self._fits(other):
                self._shares_of[opened] = share
                self._note(other)
                return other
            if other.box.width == fit.box.width:  # height is not what it lacks
                break
        return fit

    def _note(self, fit: Fit) -> None:
        """Something fits: there may be room for more."""
        self._best, self._misses = max(self._best, self.worth(fit)), 0
        taken = fit.box.width * fit.box.height * self.least**2 / (self.width * self.height)
        self._taken[fit.opened] = self._areas.of(fit.opened), taken

    def _is_idle(self, opened: frozenset[int]) -> bool:
        """Whether it is not worth trying any more what would tell hardly more than the best, as the page seems full."""
        return self._misses >= _FRUITLESS and self._tells(opened) < _HARDLY_MORE * self._best

    def _is_crowded(self, opened: frozenset[int]) -> bool:
        """Whether more than the page would be taken if that grew as the boxes do, from what was open when it fitted."""
        area, taken = max((self._taken[few] for few in self._taken if few < opened), default=(1.0, 0.0))
        return taken * self._areas.of(opened) > _CROWDED * area

    def _may_spare(self, cost: int) -> bool:
        """Whether a trial of such a cost may be laid out again, with all the height there is. That has a purse of its
        own, so that it never takes anything from what else is tried."""
        larger = self._most_work / _MOST_WORK
        return self._spare_misses < _SPARE_MISSES * larger and self._spare_work + cost < _SPARE_WORK * larger

    def _is_cramped(self, box: Box) -> bool:
        """Whether what is too wide might fit if it was higher: laid out otherwise it takes about as much of a page."""
        return box.cramped and box.width * box.height * self.least**2 < _TIGHT * self.width * self.height

    def _scaled(
        self, opened: frozenset[int], heights: tuple[float, ...], enough: float = 1e9, *, share: Share = Share.GUESSED
    ) -> Fit:
        """The best of several heights, or the first that is good enough."""
        best: Fit | None = None
        for part in heights:
            box = self.maker.box(self.outline.root, opened, self.height / self.least * part, share)
            across, down = self.width / max(box.width, 1), self.height / max(box.height, 1)
            scale = min(across, down, max(_LARGEST / SMALL, self.least))
            if box.tangles:  # lines on each other are as bad as text that cannot be read
                scale = min(scale, self.least * 0.99)
            fit = Fit(box, scale, opened)
            if best is None or self._rank(fit) > self._rank(best):
                best = fit
            too_wide = across < down and across < best.scale * _HOPELESS  # and wider still when it is lower
            if scale >= enough or too_wide or (heights is _QUICK and scale < self.least * _HOPELESS):
                break
            # What lies side by side already may become narrower when it is lower; nothing else does.
            is_plain = share == Share.GUESSED and not self.shares.has_lanes
            if heights is _QUICK and across < min(down, self.least) and is_plain:
                break
        assert best is not None
        return best

    def _has_room(self, opened: frozenset[int]) -> bool:
        """Whether a page can hold the closed boxes, with the gaps around them; they need not be made if it could not
        even hold so many of the smallest."""
        room = _FULL * self.width * self.height / self.least**2
        many = 1 + sum(self.shares.inside(self._items[number]).many - 1 for number in opened)
        return many * SMALLEST <= room and self._areas.of(opened, room) <= room

    def worth(self, fit: Fit) -> float:
        """As how many boxes a picture counts that would all stand for equally much, less what makes it hard to read.

        So a box that stands for most of the program counts for little, however many others there are.
        """
        hard = _CROSSING * fit.box.crossings + _CUT * fit.box.wraps
        return self._tells(fit.opened) * (1.0 - hard / max(fit.box.boxes, 1))

    def is_poor(self, fit: Fit) -> bool:
        """Whether a picture tells little and something in it is closed that could be opened."""
        return self.worth(fit) < _POOR and any(True for _ in self._closed(fit.opened))

    def most_inside(self, fit: Fit) -> int:
        """How many boxes the largest of the groups has that are closed in a picture."""
        return max((self.shares.inside(item).many for item in self._closed(fit.opened)), default=0)

    def _tells(self, opened: frozenset[int]) -> float:
        """The same before anything is laid out: no picture of these open groups is worth more."""
        found = self._told.get(opened)
        if found is None:
            found = self._told[opened] = math.exp(self.shares.told(opened))
        return found

    def _gain(self, move: frozenset[int], seen: set[object]) -> float:
        """What opening some groups tells, for each box that it adds."""
        return self.shares.told(move, seen) / self._added(move)

    def _added(self, groups: Iterable[int]) -> int:
        """How many boxes more there are when groups are open; at least one."""
        return max(sum(self.shares.inside(self._items[number]).many - 1 for number in groups), 1)

    # -- moves ---------------------------------------------------------------------------------------------------------

    def _closed(self, opened: frozenset[int]) -> Iterator[Item]:
        stack = [self.outline.root]
        while stack:
            group = stack.pop()
            self.shares.spread(group)
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
                classes.setdefault(self._class(item), []).append(item)
        seen: set[object] = {kind for number in opened for kind in self.shares.kinds(self._items[number])}
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
            for moves in (through, *([plain] if plain != through else ()), *([move] for move in rest)):
                ranked.append((max(self._gain(move, seen) for move in moves), moves))
        ranked.sort(key=lambda entry: -entry[0])
        return list(dict.fromkeys(move for _, moves in ranked for move in moves))

    def _deepest(self, opened: frozenset[int]) -> float:
        """How deep the phases after forward may be opened: as deep as forward is, for what they do follows from it."""
        if not self.shares.has_lanes or all(self._lane(item).name != FORWARD for item in self._closed(opened)):
            return math.inf  # all of it, or there is none
        found = map(self._items.__getitem__, opened)
        return max((item.depth for item in found if self._lane(item).name == FORWARD), default=1)

    def _may_open(self, item: Item, deepest: float) -> bool:
        return item.depth <= deepest or self._lane(item).name in ("", FORWARD)

    def _through(self, items: list[Item], deepest: float) -> frozenset[int]:
        """Groups, with those inside that are nearly all of them: a frame around one closed box tells little."""
        opened, stack = set[int](), list(items)
        while stack:
            item = stack.pop()
            opened.add(id(item))
            if self.shares.inside(item).largest < _ALL:
                continue
            self.shares.spread(item)
            for box in self.outline.children(item):
                is_all = self._share[id(box)] >= _ALL * self._share[id(item)] and self.outline.can_open(box)
                if is_all and self._may_open(box, deepest) and len(self.outline.children(box)) <= _MANY:
                    stack.append(box)
        return frozenset(opened)
