"""Axes: ticks at round numbers that enclose the data, and labels that never touch."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from render.reading import texts

from torchatlas.render.axes import (
    Area,
    Room,
    Scale,
    base_axis,
    legend,
    log_span,
    log_ticks,
    open_page,
    round_ticks,
    short,
)
from torchatlas.render.svg import Canvas
from torchatlas.render.theme import LIGHT

COUNTS = st.integers(2, 12)
POSITIVE = st.floats(1e-30, 1e30)


def overlaps(canvas: Canvas) -> list[tuple[str, str]]:
    return [
        (first, second)
        for (first, a), (second, b) in combinations(texts(canvas.markup()), 2)
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]


@given(st.floats(1, 1e18), COUNTS, st.sampled_from([10, 1024]))
def test_even_ticks_are_few_round_and_within(high: float, count: int, base: int) -> None:
    ticks = round_ticks(high, count, base)
    assert ticks[0] == 0
    assert ticks[-1] <= high
    assert len(ticks) <= count + 1
    if len(ticks) > 1:
        step = ticks[1]
        assert all(b - a == step for a, b in pairwise(ticks))
        digits = step / base ** math.floor(math.log(step, base) + 1e-9)
        assert round(digits) in ({1, 2, 5} if base == 10 else {2**power for power in range(10)})


@given(POSITIVE, st.floats(1, 1e12), COUNTS)
def test_log_axes_enclose_the_data_and_have_ticks(low: float, factor: float, count: int) -> None:
    high = low * factor
    begin, end = log_span(low, high)
    assert begin < low <= high < end
    ticks = log_ticks(begin, end, count)
    assert all(begin <= tick <= end for tick in ticks)
    assert 1 <= len(ticks) <= 2 * count + 3
    assert ticks == sorted(ticks)


def test_scales() -> None:
    assert [Scale(0, 10, 100, 200)(value) for value in (0, 5, 10)] == [100, 150, 200]
    assert [Scale(1, 100, 300, 100, log=True)(value) for value in (1, 10, 100)] == [300, 200, 100]


@pytest.mark.parametrize("count", [3, 40, 400])
def test_ticks_without_room_have_no_numbers_but_a_mark(count: int) -> None:
    canvas = Canvas(600, 300, LIGHT)
    area = Area(50, 50, 598, 250)
    ticks = [1000.0 * index for index in range(count + 1)]
    base_axis(canvas, area, Scale(0, 1000 * count, 50, 598), ticks, lambda tick: f"{tick:,.0f}", "nodes")
    assert overlaps(canvas) == []
    assert all(left >= 0 and right <= 600 for _, (left, _, right, _) in texts(canvas.markup()))
    assert canvas.markup().count("<line") == count + 2


def test_a_legend_wraps_and_says_where_it_ends() -> None:
    canvas = Canvas(500, 400, LIGHT)
    end = legend(canvas, [("#000000", f"category number {index}") for index in range(17)], 70)
    assert overlaps(canvas) == []
    assert all(box[2] <= 500 and box[1] >= 70 and box[3] <= end for _, box in texts(canvas.markup()))
    assert legend(canvas, [], 70) == 70


def test_labels_keep_off_each_other_and_off_lines() -> None:
    canvas, room = Canvas(500, 400, LIGHT), Room(Area(0, 0, 500, 400))
    room.take_line((0, 200), (500, 200))
    placed = [
        room.label(canvas, 240 + index % 7, 195 + index % 11, 4, f"label {index}", "#000000") for index in range(40)
    ]
    assert overlaps(canvas) == []
    assert 2 <= sum(placed) < 40
    assert all(top > 200 or bottom < 200 for _, (_, top, _, bottom) in texts(canvas.markup()))


def test_long_titles_are_cut_to_the_page() -> None:
    canvas = open_page("W" * 10_000, "w" * 10_000, 480, 320, "light")
    assert all(right <= 480 for _, (_, _, right, _) in texts(canvas.markup()))


def test_zeros_that_say_nothing() -> None:
    assert [short(text) for text in ("0 B", "1.00 KiB", "10.0 ms", "100 ms", "1.05 s", "1 min 20 s")] == [
        "0 B", "1 KiB", "10 ms", "100 ms", "1.05 s", "1 min 20 s",
    ]  # fmt: skip
