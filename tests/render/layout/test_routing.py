"""Lines: those of different nets never lie on each other, none runs through a box, all arrive where they should."""

from __future__ import annotations

import sys
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchatlas.render.layout.layered import Problem
from torchatlas.render.layout.routing import (
    Placed,
    _assigned,
    _beside,
    _pairs,
    _price,
    _ring,
    _Track,
    place,
)
from torchatlas.render.layout.style import STYLE

FEW = settings(max_examples=80, deadline=None, derandomize=True, database=None)
Piece = tuple[float, float, float, float]


@st.composite
def problems(draw: st.DrawFn, most: int = 14) -> Problem:
    count = draw(st.integers(1, most))
    pairs = [(u, v) for v in range(count) for u in range(v)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=2 * count, unique=True)) if pairs else []
    sizes = draw(st.lists(st.tuples(st.integers(64, 200), st.integers(20, 200)), min_size=count, max_size=count))
    nets = draw(st.lists(st.integers(0, 1), min_size=len(chosen), max_size=len(chosen)))
    edges = [(u, v, (u, net)) for (u, v), net in zip(chosen, nets, strict=True)]
    return Problem([(float(w), float(h)) for w, h in sizes], edges)


def pieces(points: list[tuple[float, float]]) -> list[Piece]:
    return [(min(ax, bx), min(ay, by), max(ax, bx), max(ay, by)) for (ax, ay), (bx, by) in pairwise(points)]


def shared(placed: Placed) -> list[tuple[object, object]]:
    """Pairs of nets that lie on each other for more than a point."""
    found = []
    for one, other in combinations(placed.routes, 2):
        if one.net == other.net:
            continue
        for a in pieces(one.points):
            for b in pieces(other.points):
                wide = min(a[2], b[2]) - max(a[0], b[0])
                tall = min(a[3], b[3]) - max(a[1], b[1])
                upright = a[2] - a[0] < 0.5 and b[2] - b[0] < 0.5
                level = a[3] - a[1] < 0.5 and b[3] - b[1] < 0.5
                if (upright and wide > -2 and tall > 2) or (level and tall > -2 and wide > 2):
                    found.append((one.net, other.net))
    return found


def through(problem: Problem, placed: Placed) -> list[tuple[object, int]]:
    return [
        (route.net, box)
        for route in placed.routes
        for x0, y0, x1, y1 in pieces(route.points)
        for box, ((x, y), (wide, tall)) in enumerate(zip(placed.places, problem.sizes, strict=True))
        if x0 < x + wide - 1 and x1 > x + 1 and y0 < y + tall - 1 and y1 > y + 1
    ]


@FEW
@given(problems())
def test_lines_go_from_box_to_box_at_right_angles_and_down(problem: Problem) -> None:
    placed = place(problem)
    assert [(route.source, route.target, route.net) for route in placed.routes] == problem.edges
    for route in placed.routes:
        (start, top), (end, bottom) = route.points[0], route.points[-1]
        (sx, sy), (sw, sh) = placed.places[route.source], problem.sizes[route.source]
        (tx, ty), (tw, _) = placed.places[route.target], problem.sizes[route.target]
        assert (top, bottom) == (pytest.approx(sy + sh), pytest.approx(ty))
        assert sx <= start <= sx + sw
        assert tx <= end <= tx + tw
        for (ax, ay), (bx, by) in zip(route.points, route.points[1:], strict=False):
            assert abs(ax - bx) < 0.6 or abs(ay - by) < 0.6
            assert by >= ay - 1e-6


@FEW
@given(problems())
def test_no_line_runs_through_a_box(problem: Problem) -> None:
    assert through(problem, place(problem)) == []


@FEW
@given(problems())
def test_tracks_do_not_collide(problem: Problem) -> None:
    assert shared(place(problem)) == []


@FEW
@given(problems())
def test_everything_lies_within_the_size(problem: Problem) -> None:
    placed = place(problem)
    for (x, y), (wide, tall) in zip(placed.places, problem.sizes, strict=True):
        assert x >= -1e-6
        assert y >= -1e-6
        assert x + wide <= placed.width + 1e-6
        assert y + tall <= placed.height + 1e-6
    for route in placed.routes:
        assert all(-1e-6 <= x <= placed.width + 1e-6 and -1e-6 <= y <= placed.height + 1e-6 for x, y in route.points)


@FEW
@given(problems())
def test_boxes_do_not_overlap(problem: Problem) -> None:
    placed = place(problem)
    areas = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(placed.places, problem.sizes, strict=True)]
    for a, b in combinations(areas, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


@FEW
@given(problems())
def test_no_line_turns_aside_by_a_hair_before_a_box_unless_another_end_is_there(problem: Problem) -> None:
    placed = place(problem)
    ends = {(route.target, route.net): route.points[-1][0] for route in placed.routes}
    for route in placed.routes:
        if len(route.points) < 4 or not STYLE.straight < abs(route.points[-3][0] - route.points[-1][0]) <= STYLE.jog:
            continue
        x, left, wide = route.points[-3][0], placed.places[route.target][0], problem.sizes[route.target][0]
        others = [at for (box, net), at in ends.items() if box == route.target and net != route.net]
        near = [left, left + wide, *others]
        assert any(abs(x - at) < STYLE.line_ends_apart + 0.01 for at in near), route


def test_lines_of_one_tensor_share_their_trunk() -> None:
    placed = place(Problem([(80.0, 30.0)] * 4, [(0, 1, "x"), (0, 2, "x"), (0, 3, "x")]))
    assert len({route.points[0] for route in placed.routes}) == 1
    level = {y0 for route in placed.routes for x0, y0, x1, _ in pieces(route.points) if x1 - x0 > 1}
    assert len(level) == 1


def test_several_outputs_leave_at_several_places() -> None:
    placed = place(Problem([(80.0, 30.0)] * 3, [(0, 1, "x"), (0, 2, "y")]))
    assert abs(placed.routes[0].points[0][0] - placed.routes[1].points[0][0]) > 5


def test_ends_that_are_given_are_kept() -> None:
    problem = Problem([(100.0, 30.0)] * 2, [(0, 1, "x")], enters={(1, "x"): 80.0}, leaves={(0, "x"): 20.0})
    placed = place(problem)
    (route,) = placed.routes
    assert route.points[0][0] - placed.places[0][0] == pytest.approx(20)
    assert route.points[-1][0] - placed.places[1][0] == pytest.approx(80)


def test_two_lines_that_change_places_do_not_lie_on_each_other() -> None:
    enters, leaves = {(1, "a"): 20.0, (1, "b"): 80.0}, {(0, "a"): 80.0, (0, "b"): 20.0}
    placed = place(Problem([(100.0, 30.0)] * 2, [(0, 1, "a"), (0, 1, "b")], enters, leaves))
    assert shared(placed) == []


def test_an_end_finds_the_only_free_place_of_a_crowded_box() -> None:
    """The box is so wide that the free place is far from where the line comes down."""
    taken = list(range(60, 400, 8))
    at = _beside(396.0, [float(place) for place in taken], 12.0, 396.0)
    assert 12 <= at <= 53
    assert all(abs(at - place) >= STYLE.line_ends_apart for place in taken)


def test_many_lines_into_one_box_have_room() -> None:
    count = 12
    edges = [(u, count, u) for u in range(count)]
    assert shared(place(Problem([(64.0, 30.0)] * (count + 1), edges))) == []


_PLACES = st.integers(0, 40).map(lambda step: 10.0 * step)


@FEW
@given(st.lists(st.tuples(_PLACES, st.lists(_PLACES, min_size=1, max_size=3)), max_size=12))
def test_no_two_pieces_that_meet_are_on_one_track(nets: list[tuple[float, list[float]]]) -> None:
    tracks = [
        _Track((number, number), min(trunk, *drops), max(trunk, *drops), trunk, drops)
        for number, (trunk, drops) in enumerate(nets)
    ]
    assigned = _assigned(tracks, _pairs(tracks))
    assert len(assigned) == len(tracks)
    for (one, at), (other, there) in combinations(zip(tracks, assigned, strict=True), 2):
        if at == there:
            assert one.high < other.low or other.high < one.low


def test_lines_that_push_each_other_down_thousands_of_times_are_no_deep_recursion() -> None:
    """Each line ends where the next begins, so that the next must run above it, and so on."""
    count = sys.getrecursionlimit() + 500
    tracks = [_Track((i, i), 100.0 * i, 100.0 * i + 100, 100.0 * i, [100.0 * i + 100]) for i in range(count)]
    pairs = [(i, i - 1, _price(tracks[i], tracks[i - 1]), _price(tracks[i - 1], tracks[i])) for i in range(1, count)]
    assert _assigned(tracks, pairs) == list(range(count))[::-1]
    assert _ring(count, pairs) == []
    assert len(_ring(count, [*pairs, (0, count - 1, 0, 20)])) == count
