"""Conditions on comparisons: what is written is what is judged, what cannot be read or judged is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.analysis.fail_on import Figure, judged, judged_time, parse_condition
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.graph.timing import Measured


def graph(hidden: int = 16, **options: object) -> atlas.Graph:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 4)).requires_grad_(False)
    return atlas.capture(model, torch.ones(3, 8), **options)


@pytest.mark.parametrize(
    ("condition", "before", "after", "holds"),
    [
        ("ops>+1%", 100, 101, False),
        ("ops>+1%", 100, 102, True),
        ("ops>=+1%", 100, 101, True),
        ("ops > +0", 100, 100, False),
        ("ops>+5", 100, 105, False),
        ("ops>+5", 100, 106, True),
        ("ops<-5%", 100, 94, True),
        ("ops<-5%", 100, 95, False),
        ("ops<=-5%", 100, 95, True),
        ("ops!=+0", 100, 99, True),
        ("ops!=+0", 100, 100, False),
        ("ops>+1e2%", 100, 201, True),
        ("ops>+1%", 0, 0, False),
        ("ops>+1%", 0, 1, True),
        ("ops>105", 0, 106, True),
        ("ops>105", 200, 105, False),
        ("flops>4.2G", 0, 4_200_000_001, True),
        ("flops>4.2e9", 0, 4_200_000_000, False),
        ("parameters>7B", 0, 7_000_000_001, True),
        ("flops>+0%", 2**60, 2**60 + 1, True),
        ("flops>+0%", 2**60 + 1, 2**60 + 1, False),  # beyond what a float tells apart
        ("peak_bytes>+1MiB", 0, 2**20, False),
        ("peak_bytes>+1MiB", 0, 2**20 + 1, True),
        ("peak_bytes>1GB", 0, 10**9 + 1, True),
        ("peak_bytes<-1KiB", 5000, 3975, True),
    ],
)
def test_a_condition_holds_or_not(condition: str, before: int, after: int, holds: bool) -> None:
    found = judged(parse_condition(condition), Figure(before), Figure(after))
    assert (found is not None) is holds
    if found is not None:
        assert found.condition == condition
        assert found.after == after


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (
            "flop>+1%",
            "'flop' is no figure; did you mean 'flops'? There are flops, macs, parameters, ops, peak_bytes, time, ",
        ),
        ("flops", 'an operator and an amount are missing. Write "flops>+1%"'),
        ("flops=+1%", "'=' is no operator"),
        ("flops==1", "'==' is no operator"),
        ("flops=>1", "'=>' is no operator"),
        ("flops>", "'' is no amount"),
        ("flops>abc", "'abc' is no amount. Write +1%, +1000 or 4.2e9."),
        ("flops>nan", "'nan' is no amount"),
        ("flops>+-1", "'+-1' is no amount"),
        ("flops>1%", "need a sign: +1% or -1%"),
        ("flops>+1MiB", "'MiB' is no unit of flops; there are K, M, G and T"),
        ("peak_bytes>+1q", "'1q' is no number of bytes"),
        ("time>3", "a time needs a unit; there are ns, us, ms and s"),
        ("time>1h", "'h' is no unit of time"),
        ("flops>+1e400%", "'+1e400%' is more than can be compared"),
        ("flops>1e300T", "'1e300T' is more than can be compared"),
        ("time>1e308s", "'1e308s' is more than can be compared"),
        ("peak_bytes>1e308GB", "'1e308GB' is more bytes than can be counted"),
        ("structure>1", "structure stands alone"),
        ("", 'is no condition. Write "flops>+1%"'),
        (">+1%", "is no condition"),
        ("\x1b[2J", "'\\x1b[2J' is no condition"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_text(condition: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        atlas.compare(graph(), graph()).violations(condition)
    assert message in str(caught.value)
    assert repr(condition) in str(caught.value)
    with pytest.raises(InvalidInputError, match="a condition is text"):
        parse_condition(3)  # type: ignore[arg-type]


def test_conditions_on_two_graphs() -> None:
    found = atlas.compare(graph(), graph(32))
    broken = found.violations(["flops>+1%", "flops>+100%", "structure", "ops!=+0", "parameters>400", "peak_bytes>1GB"])
    assert [one.condition for one in broken] == ["flops>+1%", "structure", "parameters>400"]
    assert str(broken[0]) == "flops>+1%: 1.15 KFLOPs -> 2.30 KFLOPs (+100 %)"
    assert broken[0].to_dict() == {
        "condition": "flops>+1%",
        "before": 1152,
        "after": 2304,
        "what": "1.15 KFLOPs -> 2.30 KFLOPs (+100 %)",
    }
    assert {name: (one.before, one.after) for name, one in found.totals.items() if name != "peak_bytes"} == {
        "flops": (1152, 2304),
        "macs": (576, 1152),
        "parameters": (212, 420),
        "ops": (5, 5),
    }
    assert atlas.compare(graph(), graph()).violations(["structure", "ops!=+0", "flops!=+0%", "peak_bytes!=+0"]) == []


def test_edges_alone_are_structure() -> None:
    one, other = (torch.ones(2), torch.zeros(2))
    found = atlas.compare(
        atlas.capture(lambda a, b: (a + 1) - (b + 1), one, other),
        atlas.capture(lambda a, b: (b + 1) - (a + 1), one, other),
    )
    assert found.same
    assert "edges or strides differ" in str(found.violations("structure")[0])


def test_what_is_unknown_is_not_judged() -> None:
    condition = parse_condition("peak_bytes>+5%")
    for pair, which in (((Figure(None), Figure(5)), "first"), ((Figure(5), Figure(None)), "second")):
        with pytest.raises(AnalysisError, match=f"peak_bytes of the {which} graph is unknown"):
            judged(condition, *pair)
    without_memory = atlas.trace(nn.Linear(8, 4), torch.ones(3, 8)).graph
    with pytest.raises(AnalysisError, match="peak_bytes of the second graph is unknown"):
        atlas.compare(graph(), without_memory).violations("peak_bytes>+5%")


def test_times_of_one_run_are_never_compared() -> None:
    found = atlas.compare(graph(), graph(32))
    for condition in ("time>+1%", "time>1ns", "time!=+0ns"):
        with pytest.raises(AnalysisError, match=r"of one run, or of none, are not compared\. Capture with repeat=10"):
            found.violations(condition)
    with pytest.raises(AnalysisError, match="not compared"):
        judged_time(parse_condition("time>+1%"), Measured(5), Measured(9, 10, 1))
    assert atlas.compare(graph(repeat=3), graph(repeat=3)).violations("time>1s") == []


@pytest.mark.parametrize(
    ("condition", "before", "after", "holds"),
    [
        ("time>+1%", Measured(100, 5, 2), Measured(110, 5, 2), True),
        ("time>+1%", Measured(100, 5, 6), Measured(110, 5, 5), False),  # within the spread of both
        ("time>+20%", Measured(100, 5, 2), Measured(110, 5, 2), False),
        ("time<-1%", Measured(110, 5, 2), Measured(100, 5, 2), True),
        ("time>100ns", None, Measured(110, 5, 5), True),
        ("time>100ns", None, Measured(110, 5, 15), False),
        ("time<100ns", None, Measured(95, 5, 6), False),
        ("time<100ns", None, Measured(95, 5, 2), True),
    ],
)
def test_a_time_has_to_differ_beyond_its_spread(
    condition: str, before: Measured | None, after: Measured, holds: bool
) -> None:
    assert (judged_time(parse_condition(condition), before, after) is not None) is holds
