"""What a caller says of the size of a picture -> the sheet it is drawn on: in pixels, or in inches for a paper."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

from torchatlas.errors import InvalidInputError
from torchatlas.registry import did_you_mean
from torchatlas.render.png import whole

PIXELS = 96  # to an inch, as in CSS
POINTS = 72
WIDTHS = {"column": 3.4, "full": 7.0}  # inches: of a column, and of both, in most papers of two columns
HIGHEST = 9.0  # inches: what margins leave of a page
SMALLEST_TYPE = 6.0  # points: what journals ask for at least
_USUAL_PAGE = (1600, 1200)
_USUAL_TEXT = 9.0  # pixels
_LEAST_SIDE = 24  # pixels: margins alone take as much
_LEAST_INCHES, _MOST_INCHES = 0.25, 200.0  # PDF has no larger pages

Size = str | float | tuple[float, float]


@dataclass(frozen=True)
class Sheet:
    """A page of so many pixels and, if it is for paper, inches."""

    width: int
    height: int
    font_size: float  # pixels: the smallest text
    inches: tuple[float, float] | None = None
    fits_content: bool = False  # it is cut off below what is drawn: `height` is the most there may be

    @property
    def on_paper(self) -> bool:
        return self.inches is not None

    def cut(self, height: float) -> Sheet:
        """The sheet with a height that its content needs."""
        pixels = min(math.ceil(height), self.height)
        assert self.inches is not None
        inches = self.inches[0], pixels * self.inches[0] / self.width
        return Sheet(self.width, pixels, self.font_size, inches)

    def size(self, width: float, height: float) -> str:
        """A size in pixels as text; in inches if the sheet is for paper."""
        if self.inches is None:
            return f"{math.ceil(width)} x {math.ceil(height)}"
        wide, tall = (math.ceil(10 * side / PIXELS) / 10 for side in (width, height))
        return f"{wide:g} x {tall:g}"

    @property
    def unit(self) -> str:
        return "inches" if self.on_paper else "pixels"

    @property
    def asked_font_size(self) -> float:
        """The smallest text in the unit of the caller: points on paper, else pixels."""
        return self.font_size * POINTS / PIXELS if self.on_paper else self.font_size


def sheet(width: Any = None, height: Any = None, size: Any = None, font_size: Any = None) -> Sheet:
    """A sheet of `width` x `height` pixels, or of a `size` on paper, in inches. `font_size` is in pixels, on paper in
    points."""
    _check_font(font_size, size is not None)
    if size is None:
        pixel_width = whole("width", _USUAL_PAGE[0] if width is None else width)
        pixel_height = whole("height", _USUAL_PAGE[1] if height is None else height)
        if min(pixel_width, pixel_height) < _LEAST_SIDE:
            raise InvalidInputError(
                f"{pixel_width} x {pixel_height} pixels are too few to show anything: margins alone take {_LEAST_SIDE}."
            )
        return Sheet(pixel_width, pixel_height, _USUAL_TEXT if font_size is None else float(font_size))
    for name, side in (("width", width), ("height", height)):
        if side is not None:
            raise InvalidInputError(f"size={size!r} and {name}={side!r} are two sizes: pass size alone, or pixels.")
    inches, fits_content = _inches(size)
    # Rounded down: on paper a pixel becomes a hair larger, never smaller.
    pixel_width = math.floor(inches[0] * PIXELS + 1e-6)
    pixel_height = math.floor(inches[1] * pixel_width / inches[0] + 1e-6)
    points = SMALLEST_TYPE if font_size is None else float(font_size)
    return Sheet(pixel_width, pixel_height, points * PIXELS / POINTS, inches, fits_content)


def _inches(size: Any) -> tuple[tuple[float, float], bool]:
    """Width and height, and whether the height is only the most there may be."""
    if isinstance(size, str):
        if size not in WIDTHS:
            hint = did_you_mean(size, WIDTHS) or "."
            raise InvalidInputError(f"size={size!r} is no size of a picture{hint} {_accepted_sizes()}")
        return (WIDTHS[size], HIGHEST), True
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, HIGHEST)
    if len(sides) != 2 or not all(map(_is_length, sides)):
        raise InvalidInputError(
            f"size={size!r} is no size of a picture. {_accepted_sizes()} "
            f"Inches go from {_LEAST_INCHES:g} to {_MOST_INCHES:g}."
        )
    return (float(sides[0]), float(sides[1])), not isinstance(size, (tuple, list))


def _accepted_sizes() -> str:
    names = " or ".join(f'"{name}" ({width:g} inches wide)' for name, width in WIDTHS.items())
    return f"Pass {names}, inches for the width, or inches for width and height, as in (5.5, 3)."


def _is_length(side: Any) -> bool:
    is_number = isinstance(side, Real) and not isinstance(side, bool)
    return is_number and _LEAST_INCHES <= float(side) <= _MOST_INCHES


def _check_font(size: Any, on_paper: bool) -> None:
    if size is None:
        return
    unit = "points" if on_paper else "pixels"
    if isinstance(size, bool) or not isinstance(size, Real) or not 0 <= float(size) <= 200:
        raise InvalidInputError(f"font_size={size!r} is no size for text; pass {unit}, up to 200.")
    if float(size) < 1:
        raise InvalidInputError(f"font_size={size!r} could not be read by anyone; pass {unit}, from 1.")
