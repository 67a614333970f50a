"""Newspaper columns: cut where it is cheapest, no higher than asked, every line still drawn."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from render.layout.test_routing import shared, through

from torchatlas.render.layout.columns import _CUT_PRICE, Solved, _cuts, place_within
from torchatlas.render.layout.layered import Problem

FEW = settings(max_examples=80, deadline=None, derandomize=True, database=None)


def price(tall: list[float], crossing: list[int], cuts: list[int]) -> float:
    """What the docstring of _cuts promises: the running maximum of columns, each with the price of the cut after it."""
    total = 0.0
    for first, last in pairwise(cuts):
        total = max(total, sum(tall[first:last]))
        if last < len(tall):
            total += _CUT_PRICE * (crossing[last - 1] - 1)
    return total


@FEW
@given(st.lists(st.tuples(st.integers(10, 200), st.integers(1, 5)), min_size=2, max_size=9), st.data())
def test_cuts_are_as_cheap_as_any(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    tall, crossing = [float(h) for h, _ in rows], [c for _, c in rows]
    count = data.draw(st.integers(2, min(5, len(rows))))
    cuts = _cuts(tall, crossing, count)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, len(tall), count + 1)
    assert all(a < b for a, b in pairwise(cuts))
    best = min(price(tall, crossing, [0, *inner, len(tall)]) for inner in combinations(range(1, len(tall)), count - 1))
    assert price(tall, crossing, cuts) == pytest.approx(best)


def strip(length: int, skips: tuple[tuple[int, int], ...] = ()) -> Problem:
    edges = [(node, node + 1, node) for node in range(length - 1)] + [(u, v, u) for u, v in skips]
    return Problem([(90.0, 36.0)] * length, edges)


def test_a_strip_that_is_too_tall_becomes_columns() -> None:
    problem, solved = strip(60), Solved()
    whole = place_within(problem, 1e9, solved)
    assert whole.columns == 1
    placed = place_within(problem, whole.height / 3, solved)
    assert placed.columns >= 3
    assert placed.height <= whole.height / 3
    assert placed.width > whole.width


@pytest.mark.parametrize("parts", [2, 3, 5, 8])
def test_every_line_is_drawn_whatever_the_cuts(parts: int) -> None:
    problem = strip(40, ((0, 39), (3, 7), (5, 30), (20, 22), (0, 12)))
    whole = place_within(problem, 1e9, Solved())
    placed = place_within(problem, whole.height / parts, Solved())
    assert placed.columns > 1
    assert sorted((r.source, r.target, r.net) for r in placed.routes) == sorted(problem.edges)
    assert through(problem, placed) == []
    assert shared(placed) == []
    for route in placed.routes:
        sx, sy = placed.places[route.source]
        tx, ty = placed.places[route.target]
        assert route.points[0][1] == pytest.approx(sy + 36)
        assert sx <= route.points[0][0] <= sx + 90
        assert route.points[-1][1] == pytest.approx(ty)
        assert tx <= route.points[-1][0] <= tx + 90


def test_later_columns_lie_to_the_right() -> None:
    problem = strip(30)
    placed = place_within(problem, 500, Solved())
    left = [x for x, _ in placed.places]
    assert left == sorted(left)
    assert len(set(left)) == placed.columns


def test_what_was_solved_is_not_solved_again() -> None:
    problem, solved = strip(60), Solved()
    first = place_within(problem, 700, solved)
    assert place_within(problem, 700, solved) is first
    assert place_within(strip(60), 700, Solved()).routes == first.routes


def test_two_boxes_are_not_cut() -> None:
    assert place_within(strip(2), 10, Solved()).columns == 1


def test_ports_stay_on_the_border() -> None:
    #  a source (12) that the first and the last box read, a sink (13) that the fifth feeds
    chain = strip(12)
    edges = [*chain.edges, (12, 0, "in"), (12, 11, "in"), (4, 13, 4)]
    problem = Problem([*chain.sizes, (0.0, 0.0), (0.0, 0.0)], edges, sources=[12], sinks=[13])
    placed = place_within(problem, 300, Solved())
    assert placed.columns > 1
    assert placed.places[12][1] == 0
    assert placed.places[13][1] == placed.height
    assert sorted(map(str, edges)) == sorted(str((r.source, r.target, r.net)) for r in placed.routes)
    assert shared(placed) == []
