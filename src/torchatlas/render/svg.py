"""Shapes and text -> an SVG document. No other file writes SVG markup, so all escaping happens here."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from html import escape
from typing import Literal, TypedDict, Unpack

from torchatlas.errors import InvalidInputError, StateError
from torchatlas.render.fonts import FAMILY, OURS, has_all, text_width
from torchatlas.render.fonts.pieces import font_style
from torchatlas.render.theme import Theme

Anchor = Literal["start", "middle", "end"]
Direction = Literal["down", "up", "left", "right"]
Point = tuple[float, float]

# Characters that XML 1.0 forbids even when escaped: a name that holds one would make the whole document unreadable.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REPLACEMENT = "□"  # our font has it; it has no U+FFFD
# Scripts written from right to left, and characters that turn what follows them.
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefe\U00010800-\U00010fff\U0001e800-\U0001efff]")
_TURNING = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_BLANKS = re.compile("[ \t\n\r]+")  # drawn as one space, and as none at the ends of a text
_BETWEEN = re.compile(r"(\n|  | [·…] |, )")  # what we write between a name and its figures
_ISOLATE, _END = "\u2068", "\u2069"
_AWAY = {"down": (0, 1), "up": (0, -1), "left": (-1, 0), "right": (1, 0)}


def number(value: float) -> str:
    """A coordinate as SVG reads it everywhere: at most two decimals, never an exponent.

    >>> number(3.14159), number(20.0), number(-0.001), number(1e-7), number(1e6)
    ('3.14', '20', '0', '0', '1000000')
    """
    if not math.isfinite(value):
        raise InvalidInputError(f"a picture cannot be drawn at the coordinate {value}; check what it was computed from")
    text = f"{value:.2f}"
    if text[-1] != "0":
        return text
    text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


@lru_cache(maxsize=1024)  # a picture has few colours, and asks for each hundreds of times
def safe(text: str) -> str:
    """Any text, escaped for use between tags and inside attributes.

    >>> safe('<script> & "co"\\x00')
    '&lt;script&gt; &amp; &quot;co&quot;□'
    """
    return _escaped(text)


def _escaped(text: str) -> str:
    return escape(_FORBIDDEN.sub(_REPLACEMENT, text))


def _drawable(text: str) -> str:
    return _FORBIDDEN.sub(_REPLACEMENT, isolated(text))


def isolated(text: str) -> str:
    """The text with names that are written from right to left isolated from what stands beside them.

    A browser would otherwise draw the figures after a Hebrew name as part of it: 8→16 would become 16→8. Characters
    in a name that change the direction of text are shown as a box.

    >>> hebrew = chr(0x5D0)
    >>> isolated("conv1 · 8→16"), isolated(f"{hebrew} · 8→16") == f"{chr(0x2068)}{hebrew}{chr(0x2069)} · 8→16"
    ('conv1 · 8→16', True)
    """
    text = _TURNING.sub(_REPLACEMENT, text)
    if not _RIGHT_TO_LEFT.search(text):
        return text
    parts = _BETWEEN.split(text)
    return "".join(f"{_ISOLATE}{part}{_END}" if _RIGHT_TO_LEFT.search(part) else part for part in parts)


def in_inches(svg: str, inches: tuple[float, float]) -> str:
    """A document with a size on paper; what is drawn is scaled to it.

    >>> in_inches('<svg width="480" height="320" viewBox="0 0 480 320"></svg>', (3.4, 2.27))
    '<svg width="3.4in" height="2.27in" viewBox="0 0 480 320"></svg>'
    """
    sizes = iter(inches)
    return re.sub(r'( (?:width|height)=")[0-9.]+', lambda match: f"{match[1]}{next(sizes):.6g}in", svg, count=2)


class Stroke(TypedDict, total=False):
    """How a line is painted."""

    stroke: str
    stroke_width: float
    dash: str  # lengths of strokes and gaps
    opacity: float


class Paint(Stroke, total=False):
    """How a shape is painted."""

    fill: str
    title: str  # what a browser shows when the pointer rests on the shape


class Canvas:
    """A page that shapes are drawn on, later ones over earlier ones. `markup()` is the finished document."""

    def __init__(self, width: float, height: float, theme: Theme, inches: tuple[float, float] | None = None) -> None:
        if not (0 < width < math.inf and 0 < height < math.inf):
            raise InvalidInputError(f"a picture of {width} x {height} cannot be drawn; both must be above zero")
        self.width = width
        self.height = height
        self.theme = theme
        self.inches = inches  # its size on paper
        self._parts: list[str] = []
        self._texts: dict[bool, list[str]] = {}  # regular and bold
        self._open = 0

    def rect(self, x: float, y: float, w: float, h: float, *, radius: float = 0.0, **paint: Unpack[Paint]) -> None:
        """A box."""
        shape = f'rect x="{number(x)}" y="{number(y)}" width="{number(w)}" height="{number(h)}"'
        self._add(shape + (f' rx="{number(radius)}"' if radius else ""), **paint)

    def circle(self, x: float, y: float, radius: float, **paint: Unpack[Paint]) -> None:
        """A circle around (x, y)."""
        self._add(f'circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"', **paint)

    def path(self, d: str, **paint: Unpack[Paint]) -> None:
        """Any outline, in SVG's path language. Write its numbers with `number`."""
        self._add(f'path d="{_escaped(d)}"', **paint)

    def line(self, x1: float, y1: float, x2: float, y2: float, **stroke: Unpack[Stroke]) -> None:
        """A straight line."""
        ends = f'line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
        self._add(ends, fill="", **stroke)

    def polyline(self, points: Iterable[Point], **paint: Unpack[Paint]) -> None:
        """Straight lines from point to point; with a `fill`, the area that they and the way back enclose."""
        places = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self._add(f'polyline points="{places}"', **paint)

    def rounded(self, points: Iterable[Point], radius: float, **stroke: Unpack[Stroke]) -> None:
        """Straight lines from point to point whose corners are rounded, as far as the pieces between them allow."""
        if d := _rounded(_corners(points), radius):
            self.path(d, **stroke)

    def arrow_head(self, x: float, y: float, direction: Direction, *, fill: str, size: float) -> None:
        """A triangle whose tip is at (x, y), `size` long."""
        along, across = _AWAY[direction], 0.42 * size
        back_x, back_y = x - along[0] * size, y - along[1] * size
        side_x, side_y = along[1] * across, along[0] * across
        ends = ((x, y), (back_x + side_x, back_y + side_y), (back_x - side_x, back_y - side_y))
        self.path("M" + "L".join(f"{number(a)} {number(b)}" for a, b in ends) + "Z", fill=fill)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float,
        fill: str,
        bold: bool = False,
        anchor: Anchor = "start",
        title: str = "",
    ) -> None:
        """One line of text on the baseline `y`. It is not cut: use `fonts.clipped` first.

        Every viewer draws it as wide as we measured it: in our font, which the document carries, or squeezed if the
        viewer takes another font.
        """
        if not text:
            return
        text = _drawable(text)
        self._texts.setdefault(bold, []).append(text)
        opening = f'text x="{number(x)}" y="{number(y)}" font-size="{number(size)}" fill="{safe(fill)}"'
        if bold:
            opening += ' font-weight="600"'
        if anchor != "start":
            opening += f' text-anchor="{safe(anchor)}"'
        self._parts.append(f"<{opening}{_extent(text, size, bold)}>{_explained(title)}{escape(text)}</text>")

    def begin_group(self, transform: str) -> None:
        """Shapes drawn until `end_group` share one transform."""
        self._open += 1
        self._parts.append(f'<g transform="{safe(transform)}">')

    def end_group(self) -> None:
        """Closes the group that was opened last."""
        if not self._open:
            raise StateError("end_group was called without begin_group; open a group first")
        self._open -= 1
        self._parts.append("</g>")

    def markup(self) -> str:
        """The whole document, with the theme's background. The font comes last: nobody wants to read it first."""
        if self._open:
            raise StateError(f"{self._open} groups are still open; call end_group before markup")
        width, height = number(self.width), number(self.height)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="{OURS}, {FAMILY}, system-ui, sans-serif">'
        )
        head = head if self.inches is None else in_inches(head, self.inches)
        ground = f'<rect width="{width}" height="{height}" fill="{safe(self.theme.background)}"/>'
        fonts = font_style({bold: set().union(*texts) for bold, texts in self._texts.items()})
        style = [f"<style>{fonts}</style>"] if fonts else []
        return "\n".join([head, ground, *self._parts, *style, "</svg>\n"])

    def _add(
        self,
        shape: str,
        *,
        fill: str = "none",
        stroke: str = "none",
        stroke_width: float = 1.0,
        dash: str = "",
        opacity: float = 1.0,
        title: str = "",
    ) -> None:
        if fill:
            shape += f' fill="{safe(fill)}"'
        if stroke != "none":
            shape += f' stroke="{safe(stroke)}"'
            shape += f' stroke-width="{number(stroke_width)}"' if stroke_width != 1 else ""
            shape += f' stroke-dasharray="{safe(dash)}"' if dash else ""
        if opacity != 1:
            shape += f' opacity="{number(opacity)}"'
        tag = shape.split(" ", 1)[0]
        self._parts.append(f"<{shape}>{_explained(title)}</{tag}>" if title else f"<{shape}/>")


def _explained(title: str) -> str:
    return f"<title>{_escaped(title)}</title>" if title else ""


def _extent(text: str, size: float, bold: bool) -> str:
    """The attributes that fix the width of a text; none for scripts whose width is only estimated."""
    seen = _BLANKS.sub(" ", text).strip(" ")
    if not seen or not has_all(seen):
        return ""
    return f' textLength="{number(text_width(seen, size, bold))}" lengthAdjust="spacingAndGlyphs"'


def _corners(points: Iterable[Point]) -> list[Point]:
    """The points at which the line turns, and its two ends."""
    corners: list[Point] = []
    for point in points:
        if corners and math.dist(corners[-1], point) < 0.005:  # closer than two decimals can tell
            continue
        if len(corners) > 1 and _straight(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    return corners


def _straight(a: Point, b: Point, c: Point) -> bool:
    """True if the line from a over b to c is straight and does not turn back."""
    (ux, uy), (vx, vy) = (b[0] - a[0], b[1] - a[1]), (c[0] - b[0], c[1] - b[1])
    return abs(ux * vy - uy * vx) < 1e-6 * math.hypot(ux, uy) * math.hypot(vx, vy) and ux * vx + uy * vy > 0


def _rounded(points: Sequence[Point], radius: float) -> str:
    if len(points) < 2:
        return ""
    d = [f"M{number(points[0][0])} {number(points[0][1])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        # Two corners share the piece between them: each may take half of it.
        turn = min(radius, math.dist(before, corner) / 2, math.dist(corner, after) / 2)
        (x1, y1), (x2, y2) = _towards(corner, before, turn), _towards(corner, after, turn)
        d.append(f"L{number(x1)} {number(y1)}")
        d.append(f"Q{number(corner[0])} {number(corner[1])} {number(x2)} {number(y2)}")
    d.append(f"L{number(points[-1][0])} {number(points[-1][1])}")
    return "".join(d)


def _towards(start: Point, end: Point, far: float) -> Point:
    share = far / math.dist(start, end)
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share
