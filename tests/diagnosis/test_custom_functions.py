"""The program's own autograd Functions: which leaves they stop, and at which line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diagnosis.steps import train
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchatlas as atlas
from torchatlas.diagnosis import custom_functions


class Stop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x + 1

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        return None


class StopToo(Stop):
    pass


def test_two_functions_on_one_line_are_two_findings_after_one_step() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    scale = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters(), scale], 0.1)
    x = torch.ones(1, 2)
    with atlas.doctor() as visit:
        loss = (scale * (Stop.apply(first(x)) + StopToo.apply(second(x)))).sum()
        train(optimizer, loss)
    assert visit.findings.keys == ["no-gradient", "no-gradient"]
    assert {finding.what for finding in visit.findings} == {
        "first.weight, first.bias get no gradient",
        "second.weight, second.bias get no gradient",
    }
    assert len({finding.lines[0] for finding in visit.findings}) == 1
    assert [finding.where[0].what.split(",")[0] for finding in visit.findings] == [
        "cut by the backward of Stop",
        "cut by the backward of StopToo",
    ]


class Outer(torch.autograd.Function):
    """Applies another Function before all else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return Stop.apply(x) * 2  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        return None


def test_a_function_that_applies_another_first_is_cut_at_its_own_line() -> None:
    encoder, head = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], 0.1)
    with atlas.doctor() as visit:
        hidden = Outer.apply(encoder(torch.ones(1, 2)))
        train(optimizer, head(hidden).sum())
    (finding,) = visit.findings
    assert finding.where[0].source is not None
    assert finding.where[0].source.text == "hidden = Outer.apply(encoder(torch.ones(1, 2)))"


def test_leaves_that_lines_of_their_own_cut_off_are_findings_of_their_own() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    scale = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters(), scale], 0.1)
    with atlas.doctor() as visit:
        hidden = Stop.apply(first(torch.ones(1, 2)))
        hidden = hidden + Stop.apply(second(torch.ones(1, 2)))
        train(optimizer, (scale * hidden).sum())
    assert [(finding.what.split(".")[0], len(finding.lines)) for finding in visit.findings] == [
        ("first", 1),
        ("second", 1),
    ]
    assert len({finding.lines[0] for finding in visit.findings}) == 2


def test_a_leaf_that_something_else_stops_too_is_not_blamed_on_a_function() -> None:
    encoder, scale = nn.Linear(2, 2), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*encoder.parameters(), scale], 0.1)
    with atlas.doctor() as visit:
        hidden = encoder(torch.ones(1, 2))
        other = checkpoint(lambda x: scale * x.detach(), hidden, use_reentrant=True)
        train(optimizer, (scale * Stop.apply(hidden) + other).sum())
    assert not visit.findings


def test_a_pass_is_walked_once_for_each_line_and_not_for_each_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    walks, reachable = [], custom_functions.reachable
    monkeypatch.setattr(custom_functions, "reachable", lambda *args: walks.append(reachable(*args)) or walks[-1])
    layers, head = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20))), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*layers.parameters(), *head.parameters()], 0.1)
    with atlas.doctor() as visit:
        train(optimizer, head(Stop.apply(layers(torch.ones(1, 2)))).sum())
    (finding,) = visit.findings
    assert finding.what.startswith("layers.0.weight, layers.0.bias, layers.1.weight and 37 more")
    assert len(walks) == 2  # for the line, and for all that is not the program's
