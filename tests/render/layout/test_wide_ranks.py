"""Wide ranks: branches side by side that do not fit a page are put in rows, and all their lines are still drawn."""

from __future__ import annotations

from itertools import pairwise

import pytest
from render.graphs import Sketch, branches
from render.layout import verify
from render.layout.pages import drawn, labelled

import torchatlas as atlas
from torchatlas.graph import Graph
from torchatlas.render.layout.boxes import BoxMaker
from torchatlas.render.layout.layered import Problem
from torchatlas.render.layout.routing import Placed, place
from torchatlas.render.layout.wide_ranks import Fan, Wrapped, fans
from torchatlas.render.picture import Picture

PAGE = (1000.0, 800.0)


def fanned(count: int, length: int = 1) -> Problem:
    """Box 0 -> so many branches of so many boxes each -> the last box."""
    last = 1 + count * length
    edges = []
    for branch in range(count):
        way = [0, *range(1 + branch * length, 1 + (branch + 1) * length), last]
        edges += [(u, v, u) for u, v in pairwise(way)]
    return Problem([(100.0, 30.0)] * (last + 1), list(edges))


def everything(problem: Problem) -> range:
    return range(len(problem.sizes))


def wrapped(problem: Problem) -> tuple[list[Fan], Placed]:
    found = fans(problem, everything(problem), PAGE[0])
    whole = Wrapped(problem, found, PAGE)
    return found, whole.unwrapped(place(whole.problem))


@pytest.mark.parametrize("length", [1, 3])
def test_branches_are_found_with_what_they_read_and_what_reads_them(length: int) -> None:
    (fan,) = fans(fanned(20, length), everything(fanned(20, length)), PAGE[0])
    assert [len(branch) for branch in fan.branches] == [length] * 20
    assert fan.sources == {(0, None): 0}
    assert list(fan.targets) == [1 + 20 * length]


def test_what_fits_the_page_is_left_alone() -> None:
    problem = fanned(8)
    assert fans(problem, everything(problem), PAGE[0]) == []
    assert len(fans(problem, everything(problem), 500.0)) == 1


def test_lines_at_an_open_box_or_a_border_stay_apart() -> None:
    problem = fanned(20)
    assert fans(problem, everything(problem)[:-1], PAGE[0]) == []  # 20 tensors that enter an open box
    problem = fanned(20)
    problem.edges = [(0, v, v) if u == 0 else (u, v, net) for u, v, net in problem.edges]
    assert fans(problem, everything(problem)[1:], PAGE[0]) == []  # and that leave one


def test_a_branch_that_is_read_by_another_box_too_is_no_part_of_it() -> None:
    problem = fanned(20)
    problem.sizes.append((100.0, 30.0))
    problem.edges.append((5, 22, 5))
    (fan,) = fans(problem, everything(problem), PAGE[0])
    assert [5] not in fan.branches
    assert len(fan.branches) == 19


@pytest.mark.parametrize(("count", "length"), [(30, 1), (16, 3)])
def test_rows_have_every_box_and_every_line(count: int, length: int) -> None:
    problem = fanned(count, length)
    _, placed = wrapped(problem)
    assert placed.width <= PAGE[0]
    assert len({y for _, y in placed.places}) >= 2 * length + 2  # two rows or more, what they read and what reads them
    assert sorted((route.source, route.target) for route in placed.routes) == sorted(
        (u, v) for u, v, _ in problem.edges
    )
    for route in placed.routes:
        (x0, y0), (x1, y1) = placed.places[route.source], placed.places[route.target]
        assert x0 <= route.points[0][0] <= x0 + 100
        assert route.points[0][1] == y0 + 30
        assert x1 <= route.points[-1][0] <= x1 + 100
        assert route.points[-1][1] == y1


def is_true(picture: Picture) -> bool:
    """Whether all that the graph holds is drawn, and nothing else, and well."""
    account = verify.account(picture.outline, picture.scene)
    return (account.missing, account.invented, verify.defects(picture.scene)) == ([], [], [])


def two_and_two(count: int) -> Graph:
    """Each branch reads two tensors and makes two, for two ops."""
    sketch = Sketch()
    x = sketch.input()
    y = sketch.op("exp", x)
    ends = [sketch.ops(f"part{number}", x, y, shapes=[(2, 3), (2, 3)]) for number in range(count)]
    sketch.output(
        *(sketch.op(name, *some) for name, some in zip(("cat", "stack"), zip(*ends, strict=True), strict=True))
    )
    return sketch.graph()


def returned_one_by_one(count: int) -> Graph:
    """What the branches in a module make is joined outside."""
    sketch = Sketch()
    x = sketch.input()
    with sketch.module("heads", "Heads"):
        ends = [sketch.op(f"part{number}", x) for number in range(count)]
    sketch.output(sketch.op("cat", *ends))
    return sketch.graph()


@pytest.mark.parametrize("graph", [branches(100), two_and_two(100)], ids=["one end", "two ends"])
def test_a_hundred_different_branches_are_all_shown(graph: Graph) -> None:
    picture = drawn(graph)
    assert picture.boxes > 100
    assert is_true(picture)


@pytest.mark.parametrize("width", [600.0, 1200.0, 2400.0])
def test_rows_are_as_long_as_the_page_is_wide(width: float) -> None:
    outline, labels = labelled(branches(60))
    box = BoxMaker(outline, labels, width=width).box(outline.root, {outline.root}, 3000.0)
    assert width / 2 < box.width <= width


def test_a_portrait_page_has_shorter_rows() -> None:
    picture = atlas.draw(branches(100), width=900, height=1400)
    assert picture.boxes > 100
    assert is_true(picture)


def test_a_thousand_different_branches_are_some_boxes_in_rows() -> None:
    picture = drawn(branches(1000))
    assert 20 < picture.boxes < 200
    assert len({round(frame.y) for frame in picture.scene.frames}) > 4
    assert is_true(picture)


@pytest.mark.parametrize("count", [20, 60, 300])
def test_branches_that_leave_a_group_one_by_one_are_drawn_truly(count: int) -> None:
    assert is_true(drawn(returned_one_by_one(count)))


def test_five_thousand_branches_are_no_deep_recursion() -> None:
    """Different ones as boxes for many, equal ones as one."""
    assert drawn(branches(5000)).boxes > 10
    sketch = Sketch()
    x = sketch.input()
    sketch.output(sketch.op("cat", *(sketch.op("relu", x) for _ in range(5000))))
    assert [frame.item.repeat for frame in drawn(sketch.graph()).scene.frames] == [1, 5000, 1, 1]
