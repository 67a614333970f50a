"""Comparing times: what lies within the spread is no difference, and one run is not compared. All times are fed in."""

from __future__ import annotations

import json

import pytest
import torch

import torchatlas as atlas
from torchatlas.analysis.time_changes import ALIKE, LONGER, NOT_COMPARED, SHORTER, TimeChange
from torchatlas.analysis.totals import operations_mask
from torchatlas.graph.timing import Measured, Timing


def measured(ns: int, spread_ns: int | None = None) -> Measured:
    return Measured(ns, 1 if spread_ns is None else 10, spread_ns)


@pytest.mark.parametrize(
    ("before", "after", "verdict", "text"),
    [
        (measured(100, 10), measured(121, 10), LONGER, "-> 121 ns (median of 10 ± 8.3 %): longer by 21 ns"),
        (measured(100, 10), measured(120, 10), ALIKE, "-> 120 ns (median of 10 ± 8.3 %): no difference beyond the"),
        (measured(121, 0), measured(100, 20), SHORTER, "121 ns (median of 10 ± 0 %) -> 100 ns (median of 10 ± 20 %)"),
        (measured(34_900_000), measured(15_800_000), NOT_COMPARED, "34.9 ms and 15.8 ms, one run each: not compared"),
        (measured(34_900_000), measured(9, 0), NOT_COMPARED, "34.9 ms (one run) and 9 ns (median of 10 ± 0 %): not"),
        (measured(100, 1), None, NOT_COMPARED, "100 ns (median of 10 ± 1.0 %) before: not compared"),
        (None, None, NOT_COMPARED, "unknown: not compared"),
    ],
)
def test_a_difference_exceeds_both_spreads(
    before: Measured | None, after: Measured | None, verdict: str, text: str
) -> None:
    change = TimeChange(before, after)
    assert change.verdict == verdict
    assert text in str(change)
    assert json.loads(json.dumps(change.to_dict()))["verdict"] == verdict


def program(times: list[int], spreads: list[int], *, eager_ns: tuple[int, ...] = ()) -> atlas.Graph:
    """exp, sin and cos with these times; a graph of one run where there are no spreads."""
    graph = atlas.capture(lambda x: x.exp().sin().cos(), torch.ones(3))
    is_op = operations_mask(graph)
    graph.columns["node_time_ns"][is_op] = times
    graph.columns["node_time_spread_ns"][is_op] = spreads or -1
    graph.timing = Timing(runs=10 if spreads else 1, eager_ns=eager_ns)
    return graph


def test_operations_modules_and_the_whole_are_compared_by_their_spread() -> None:
    before = program([1000, 1000, 1000], [10, 10, 10], eager_ns=(4000, 4000, 4000, 4100))
    after = program([1021, 1020, 500], [10, 10, 10], eager_ns=(4000, 4000, 4060, 4100))
    found = atlas.compare(before, after)
    assert found.same
    assert [(one.after.operation, one.change.verdict) for one in found.operation_times] == [
        ("aten.cos.default", SHORTER),
        ("aten.exp.default", LONGER),
    ]
    assert found.times[""].verdict == SHORTER
    assert found.times[""].before == Measured(3000, 10, 30)
    assert found.eager.verdict == ALIKE
    text = str(found)
    assert (
        "time in operations: 3.00 µs (median of 10 ± 1.0 %) -> 2.54 µs (median of 10 ± 1.2 %): shorter by 459 ns"
        in text
    )
    assert "eager: 4.00 µs (median of 4 ± 0.6 %) -> 4.03 µs (median of 4 ± 1.7 %): no difference" in text
    assert "cos: 1.00 µs" in text
    assert "sin: " not in text
    listed = json.loads(json.dumps(found.to_dict()))
    assert listed["times"][""]["verdict"] == SHORTER
    assert [one["name_after"] for one in listed["operation_times"]] == [one.after.name for one in found.operation_times]


def test_noise_is_no_difference() -> None:
    found = atlas.compare(program([1000, 2000, 3000], [100, 200, 300]), program([1100, 1900, 3500], [100, 200, 300]))
    assert not found.operation_times
    assert found.times[""].verdict == ALIKE
    assert "no difference beyond the spread" in str(found)


@pytest.mark.parametrize("several", [(), ("before",), ("after",)], ids=["each", "after", "before"])
def test_one_run_is_not_compared(several: tuple[str, ...]) -> None:
    """34.9 -> 15.8 ms for a model with more to do was noise."""
    spreads = [[1, 1, 1] if side in several else [] for side in ("before", "after")]
    found = atlas.compare(program([34_900_000, 0, 0], spreads[0]), program([15_800_000, 0, 0], spreads[1]))
    assert found.times[""].verdict == NOT_COMPARED
    assert not found.operation_times
    text = str(found)
    assert ("one run each: not compared" in text) == (not several)
    assert "not compared" in text
    assert "ms ->" not in text


def test_a_module_that_is_new_takes_all_of_its_time_more() -> None:
    def layers(*more: torch.nn.Module) -> atlas.Graph:
        graph = atlas.capture(torch.nn.Sequential(torch.nn.ReLU(), *more), torch.ones(3))
        graph.columns["node_time_spread_ns"][:] = 5
        graph.columns["node_time_ns"][operations_mask(graph)] = 1000
        graph.timing = Timing(runs=3)
        return graph

    found = atlas.compare(layers(), layers(torch.nn.Sigmoid()))
    assert found.times["1"].before == Measured(0, 3, 0)
    assert found.times["1"].verdict == LONGER
    assert found.times["0"].verdict == ALIKE


def test_graphs_without_times_say_nothing_of_them() -> None:
    graph = atlas.capture(torch.sin, torch.ones(3), fake=True)
    found = atlas.compare(graph, graph)
    assert found.times[""] == TimeChange(None, None)
    assert "time" not in str(found)
