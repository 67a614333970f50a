"""Levels and longest paths, against a definition that is too slow to use, on graphs of many shapes."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from synthetic import random_graph

from torchatlas.analysis import critical_path, levels, longest_path, widest_level
from torchatlas.errors import InvalidInputError, NotAvailableError
from torchatlas.graph import Graph
from torchatlas.graph.columns import COLUMNS, Array

Ends = tuple[Array, Array]


def shaped(nodes: int, ends: Ends, times: Array | None = None) -> Graph:
    """A graph of bare nodes with these edges. They carry no values, so that no file could hold it."""
    graph = random_graph(nodes, 0)
    for name, (dtype, unit) in COLUMNS.items():
        if unit == "edge":
            graph.columns[name] = np.full(len(ends[0]), 0 if name == "edge_kind" else -1, dtype)
    graph.columns["edge_source"], graph.columns["edge_target"] = (end.astype(np.int32) for end in ends)
    if times is not None:
        graph.columns["node_time_ns"] = times.astype(np.int64)
    assert (graph.columns["edge_source"] < graph.columns["edge_target"]).all()
    return graph


def chain(n: int, rng: np.random.Generator) -> Ends:
    return np.arange(n - 1), np.arange(1, n)


def chain_with_skips(n: int, rng: np.random.Generator) -> Ends:
    target = rng.integers(1, n, n // 3)
    skips = (rng.random(len(target)) * target).astype(int), target
    return np.append(np.arange(n - 1), skips[0]), np.append(np.arange(1, n), skips[1])


def runs(n: int, rng: np.random.Generator) -> Ends:
    source = np.flatnonzero(rng.random(n - 1) < 0.9)
    target = rng.integers(1, n, n // 4)
    return np.append(source, (rng.random(len(target)) * target).astype(int)), np.append(source + 1, target)


def layered(n: int, rng: np.random.Generator) -> Ends:
    width = 50
    target = rng.integers(width, n, 2 * n)
    return (target // width - 1) * width + rng.integers(0, width, 2 * n), target


def wide(n: int, rng: np.random.Generator) -> Ends:
    return np.zeros(n - 1, int), np.arange(1, n)


def far(n: int, rng: np.random.Generator) -> Ends:
    target = np.sort(rng.integers(1, n, 2 * n))
    return (rng.random(2 * n) * target).astype(int), target


def near(n: int, rng: np.random.Generator) -> Ends:
    target = rng.integers(1, n, 2 * n)
    return np.maximum(target - rng.geometric(0.1, 2 * n), 0), target


def none(n: int, rng: np.random.Generator) -> Ends:
    return np.zeros(0, int), np.zeros(0, int)


SHAPES = [chain, chain_with_skips, runs, layered, wide, far, near, none]


def heaviest(weights: Array, ends: Ends) -> Array:
    """By definition: node after node, the best of all predecessors plus its own."""
    before: list[list[int]] = [[] for _ in weights]
    for source, target in zip(*ends, strict=True):
        before[target].append(source)
    found: list[float] = []
    for node, weight in enumerate(weights.tolist()):
        found.append(max([0, *(found[source] for source in before[node])]) + weight)
    return np.array(found)


@pytest.mark.parametrize("nodes", [2, 60, 3000])
@pytest.mark.parametrize("shape", SHAPES)
def test_levels(shape: Callable[[int, np.random.Generator], Ends], nodes: int) -> None:
    if shape is layered and nodes < 100:
        pytest.skip("too few for two layers")
    ends = shape(nodes, np.random.default_rng(nodes))
    found = levels(shaped(nodes, ends))
    assert found.tolist() == (heaviest(np.ones(nodes), ends) - 1).tolist()


@pytest.mark.parametrize("kind", ["none", "time_ns", "whole", "float"])
@pytest.mark.parametrize("shape", SHAPES)
def test_longest_path(shape: Callable[[int, np.random.Generator], Ends], kind: str) -> None:
    rng = np.random.default_rng(7)
    nodes = 3000
    ends = shape(nodes, rng)
    weights = rng.integers(-1, 1000, nodes) if kind != "float" else rng.random(nodes)
    graph = shaped(nodes, ends, weights)
    known = np.maximum(weights, 0)
    weight = {"none": None, "time_ns": "time_ns", "whole": known, "float": known}[kind]
    path, length = longest_path(graph, weight)
    if kind == "none":
        assert length == len(path) - 1 == levels(graph).max()
    else:
        assert length == heaviest(known, ends).max()
        assert np.isclose(length, known[path].sum())
    edges = set(zip(ends[0].tolist(), ends[1].tolist(), strict=True))
    assert all(pair in edges for pair in pairwise(path))


def test_only_the_chosen_kinds_of_edges_count() -> None:
    graph = shaped(4, (np.array([0, 1, 2]), np.array([1, 2, 3])))
    graph.columns["edge_kind"][1] = 1
    assert levels(graph).tolist() == [0, 1, 2, 3]
    assert levels(graph, kinds=["data"]).tolist() == [0, 1, 0, 1]
    assert longest_path(graph, kinds=["order"]) == ([1, 2], 1)


def test_without_nodes_edges_or_times() -> None:
    assert levels(Graph()).tolist() == []
    assert longest_path(Graph()) == ([], 0)
    graph = shaped(3, (np.zeros(0, int), np.zeros(0, int)), np.full(3, -1))
    assert longest_path(graph) == ([0], 0)
    with pytest.raises(NotAvailableError, match="No node of this graph has a 'time_ns'"):
        longest_path(graph, "time_ns")
    with pytest.raises(NotAvailableError, match=r"'colour'.*time_ns, time_spread_ns, memory_bytes"):
        longest_path(graph, "colour")


@pytest.mark.parametrize("weight", [[1, 2], [[1], [2], [3]], ["a", "b", "c"], [1, -1, 2], [1.0, float("nan"), 2.0]])
def test_weights_that_are_none(weight: list[object]) -> None:
    with pytest.raises(InvalidInputError, match="weight"):
        longest_path(random_graph(3, 3), np.array(weight))


def test_the_graph_is_left_alone() -> None:
    graph = random_graph(500, 900)
    before = {name: column.copy() for name, column in graph.columns.items()}
    levels(graph)
    longest_path(graph, "time_ns")
    assert all((column == before[name]).all() for name, column in graph.columns.items())


@pytest.mark.parametrize("shape", SHAPES)
def test_slack_is_how_much_longer_a_node_may_take(shape: Callable[..., Ends]) -> None:
    rng = np.random.default_rng(2)
    ends, weights = shape(60, rng), rng.integers(0, 9, 60)
    graph = shaped(60, ends, weights)
    found = critical_path(graph, weights)
    span = int(heaviest(weights, ends).max())
    assert (found.length, found.work) == (span, weights.sum())
    assert sum(weights[node] for node in found.ids) == span
    assert [node.id for node in found.nodes] == found.ids
    for node in range(60):
        longer = weights.copy()
        longer[node] += found.slack[node]
        assert heaviest(longer, ends).max() == span
        longer[node] += 1
        assert heaviest(longer, ends).max() == span + 1


def test_the_widest_level_has_most_operations() -> None:
    ends = np.array([0, 0, 0, 1, 2]), np.array([1, 2, 3, 4, 5])
    graph = shaped(6, ends)
    graph.columns["node_kind"][:] = 1
    assert [node.id for node in widest_level(graph)] == [1, 2, 3]
    graph.columns["node_kind"][1:4] = 2  # outputs, not operations
    assert [node.id for node in widest_level(graph)] == [4, 5]


def test_a_critical_path_by_what_is_not_there() -> None:
    graph = shaped(3, chain(3, np.random.default_rng(0)), np.array([-1, -1, -1]))
    with pytest.raises(NotAvailableError, match="roofline"):
        critical_path(graph)
    with pytest.raises(InvalidInputError, match="one of time, roofline"):
        critical_path(graph, "beauty")
    graph.columns["node_kind"][:] = 1
    graph.columns["node_time_ns"][:] = [4, -1, 3]
    assert critical_path(graph).at_least
    assert critical_path(graph).length == 7
    assert critical_path(Graph(), "count").ids == []
