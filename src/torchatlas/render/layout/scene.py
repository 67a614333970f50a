"""A fitted layout -> what is on the page and where: frames, boxes, lines and labels, in the units of the layout."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from torchatlas.graph.columns import KINDS
from torchatlas.graph.nouns import NodeKind
from torchatlas.render.layout.box_words import BoxWords
from torchatlas.render.layout.boxes import Box
from torchatlas.render.layout.folding import hands_on
from torchatlas.render.layout.line_labels import Area, Label, Wish
from torchatlas.render.layout.outline import Item, Outline
from torchatlas.render.layout.routing import Point
from torchatlas.render.layout.style import STYLE
from torchatlas.render.layout.wiring import OUTPUTS, first_of_repeats

_LOW, _MIDDLE = (0.9, 0.8, 0.7, 0.6, 0.5), (0.5, 0.7, 0.3)  # where a dashed line may leave a frame, or a closed box
_SIDES = (0.8, 0.2, 0.65, 0.35)  # and where it may leave one downwards
_INPUT = KINDS.index(NodeKind.INPUT)


@dataclass(frozen=True, slots=True)
class Frame:
    """A box, closed or open, at its place."""

    item: Item
    x: float
    y: float
    width: float  # without what looks out behind a repeat
    height: float
    title: str
    subtitle: str
    open: bool
    depth: int


@dataclass(frozen=True, slots=True)
class Line:
    """One line of one tensor. A dashed one leads back to the beginning of a repeat, or joins a line that does; a dashed
    one of a single point is where that line takes in one that it crosses."""

    net: int
    points: tuple[Point, ...]
    arrow: bool
    level: int  # how deeply nested the group is that it belongs to
    many: int = 1  # how many tensors it stands for
    returning: bool = False
    # The frames it joins; None for the border of its group. A dashed one joins what makes a tensor to the repeat, or
    # the repeat to itself where others join it.
    ends: tuple[int | None, int | None] = (None, None)


@dataclass
class Scene:
    """Everything that is drawn. Labels are placed when the page is known: they may stand beside all boxes."""

    width: float
    height: float
    frames: list[Frame] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list, repr=False)
    labels: list[Label] = field(default_factory=list)
    no_room: list[tuple[int, str]] = field(default_factory=list)  # net and text of labels without room
    beside: float = 0.0  # how far the page goes on to the left and right
    sideways: bool = False  # lines lead to the right, not down

    @property
    def closed(self) -> list[Frame]:
        return [frame for frame in self.frames if not frame.open]


class SceneMaker:
    """Walks a nested layout. One that was made `sideways` is turned when all of it is there."""

    def __init__(self, outline: Outline, words: BoxWords, sideways: bool = False) -> None:
        self.outline, self.words, self.sideways = outline, words, sideways
        # What is to be written beside a net, along which lines, and how far to the left and right.
        self._wishes: dict[tuple[int, str], list[tuple[tuple[Point, ...], float, float]]] = {}
        self._shapes: dict[int, dict[tuple[Point, ...], str]] = {}  # net -> line -> in which shape it arrives

    def scene(self, box: Box) -> Scene:
        self.laid_out = Scene(box.width, box.height)
        self._add(self.outline.root, box, 0.0, 0.0, -1)
        self.laid_out.wishes = [
            Wish(net, text, lines, self._of_other_shape(net, text)) for (net, text), lines in self._wishes.items()
        ]
        return _turned(self.laid_out) if self.sideways else self.laid_out

    def _add(self, item: Item, box: Box, x: float, y: float, depth: int) -> None:
        behind = STYLE.stack if item.repeat > 1 else 0.0
        width, height = box.width - behind, box.height - behind - box.below
        is_root, own = item is self.outline.root, len(self.laid_out.frames)
        if not is_root:
            self.laid_out.frames.append(Frame(item, x, y, width, height, box.title, box.subtitle, box.open, depth))
        if not box.open:
            return
        left, top = x + box.origin[0], y + box.origin[1]
        items = self.outline.children(item)
        wiring = self.outline.wiring(item)
        theirs = self.outline.wiring(box.item)
        mine_of = {number: other for (_, _, number), (_, _, other) in zip(theirs.edges, wiring.edges, strict=True)}
        for their_tensor, my_tensor in zip(
            self.outline.ends(box.item).outputs, self.outline.ends(item).outputs, strict=True
        ):
            mine_of[theirs.inside[their_tensor][1]] = wiring.inside[my_tensor][1]
        numbers: list[int | None] = []
        for child, inner, (dx, dy) in zip(items, box.inner, box.places, strict=False):
            numbers.append(len(self.laid_out.frames))
            self._add(child, inner, left + dx, top + dy, depth + 1)
        numbers += [None] * (len(box.places) - len(items))
        sinks = range(len(items) + box.sources, len(box.places))
        for route in box.routes:
            number = mine_of[route.net]  # type: ignore[index]
            points = [(left + px, top + py) for px, py in route.points]
            if route.source < len(box.inner):
                points[0] = points[0][0], points[0][1] - box.inner[route.source].below
            leaves = route.target in sinks
            if leaves:
                points.append((points[-1][0], y + box.height - box.below))
            net = self.outline.net(number)
            many = wiring.bundles.get(number, 1)
            ends = numbers[route.source], numbers[route.target]
            line = Line(net, tuple(_tidy(points)), not leaves, depth, many, ends=ends)
            self.laid_out.lines.append(line)
            if number < 0:
                words = f"{many:,} tensor{'s' if many > 1 else ''}"
                self._wishes.setdefault((net, words), []).append((line.points, -math.inf, math.inf))
            elif not leaves:
                room = (x + 2, x + width - 2) if not is_root else (-math.inf, math.inf)
                shape = self.words.shapes.arriving(item, items[route.target], number)
                self._shapes.setdefault(net, {})[line.points] = shape
                if shape not in ("", self._known_shape(number, depth)):
                    self._wishes.setdefault((net, shape), []).append((line.points, *room))
        if item.repeat > 1 and hands_on(self.outline.tree, item):  # else the rounds lie side by side
            self._return(item, box, (x, y, width, height), [*numbers, own], depth)

    def _return(self, item: Item, box: Box, area: Area, numbers: list[int | None], depth: int) -> None:
        """The dashed line to the beginning of a repeat, which gathers what each round hands to the next. The number of
        tensors stands beside it if not all are seen to join. `area` is left, top, width, height of the repeat;
        `numbers` are the frames of its boxes, and the last its own."""
        *makers, own = numbers
        net, right, head = -1_000_000 - item.start, area[0] + area[2] - STYLE.return_lane / 2, area[1]
        head += 0.0 if self.sideways else STYLE.heading

        def add(points: Iterable[Point], maker: int | None, arrow: bool) -> None:
            points = tuple(dict.fromkeys(points))
            self.laid_out.lines.append(Line(net, points, arrow, depth, returning=True, ends=(maker, own)))

        handed = self._handed(item)
        joins, all_join = self._joins(item, box, area, handed)
        stops = sorted((points[-1] for _, points in joins), key=lambda point: (-point[1], point[0]))
        if len(joins) == 1:
            ((index, points),) = joins
            add((*points, (right, points[-1][1]), (right, head)), makers[index], True)
        else:  # in pieces from one join to the next: a highlighted path may take the last ones only
            for index, points in joins:
                add(points, makers[index], False)
            for start, end in itertools.pairwise([*stops, (right, head)]):
                add((start, (end[0], start[1]), end), own, end[1] == head)
        if not all_join:
            heights = np.arange(head + 4, stops[0][1] - 16, STYLE.label_height).tolist()
            pieces = [((right, y), (right, stops[0][1])) for y in heights]
            self._wishes[net, f"{len(handed):,} tensors"] = [(piece, area[0] + 2, right) for piece in pieces]

    def _joins(
        self, item: Item, box: Box, area: Area, handed: list[tuple[int, int]]
    ) -> tuple[list[tuple[int, tuple[Point, ...]]], bool]:
        """Where tensors that are handed on join the dashed line, by the index of the box that makes them; and whether
        all do.

        A tensor that leaves the repeat joins where its line does. Others lead from their box to the right or down, from
        a closed one once for all it makes, unless other boxes are in the way. If none can join, the dashed line begins
        below the box that makes the last.
        """
        left, low, right = area[0], area[1] + area[3] - STYLE.return_foot, area[0] + area[2] - STYLE.return_lane / 2
        inside = self.outline.wiring(item).inside
        joins: dict[tuple[int, int], tuple[Point, ...]] = {}
        for mine, theirs in zip(self.outline.ends(item).outputs, self.outline.ends(box.item).outputs, strict=True):
            if inside[mine] in handed:
                joins.setdefault(inside[mine], ((left + box.leaves[theirs], low),))
        areas = [
            (left + box.origin[0] + dx, area[1] + box.origin[1] + dy, inner.width, inner.height - inner.below)
            for inner, (dx, dy) in zip(box.inner, box.places, strict=False)
        ]
        rest = {each if box.inner[each[0]].open else (each[0], -1): None for each in handed if each not in joins}
        for index, tensor in rest:
            (x, y, width, height), others = areas[index], [*areas[:index], *areas[index + 1 :]]
            taken = [point for points in joins.values() for point in points]
            fractions = _LOW if box.inner[index].open else _MIDDLE
            if (at := self._free(1, areas[index], others, right, fractions, taken)) is not None:
                joins[index, tensor] = ((x + width, at), (right, at))
            elif (at := self._free(0, areas[index], others, low, _SIDES, taken)) is not None:
                joins[index, tensor] = ((at, y + height), (at, low))
        all_join = rest.keys() <= joins.keys()
        if not joins:
            index = handed[-1][0]
            joins[handed[-1]] = ((areas[index][0] + areas[index][2] / 2, low),)
        return [(index, points) for (index, _), points in joins.items()], all_join or len(handed) == 1

    def _handed(self, item: Item) -> list[tuple[int, int]]:
        """What a round of a repeat reads from the round before: the box that makes it, and its number in there."""
        tree, items = self.outline.tree, self.outline.children(item)
        edges = slice(int(tree.first_edge[item.stop]), int(tree.first_edge[2 * item.stop - item.start]))
        source, output = tree.source[edges], np.minimum(tree.output[edges], OUTPUTS - 1)
        before = (source >= item.start) & (source < item.stop)
        source = first_of_repeats(source[before], items)
        places = np.searchsorted([child.start for child in items], source, side="right") - 1
        tensors = source * OUTPUTS + output[before]
        return sorted(set(zip(places.tolist(), tensors.tolist(), strict=True)))

    def _free(
        self, axis: int, box: Area, others: list[Area], end: float, fractions: Iterable[float], taken: list[Point]
    ) -> float | None:
        """Where a straight line can leave a box and reach `end` past other boxes, along no line and away from `taken`:
        at one of some fractions of its side. Along x (axis 0) for a line down, along y (1) for one to the right.

        All areas are left, top, width, height.
        """
        onward = 1 - axis
        far = box[onward] + box[onward + 2]
        beside = [
            (a[axis], min(a[onward], b[onward]), max(a[onward], b[onward]))
            for line in self.laid_out.lines
            for a, b in itertools.pairwise(line.points)
            if a[axis] == b[axis]
        ]
        for fraction in fractions:
            position = box[axis] + box[axis + 2] * fraction
            hit = any(
                near[axis] < position + STYLE.beside_box
                and position - STYLE.beside_box < near[axis] + near[axis + 2]
                and near[onward] + near[onward + 2] > far
                for near in others
            )
            along = any(abs(position - at) < STYLE.beside_line and come < end and go > far for at, come, go in beside)
            if not hit and not along and all(abs(position - point[axis]) > STYLE.beside_line for point in taken):
                return position
        return None

    # -- shapes beside lines -------------------------------------------------------------------------------------------

    def _known_shape(self, tensor: int, depth: int) -> str:
        """The shape of a tensor that needs no label: what is written on its box, or that of what its maker reads."""
        tree = self.outline.tree
        is_given = tree.graph.columns["node_kind"][tree.node[tensor // OUTPUTS]] == _INPUT
        return self.words.shapes.made(tensor) if is_given and depth < 0 else self.words.shapes.read(tensor)

    def _of_other_shape(self, net: int, shape: str) -> list[tuple[Point, ...]]:
        """The lines of a net that one of its shapes must not stand beside, if it has several."""
        shapes = self._shapes.get(net, {})
        if len(set(shapes.values())) < 2:
            return []
        lines = (line.points for line in self.laid_out.lines if line.net == net)
        return [points for points in lines if shapes.get(points) != shape]


def _turned(scene: Scene) -> Scene:
    """What was laid out downwards, to the right."""

    def turned(points: tuple[Point, ...]) -> tuple[Point, ...]:
        return tuple((y, x) for x, y in points)

    return Scene(
        scene.height,
        scene.width,
        [replace(frame, x=frame.y, y=frame.x, width=frame.height, height=frame.width) for frame in scene.frames],
        [replace(line, points=turned(line.points)) for line in scene.lines],
        [
            Wish(
                wish.net,
                wish.text,
                [(turned(points), low, high) for points, low, high in wish.lines],
                [turned(points) for points in wish.others],
            )
            for wish in scene.wishes
        ],
        sideways=True,
    )


def _tidy(points: list[Point]) -> list[Point]:
    """Remove pieces without length, and corners at which nothing turns."""
    tidied = [points[0]]
    for x, y in points[1:]:
        last = tidied[-1]
        if abs(x - last[0]) + abs(y - last[1]) < STYLE.one_place:
            continue
        if len(tidied) > 1:
            before = tidied[-2]
            upright = abs(before[0] - last[0]) < STYLE.one_place and abs(last[0] - x) < STYLE.one_place
            level = abs(before[1] - last[1]) < STYLE.one_place and abs(last[1] - y) < STYLE.one_place
            if upright or level:
                tidied[-1] = (x, y)
                continue
        tidied.append((x, y))
    return tidied
