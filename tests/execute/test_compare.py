"""The first node at which two runs differ."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.errors import InvalidInputError
from torchatlas.execute.compare import differences, first_difference


def traced() -> atlas.TracedModel:
    torch.manual_seed(0)
    return atlas.trace(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval(), torch.randn(2, 4))


def test_equal_runs_do_not_differ() -> None:
    found, x = traced(), torch.randn(3, 4)
    assert first_difference(found.predict(x), found.predict(x)) is None


def test_the_first_node_that_differs_is_found_with_the_same_inputs() -> None:
    one, x = traced(), torch.randn(3, 4)
    model = copy.deepcopy(one.model)
    with torch.no_grad():
        model[2].weight[0, 0] += 0.5
    other = atlas.trace(model, x)
    found = first_difference(one.predict(x), other.predict(x))
    assert found is not None
    assert found.node == "2.linear"
    assert "3 of 6 numbers differ" in found.reason
    assert found.largest == pytest.approx(0.5 * one.predict(x)["1.gelu"].output[:, 0].abs().max().item(), rel=1e-4)
    assert "2.linear: 3 of 6" in str(found)


def test_inputs_that_differ_are_told_apart_from_nodes_that_do() -> None:
    found = traced()
    x = torch.randn(3, 4)
    all_of_them = list(differences(found.predict(x), found.predict(x + 1)))
    assert [item.node for item in all_of_them] == ["input", "0.linear", "1.gelu", "2.linear"] + (
        ["output"] if all_of_them[-1].node == "output" else []
    )
    assert [item.inputs_differ for item in all_of_them[:4]] == [False, True, True, True]


def test_a_tolerance_lets_small_differences_pass() -> None:
    found, x = traced(), torch.randn(3, 4)
    near = found.predict(x + 1e-6)
    assert first_difference(found.predict(x), near) is not None
    assert first_difference(found.predict(x), near, atol=1e-4) is None


def test_shapes_types_and_nan() -> None:
    found = traced()
    other = first_difference(found.predict(torch.ones(3, 4)), found.predict(torch.ones(2, 4)))
    assert other is not None
    assert other.reason == "shape (3, 4) in one run, (2, 4) in the other"
    nan = torch.full((2, 4), torch.nan)
    assert first_difference(found.predict(nan), found.predict(nan)) is None
    assert first_difference(found.predict(nan), found.predict(torch.ones(2, 4))) is not None
    half = atlas.trace(copy.deepcopy(found.model).half(), torch.ones(2, 4).half())
    apart = first_difference(found.predict(torch.ones(2, 4)), half.predict(torch.ones(2, 4).half()))
    assert apart is not None
    assert apart.reason == "torch.float32 in one run, torch.float16 in the other"


def test_runs_without_a_common_node_cannot_be_compared() -> None:
    found = traced()
    with pytest.raises(InvalidInputError, match="no node in common"):
        first_difference(found.predict(torch.ones(2, 4), nodes=["0"]), found.predict(torch.ones(2, 4), nodes=["2"]))
