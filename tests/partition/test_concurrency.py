"""What can run at once: antichains against trying every set, paths against networkx, schedules within their bounds."""

from __future__ import annotations

import itertools

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from partition.models import Inception, Net, traced
from torch import nn

import torchatlas as atlas
from torchatlas.errors import InvalidInputError, NotAvailableError
from torchatlas.partition.antichain import widest
from torchatlas.partition.concurrency import makespan


@st.composite
def orders(draw: st.DrawFn, most: int = 9) -> list[list[int]]:
    count = draw(st.integers(1, most))
    return [sorted(draw(st.sets(st.integers(0, at - 1)))) if at else [] for at in range(count)]


@given(orders(), st.data())
@settings(max_examples=150, deadline=None)
def test_the_antichain_is_as_large_as_any_and_the_last(before: list[list[int]], data: st.DataObject) -> None:
    counts = [data.draw(st.integers(0, 3)) > 0 for _ in before]
    graph = nx.DiGraph([(one, at) for at, needed in enumerate(before) for one in needed])
    graph.add_nodes_from(range(len(before)))
    later = {at: nx.descendants(graph, at) for at in graph}

    def apart(chosen: tuple[int, ...]) -> bool:
        return not any(b in later[a] for a in chosen for b in chosen)

    kept = [at for at, yes in enumerate(counts) if yes]
    found = widest(before, counts)
    assert set(found) <= set(kept)
    assert apart(tuple(found))
    assert not any(apart(chosen) for chosen in itertools.combinations(kept, len(found) + 1))
    for other in itertools.combinations(kept, len(found)):  # no other one is later anywhere
        assert not apart(other) or all(at in found or later[at] & set(found) for at in other)


def test_the_antichain_may_be_wider_than_every_level() -> None:
    """s -> q, s -> r -> t, and p by itself: levels hold at most two, but p, q and r can run at once."""
    before = [[], [], [0], [0], [3]]
    assert len(widest(before)) == 3


@given(orders(), st.integers(1, 4), st.data())
@settings(max_examples=100, deadline=None)
def test_a_schedule_keeps_to_its_bounds(before: list[list[int]], workers: int, data: st.DataObject) -> None:
    weights = [float(data.draw(st.integers(0, 9))) for _ in before]
    remaining = list(weights)
    for at in range(len(before) - 1, -1, -1):
        for one in before[at]:
            remaining[one] = max(remaining[one], weights[one] + remaining[at])
    span, work = max(remaining), sum(weights)
    found = makespan(weights, before, remaining, workers)
    assert max(span, work / workers) <= found <= work / workers + span  # Graham's bound
    assert makespan(weights, before, remaining, 1) == work


def test_the_critical_path_is_the_heaviest() -> None:
    report = atlas.GraphPartitioner("op").partition(traced(Net(), 2, 3, 8, 8))
    found = atlas.ConcurrencyAnalyzer().analyze(report)
    graph = nx.DiGraph()
    weight = {one.node_id: one.flops + one.elementwise_flops for one in report.subgraphs}
    graph.add_nodes_from(weight)
    graph.add_weighted_edges_from(
        (other, one.node_id, weight[one.node_id]) for one in report for other in one.depends_on
    )
    best = max(
        weight[first] + nx.dag_longest_path_length(graph.subgraph({first} | nx.descendants(graph, first)))
        for first in graph
        if not graph.in_degree(first)
    )
    assert found.span == best == sum(weight[one] for one in found.critical_path)
    assert found.critical_path_length == len(found.critical_path) < len(report)
    assert found.critical_path_flops == sum(report[one].flops for one in found.critical_path)
    assert all(graph.has_edge(a, b) for a, b in itertools.pairwise(found.critical_path))
    assert all(found.slack[one] == 0 for one in found.critical_path)
    off = report["block1_project"]
    assert found.slack[off.node_id] > 0
    assert found.speedup_bound == pytest.approx(found.work / best)
    assert all(1 <= speedup <= found.speedup_bound + 1e-9 for speedup in found.speedups.values())


def test_stages_hold_each_subgraph_once_and_are_independent() -> None:
    report = atlas.GraphPartitioner("op").partition(traced(Inception(), 2, 3, 8, 8))
    found = atlas.ConcurrencyAnalyzer().analyze(report)
    listed = [one for stage in found.stages for one in stage]
    assert sorted([*listed, *found.glue]) == sorted(one.node_id for one in report.subgraphs)
    at = {one: number for number, stage in enumerate(found.stages) for one in stage}
    assert all(
        at[other] < at[one.node_id] for one in report for other in one.depends_on if {other, one.node_id} <= set(at)
    )
    assert found.max_parallel_ops_per_stage == 4
    assert found.mean_parallel_ops_per_stage == pytest.approx(len(listed) / found.num_stages)
    assert found.batch_parallelism == 2


def test_by_measured_time_and_by_roofline() -> None:
    report = atlas.GraphPartitioner().partition(atlas.capture(Net().eval(), torch.randn(1, 3, 8, 8)))
    timed = atlas.ConcurrencyAnalyzer(by="time").analyze(report)
    assert timed.work == sum(one.time_ns or 0 for one in report)
    best = atlas.ConcurrencyAnalyzer(by="roofline", workers=[2]).analyze(report)
    assert best.work == pytest.approx(report.total_seconds)
    assert list(best.speedups) == [2]
    assert "critical path by roofline" in str(best)
    assert best.to_dict()["by"] == "roofline"


def test_one_number_of_workers_will_do() -> None:
    assert atlas.ConcurrencyAnalyzer(workers=3).workers == (3,)


def test_bad_input() -> None:
    with pytest.raises(InvalidInputError, match="the report of a partition, not Linear"):
        atlas.ConcurrencyAnalyzer().analyze(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="one of flops"):
        atlas.ConcurrencyAnalyzer(by="weight")
    with pytest.raises(InvalidInputError, match="no number of workers"):
        atlas.ConcurrencyAnalyzer(workers=[0])
    report = atlas.GraphPartitioner().partition(traced(Net(), 1, 3, 8, 8))
    with pytest.raises(NotAvailableError, match="roofline"):
        atlas.ConcurrencyAnalyzer(by="time").analyze(report)
