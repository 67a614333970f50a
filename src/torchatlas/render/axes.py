"""What all plots share: a page with a title, scales, ticks at round numbers, axes, legends, and room for labels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torchatlas.analysis.totals import operations_mask
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.escapes import clean
from torchatlas.graph import Graph
from torchatlas.graph.graph_like import as_graph
from torchatlas.render.fonts import clipped, text_width
from torchatlas.render.png import whole
from torchatlas.render.sheet import POINTS, SMALLEST_TYPE, Sheet, sheet
from torchatlas.render.svg import Canvas, Point
from torchatlas.render.theme import theme as theme_named

MARGIN = 28.0
SMALL = 12.0  # the size of ticks and legends; no text of a plot is smaller
HEADING = 76.0  # where a plot may begin: below its title and subtitle
_ROW = 22.0  # from one row of a legend to the next
_SMALLEST = (480, 320)
Entry = tuple[str, str]  # what a legend says of a colour


@dataclass(frozen=True)
class Area:
    """The rectangle of the page that data is drawn on."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class Scale:
    """Numbers from `low` to `high` along the page from `start` to `end`, evenly or by powers of ten."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def check_size(width: Any, height: Any) -> None:
    """Raise unless a plot of this size can be drawn."""
    whole("width", width, least=_SMALLEST[0], what="plot")
    whole("height", height, least=_SMALLEST[1], what="plot")


def paper(size: Any) -> Sheet:
    """The sheet of a plot of a size on paper, as `atlas.draw` takes it. Plots are drawn in pixels, and scaled."""
    asked = sheet(size=size)
    assert asked.inches is not None
    width, height = asked.inches
    if asked.fits_content:  # a plot has no height of its own
        height = 1 + width / 2
    pixels = math.ceil(max(_SMALLEST[0], asked.width, _SMALLEST[1] * width / height))
    if SMALL * width / pixels * POINTS < SMALLEST_TYPE:
        least = [math.ceil(100 * SMALLEST_TYPE / POINTS / SMALL * side) / 100 for side in _SMALLEST]
        raise InvalidInputError(
            f"size={size!r} is too small for a plot: no type below {SMALLEST_TYPE:g} points can be read; "
            f"use at least {least[0]:g} x {least[1]:g} inches."
        )
    tall = max(_SMALLEST[1], round(pixels * height / width))
    return Sheet(pixels, tall, SMALL, (width, height))


def plottable(graph: Graph) -> Graph:
    """The graph, if anything ran in it."""
    graph = as_graph(graph, "plot")
    if not operations_mask(graph).any():
        raise AnalysisError(
            "Nothing ran in this graph, so there is nothing to plot. Capture a model: atlas.capture(...)."
        )
    return graph


def title_of(what: str, graph: Graph, how: str = "") -> str:
    """The title of a plot, with the class of the model where there is one."""
    name = clean(graph.scopes[""].type)
    return (f"{what} of {name}" if name else what) + how


def open_page(title: str, subtitle: str, width: int, height: int, theme: str) -> Canvas:
    """A canvas with its title and subtitle."""
    check_size(width, height)
    canvas = Canvas(width, height, theme_named(theme))
    room = width - 2 * MARGIN
    canvas.text(MARGIN, 38, clipped(title, 20, room, bold=True), size=20, fill=canvas.theme.ink, bold=True, title=title)
    canvas.text(MARGIN, 59, clipped(subtitle, 13, room), size=13, fill=canvas.theme.soft, title=subtitle)
    return canvas


# -- ticks -------------------------------------------------------------------------------------------------------------


def round_ticks(high: float, count: int, base: int = 10) -> list[float]:
    """From 0 to `high`, about `count` steps that are round in powers of `base`: 10, or 1024 for bytes.

    >>> round_ticks(47, 5), round_ticks(3000, 4, base=1024)
    ([0, 10, 20, 30, 40], [0, 1024, 2048])
    """
    steps = (1, 2, 5) if base == 10 else tuple(2**power for power in range(10))
    power = math.floor(math.log(max(high, 1), base))
    sizes = [step * base**exponent for exponent in range(power + 1) for step in steps]
    step = next((size for size in sizes if high / size <= count), sizes[-1])
    return [step * index for index in range(int(high / step) + 1)]


def log_span(low: float, high: float) -> tuple[float, float]:
    """The closest of 1, 2 and 5 times a power of ten that leave a little room around [low, high].

    >>> log_span(0.03, 300), log_span(1, 1)
    ((0.02, 500.0), (0.5, 2.0))
    """
    below, above = low * 0.85, high / 0.85
    first, last = math.floor(math.log10(below)), math.ceil(math.log10(above))
    grid = [float(f"{digit}e{power}") for power in range(first, last + 1) for digit in (1, 2, 5)]
    return max(tick for tick in grid if tick <= below), min(tick for tick in grid if tick >= above)


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """Powers of ten from `low` to `high`, about `count` of them; with 2 and 5 in between where there are few.

    >>> log_ticks(0.02, 500, 8), log_ticks(2, 50, 8)
    ([0.1, 1.0, 10.0, 100.0], [2.0, 5.0, 10.0, 20.0, 50.0])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits = (1, 2, 5) if 3 * (last - first) <= count + 2 else (1,)
    every = math.ceil((last - first) / count)
    grid = [float(f"{digit}e{power}") for power in range(first, last + 1, every) for digit in digits]
    return [tick for tick in grid if low <= tick <= high]


def short(text: str) -> str:
    """A formatted number without trailing zeros.

    >>> short("2.00 MiB"), short("20.0"), short("1.50 ms"), short("100 B")
    ('2 MiB', '20', '1.5 ms', '100 B')
    """
    return re.sub(r"(\d+)(\.\d*?)0+(?=\D|$)", lambda m: m[1] + (m[2] if m[2] != "." else ""), text, count=1)


# -- axes --------------------------------------------------------------------------------------------------------------


def widest(texts: Iterable[str], size: float = SMALL) -> float:
    """The width of the widest text."""
    return max((text_width(text, size) for text in texts), default=0.0)


def side_axis(canvas: Canvas, area: Area, scale: Scale, ticks: Sequence[float], say: Callable[[float], str]) -> None:
    """Thin lines across the area, each with its number on the left."""
    for tick in ticks:
        y = scale(tick)
        canvas.line(area.left, y, area.right, y, stroke=canvas.theme.line)
        canvas.text(area.left - 10, y + 4, say(tick), size=SMALL, fill=canvas.theme.soft, anchor="end")


def base_axis(
    canvas: Canvas, area: Area, scale: Scale, ticks: Sequence[float], say: Callable[[float], str], title: str
) -> None:
    """The line below the area, small marks with their numbers where there is room, and a title."""
    theme, free = canvas.theme, -math.inf
    canvas.line(area.left, area.bottom, area.right, area.bottom, stroke=theme.edge)
    for tick in ticks:
        x, text = scale(tick), say(tick)
        half = text_width(text, SMALL) / 2
        canvas.line(x, area.bottom, x, area.bottom + 5, stroke=theme.edge)
        if x - half > free and x + half < canvas.width:
            canvas.text(x, area.bottom + 20, text, size=SMALL, fill=theme.soft, anchor="middle")
            free = x + half + 8
    below_axis(canvas, area, title)


def below_axis(canvas: Canvas, area: Area, title: str) -> None:
    """The title of the axis below the area."""
    room = area.right - area.left
    middle = (area.left + area.right) / 2
    canvas.text(middle, area.bottom + 42, clipped(title, 13, room), size=13, fill=canvas.theme.ink, anchor="middle")


def side_title(canvas: Canvas, y: float, title: str) -> None:
    """The title of the axis on the left: above it and level, so that nobody has to turn the head."""
    room = canvas.width - 2 * MARGIN
    canvas.text(MARGIN, y, clipped(title, 13, room), size=13, fill=canvas.theme.ink)


def footer(canvas: Canvas, text: str) -> None:
    """The last line of the page."""
    room = canvas.width - 2 * MARGIN
    canvas.text(MARGIN, canvas.height - 14, clipped(text, SMALL, room), size=SMALL, fill=canvas.theme.soft, title=text)


# -- legends and labels ------------------------------------------------------------------------------------------------


def legend(canvas: Canvas, entries: Sequence[Entry], top: float) -> float:
    """Swatches with words in as many rows as they need. Returns where the last row ends."""
    x, right = MARGIN, canvas.width - MARGIN
    for colour, words in entries:
        text = clipped(words, SMALL, right - MARGIN - 20)
        width = 18 + text_width(text, SMALL)
        if x > MARGIN and x + width > right:
            x, top = MARGIN, top + _ROW
        swatch(canvas, x, top + 5, colour)
        canvas.text(x + 18, top + 15, text, size=SMALL, fill=canvas.theme.ink)
        x += width + 22
    return top + _ROW + 6 if entries else top


def legend_table(canvas: Canvas, rows: Sequence[tuple[str, str, str]], left: float, top: float, title: str) -> None:
    """Colours with words and an amount each, in two columns from `left` to the margin, under a title."""
    right = canvas.width - MARGIN
    canvas.text(right, top + 10, title, size=SMALL, fill=canvas.theme.soft, anchor="end")
    for at, (colour, words, amount) in enumerate(rows, 1):
        swatch(canvas, left, top + _ROW * at, colour)
        canvas.text(left + 18, top + _ROW * at + 10, words, size=SMALL, fill=canvas.theme.ink)
        canvas.text(right, top + _ROW * at + 10, amount, size=SMALL, fill=canvas.theme.soft, anchor="end")


def swatch(canvas: Canvas, x: float, y: float, colour: str) -> None:
    """A small square of a colour."""
    canvas.rect(x, y, 12, 12, fill=colour, radius=2.5)


class Room:
    """The part of an area that nothing covers yet, so that labels do not overlap."""

    def __init__(self, area: Area) -> None:
        self.area = area
        self._taken: list[Area] = []

    def take(self, box: Area) -> None:
        """Cover a box: no label may overlap it."""
        self._taken.append(box)

    def take_line(self, start: Point, end: Point) -> None:
        """Cover a line, by a small box every few pixels."""
        pieces = max(1, math.ceil(math.dist(start, end) / 6))
        for at in range(pieces + 1):
            x, y = (a + (b - a) * at / pieces for a, b in zip(start, end, strict=True))
            self.take(Area(x - 2, y - 2, x + 2, y + 2))

    def fits(self, box: Area) -> bool:
        """True if a box lies inside the area, with a little distance to all that is covered."""
        area = self.area
        inside = area.left <= box.left and box.right <= area.right and area.top <= box.top and box.bottom <= area.bottom
        return inside and not any(
            box.left - 5 < other.right
            and other.left < box.right + 5
            and box.top < other.bottom
            and other.top < box.bottom
            for other in self._taken
        )

    def label(self, canvas: Canvas, x: float, y: float, away: float, text: str, fill: str) -> bool:
        """Write a text beside the point (x, y), `away` from it, where there is room; False when there is none."""
        width, height = text_width(text, SMALL), SMALL + 3
        beside = [(x + away + 5, y), (x - away - 5 - width, y)]
        levels = [y + sign * (away + gap + height / 2) for gap in (3, 12) for sign in (-1, 1)]
        for left, middle in beside + [(x - share * width, level) for level in levels for share in (0.5, 0, 1)]:
            box = Area(left, middle - height / 2, left + width, middle + height / 2)
            if self.fits(box):
                self.write(canvas, box, text, fill)
                return True
        return False

    def write(self, canvas: Canvas, box: Area, text: str, fill: str) -> None:
        """Write a text into a box of its width; the grid shows only faintly behind it."""
        self.take(box)
        size = box.right - box.left, box.bottom - box.top
        canvas.rect(box.left, box.top, *size, fill=canvas.theme.background, opacity=0.8)
        canvas.text(box.left, box.bottom - 3.2, text, size=SMALL, fill=fill)
