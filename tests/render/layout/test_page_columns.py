"""Newspaper columns: cut where it is cheapest, no higher than asked, every line still drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from render.layout.test_routing import shared, through

from torchatlas.render.layout.layered import Problem
from torchatlas.render.layout.page_columns import _CUT_PRICE, Solver, _Cutter
from torchatlas.render.layout.routing import Placed
from torchatlas.render.layout.style import STYLE

FEW = settings(max_examples=80, deadline=None, derandomize=True, database=None)


def price(tall: list[float], crossing: list[int], cuts: list[int]) -> float:
    """What _Cutter promises: the running maximum of columns, each with the price of the cut after it."""
    total = 0.0
    for first, last in pairwise(cuts):
        total = max(total, sum(tall[first:last]))
        if last < len(tall):
            total += _CUT_PRICE * (crossing[last - 1] - 1)
    return total


@FEW
@given(
    st.lists(
        st.tuples(st.integers(10, 200), st.integers(1, 5), st.sampled_from([False] * 5 + [True])),
        min_size=2,
        max_size=9,
    ),
    st.data(),
)
def test_cuts_are_as_cheap_as_any(rows: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    tall, crossing, alone = [float(h) for h, _, _ in rows], [c for _, c, _ in rows], [a for _, _, a in rows]
    count = data.draw(st.integers(2, min(5, len(rows))))
    cuts = list(_Cutter(tall, crossing, alone).cuts(count))
    every = ([0, *inner, len(tall)] for inner in combinations(range(1, len(tall)), count - 1))
    allowed = [some for some in every if not any(all(alone[a:b]) for a, b in pairwise(some))]
    if not allowed:
        assert cuts == []
        return
    assert (cuts[0], cuts[-1], len(cuts)) == (0, len(tall), count + 1)
    assert cuts in allowed
    assert price(tall, crossing, cuts) == pytest.approx(min(price(tall, crossing, some) for some in allowed))


def strip(length: int, skips: tuple[tuple[int, int], ...] = ()) -> Problem:
    edges = [(node, node + 1, node) for node in range(length - 1)] + [(u, v, u) for u, v in skips]
    return Problem([(90.0, 36.0)] * length, edges)


def test_a_strip_that_is_too_tall_becomes_columns() -> None:
    problem, solver = strip(60), Solver()
    whole = solver.place_within(problem, 1e9)
    assert whole.columns == 1
    placed = solver.place_within(problem, whole.height / 3)
    assert placed.columns >= 3
    assert placed.height <= whole.height / 3
    assert placed.width > whole.width


@pytest.mark.parametrize("parts", [2, 3, 5, 8])
def test_every_line_is_drawn_whatever_the_cuts(parts: int) -> None:
    problem = strip(40, ((0, 39), (3, 7), (5, 30), (20, 22), (0, 12)))
    whole = Solver().place_within(problem, 1e9)
    placed = Solver().place_within(problem, whole.height / parts)
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
    placed = Solver().place_within(problem, 500)
    left = [x for x, _ in placed.places]
    assert left == sorted(left)
    assert len(set(left)) == placed.columns


def renamed(problem: Problem, name: str) -> Problem:
    """The same problem with other nets."""
    return replace(
        problem,
        edges=[(u, v, (name, net)) for u, v, net in problem.edges],
        enters={(box, (name, net)): x for (box, net), x in problem.enters.items()},
        leaves={(box, (name, net)): x for (box, net), x in problem.leaves.items()},
    )


@pytest.mark.parametrize("height", [700, 1e9])
def test_what_was_solved_is_not_solved_again(height: float) -> None:
    problem, solver = strip(60, ((2, 9), (20, 50))), Solver()
    first = solver.place_within(problem, height)
    work = solver.work
    again = solver.place_within(renamed(problem, "other"), height)
    assert solver.work == work > 0
    alone = Solver().place_within(renamed(problem, "other"), height)
    assert again == first == alone
    assert again.routes == [replace(r, net=("other", r.net)) for r in first.routes] == alone.routes


def test_equal_columns_are_solved_once() -> None:
    solver = Solver()
    placed = solver.place_within(strip(120), 700)
    assert placed.columns > 4
    assert solver.work < 119 / 2  # the first, the last, and one of those between


def _one_more_size(problem: Problem) -> Problem:
    return replace(problem, sizes=[*problem.sizes[:-1], (91.0, 36.0)])


def _shared_net(problem: Problem) -> Problem:
    return replace(problem, edges=[(u, v, 0) for u, v, _ in problem.edges])


def _elsewhere(problem: Problem) -> Problem:
    return replace(problem, enters={(1, 0): 20.0})


def _left_elsewhere(problem: Problem) -> Problem:
    return replace(problem, leaves={(0, 0): 20.0})


def _on_the_border(problem: Problem) -> Problem:
    return replace(problem, sinks=[4])


@pytest.mark.parametrize("other", [_one_more_size, _shared_net, _elsewhere, _left_elsewhere, _on_the_border])
def test_what_differs_is_solved_apart(other: Callable[[Problem], Problem]) -> None:
    chain, solver = strip(4, ((0, 2), (0, 3))), Solver()
    problem = Problem([*chain.sizes, (90.0, 36.0)], [*chain.edges, (0, 4, 0)])
    before = solver.place_within(problem, 1e9)
    alone, after = Solver().place_within(other(problem), 1e9), solver.place_within(other(problem), 1e9)
    assert (before, before.routes) != (alone, alone.routes)
    assert (after, after.routes) == (alone, alone.routes)


@FEW
@given(st.integers(3, 9), st.data())
def test_no_layout_is_lower_than_its_longest_way(count: int, data: st.DataObject) -> None:
    heights = data.draw(st.lists(st.sampled_from([24.0, 36.0, 90.0, 240.0]), min_size=count, max_size=count))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] < pair[1])
    edges = [(u, v, u) for u, v in sorted(data.draw(st.sets(pairs, max_size=12)))]
    problem = Problem([(90.0, height) for height in heights], edges)
    strip, _ = Solver()._known(problem)
    assert strip._longest <= strip.whole.height + 1e-6


def between_ends(height: float) -> Problem:
    """An input, two large boxes and an output."""
    sizes = [(90.0, 36.0), (200.0, height), (200.0, height), (90.0, 24.0)]
    return Problem(sizes, [(u, u + 1, u) for u in range(3)])


def beside(problem: Problem, placed: Placed, one: int, other: int) -> bool:
    """Whether two boxes lie in different columns."""
    (left, _), (right, _) = sorted((placed.places[one], placed.places[other]))
    first = one if placed.places[one] <= placed.places[other] else other
    return left + problem.sizes[first][0] <= right


def test_an_input_lies_above_what_reads_it_and_an_output_below_what_makes_it() -> None:
    for height in (545.0, 560.0, 640.0):  # of the page, which the large boxes alone fill
        problem = between_ends(500)
        placed = Solver().place_within(problem, height)
        assert placed.columns == 2
        assert not beside(problem, placed, 0, 1)
        assert beside(problem, placed, 1, 2)
        assert not beside(problem, placed, 2, 3)
        assert placed.height <= height + 36 + STYLE.rank_gap + 4  # it may stand out, by no more than itself


def test_a_box_at_an_end_is_alone_where_it_would_stand_out_of_a_group() -> None:
    chain = between_ends(500)
    edges = [*chain.edges, (4, 1, "in"), (2, 5, 2)]  # what enters the group, and what leaves it
    problem = Problem([*chain.sizes, (0.0, 0.0), (0.0, 0.0)], edges, sources=[4], sinks=[5])
    placed = Solver().place_within(problem, 560)
    assert placed.height <= 560
    assert beside(problem, placed, 0, 1)
    roomy = Solver().place_within(problem, 640)
    assert not beside(problem, roomy, 0, 1)


def test_cuts_leave_no_row_alone_that_may_not_be() -> None:
    tall, crossing = [40.0, 500.0, 500.0, 40.0, 40.0], [1] * 5
    assert _Cutter(tall, crossing, [False] * 5).cuts(4) == (0, 1, 2, 3, 5)
    ends = _Cutter(tall, crossing, [True, False, False, True, True])
    assert ends.cuts(2) == (0, 2, 5)
    assert ends.cuts(3) == ends.cuts(4) == ()


def test_two_boxes_are_not_cut() -> None:
    assert Solver().place_within(strip(2), 10).columns == 1


def test_ports_stay_on_the_border() -> None:
    #  a source (12) that the first and the last box read, a sink (13) that the fifth feeds
    chain = strip(12)
    edges = [*chain.edges, (12, 0, "in"), (12, 11, "in"), (4, 13, 4)]
    problem = Problem([*chain.sizes, (0.0, 0.0), (0.0, 0.0)], edges, sources=[12], sinks=[13])
    placed = Solver().place_within(problem, 300)
    assert placed.columns > 1
    assert placed.places[12][1] == 0
    assert placed.places[13][1] == placed.height
    assert sorted(map(str, edges)) == sorted(str((r.source, r.target, r.net)) for r in placed.routes)
    assert shared(placed) == []


@pytest.mark.parametrize("height", [300, 420, 700])
def test_what_several_columns_read_enters_once(height: float) -> None:
    """Of three tensors that enter, two are read in the first column and later, one in a later column only."""
    chain = strip(12)
    given = [(12, 0, "a"), (12, 6, "a"), (12, 11, "a"), (13, 1, "b"), (13, 10, "b"), (14, 11, "c")]
    problem = Problem([*chain.sizes, *[(0.0, 0.0)] * 3], [*chain.edges, *given], sources=[12, 13, 14])
    placed = Solver().place_within(problem, height)
    assert placed.columns > 1
    assert sorted(map(str, problem.edges)) == sorted(str((r.source, r.target, r.net)) for r in placed.routes)
    for port in problem.sources:
        assert {route.points[0] for route in placed.routes if route.source == port} == {placed.places[port]}
        assert placed.places[port][1] == 0
    assert placed.places[14][0] > placed.places[11][0]  # above the column that reads it, not the first
    assert through(problem, placed) == []
    assert shared(placed) == []


def hanging(length: int, reader: int) -> Problem:
    """A chain, and an input (the box after it) that goes by way of another to one of its boxes."""
    chain = strip(length)
    more = [(length, length + 1, "in"), (length + 1, reader, "made")]
    return Problem([*chain.sizes, (70.0, 36.0), (80.0, 24.0)], [*chain.edges, *more])


def leads_down(placed: Placed, box: int) -> bool:
    """Whether no line from a box goes up."""
    ways = [[y for _, y in route.points] for route in placed.routes if route.source == box]
    return bool(ways) and all(way == sorted(way) for way in ways)


@pytest.mark.parametrize("reader", range(3, 40))  # before, it is as long a way as any
def test_an_input_lies_in_the_column_that_reads_it(reader: int) -> None:
    problem = hanging(40, reader)
    placed = Solver().place_within(problem, 700)
    assert placed.columns > 2
    assert leads_down(placed, 40)
    assert leads_down(placed, 41)
    assert through(problem, placed) == []
    assert shared(placed) == []


def test_what_reads_only_what_enters_the_group_lies_in_the_column_that_reads_it() -> None:
    chain = strip(20)
    edges = [*chain.edges, (20, 15, "made"), (21, 20, "in"), (21, 0, "in")]
    problem = Problem([*chain.sizes, (80.0, 24.0), (0.0, 0.0)], edges, sources=[21])
    placed = Solver().place_within(problem, 700)
    assert placed.columns == 2
    assert leads_down(placed, 20)
    assert shared(placed) == []


def test_an_input_stays_where_it_is_if_a_group_had_to_be_higher() -> None:
    chain = strip(12)
    edges = [*chain.edges, (13, 0, "in"), (12, 6, "made")]
    problem = Problem([*chain.sizes, (80.0, 24.0), (0.0, 0.0)], edges, sources=[13])
    strips, _ = Solver()._known(problem)
    column = [*[0] * 6, *[1] * 6, 0, -1]  # the row of the input is the last of the first column
    plain, moved = strips._columns(column), strips._columns(strips._moved(column))
    assert moved.height > plain.height
    assert strips._placed((0, 6, 12), moved.height) == moved
    assert strips._placed((0, 6, 12), plain.height) == plain
