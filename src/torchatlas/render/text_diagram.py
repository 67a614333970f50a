"""Graph -> what a text format shows of it: nested parts with their words, and the lines between the closed ones.

The tree, the folding, the words and the order in which groups are opened are those of the picture. What is open is not
fitted to a page: whoever reads a DOT or Mermaid file lays it out, so only the number of boxes counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from torchatlas.errors import InvalidInputError
from torchatlas.escapes import clean
from torchatlas.graph import Graph
from torchatlas.graph.columns import KINDS, Array
from torchatlas.graph.nouns import NodeKind
from torchatlas.render.layout.box_words import BoxWords
from torchatlas.render.layout.importance import Importance
from torchatlas.render.layout.open_groups import opening_order
from torchatlas.render.layout.outline import MOST_CHILDREN, Item, Outline
from torchatlas.render.layout.tree import Tree, build
from torchatlas.render.layout.wiring import OUTPUTS, first_of_repeats
from torchatlas.render.theme import LIGHT

_FEWEST_CHILDREN = 14  # a group cut into fewer segments than this says little
_LONGEST = 80  # characters of a title or of the line below it
_PARALLEL = 3  # so many tensors between the same two boxes have a line each; more are one line


class LineKind(Enum):
    """What a line stands for."""

    TENSOR = "tensor"
    AGAIN = "again"  # what a repeat hands to its next round
    KEPT = "kept"  # all that one lane takes from another


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A box, or a frame with parts in it. Numbers count from 0 in the order of the text."""

    number: int
    kind: str  # an operation type, or one of: terminal, closed, open
    title: str
    subtitle: str
    depth: int
    repeat: int
    item: Item
    inner: tuple[Part, ...] = ()

    @property
    def is_open(self) -> bool:
        return bool(self.inner)

    def walk(self) -> Iterator[Part]:
        """This part and all parts in it, outer ones first."""
        yield self
        for part in self.inner:
            yield from part.walk()

    def boxes(self) -> list[Part]:
        """The closed parts in this one, or itself if it is closed."""
        return [part for part in self.walk() if not part.is_open]

    def colours(self) -> tuple[str, str, str]:
        """Fill, stroke and ink."""
        if self.kind == "terminal":
            fill, ink = LIGHT.terminal
            return fill, fill, ink
        if self.kind == "closed":
            return LIGHT.background, LIGHT.soft, LIGHT.ink
        if self.kind == "open":
            return LIGHT.tints[min(self.depth, len(LIGHT.tints) - 1)], LIGHT.line, LIGHT.ink
        fill, stroke = next(LIGHT.fills[type] for type in LIGHT.fills if type == self.kind)
        return fill, stroke, LIGHT.ink


@dataclass(frozen=True, slots=True)
class SketchLine:
    """From one part to another, by number. Only a KEPT one begins or ends at an open part."""

    source: int
    target: int
    label: str
    kind: LineKind = LineKind.TENSOR
    many: int = 1  # how many tensors it stands for


@dataclass(frozen=True, eq=False)
class Sketch:
    """All that is written down."""

    title: str
    parts: tuple[Part, ...]
    lines: tuple[SketchLine, ...]
    outline: Outline

    def walk(self) -> Iterator[Part]:
        for part in self.parts:
            yield from part.walk()


def sketch(graph: Graph | Tree, most_boxes: int) -> Sketch:
    """Open groups as pictures do while there are at most `most_boxes` boxes. The outermost are always shown."""
    if isinstance(most_boxes, bool) or not isinstance(most_boxes, int) or most_boxes < 1:
        raise InvalidInputError(f"most_boxes={most_boxes!r} is no number of boxes; pass a whole number from 1 on.")
    tree = build(graph) if isinstance(graph, Graph) else graph
    outline = Outline(tree, most_children=min(MOST_CHILDREN, max(most_boxes, _FEWEST_CHILDREN)))
    words = BoxWords(outline)
    return _Sketcher(outline, words, opened(outline, words, most_boxes)).sketch()


def opened(outline: Outline, words: BoxWords, most_boxes: int) -> set[Item]:
    """The groups to open: in the order of pictures, as many steps of it as leave at most so many boxes."""
    importance = Importance(outline, words)
    open_groups, boxes = set[Item](), 1
    for step in opening_order(outline, importance):
        boxes += sum(importance.count(group) - 1 for group in step)
        if open_groups and boxes > most_boxes:
            break
        open_groups.update(step)
    return open_groups


class _Sketcher:
    """Numbers what is visible, and finds for every leaf the box that stands for it."""

    def __init__(self, outline: Outline, words: BoxWords, opened: set[Item]) -> None:
        self.outline, self.words, self.opened, self.tree = outline, words, opened, outline.tree
        leaves = len(self.tree.node)
        self.count = 0
        self.box = np.full(leaves, -1, np.int64)  # leaf -> the number of its box
        self.lane = np.full(leaves, -1, np.int64)  # leaf -> the part that lines between lanes end at
        self.same = np.arange(leaves)  # leaf -> the one of the first round that stands for it
        self.is_first = np.ones(leaves, bool)  # whether it is in the first round of every visible repeat around it
        self.varies = np.zeros(leaves, bool)  # whether its shape is another in each round
        self.repeats: list[Item] = []  # the open ones
        self.items: dict[int, Item] = {}  # the closed ones, by number

    def sketch(self) -> Sketch:
        root = self.outline.root
        parts = tuple(self._part(item, 0, False) for item in self.outline.children(root))
        lines = [*self._tensors(), *self._again(), *self._kept()]
        return Sketch(_short(root.type), parts, tuple(lines), self.outline)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _part(self, item: Item, depth: int, in_lane: bool) -> Part:
        number, is_open = self.count, item in self.opened
        self.count += 1
        inner: tuple[Part, ...] = ()
        if is_open:
            within = in_lane or item.kind == "lane"
            inner = tuple(self._part(child, depth + 1, within) for child in self.outline.children(item))
        else:
            self.box[item.start : item.end] = number
            self.items[number] = item
        self._fold(item, is_open)
        if not in_lane and not item.is_leaf and (item.kind == "lane" or not is_open):  # else closed around lanes
            self.lane[item.start : item.end] = number
        title = _short(self.words.title(item))
        if not is_open and not item.is_leaf:
            title = f"+ {title}"
        if item.repeat > 1:
            title += f" ×{item.repeat:,}"
        subtitle = _short(self.words.heading(item) if is_open else self.words.subtitle(item))
        return Part(number, self._kind(item, is_open), title, subtitle, depth, item.repeat, item, inner)

    def _kind(self, item: Item, is_open: bool) -> str:
        if not item.is_leaf:
            return "open" if is_open else "closed"
        return "terminal" if self.outline.is_marker(item) else self.outline.operation_type(item).value

    def _fold(self, item: Item, is_open: bool) -> None:
        """Give every round of a repeat the numbers of the first round."""
        if item.repeat < 2:
            return
        first, rest = slice(item.start, item.stop), slice(item.stop, item.end)
        for column in (self.box, self.same, self.lane):
            column[rest] = np.tile(column[first], item.repeat - 1)
        self.varies[item.start : item.end] |= item.alike_only
        self.is_first[rest] = False
        if is_open:
            self.repeats.append(item)

    # -- lines ---------------------------------------------------------------------------------------------------------

    def _tensors(self) -> Iterator[SketchLine]:
        tree = self.tree
        drawn = self.is_first[tree.target] & (self.box[tree.source] != self.box[tree.target])
        yield from self._lines(tree.source[drawn], tree.output[drawn], tree.target[drawn], LineKind.TENSOR)

    def _again(self) -> Iterator[SketchLine]:
        """The lines from what one round of a repeat makes to its readers in later rounds."""
        tree = self.tree
        for item in self.repeats:
            size = item.stop - item.start
            edges = slice(int(tree.first_edge[item.stop]), int(tree.first_edge[item.end]))
            source, output, target = tree.source[edges], tree.output[edges], tree.target[edges]
            round_of_source, round_of_target = (source - item.start) // size, (target - item.start) // size
            within = item.start + (target - item.start) % size
            handed = (source >= item.start) & (round_of_source < round_of_target) & self.is_first[within]
            yield from self._lines(source[handed], output[handed], target[handed], LineKind.AGAIN)

    def _lines(self, source: Array, output: Array, target: Array, kind: LineKind) -> Iterator[SketchLine]:
        """One line for each tensor and the box that takes it."""
        rows = (self.box[source], self.box[target], self.same[source], output.clip(0, OUTPUTS - 1))
        lines: dict[tuple[int, ...], int] = {}  # line -> the leaf that the first of its edges comes from
        for key, leaf in zip(zip(*(row.tolist() for row in rows), strict=True), source.tolist(), strict=True):
            lines.setdefault(key, leaf)
        parallel = Counter((come, to) for come, to, _, _ in lines)
        labelled, bundled = set[tuple[int, str]](), set[tuple[int, int]]()
        for (come, to, same, number), leaf in lines.items():
            many, tensor = parallel[come, to], same * OUTPUTS + number
            if many > _PARALLEL:
                if (come, to) not in bundled:
                    bundled.add((come, to))
                    yield SketchLine(come, to, f"{many:,} tensors", kind, many)
                continue
            label = self._new_shape(leaf, number, self.items[to]) if kind == LineKind.TENSOR else ""
            if (tensor, label) in labelled:  # a shape in which many take a tensor is said once
                label = ""
            labelled.add((tensor, label))
            yield SketchLine(come, to, label, kind)

    def _new_shape(self, leaf: int, output: int, item: Item) -> str:
        """The shape in which an item, or the outermost frame around it, gets a tensor, by the rule of the picture;
        nothing if it is known, or written on the box."""
        if self.varies[leaf]:
            return ""
        while item.parent is not None and not item.parent.start <= leaf < item.parent.end:
            item = item.parent
        if item.parent is None:
            return ""
        around = [item.parent]
        while around[-1].parent is not None:
            around.append(around[-1].parent)
        for group in reversed(around):
            leaf = int(first_of_repeats(np.array([leaf]), group.parts or ())[0])
        shapes, tensor = self.words.shapes, leaf * OUTPUTS + output
        shape = shapes.arriving(item.parent, item, tensor)
        is_op = self.tree.graph.columns["node_kind"][self.tree.node[leaf]] == _OP
        return "" if shape == (shapes.read(tensor) if is_op else shapes.made(tensor)) else _short(shape)

    def _kept(self) -> Iterator[SketchLine]:
        """Activations kept for backward, gradients for an optimizer: one line for all from lane to lane."""
        come, to = self.lane[self.tree.kept_source], self.lane[self.tree.kept_target]
        between = (come >= 0) & (to >= 0) & (come != to)
        ends = (come, to, self.tree.kept_source, self.tree.kept_output)
        tensors = set(zip(*(end[between].tolist() for end in ends), strict=True))  # one may be taken many times
        counts = Counter((source, target) for source, target, _, _ in tensors)
        for (source, target), many in sorted(counts.items()):
            yield SketchLine(source, target, f"{many:,} tensor{'s' if many > 1 else ''}", LineKind.KEPT, many)


_OP = KINDS.index(NodeKind.OP)


def _short(text: str) -> str:
    """Text of one line that fits a box. What is not printable is shown as an escape; names come from anybody."""
    shown = clean(text[: _LONGEST + 1])
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"
