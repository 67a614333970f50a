"""Do two tensors on one storage share bytes, and does one cover the other?"""

from __future__ import annotations

import functools

Layout = tuple[int, tuple[int, ...], tuple[int, ...]]  # offset, shape, stride, in elements of one size

_SEARCH_LIMIT = 10_000


def span(layout: Layout) -> tuple[int, int]:
    """First element and one past the last; (0, 0) for an empty tensor."""
    offset, shape, stride = layout
    if 0 in shape:
        return (0, 0)
    return (offset, offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)))


@functools.lru_cache(maxsize=16_384)
def covers(writer: Layout, reader: Layout) -> bool:
    """True if every element of `reader` certainly lies in `writer`."""
    if writer == reader:
        return True
    low, high = span(writer)
    first, last = span(reader)
    return first == last or (low <= first and last <= high and _has_no_gaps(writer))


def _has_no_gaps(layout: Layout) -> bool:
    """True if a tensor touches every element between its first and its last, in whatever order."""
    expected = 1
    for step, size in sorted(
        (step, size) for size, step in zip(layout[1], layout[2], strict=True) if size > 1 and step
    ):
        if step != expected:
            return False
        expected *= size
    return True


@functools.lru_cache(maxsize=16_384)
def overlap(one: Layout, other: Layout) -> bool:
    """True if two tensors share an element. Exact for tensors with the same strides, by range otherwise.

    Slices of one tensor have its strides: `y[:, :2]` and `y[:, 2:]` interleave in memory and share nothing.
    """
    low, high = span(one)
    first, last = span(other)
    if low == high or first == last or high <= first or last <= low:
        return False
    if one[2] != other[2] or any(step <= 0 for step, a, b in zip(one[2], one[1], other[1], strict=True) if a + b > 2):
        return True
    # They meet where sum(k * stride) is the distance of their offsets, with k between -(size2 - 1) and size1 - 1.
    steps = sorted(
        ((step, a - 1, b - 1) for step, a, b in zip(one[2], one[1], other[1], strict=True) if a + b > 2), reverse=True
    )
    budget = [_SEARCH_LIMIT]
    return _meets(other[0] - one[0], steps, 0, budget)


def _meets(distance: int, steps: list[tuple[int, int, int]], at: int, budget: list[int]) -> bool:
    if at == len(steps):
        return distance == 0
    budget[0] -= 1
    if budget[0] < 0:
        return True  # too long to tell: a dependency too many is safe, one too few is not
    step, up, down = steps[at]
    above = sum(s * u for s, u, _ in steps[at + 1 :])
    below = sum(s * d for s, _, d in steps[at + 1 :])
    lowest = max(-down, -((above - distance) // step))  # ceil((distance - above) / step)
    highest = min(up, (distance + below) // step)
    return any(_meets(distance - k * step, steps, at + 1, budget) for k in range(lowest, highest + 1))
