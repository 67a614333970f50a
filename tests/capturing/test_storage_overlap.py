"""Whether tensors share elements, against the sets of elements they really have."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torchatlas.capturing.storage_overlap import Layout, covers, overlap, span


def elements(layout: Layout) -> set[int]:
    offset, shape, stride = layout
    places = itertools.product(*(range(size) for size in shape))
    return {offset + sum(i * step for i, step in zip(place, stride, strict=True)) for place in places}


@st.composite
def layouts(draw: Any, stride: tuple[int, ...] | None = None) -> Layout:
    """Any shape, any stride (also 0, also meaningless ones of size-1 dimensions), any offset."""
    steps = stride if stride is not None else tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    shape = tuple(draw(st.integers(0, 4)) for _ in steps)
    return (draw(st.integers(0, 12)), shape, steps)


@st.composite
def pairs_of_one_stride(draw: Any) -> tuple[Layout, Layout]:
    stride = tuple(draw(st.lists(st.integers(1, 9), max_size=3)))
    return draw(layouts(stride)), draw(layouts(stride))


@settings(max_examples=500, deadline=None)
@given(layouts(), layouts())
def test_overlap_never_misses(one: Layout, other: Layout) -> None:
    if elements(one) & elements(other):
        assert overlap(one, other)
    assert overlap(one, other) == overlap(other, one)


@settings(max_examples=500, deadline=None)
@given(pairs_of_one_stride())
def test_overlap_is_exact_for_equal_strides(pair: tuple[Layout, Layout]) -> None:
    one, other = pair
    assert overlap(one, other) == bool(elements(one) & elements(other))


@settings(max_examples=500, deadline=None)
@given(layouts(), layouts())
@example((0, (4, 2), (0, 7)), (1, (), ()))  # eight elements in a span of eight, but only two different ones
def test_covers_is_never_wrong(writer: Layout, reader: Layout) -> None:
    if covers(writer, reader):
        assert elements(reader) <= elements(writer)


@settings(max_examples=200, deadline=None)
@given(layouts())
def test_a_layout_covers_itself_and_spans_its_elements(layout: Layout) -> None:
    assert covers(layout, layout)
    found = elements(layout)
    low, high = span(layout)
    assert (low, high) == ((min(found), max(found) + 1) if found else (0, 0))


def layout_of(tensor: torch.Tensor) -> Layout:
    return (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())


def test_interleaved_columns_share_nothing() -> None:
    y = torch.empty(5, 4)
    left, right, middle = layout_of(y[:, :2]), layout_of(y[:, 2:]), layout_of(y[:, 1:3])
    assert not overlap(left, right)
    assert overlap(left, middle)
    assert overlap(middle, right)
    assert not overlap(layout_of(y[::2]), layout_of(y[1::2]))


def test_a_contiguous_tensor_covers_its_views() -> None:
    y = torch.empty(5, 4)
    for view in (y[:, 1], y.t(), y[2:], y.view(20)[3:17:2], y[1:1]):
        assert covers(layout_of(y), layout_of(view))
    assert not covers(layout_of(y[:, :2]), layout_of(y))
    assert not covers(layout_of(y[1:]), layout_of(y[:2]))


def test_a_permuted_tensor_covers_what_a_plain_one_does() -> None:
    y = torch.empty(5, 4)
    assert covers(layout_of(y.t()), layout_of(y))


def test_what_takes_too_long_to_tell_may_overlap() -> None:
    shape, stride = (60,) * 8, tuple(2 * 3**k for k in range(8))
    assert overlap((0, shape, stride), (1, shape, stride))  # in truth all even against all odd
