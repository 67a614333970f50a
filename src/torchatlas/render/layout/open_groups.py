"""A page and a smallest text size -> which groups are open, and how large the layout is drawn.

A picture shows as much of a program as its page holds: every text can be read, and no two lines lie on each other.
Groups are opened in one order, whatever the page: from the outside in, forward before backward before the optimizer, at
one depth by the share of the program they stand for, equal groups together, small ops between modules last of all.
A page opens the longest beginning of this order that fits it, so that a larger page never shows less.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from torchatlas.render.layout.box_words import BoxWords
from torchatlas.render.layout.boxes import Box, BoxMaker, Share
from torchatlas.render.layout.importance import Importance
from torchatlas.render.layout.outline import Item, Outline
from torchatlas.render.layout.style import STYLE

_COMFORTABLE = 11.0  # pixels: larger text is hardly easier to read
_COMFORTABLE_TYPE = 9.0  # and on paper, which is held nearer to the eye
_WRAP_PRICE = 72.0  # pixels of height that must be saved by one more column, where height counts
LARGEST = 24.0  # pixels
_LATER = {"backward": 2, "other": 4, "optimizer": 4}  # levels by which a phase is opened later than forward
_ASIDE = 8  # and by which iterations are that show less than another: later than all that most models have
_HEIGHTS = 16  # heights that are tried between powers of two, so that a larger page tries those of a smaller one
_TOO_WIDE = 1.125  # a lower layout is wider, give or take an eighth
# What a closed box takes at least, with the gaps around it.
_SMALLEST_AREA = (STYLE.least_width + STYLE.box_gap) * (STYLE.least_height + STYLE.rank_gap)


@dataclass(frozen=True)
class Fit:
    """A layout, how much it is to be scaled, and the groups that are open in it."""

    box: Box = field(repr=False)
    scale: float
    opened: frozenset[Item] = field(repr=False)

    @property
    def smallest_text(self) -> float:
        """The size of the smallest text, in pixels."""
        return STYLE.small_text * self.scale


def opening_order(outline: Outline, importance: Importance, depth: int | None = None) -> Iterator[list[Item]]:
    """The groups to open together, step by step; the first step is the root. Outer groups come before inner ones.
    Modules at the last of `depth` levels stay closed."""
    closed: dict[Hashable, list[Item]] = {}  # by kind
    opened_kinds = set[Hashable]()

    def rank(kind: Hashable) -> tuple[bool, int, float]:
        group = closed[kind][0]
        later = _LATER.get(importance.phase(group), 0) + _ASIDE * importance.is_aside(group)
        return outline.can_open(group), -group.depth - later, importance.share(group)

    step = [outline.root]
    while step:
        for group in step:  # grows: groups inside of a kind that is open are opened, too
            for child in outline.children(group):
                if child.is_leaf or (outline.modules_only and not outline.can_open(child)):
                    continue
                if depth is not None and child.kind == "module" and _level(outline, child) >= depth:
                    continue
                kind = importance.kind(child)
                if kind in opened_kinds:
                    step.append(child)
                else:
                    closed.setdefault(kind, []).append(child)
        yield step
        kind = max(closed, key=rank, default=None)
        opened_kinds.add(kind)
        step = closed.pop(kind, [])


def _level(outline: Outline, item: Item) -> int:
    """How many modules there are from the page down to this item, without the model itself: phases, loops and runs of
    ops are no level."""
    graph, level, at = outline.tree.graph, 0, item
    while at.parent is not None:
        if at.kind == "module" and at.call >= 0:
            level += bool(graph.tables.modules[graph.columns["call_module"].item(at.call)].path)
        at = at.parent
    return level


class Opener:
    """Opens the groups of an outline on a page of so many pixels, with no text smaller than `font`."""

    def __init__(
        self,
        outline: Outline,
        words: BoxWords,
        width: float,
        height: float,
        font: float,
        smallest_box: float = 0.0,
        *,
        largest: float = LARGEST,
        depth: int | None = None,
        saves_height: bool = False,
        sideways: bool = False,
    ) -> None:
        self.outline, self.sideways = outline, sideways
        self.width, self.height = (height, width) if sideways else (width, height)  # as boxes.py has them
        self.least = font / STYLE.small_text  # the smallest scale at which all text can be read
        self.most = max(largest / STYLE.small_text, self.least)
        self.depth = depth  # levels of modules that may be shown
        self.saves_height = saves_height  # the page ends where the layout does: it should not be higher than needed
        self.importance = Importance(outline, words)
        self.refused: Item | None = None  # the group that did not fit any more
        self._maker = BoxMaker(outline, words, smallest_box / self.least, self.width / self.least, sideways)

    def fit(self) -> Fit:
        """The best layout of all that fits. If not even the outermost boxes fit, its scale is less than `least`."""
        order = opening_order(self.outline, self.importance, self.depth)
        opened = frozenset(next(order))
        for step in order if self._fits(opened, self.least) else ():
            least = self.least
            if not self.outline.can_open(step[0]):  # small ops are opened only where text stays comfortable
                least = max(least, _COMFORTABLE / STYLE.small_text)
            if not self._fits(opened.union(step), least):
                self.refused = step[0]
                break
            opened = opened.union(step)
        return max(self._layouts(opened, 3 if self.saves_height else 1), key=self._quality)

    @property
    def work(self) -> int:
        """How many lines between ranks were laid out so far."""
        return self._maker.work

    def _quality(self, fit: Fit) -> tuple[bool, int, float, float]:
        """Sort key of layouts: those that can be read, then larger text up to a comfortable size, then fewer columns,
        then larger text. Where height counts, a lower layout comes before larger text."""
        readable, wraps = fit.scale >= self.least, fit.box.wraps
        if self.saves_height:
            height = (fit.box.width if self.sideways else fit.box.height) * fit.scale + _WRAP_PRICE * wraps
            return readable, int(min(fit.smallest_text, _COMFORTABLE_TYPE)), -height, fit.scale
        return readable, int(min(fit.smallest_text, _COMFORTABLE)), -wraps, fit.scale

    def _fits(self, opened: frozenset[Item], least: float) -> bool:
        """Whether a layout with these groups open can be drawn at a scale of at least `least`."""
        boxes = sum(self.importance.count(group) - 1 for group in opened)
        if boxes * _SMALLEST_AREA * self.least**2 > self.width * self.height:
            return False
        return any(fit.scale >= least for fit in self._layouts(opened))

    def _layouts(self, opened: frozenset[Item], octaves: int = 1) -> Iterator[Fit]:
        """Layouts with these groups open, from the highest that the page holds down to those that are too wide, or
        lower by `octaves` powers of two."""
        highest = math.ceil(_HEIGHTS * math.log2(max(self.height / self.least, 1.0)))
        for share in (Share.GUESSED, Share.WHOLE):
            best, lowest, is_cramped = self.least, math.inf, False
            for height in (2 ** (step / _HEIGHTS) for step in range(highest, highest - octaves * _HEIGHTS - 1, -1)):
                if lowest <= height:  # the layout before was as low as this
                    continue
                box = self._maker.box(self.outline.root, opened, height, share)
                across, down = self.width / max(box.width, 1), self.height / max(box.height, 1)
                scale = min(across, down, self.most)
                yield Fit(box, 0.0 if box.tangles else scale, opened)
                best, lowest, is_cramped = max(best, scale), box.height, is_cramped or box.cramped
                if across * _TOO_WIDE < (best if across < down else self.least):
                    break
            if not is_cramped:
                break
