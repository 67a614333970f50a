"""Lines that lead to the right: the same boxes and lines as downwards, on a page that is read in rows."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from render.layout.verify import account, defects
from render.pictures import tower
from torch import nn

import torchatlas as atlas
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph
from torchatlas.render.layout.style import STYLE
from torchatlas.render.picture import Picture


def convolutions(count: int = 3, **options: object) -> Graph:
    layers = [layer for at in range(count) for layer in (nn.Conv2d(3 + at, 4 + at, 3), nn.ReLU())]
    return atlas.capture(nn.Sequential(*layers), torch.ones(1, 3, 32, 32), **options)  # type: ignore[arg-type]


def to_the_right(graph: Graph, width: int = 2400, height: int = 1600, **options: object) -> Picture:
    return atlas.draw(graph, width=width, height=height, direction="right", **options)  # type: ignore[arg-type]


def test_a_chain_becomes_a_row() -> None:
    picture = to_the_right(convolutions())
    frames = picture.scene.frames
    middles = {round(frame.y + frame.height / 2, 3) for frame in frames}
    assert len(middles) == 1
    assert [frame.x for frame in frames] == sorted(frame.x for frame in frames)
    assert all(frame.width > frame.height for frame in frames)
    for line in picture.scene.lines:
        assert line.points[0][1] == pytest.approx(line.points[-1][1])
        assert line.points[0][0] < line.points[-1][0]


def test_arrows_point_to_the_right() -> None:
    picture = to_the_right(convolutions())
    heads = re.findall(r'd="M(\S+) (\S+?)L(\S+) (\S+?)L(\S+) (\S+?)Z"', picture.svg)
    assert len(heads) == len(picture.scene.lines)
    for tip_x, tip_y, back_x, *_ in heads:
        assert float(back_x) == pytest.approx(float(tip_x) - STYLE.arrow, abs=0.02)
        assert any(
            line.points[-1] == pytest.approx((float(tip_x), float(tip_y)), abs=0.02) for line in picture.scene.lines
        )


def test_every_new_shape_has_room_above_its_line() -> None:
    picture = to_the_right(convolutions(4))
    assert not picture.scene.no_room
    assert {label.text for label in picture.scene.labels} == {"1×4×30×30", "1×5×28×28", "1×6×26×26", "1×7×24×24"}
    level = [
        (one, other)
        for line in picture.scene.lines
        for one, other in itertools.pairwise(line.points)
        if one[1] == other[1]
    ]
    for label in picture.scene.labels:
        assert any(one[0] < label.x < other[0] and 0 < one[1] - label.y < 6 for one, other in level)


def test_lines_enter_a_frame_on_its_left_below_its_heading() -> None:
    picture = to_the_right(tower())
    frames = [frame for frame in picture.scene.frames if frame.open]
    assert frames
    for frame in frames:
        entering = [line for line in picture.scene.lines if line.points[-1][0] == pytest.approx(frame.x)]
        assert any(not line.returning for line in entering)
        assert any(line.returning for line in entering) == (frame.item.repeat > 1)
        for line in entering:
            assert frame.y + STYLE.heading < line.points[-1][1] < frame.y + frame.height


def test_phases_say_how_many_tensors_they_hand_on() -> None:
    picture = to_the_right(convolutions(optimizer=torch.optim.SGD))
    assert sum(label.text.endswith("tensors") for label in picture.scene.labels) == 2


@pytest.mark.parametrize("options", [{"size": "full"}, {"width": 700, "height": 900}, {"width": 900, "height": 2400}])
def test_rows_on_narrow_pages_are_true(options: dict[str, object]) -> None:
    graph = convolutions(9, backward=True)
    picture = atlas.draw(graph, direction="right", **options)  # type: ignore[arg-type]
    assert picture.fit.box.wraps
    assert defects(picture.scene) == []
    told = account(picture.outline, picture.scene)
    assert (told.missing, told.invented) == ([], [])


def test_a_wide_page_is_lower() -> None:
    graph = convolutions(2)
    down, right = (atlas.draw(graph, size=7, direction=direction, depth=1) for direction in ("down", "right"))
    assert right.height < down.height


def test_other_directions_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="direction='up' is not one of down, right"):
        atlas.draw(tower(), direction="up")
