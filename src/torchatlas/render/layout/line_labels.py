"""The words beside lines: the labels that are wished for -> those that there is room for, each at its place."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchatlas.render.fonts import text_width
from torchatlas.render.layout.routing import Point
from torchatlas.render.layout.style import STYLE

if TYPE_CHECKING:
    from torchatlas.render.layout.scene import Frame, Scene

Area = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True, slots=True)
class Label:
    """A shape beside a line."""

    x: float
    y: float  # the baseline
    text: str
    net: int


@dataclass(frozen=True, slots=True)
class Wish:
    """A label to place beside one of the lines of a net."""

    net: int
    text: str
    lines: list[tuple[tuple[Point, ...], float, float]]  # the points of each, and from where to where its label may lie
    others: list[tuple[Point, ...]]  # lines of the net that have other shapes


def place_labels(scene: Scene, beside: float) -> None:
    """Write the labels that there is room for, on a page that goes on so far to the left and right of the boxes."""
    scene.beside, scene.labels, scene.no_room = beside, [], []
    pieces = [
        (min(a[0], b[0]), min(a[1], b[1]), max(a[0], b[0]), max(a[1], b[1]))
        for line in scene.lines
        for a, b in zip(line.points, line.points[1:], strict=False)
    ]
    solid = [area for frame in scene.frames for area in _solid(frame)]
    placed: list[Area] = []
    page = (0.0, scene.height) if scene.sideways else (-beside, scene.width + beside)
    find = _spots_above if scene.sideways else _spots
    for wish in scene.wishes:
        width = text_width(wish.text, STYLE.small_text)
        spot = next(
            (
                spot
                for points, low, high in wish.lines
                for spot in find(points, width, (max(low, page[0]), min(high, page[1])), wish.others)
                if not _hits(spot, solid, STYLE.label_to_box)
                and not _hits(spot, placed, STYLE.label_to_label)
                and not _hits_line(spot, pieces, scene.sideways)
            ),
            None,
        )
        if spot is None:
            scene.no_room.append((wish.net, wish.text))
            continue
        placed.append(spot)
        scene.labels.append(Label(spot[0], spot[1] + STYLE.label_baseline, wish.text, wish.net))


def _solid(frame: Frame) -> list[Area]:
    """What no label may lie on: a closed box; of an open one its heading and the three other sides."""
    behind = STYLE.stack if frame.item.repeat > 1 else 0.0
    left, top, right, bottom = frame.x, frame.y, frame.x + frame.width, frame.y + frame.height
    if not frame.open:
        return [(left, top, right + behind, bottom + behind)]
    sides = [(left, top, left, bottom), (right, top, right + behind, bottom), (left, bottom, right, bottom + behind)]
    return [(left, top, right, top + STYLE.heading), *sides]


def _spots(
    points: tuple[Point, ...], width: float, room: tuple[float, float], others: list[tuple[Point, ...]]
) -> list[Area]:
    """Where a text fits beside the upright pieces of a line that no line with another text shares."""
    spots = []
    for (ax, ay), (bx, by) in itertools.pairwise(points):
        if abs(ax - bx) > STYLE.one_place:
            continue
        ay = _parting(ax, ay, by, others)
        if by - ay < STYLE.label_height + STYLE.label_shift + 1:
            continue
        for left in (ax + STYLE.label_gap, ax - STYLE.label_gap - width):
            if room[0] <= left and left + width <= room[1]:
                spots.append((left, ay + STYLE.label_shift, left + width, ay + STYLE.label_shift + STYLE.label_height))
    return spots


def _spots_above(
    points: tuple[Point, ...], width: float, room: tuple[float, float], others: list[tuple[Point, ...]]
) -> list[Area]:
    """Where a text fits above or below the level pieces of a line that no line with another text shares."""
    spots = []
    others = [tuple((y, x) for x, y in points) for points in others]
    for (ax, ay), (bx, by) in itertools.pairwise(points):
        if abs(ay - by) > STYLE.one_place or (bx < ax and others):
            continue
        left, right = (bx + STYLE.line_corner, ax) if bx < ax else (_parting(ay, ax, bx, others), bx)
        if right - left < width + STYLE.label_ends - 2:
            continue
        for top in (ay - STYLE.label_shift - STYLE.label_height, ay + STYLE.label_shift):
            if room[0] <= top and top + STYLE.label_height <= room[1]:
                spots.append((left + 4, top, left + 4 + width, top + STYLE.label_height))
    return spots


def _parting(x: float, top: float, bottom: float, others: list[tuple[Point, ...]]) -> float:
    """Where an upright piece has left the other lines of its tensor, which begin where it does."""
    for points in others:
        for (ax, ay), (bx, by) in itertools.pairwise(points):
            if abs(ax - x) < STYLE.one_place and abs(bx - x) < STYLE.one_place and ay < bottom and top < by:
                top = by
    return top


def _hits(spot: Area, others: list[Area], pad: float) -> bool:
    return any(
        spot[0] < x1 + pad and spot[2] > x0 - pad and spot[1] < y1 + pad and spot[3] > y0 - pad
        for x0, y0, x1, y1 in others
    )


def _hits_line(spot: Area, pieces: list[Area], sideways: bool) -> bool:
    """Texts stand beside their lines or, sideways, close above or below them."""
    if sideways:
        return _hits((spot[0] - 2, spot[1], spot[2] + 2, spot[3]), pieces, STYLE.label_to_level_line)
    return _hits((spot[0], spot[1] - 1, spot[2], spot[3] + 1), pieces, STYLE.label_to_upright_line)
