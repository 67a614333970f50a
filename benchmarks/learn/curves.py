"""Curves of measured numbers on two logarithmic axes -> SVG, drawn with the axes of torchatlas' own plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchatlas.render.axes import (
    HEADING,
    MARGIN,
    Area,
    Scale,
    base_axis,
    footer,
    legend,
    log_span,
    log_ticks,
    open_page,
    side_axis,
    side_title,
    widest,
)

COLOURS = ("#2f6db3", "#c05a1c", "#3f8f5b", "#8a4fb0", "#8c7a17")


@dataclass(frozen=True)
class Curve:
    """What was measured for each n."""

    name: str
    points: tuple[tuple[int, float], ...]

    @property
    def exponent(self) -> float:
        """The slope of a straight line through the points, both axes logarithmic: 1 is linear, 0 constant."""
        xs, ys = [[math.log(each) for each in side] for side in zip(*self.points, strict=True)]
        x0, y0 = sum(xs) / len(xs), sum(ys) / len(ys)
        return sum((x - x0) * (y - y0) for x, y in zip(xs, ys, strict=True)) / sum((x - x0) ** 2 for x in xs)


def draw(
    curves: Sequence[Curve],
    title: str,
    subtitle: str,
    axes: tuple[str, str],
    say: Callable[[float], str],
    note: str,
    size: tuple[int, int] = (860, 520),
) -> str:
    """The curves as SVG. `axes` are the titles below and beside; `say` writes a number of the axis beside."""
    canvas = open_page(title, subtitle, *size, theme="light")
    coloured = list(zip(COLOURS, curves, strict=False))
    entries = [(colour, f"{curve.name}: n^{curve.exponent:.2f}") for colour, curve in coloured]
    top = legend(canvas, entries, HEADING)
    everything = [point for curve in curves for point in curve.points]
    across = log_span(min(x for x, _ in everything), max(x for x, _ in everything))
    up = log_span(min(y for _, y in everything), max(y for _, y in everything))
    ticks = log_ticks(*up, 9)
    area = Area(MARGIN + widest(map(say, ticks)) + 10, top + 34, size[0] - MARGIN, size[1] - 84)
    base, side = Scale(*across, area.left, area.right, log=True), Scale(*up, area.bottom, area.top, log=True)
    side_title(canvas, top + 16, axes[1])
    side_axis(canvas, area, side, ticks, say)
    base_axis(canvas, area, base, log_ticks(*across, 8), lambda n: f"{n:,.0f}", axes[0])
    for colour, curve in coloured:
        places = [(base(x), side(y)) for x, y in curve.points]
        canvas.polyline(places, stroke=colour, stroke_width=2)
        for (x, y), (n, value) in zip(places, curve.points, strict=True):
            canvas.circle(x, y, 3.5, fill=colour, title=f"{curve.name}, n = {n:,}: {say(value)}")
    footer(canvas, note)
    return canvas.markup()
