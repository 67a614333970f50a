"""Chains: found only where there is one, and placed as layering and routing would place them."""

from __future__ import annotations

import itertools
import random

import pytest

from torchatlas.render.layout.chains import chain, place_chain
from torchatlas.render.layout.layered import Problem
from torchatlas.render.layout.page_columns import Solver, _Strip
from torchatlas.render.layout.routing import place


def some_chain(seed: int) -> Problem:
    """Boxes in any order, some of them open, with or without points where the line enters and leaves the group."""
    rng = random.Random(seed)
    boxes = rng.randint(2, 9)
    order = rng.sample(range(boxes), boxes)
    sizes = [(rng.uniform(64, 300), rng.uniform(24, 400)) for _ in range(boxes)]
    sources, sinks = [], []
    if rng.random() < 0.6:
        sources, order, sizes = [len(sizes)], [len(sizes), *order], [*sizes, (0.0, 0.0)]
    if rng.random() < 0.6:
        sinks, order, sizes = [len(sizes)], [*order, len(sizes)], [*sizes, (0.0, 0.0)]
    edges = [(u, v, number) for number, (u, v) in enumerate(itertools.pairwise(order))]
    enters = {(v, net): rng.uniform(0, sizes[v][0]) for _, v, net in edges if v < boxes and rng.random() < 0.4}
    leaves = {(u, net): rng.uniform(0, sizes[u][0]) for u, _, net in edges if u < boxes and rng.random() < 0.4}
    rng.shuffle(edges)
    return Problem(sizes, edges, enters, leaves, sources, sinks)


@pytest.mark.parametrize("seed", range(120))
def test_a_chain_lies_where_the_general_method_would_put_it(seed: int) -> None:
    problem = some_chain(seed)
    quick, general = place_chain(problem, chain(problem)), place(problem)
    assert (quick.crossings, quick.tangles, quick.columns, quick.work) == (0, 0, 1, general.work)
    assert (quick.width, quick.height) == pytest.approx((general.width, general.height))
    for one, other in zip(quick.places, general.places, strict=True):
        assert one == pytest.approx(other)
    for line, same in zip(quick.routes, general.routes, strict=True):
        assert (line.net, line.source, line.target) == (same.net, same.source, same.target)
        assert line.points[0] == pytest.approx(same.points[0])
        assert line.points[-1] == pytest.approx(same.points[-1])
        assert len({round(x, 6) for x, _ in same.points}) == 1  # straight


@pytest.mark.parametrize(
    "edges",
    [
        [],
        [(0, 1, "a")],  # the third is by itself
        [(0, 1, "a"), (0, 2, "b")],
        [(0, 2, "a"), (1, 2, "b")],
        [(0, 1, "a"), (0, 1, "b")],
        [(0, 1, "a"), (1, 0, "b")],  # a ring, and one by itself
        [(0, 1, "a"), (1, 2, "b"), (0, 2, "c")],
    ],
)
def test_what_is_no_chain(edges: list[tuple[int, int, str]]) -> None:
    assert chain(Problem([(64.0, 24.0)] * 3, list(edges))) == []


def test_a_chain_is_told_from_first_to_last() -> None:
    found = chain(Problem([(64.0, 24.0)] * 4, [(2, 0, "b"), (0, 3, "c"), (1, 2, "a")]))
    assert found == [(1, 2, "a"), (2, 0, "b"), (0, 3, "c")]
    assert chain(Problem([(64.0, 24.0)], [])) == []


@pytest.mark.parametrize("seed", range(120))
def test_a_chain_in_columns_lies_where_the_general_method_would_put_it(seed: int) -> None:
    problem = some_chain(seed)
    strip = _Strip(problem, Solver())
    order = [strip._chain[0][0], *(v for _, v, _ in strip._chain)]
    boxes = [box for box in order if box not in strip.ports]
    rng = random.Random(seed)
    cuts = {0, *rng.sample(range(1, len(boxes)), rng.randint(0, len(boxes) - 1))}
    column = [-1] * len(problem.sizes)
    for box, number in zip(boxes, itertools.accumulate(at in cuts for at in range(len(boxes))), strict=True):
        column[box] = number - 1
    quick, general = strip._chain_in(column), strip._general(column)
    assert (quick.width, quick.height, quick.columns) == (general.width, general.height, len(cuts))
    assert quick.places == general.places
    assert (quick.crossings, quick.tangles) == (general.crossings, general.tangles) == (0, 0)
    assert quick.routes == general.routes
