"""One layered problem: ranks follow the edges, crossings are few and counted right, boxes keep apart."""

from __future__ import annotations

import random
from itertools import pairwise, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchatlas.render.layout.layered import Layering, Problem, _Layerer, layer, ranks
from torchatlas.render.layout.style import STYLE

FEW = settings(max_examples=80, deadline=None, derandomize=True, database=None)


@st.composite
def problems(draw: st.DrawFn, most: int = 12) -> Problem:
    count = draw(st.integers(1, most))
    pairs = [(u, v) for v in range(count) for u in range(v)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=2 * count, unique=True)) if pairs else []
    sizes = draw(st.lists(st.tuples(st.integers(20, 200), st.integers(20, 300)), min_size=count, max_size=count))
    return Problem([(float(w), float(h)) for w, h in sizes], [(u, v, u) for u, v in chosen])


def order(layering: Layering) -> dict[int, int]:
    return {node: place for row in layering.rows for place, node in enumerate(row)}


def counted(layering: Layering, place: dict[int, int]) -> int:
    """Pairs of pieces between neighbouring ranks that change sides: without any cleverness."""
    pieces = [(a, b) for a, b, _ in layering.segments] + layering.parts
    total = 0
    for i, (a, b) in enumerate(pieces):
        for c, d in pieces[:i]:
            if layering.rank[a] == layering.rank[c]:
                total += (place[a] - place[c]) * (place[b] - place[d]) < 0
    return total


def fewest(layering: Layering) -> int:
    """The least number of crossings of all orders of these ranks."""
    best = 1 << 30
    for rows in product(*(permutations(row) for row in layering.rows)):
        place = {node: at for row in rows for at, node in enumerate(row)}
        best = min(best, counted(layering, place))
    return best


@FEW
@given(problems())
def test_ranks_follow_the_edges(problem: Problem) -> None:
    rank, topological = ranks(len(problem.sizes), problem.edges, (), ())
    assert sorted(topological) == list(range(len(problem.sizes)))
    place = {node: at for at, node in enumerate(topological)}
    assert all(rank[u] < rank[v] and place[u] < place[v] for u, v, _ in problem.edges)
    assert min(rank) >= 0


def test_the_longest_way_decides_and_short_branches_stay_near_what_they_feed() -> None:
    #  0 -> 1 -> 2 -> 3 and 4 -> 3: four waits until it is needed
    rank, _ = ranks(5, [(0, 1, 0), (1, 2, 1), (2, 3, 2), (4, 3, 4)], (), ())
    assert rank == [0, 1, 2, 3, 2]


def test_what_an_input_alone_feeds_lies_with_it_near_what_reads_it() -> None:
    chain = [(node, node + 1, node) for node in range(5)]
    rank, _ = ranks(9, [*chain, (6, 7, "in"), (7, 5, "made"), (8, 1, "both"), (8, 5, "both")], (), ())
    assert [rank[node] for node in (6, 7)] == [3, 4]
    assert rank[8] == 0


def test_what_enters_is_above_all_and_what_leaves_below() -> None:
    # boxes 0 and 1, source 2, sink 3
    rank, _ = ranks(4, [(2, 0, "x"), (0, 1, "y"), (0, 3, "y")], [2], [3])
    assert rank[2] == 0
    assert rank[3] == max(rank)
    assert rank[3] > rank[1]


@FEW
@given(problems())
def test_pieces_join_neighbouring_ranks_and_chains_lead_from_box_to_box(problem: Problem) -> None:
    layering = layer(problem)
    rank = layering.rank
    assert all(rank[b] == rank[a] + 1 for a, b, _ in layering.segments)
    assert all(rank[b] == rank[a] + 1 for a, b in layering.parts)
    assert sorted(node for row in layering.rows for node in row) == list(range(len(rank)))
    assert all(rank[node] == level for level, row in enumerate(layering.rows) for node in row)
    assert [(u, v, net) for u, v, net, _ in layering.chains] == problem.edges
    for u, v, _, chain in layering.chains:
        assert (chain[0], chain[-1]) == (layering.tail[u], v)
        assert all(layering.is_point(node) for node in chain[1:-1])


@FEW
@given(problems())
def test_crossings_are_counted_as_they_are(problem: Problem) -> None:
    """A net shares its trunk, so pieces from one node do not cross: the plain count is the same."""
    layering = layer(problem)
    assert layering.crossings == counted(layering, order(layering))


@FEW
@given(problems(6))
def test_crossings_are_near_the_fewest(problem: Problem) -> None:
    layering = layer(problem)
    orders = 1
    for row in layering.rows:
        orders *= len(list(permutations(row))) if len(row) < 6 else 10_000
    if orders <= 3000:
        best = fewest(layering)
        assert best <= layering.crossings <= best + 1


def meshed(rng: random.Random, rows: int, wide: int, share: float) -> Problem:
    """Rows of boxes, each joined to a share of the next row."""
    pairs = [
        (u, v)
        for first in range(0, (rows - 1) * wide, wide)
        for u in range(first, first + wide)
        for v in range(first + wide, first + 2 * wide)
    ]
    return Problem([(60.0, 30.0)] * (rows * wide), [(u, v, u) for u, v in pairs if rng.random() < share])


@pytest.mark.parametrize("seed", range(20))
def test_crossings_of_small_meshes_are_within_a_fifth_of_the_fewest(seed: int) -> None:
    rng, ours, best = random.Random(seed), 0, 0
    for _ in range(8):
        layering = layer(meshed(rng, 2, 4, 0.6))
        if max(map(len, layering.rows)) <= 4:  # else too many orders to try them all
            ours, best = ours + layering.crossings, best + fewest(layering)
    assert best > 10
    assert ours <= 1.2 * best


@pytest.mark.parametrize("seed", range(20))
def test_ordering_never_adds_crossings_and_ends_where_no_exchange_helps(seed: int) -> None:
    problem = meshed(random.Random(seed), 4, 8, 0.25)
    layering = _Layerer(problem, spans=False).layering
    before = counted(layering, order(layering))
    layering = layer(problem)
    found = order(layering)
    assert layering.crossings == counted(layering, found) < before
    for row in layering.rows:
        for a, b in pairwise(row):
            exchanged = {**found, a: found[b], b: found[a]}
            assert counted(layering, exchanged) >= layering.crossings, (a, b)


@pytest.mark.parametrize("seed", range(12))
def test_trees_have_no_crossings(seed: int) -> None:
    rng = random.Random(seed)
    parents = [rng.randrange(node) for node in range(1, 30)]
    down = [(parent, node, parent) for node, parent in enumerate(parents, 1)]
    assert layer(Problem([(60.0, 30.0)] * 30, down)).crossings == 0
    up = [(29 - node, 29 - parent, 29 - node) for node, parent in enumerate(parents, 1)]
    assert layer(Problem([(60.0, 30.0)] * 30, sorted(up))).crossings == 0


def test_a_skip_connection_does_not_cross() -> None:
    edges = [(node, node + 1, node) for node in range(9)] + [(0, 9, 0), (2, 6, 2)]
    assert layer(Problem([(60.0, 30.0)] * 10, edges)).crossings == 0


@FEW
@given(problems())
def test_neighbours_keep_apart(problem: Problem) -> None:
    layering = layer(problem)
    x, width = layering.x, layering.width
    assert min(x) == 0
    for row in layering.rows:
        for a, b in pairwise(row):
            gap = STYLE.box_gap if width[a] and width[b] else STYLE.line_gap
            assert x[b] - x[a] - width[a] >= gap - 1e-6


def test_a_chain_is_straight_and_so_is_a_long_line() -> None:
    edges = [(0, 1, "a"), (1, 2, "b"), (2, 3, "c"), (0, 3, "a")]
    layering = layer(Problem([(60.0, 30.0)] * 4, edges))
    middles = {layering.x[box] + layering.width[box] / 2 for box in range(4)}
    assert max(middles) - min(middles) < 1e-6
    points = [layering.x[node] for node in layering.chains[-1][3][1:-1]]
    assert max(points) - min(points) < 1e-6


def test_a_tall_box_spans_ranks_where_nothing_waits_for_it() -> None:
    #  0 -> 1 -> 2 -> 3 -> 4 beside a tall 5 that 4 reads
    edges = [(0, 1, 0), (1, 2, 1), (2, 3, 2), (3, 4, 3), (0, 5, 0), (5, 4, 5)]
    sizes = [(60.0, 30.0)] * 5 + [(80.0, 150.0)]
    layering = layer(Problem(sizes, edges))
    assert layering.tail[5] != 5
    assert layering.rank[layering.tail[5]] > layering.rank[5]
    parts = [5, *(node for node in range(6, len(layering.rank)) if layering.owner.get(node) == 5)]
    assert len({layering.x[node] for node in parts}) == 1
    assert layer(Problem([(60.0, 30.0)] * 6, edges)).tail == list(range(6))


def test_no_boxes_at_all() -> None:
    layering = layer(Problem([], []))
    assert (layering.rows, layering.x, layering.crossings) == ([], [], 0)
