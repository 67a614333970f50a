"""Items, and which of them are open -> nested boxes with sizes. Equal groups are laid out once.

Lines lead down. Where they are to lead to the right, boxes are laid out `sideways`: their height on the page is their
width here and the other way round, and scene.py turns the whole back.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from torchatlas.render.fonts import text_width
from torchatlas.render.layout.box_words import BoxWords
from torchatlas.render.layout.layered import Net, Problem
from torchatlas.render.layout.outline import Item, Outline
from torchatlas.render.layout.page_columns import Solver
from torchatlas.render.layout.routing import Placed, Point, Route
from torchatlas.render.layout.style import STYLE
from torchatlas.render.layout.wide_ranks import Wrapped, fans

_MOST_ENDS = 150  # a box has room for the ends of so many lines
_FEW_ENDS = 8  # and for so many where lines are joined before they reach it
_WIDE = 300.0  # no text makes a box as wide as this, only the ends of lines do
_HOPELESS = 1e6  # the width of what no page can show
# The part of a group's height that its one open group is guessed to get: what the closed boxes leave, of which at most
# so many are counted (more stand beside each other), but no less than this share.
_LEAST_SHARE, _MOST_BESIDE = 0.55, 4
_MANY_TENSORS = "1,234 tensors"  # as wide as what scene.py writes between phases
_USUAL_PAGE = 4 / 3  # its width for its height


class Share(Enum):
    """How much of a group's height the one open group in it gets."""

    GUESSED = 0  # what the other boxes are guessed to leave: they stand above and below it
    WHOLE = 1  # all of it: they stand beside it


@dataclass(eq=False, kw_only=True)
class Box:
    """An item with a size; an open one with everything inside, from its upper left corner."""

    item: Item  # the one it was laid out for: others of the same structure share it
    width: float
    height: float
    title: str
    subtitle: str
    open: bool = False
    inner: list[Box] = field(default_factory=list)
    places: list[Point] = field(default_factory=list)
    lines: Callable[[], list[Route]] = field(default=list)  # makes its routes
    origin: Point = (0.0, 0.0)  # where the inside begins
    enters: dict[int, float] = field(default_factory=dict)  # tensor -> where it meets the upper border
    leaves: dict[int, float] = field(default_factory=dict)
    sources: int = 0  # how many points for what enters follow the inner boxes, in order of the item's inputs
    crossings: int = 0
    wraps: int = 0  # cuts into columns
    natural: bool = True  # nothing in it was cut: it serves for every height it fits
    tangles: int = 0  # lines that lie on each other
    leads: list[int] = field(default_factory=list)  # of an open one: output -> the first that leaves on the same line
    cramped: bool = False  # something in it was cut that might have been higher
    below: float = 0.0  # of its height, what is kept free for a text beside a line that leaves it

    @cached_property
    def routes(self) -> list[Route]:
        return self.lines()


class BoxMaker:
    """Lays groups out. Remembers each layout by the structure, the open groups in it and the height."""

    def __init__(
        self, outline: Outline, words: BoxWords, smallest: float = 0.0, width: float = 0.0, sideways: bool = False
    ) -> None:
        self.outline, self.words, self.sideways = outline, words, sideways
        self.smallest = smallest  # height of a closed box
        self.width = width  # of the page: ranks that are wider are wrapped; if 0, as wide as most pages of its height
        self._page = (width, width / _USUAL_PAGE) if width else (math.inf, 0.0)
        self._known: dict[Hashable, Box] = {}
        self._numbers: dict[Hashable, int] = {}  # structure -> a small number, so that a long structure is hashed once
        self._closed_numbers: dict[Item, int] = {}
        self._open_numbers: dict[Item, int] = {}  # of all open ones, while `_opened_now` is what is open
        self._opened_now: Collection[Item] = ()
        self._shape_widths: dict[Item, dict[Item, float]] = {}
        self._solver = Solver()

    @property
    def work(self) -> int:
        """How many lines between ranks were laid out so far."""
        return self._solver.work

    def box(self, item: Item, opened: Collection[Item], height: float, share: Share = Share.GUESSED) -> Box:
        """The box of an item that should be no higher than `height`; `opened` holds the open items.

        A group that is nested deep gets too little height if its share is guessed at every depth. With all the height
        it is narrower, but may leave no room for the boxes beside it. So callers try both shares.
        """
        if item not in opened:
            return self._closed_box(item)
        number = self._number(item, opened)
        natural = self._known.get(number)
        if natural is not None and natural.height <= height:
            return natural
        if item is self.outline.root and height > self._page[1]:
            self._page = self.width or height * _USUAL_PAGE, height
        key: Hashable = (number, round(height), share.value)
        if key not in self._known:
            box = self._opened(item, opened, height, share)
            if box.natural:
                key = number
            self._known[key] = box
        return self._known[key]

    def _closed_box(self, item: Item) -> Box:
        number = self._number(item, ())
        if number not in self._known:
            self._known[number] = self._closed(item)
        return self._known[number]

    def _number(self, item: Item, opened: Collection[Item]) -> int:
        """Cache key: items with equal structure, equal open groups and equal texts share a layout."""
        if item not in opened:
            number = self._closed_numbers.get(item)
            if number is None:
                inside: tuple[Hashable, ...] = (*map(len, self.outline.ends(item)), *self._words(item, False))
                structure = (False, item.hash, item.name, item.repeat, self._below(item), *inside)
                number = self._closed_numbers[item] = self._numbers.setdefault(structure, len(self._numbers))
            return number
        if opened is not self._opened_now:
            self._opened_now, self._open_numbers = opened, {}
        number = self._open_numbers.get(item)
        if number is None:
            number = self._open_numbers[item] = self._number_of_open(item, opened)
        return number

    def _number_of_open(self, item: Item, opened: Collection[Item]) -> int:
        numbers = [self._number(child, opened) for child in self.outline.children(item)]
        structure = (
            True,
            item.hash,
            item.name,
            item.repeat,
            self.outline.wiring(item).pattern,
            *numbers,
            *self._words(item, True),
        )
        return self._numbers.setdefault(structure, len(self._numbers))

    def _words(self, item: Item, is_open: bool) -> tuple[str, str]:
        """Its title, and what stands below it or, when it is open, beside it."""
        return self.words.title(item), self.words.heading(item) if is_open else self.words.subtitle(item)

    def _closed(self, item: Item, lines: int = _MOST_ENDS) -> Box:
        title, subtitle = self._words(item, False)
        repeated = item.repeat > 1
        more = (self.badge(item) + STYLE.before_badge if repeated else 0) + (0 if item.is_leaf else STYLE.plus)
        ends = STYLE.beside_line_ends + STYLE.line_end * min(max(map(len, self.outline.ends(item))), lines)
        texts = text_width(title, STYLE.title_text, True) + more, text_width(subtitle, STYLE.small_text)
        width = max(STYLE.least_width, max(texts) + STYLE.text_margins)
        height = max(STYLE.two_line_height if subtitle else STYLE.least_height, self.smallest)
        behind, below = STYLE.stack if repeated else 0.0, self._below(item)
        if self.sideways:
            width, height = max(height, ends), width + below
        else:
            width = max(width, ends)
        size = width + behind, height + behind
        return Box(item=item, width=size[0], height=size[1], title=title, subtitle=subtitle, below=below)

    def _below(self, item: Item) -> float:
        """What a text above a line that leaves a box sideways needs: the shape of what a closed box makes, or how many
        tensors a phase hands to the next. Downwards, texts stand beside their lines."""
        if not self.sideways or self.outline.is_marker(item):
            return 0.0
        if item.kind == "lane":
            is_last = item.parent is not None and self.outline.children(item.parent)[-1] is item
            return 0.0 if is_last else text_width(_MANY_TENSORS, STYLE.small_text) + STYLE.label_ends - STYLE.rank_gap
        shape_width = self._shapes_leaving(item.parent).get(item, 0.0) if item.parent is not None else 0.0
        # In a column's last rank a line turns after this much.
        return max(0.0, shape_width + STYLE.label_ends - STYLE.track_to_border - STYLE.lane + 1) if shape_width else 0.0

    def _shapes_leaving(self, group: Item) -> dict[Item, float]:
        """How wide the widest text is that scene.py may write beside a line from each item of a group."""
        widths = self._shape_widths.get(group)
        if widths is None:
            widths = self._shape_widths[group] = {}
            items, shapes = self.outline.children(group), self.words.shapes
            for source, target, tensor in self.outline.wiring(group).edges:
                if source >= 0 and tensor >= 0:
                    shape = shapes.arriving(group, items[target], tensor)
                    width = text_width(shape, STYLE.small_text) if shape != shapes.read(tensor) else 0.0
                    widths[items[source]] = max(width, widths.get(items[source], 0.0))
        return widths

    def badge(self, item: Item) -> float:
        """The width of the mark that says how often an item repeats."""
        return text_width(f"×{item.repeat:,}", STYLE.small_text, True) + STYLE.badge_margins

    def _opened(self, item: Item, opened: Collection[Item], height: float, share: Share) -> Box:
        items, over = self.outline.children(item), self._over(item)
        room, is_single = height - over - 2 * STYLE.track_to_border, sum([child in opened for child in items]) == 1
        small = (STYLE.usual_width if self.sideways else STYLE.usual_height) + STYLE.rank_gap
        if is_single and share != Share.WHOLE:  # leave room for the boxes before and after it
            room = max(height * _LEAST_SHARE, height - over - small * (1 + min(len(items) - 1, _MOST_BESIDE)))
        box = self._laid_out(item, opened, height, room, share)
        if is_single and any(inner.wraps for inner in box.inner):
            box.cramped = share == Share.GUESSED
        return box

    def _over(self, item: Item) -> float:
        """What the heading of a group and its borders take of its height."""
        if item is self.outline.root:
            return 0.0
        return (0.0 if self.sideways else STYLE.heading) + 2 * STYLE.padding

    def _laid_out(self, item: Item, opened: Collection[Item], height: float, room: float, share: Share) -> Box:
        """Lay out a group within `height`, and its inner boxes within `room`."""
        outline, is_root = self.outline, item is self.outline.root
        items = outline.children(item)
        wiring, ends_of = outline.wiring(item), outline.ends
        inner = [self.box(child, opened, room, share) for child in items]
        enters: dict[tuple[int, Net], float] = {}
        leaves: dict[tuple[int, Net], float] = {}
        open_ones = [(number, items[number], box) for number, box in enumerate(inner) if box.open]
        for number, child, box in open_ones:
            # The box may be that of another item of equal structure, whose tensors come in the same order.
            for mine, theirs in zip(ends_of(child).inputs, ends_of(box.item).inputs, strict=True):
                enters[number, mine] = box.enters.get(theirs, box.width / 2)
            for mine, theirs in zip(ends_of(child).outputs, ends_of(box.item).outputs, strict=True):
                leaves[number, mine] = box.leaves.get(theirs, box.width / 2)
        lead = _leads([(number, ends_of(child).outputs, box) for number, child, box in open_ones])
        ends = {tensor: (index, lead.get((index, t), t)) for tensor, (index, t) in wiring.inside.items()}
        first = {end: number for number, end in reversed(list(enumerate(ends.values())))}
        own = ends_of(item)
        sources = range(len(items), len(items) + len(own.inputs))
        sink_of = {end: sources.stop + number for number, end in enumerate(dict.fromkeys(ends.values()))}
        sinks = range(sources.stop, sources.stop + len(sink_of))
        problem = Problem([], self._edges(item, inner, sources, sink_of, lead), enters, leaves, sources, sinks)
        if self._is_hopeless(problem, inner):
            return Box(item=item, width=_HOPELESS, height=1.0, title="", subtitle="", open=True, inner=inner)
        flipped = self._acyclic(problem, len(items))
        placed = self._placed(problem, inner, height - self._over(item), {box for u, v, _ in flipped for box in (u, v)})
        left, top = self._origin(item)
        is_repeat = item.repeat > 1
        body = placed.width + (0.0 if is_root else left + STYLE.padding) + (STYLE.return_lane if is_repeat else 0.0)
        title, subtitle = self._words(item, True)  # scene_painter.py says more where the frame is wider
        width = body if is_root or self.sideways else max(body, self._head(item))
        left += max(0.0, (width - body) / 2)
        full_height = placed.height + (0.0 if is_root else top + (STYLE.box_to_track if own.outputs else STYLE.padding))
        full_height += STYLE.below_return if is_repeat else 0.0
        below = self._below(item) if item.kind == "lane" else 0.0
        if self.sideways and not is_root:
            full_height = max(full_height, self._head(item)) + below
        behind = STYLE.stack if is_repeat else 0.0
        nested = [box for _, _, box in open_ones]  # the others hold nothing
        wraps = placed.columns - 1 + sum([box.wraps for box in nested])
        return Box(
            item=item,
            width=width + behind,
            height=full_height + behind,
            title=title,
            subtitle=subtitle,
            open=True,
            inner=inner,
            places=placed.places,
            lines=lambda: [_turned(route, flipped) for route in placed.routes] if flipped else placed.routes,
            origin=(left, top),
            enters={t: placed.places[p][0] + left for t, p in zip(own.inputs, sources, strict=True)},
            leaves={tensor: placed.places[sink_of[end]][0] + left for tensor, end in ends.items()},
            sources=len(sources),
            crossings=placed.crossings + sum(box.crossings for box in nested),
            wraps=wraps,
            natural=wraps == 0 and all(box.natural for box in nested) and full_height + behind <= height,
            tangles=placed.tangles + sum(box.tangles for box in nested),
            leads=[first[end] for end in ends.values()],
            cramped=any(box.cramped for box in nested),
            below=below,
        )

    def _origin(self, item: Item) -> Point:
        """Where the inside of a group begins. What enters it begins below its heading or, sideways, at its border."""
        if item is self.outline.root:
            return 0.0, 0.0
        enters = bool(self.outline.ends(item).inputs)
        if self.sideways:
            return STYLE.heading + STYLE.below_heading, 0.0 if enters else STYLE.padding
        return STYLE.padding, STYLE.heading + (0.0 if enters else STYLE.above_first_box)

    def _head(self, item: Item) -> float:
        """How wide the heading of a group is."""
        title, subtitle = self._words(item, True)
        width = text_width(title, STYLE.title_text, True) + text_width(subtitle, STYLE.small_text)
        width += self.badge(item) + STYLE.before_heading_badge if item.repeat > 1 else 0.0
        return width + STYLE.beside_heading

    def _is_hopeless(self, problem: Problem, inner: list[Box]) -> bool:
        """Whether more lines pass a border, or meet a closed box, than could be told apart: no need to lay them out."""
        across = max(len(problem.sources), len(problem.sinks)) * STYLE.line_gap
        if across > self._page[0] or any(box.width == _HOPELESS for box in inner):
            return True
        if len(problem.edges) <= _MOST_ENDS:
            return False
        ends = Counter(v for _, v, _ in problem.edges)
        return any(many > _MOST_ENDS and v < len(inner) and not inner[v].open for v, many in ends.items())

    def _placed(self, problem: Problem, inner: list[Box], height: float, turned: set[int]) -> Placed:
        """Solve a problem. What is too wide for the page is wrapped."""
        ports = [(0.0, 0.0)] * (len(problem.sources) + len(problem.sinks))
        problem.sizes = [*((box.width, box.height) for box in inner), *ports]
        closed = [number for number, box in enumerate(inner) if not box.open and number not in turned]
        for number in closed:
            if inner[number].width > _WIDE:  # one line may stand for many tensors
                enter = sum(v == number for _, v, _ in problem.edges)
                leave = len({net for u, _, net in problem.edges if u == number})
                self._narrow(number, problem, inner, max(enter, leave))
        wide_fans = fans(problem, closed, self._page[0])
        if not wide_fans:
            return self._solver.place_within(problem, height)
        for number in {box for fan in wide_fans for box in fan.boxes}.intersection(closed):
            self._narrow(number, problem, inner, _FEW_ENDS)
        wrapped = Wrapped(problem, wide_fans, self._page)
        return wrapped.unwrapped(self._solver.place_within(wrapped.problem, height))

    def _narrow(self, number: int, problem: Problem, inner: list[Box], lines: int) -> None:
        """Leave room for no more than so many lines at a closed box."""
        inner[number] = self._closed(inner[number].item, lines)
        problem.sizes[number] = inner[number].width, inner[number].height

    def _edges(
        self,
        item: Item,
        inner: list[Box],
        sources: range,
        sink_of: dict[tuple[int, int], int],
        lead: dict[tuple[int, int], int],
    ) -> list[tuple[int, int, Net]]:
        wiring = self.outline.wiring(item)
        port = dict(zip(self.outline.ends(item).inputs, sources, strict=True))
        edges: dict[tuple[int, int, Net], None] = {}
        bundled: set[tuple[int, int]] = set()
        for come, to, tensor in wiring.edges:
            if (
                come >= 0 and not inner[come].open and not inner[to].open
            ):  # parallel tensors between closed boxes: one line
                if (come, to) in bundled:
                    continue
                bundled.add((come, to))
            edges[port[tensor] if come < 0 else come, to, lead.get((come, tensor), tensor)] = None
        for (index, inside), sink in sink_of.items():
            edges[index, sink, inside] = None
        return list(edges)

    def _acyclic(self, problem: Problem, count: int) -> dict[tuple[int, int, Net], tuple[int, int, Net]]:
        """Turn lines that lead back: groups can wait for each other, though ops never do."""
        if all(u < v for u, v, _ in problem.edges if u < count):
            return {}
        position = _in_order(count, {(u, v) for u, v, _ in problem.edges if u < count and v < count})
        flipped: dict[tuple[int, int, Net], tuple[int, int, Net]] = {}
        edges: list[tuple[int, int, Net]] = []
        for u, v, net in problem.edges:
            if u < count and v < count and position[v] < position[u]:
                turned = (v, u, ("back", net, u, v))
                flipped[turned] = (u, v, net)
                edges.append(turned)
            else:
                edges.append((u, v, net))
        problem.edges = edges
        return flipped


def _in_order(count: int, edges: set[tuple[int, int]]) -> list[int]:
    """The place of each box in an order in which none comes before what it reads; of those that wait for each other the
    first comes first. A group that began before another may still read what that one made."""
    after: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    for u, v in edges:
        after[u].append(v)
        waits[v] += 1
    position = [-1] * count
    for turn in range(count):
        rest = [box for box in range(count) if position[box] < 0]
        box = next((box for box in rest if not waits[box]), rest[0])
        position[box] = turn
        for v in after[box]:
            waits[v] -= 1
    return position


def _leads(open_ones: list[tuple[int, list[int], Box]]) -> dict[tuple[int, int], int]:
    """Tensors that leave an open box on the line of another, as all rounds of a repeat do -> that other one."""
    return {
        (index, tensor): outputs[lead]
        for index, outputs, box in open_ones
        if box.leads
        for tensor, lead in zip(outputs, box.leads, strict=True)
        if outputs[lead] != tensor
    }


def _turned(route: Route, flipped: dict[tuple[int, int, Net], tuple[int, int, Net]]) -> Route:
    turned = flipped.get((route.source, route.target, route.net))
    if turned is None:
        return route
    source, target, net = turned
    return Route(net, source, target, route.points[::-1])
