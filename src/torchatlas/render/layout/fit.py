"""A page and a smallest text size -> which groups are open, so that as much as possible is shown and all is readable."""

from __future__ import annotations

from dataclasses import dataclass

from torchatlas.render.layout.boxes import SMALL, Box, BoxMaker
from torchatlas.render.layout.labels import Labels
from torchatlas.render.layout.outline import Item, Outline

_LARGEST = 1.7  # text is not blown up further than this, however empty the page
_HEIGHTS = (1.0, 0.93, 0.86, 0.8, 0.74, 0.68, 0.62, 0.56, 0.5, 0.44, 0.38, 0.32, 0.26)
_QUICK = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
_CLOSED = ("functional",)  # kinds that are not opened by themselves
_SECOND_PASS = 24  # groups that are tried one by one with what room is left
_MISSES = 4


@dataclass
class Fit:
    """A layout, how much it is to be scaled, and the groups that are open in it."""

    box: Box
    scale: float
    opened: frozenset[int]


class Fitter:
    """Tries what can be open on a page."""

    def __init__(self, outline: Outline, labels: Labels, width: float, height: float, font: float, box: float = 0.0):
        self.outline, self.width, self.height = outline, width, height
        self.least = font / SMALL  # the smallest scale at which all text can be read
        self.maker = BoxMaker(outline, labels, box / self.least)

    def scaled(self, opened: frozenset[int], quick: bool = False) -> Fit:
        """The best of several heights: past a comfortable size of text fewer columns are better than larger text."""
        best, most = None, -1e9
        for part in _QUICK if quick else _HEIGHTS:
            box = self.maker.box(self.outline.root, opened, self.height / self.least * part)
            scale = min(self.width / max(box.width, 1), self.height / max(box.height, 1), _LARGEST)
            score = (scale if scale < 1 else 1 + 0.35 * (scale - 1)) - 0.025 * box.wraps
            if score > most:
                best, most = Fit(box, scale, opened), score
            if quick and scale >= self.least:
                break
        assert best is not None
        return best

    def fits(self, opened: frozenset[int]) -> bool:
        return self.scaled(opened, quick=True).scale >= self.least

    def fit(self) -> Fit:
        root = self.outline.root
        opened, tried = frozenset({id(root)}), set[int]()
        while True:
            classes: dict[tuple[int, str, str], list[Item]] = {}
            for item in self._closed(opened):
                if id(item) not in tried:
                    classes.setdefault((item.depth, item.kind, item.type or item.name), []).append(item)
            if not classes:
                break
            key = min(classes, key=lambda key: _order(key, classes[key], self.maker.labels))
            items = classes[key]
            trial = opened | {id(item) for item in items}
            if self.fits(trial):
                opened = trial
                continue
            tried |= {id(item) for item in items}
            if len(items) > 1:
                opened = self._with_one(opened, items)
        return self.scaled(self._with_more(opened))

    def _closed(self, opened: frozenset[int]) -> list[Item]:
        found, stack = [], [self.outline.root]
        while stack:
            for item in self.outline.children(stack.pop()):
                if item.is_leaf or item.kind in _CLOSED:
                    continue
                if id(item) in opened:
                    stack.append(item)
                else:
                    found.append(item)
        return found

    def _with_one(self, opened: frozenset[int], items: list[Item]) -> frozenset[int]:
        """Open one of a class as an example: the largest of a few that still fits."""
        distinct = sorted({item.hash: item for item in reversed(items)}.values(), key=lambda item: item.start - item.stop)
        some = distinct if len(distinct) < 4 else [distinct[0], distinct[len(distinct) // 2], distinct[-1]]
        for item in some:
            if self.fits(opened | {id(item)}):
                return opened | {id(item)}
        return opened

    def _with_more(self, opened: frozenset[int]) -> frozenset[int]:
        """Spend what room is left on further groups, one by one."""
        misses = 0
        for item in sorted(self._closed(opened), key=lambda item: item.depth)[:_SECOND_PASS]:
            if self.fits(opened | {id(item)}):
                opened = opened | {id(item)}
            else:
                misses += 1
            if misses > _MISSES:
                break
        return opened


def _order(key: tuple[int, str, str], items: list[Item], labels: Labels) -> tuple[int, int, int]:
    """Which class to open next: the outermost, then the one with the most parameters, then with the most ops."""
    parameters = max(labels.parameters(item) for item in items)
    return key[0], -parameters, -sum(item.stop - item.start for item in items)
