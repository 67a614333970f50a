"""An SVG that Canvas wrote -> a PDF of one page: the same shapes, and the same texts as text, in our font.

A reader can search and copy every text. The pieces of the font that the page is written with are embedded (as Type 0
fonts, whose characters are numbers of glyphs, each with its Unicode), so that it looks the same everywhere. What SVG
keeps for the pointer, its tooltips, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from unicodedata import category
from xml.etree import ElementTree

from torchatlas.errors import InvalidInputError
from torchatlas.render.fonts import has_all, text_width, widths_by_piece
from torchatlas.render.fonts.outlines import outlines
from torchatlas.render.pdf_file import pdf_file, resource
from torchatlas.render.svg import number

POINTS = 72.0  # in an inch
_LARGEST = 14_400.0  # points, 200 inches: viewers show no larger pages
_ROUND = 0.5523  # how far the control points of a quarter of a circle are from its ends, for a radius of 1
_STEP = re.compile(r"([MLHVCQZmlhvcqz])([^A-Za-z]*)")
_NUMBERS = re.compile(r"-?[0-9.]+")
_BLANKS = re.compile(r"[ \t\n\r]+")  # drawn as one space
_COLOUR = re.compile("#[0-9A-Fa-f]{6}")
_SHAPES = ("rect", "circle", "line", "polyline", "path")
_UNDRAWN = ("title", "style")

_PAINTS = {(True, True): "B", (True, False): "f", (False, True): "S", (False, False): "n"}  # filled, with a stroke
_BEFORE = {"start": 0.0, "middle": 0.5, "end": 1.0}  # the part of a text that lies before its place

Attributes = dict[str, str]


def to_pdf(svg: str, width: float, height: float) -> bytes:
    """The document on a page of so many inches, 200 at most. It is scaled to fit, and centred."""
    root = ElementTree.fromstring(svg.encode())
    view_width, view_height = (float(size) for size in root.attrib["viewBox"].split()[2:])
    shrink = min(1.0, _LARGEST / (max(width, height) * POINTS))
    page = width * POINTS * shrink, height * POINTS * shrink
    scale = min(page[0] / view_width, page[1] / view_height)
    left, top = (page[0] - scale * view_width) / 2, page[1] - (page[1] - scale * view_height) / 2
    content = _Content()
    # PDF counts upwards from the lower left corner, SVG downwards from the upper left. SVG cuts mitres at 4.
    content.add(f"{scale:.6f} 0 0 {-scale:.6f} {left:.4f} {top:.4f} cm 4 M")
    content.draw(root)
    return pdf_file("\n".join(content.operators).encode(), page, content.used, content.opacities)


class _Content:
    """The page's drawing operators, and what they use: the characters of each piece of the font, and opacities."""

    def __init__(self) -> None:
        self.operators: list[str] = []
        self.used: dict[tuple[str, bool], dict[int, str]] = {}  # piece and weight -> glyphs -> characters
        self.opacities: list[str] = []

    def add(self, *operators: str) -> None:
        self.operators += operators

    def draw(self, group: ElementTree.Element) -> None:
        for shape in group:
            tag = shape.tag.rpartition("}")[2]
            if tag in _UNDRAWN:
                continue
            self.add("q")
            if opacity := shape.get("opacity"):
                if opacity not in self.opacities:
                    self.opacities.append(opacity)
                self.add(f"/O{self.opacities.index(opacity)} gs")
            if tag == "g":
                self.add(*_transform(shape.get("transform", "")))
                self.draw(shape)
            elif tag == "text":
                self._text(shape)
            elif tag in _SHAPES:
                self._shape(tag, shape.attrib)
            else:
                raise InvalidInputError(f"<{tag}> is no shape that a PDF can be made of: Canvas draws none such.")
            self.add("Q")

    def _shape(self, tag: str, shape: Attributes) -> None:
        fill, stroke = shape.get("fill", "none"), shape.get("stroke", "none")
        fills, strokes = fill != "none" and tag != "line", stroke != "none"
        if fills:
            self.add(f"{_colour(fill)} rg")
        if strokes:
            self.add(f"{_colour(stroke)} RG {shape.get('stroke-width', '1')} w")
            if dash := shape.get("stroke-dasharray"):
                self.add(f"[{dash}] 0 d")
        self.add(*_outline(tag, shape), _PAINTS[fills, strokes])

    def _text(self, shape: ElementTree.Element) -> None:
        """Characters beyond our font are drawn as escapes; whoever copies the text gets it as it is in the SVG."""
        text = _BLANKS.sub(" ", (shape.text or "") + "".join(part.tail or "" for part in shape)).strip(" ")
        size, bold = float(shape.attrib["font-size"]), "font-weight" in shape.attrib
        drawn = text if has_all(text) else "".join(map(_spelled, text))
        width, drawn_width = text_width(text, size, bold), text_width(drawn, size, bold)
        x = float(shape.attrib["x"]) - width * _BEFORE[shape.get("text-anchor", "start")]
        runs, copied = [], ""
        for piece, run in _runs(drawn):
            glyphs, used = outlines(piece, bold).glyphs, self.used.setdefault((piece, bold), {})
            for character in run:
                # If two characters share a glyph, it stands for the one that came first.
                copied += used.setdefault(glyphs[character], character)
            codes = "".join(f"{glyphs[character]:04X}" for character in run)
            runs.append(f"/{resource(piece, bold)} {number(size)} Tf <{codes}> Tj")
        if copied != text:
            self.add(f"/Span <</ActualText <FEFF{text.encode('utf-16-be').hex().upper()}>>> BDC")
        self.add("BT", f"{_colour(shape.attrib['fill'])} rg", f"1 0 0 -1 {number(x)} {shape.attrib['y']} Tm")
        if drawn_width > width + 0.01:  # escapes take more room than what was measured
            self.add(f"{100 * width / drawn_width:.3f} Tz")
        self.add(*runs, "ET", *(["EMC"] if copied != text else []))


def _transform(text: str) -> Iterator[str]:
    """SVG's transform as PDF's, one operator for each."""
    for name, numbers in re.findall(r"(\w+)\(([^)]*)\)", text):
        x, *more = map(float, _NUMBERS.findall(numbers))
        if name == "translate":
            yield f"1 0 0 1 {number(x)} {number(more[0])} cm"
        elif name == "scale":
            yield f"{x:.4f} 0 0 {x:.4f} 0 0 cm"
        else:
            raise InvalidInputError(f"{name}({numbers}) cannot be written into a PDF: Canvas moves and scales only.")


def _outline(tag: str, shape: Attributes) -> Iterator[str]:
    """The operators that make the outline of a shape."""
    if tag == "path":
        yield from _path(shape["d"])
    elif tag == "line":
        yield f"{shape['x1']} {shape['y1']} m {shape['x2']} {shape['y2']} l"
    elif tag == "polyline":
        points = (point.replace(",", " ") for point in shape["points"].split())
        yield from (f"{point} {'l' if at else 'm'}" for at, point in enumerate(points))
    elif tag == "circle":
        x, y, radius = (float(shape[key]) for key in ("cx", "cy", "r"))
        yield from _rounded(x - radius, y - radius, 2 * radius, 2 * radius, radius)
    else:
        x, y, width, height, radius = (float(shape.get(key, 0)) for key in ("x", "y", "width", "height", "rx"))
        if radius:
            yield from _rounded(x, y, width, height, min(radius, width / 2, height / 2))
        else:
            yield f"{number(x)} {number(y)} {number(width)} {number(height)} re"


def _rounded(x: float, y: float, width: float, height: float, radius: float) -> Iterator[str]:
    right, bottom, inner = x + width, y + height, radius * (1 - _ROUND)
    yield _operator("m", x + radius, y)
    yield _operator("l", right - radius, y)
    yield _operator("c", right - inner, y, right, y + inner, right, y + radius)
    yield _operator("l", right, bottom - radius)
    yield _operator("c", right, bottom - inner, right - inner, bottom, right - radius, bottom)
    yield _operator("l", x + radius, bottom)
    yield _operator("c", x + inner, bottom, x, bottom - inner, x, bottom - radius)
    yield _operator("l", x, y + radius)
    yield _operator("c", x, y + inner, x + inner, y, x + radius, y)
    yield "h"


def _path(d: str) -> Iterator[str]:
    """SVG's path language but for arcs and abbreviated curves, which Canvas does not write."""
    if _STEP.sub("", d).strip():
        raise InvalidInputError(f"the path {d[:80]!r} cannot be written into a PDF: it has more than lines and curves.")
    x = y = 0.0
    for letter, rest in _STEP.findall(d):
        kind, numbers = letter.upper(), [float(text) for text in _NUMBERS.findall(rest)]
        if kind == "H":
            numbers = [numbers[0], 0.0 if letter == "h" else y]
        elif kind == "V":
            numbers = [0.0 if letter == "v" else x, numbers[0]]
        if letter.islower():
            numbers = [at + (y if axis % 2 else x) for axis, at in enumerate(numbers)]
        if kind == "Q":  # PDF has cubic curves only
            (a, b), (c, d_) = numbers[:2], numbers[2:]
            numbers = [x + (a - x) * 2 / 3, y + (b - y) * 2 / 3, c + (a - c) * 2 / 3, d_ + (b - d_) * 2 / 3, c, d_]
        if numbers:
            x, y = numbers[-2:]
        yield _operator({"M": "m", "C": "c", "Q": "c", "Z": "h"}.get(kind, "l"), *numbers)


def _operator(name: str, *numbers: float) -> str:
    return " ".join([*map(number, numbers), name])


def _colour(text: str) -> str:
    if not _COLOUR.fullmatch(text):
        raise InvalidInputError(f"{text!r} is no colour that a PDF can be made with; write it as #RRGGBB.")
    return " ".join(f"{int(text[at : at + 2], 16) / 255:.4g}" for at in (1, 3, 5))


# -- texts -------------------------------------------------------------------------------------------------------------


def _spelled(character: str) -> str:
    """What is drawn of a character: itself, its escape if our font does not have it, nothing of a mark of direction."""
    if has_all(character):
        return character
    return "" if category(character) == "Cf" else character.encode("unicode_escape").decode()


def _runs(text: str) -> Iterator[tuple[str, str]]:
    """The text cut where another piece of the font begins."""
    run, last = "", ""
    for character in text:
        piece = next(name for name, widths in widths_by_piece().items() if character in widths)
        if run and piece != last:
            yield last, run
            run = ""
        run, last = run + character, piece
    if run:
        yield last, run
