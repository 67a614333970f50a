"""Where two runs first differ, and by how much."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import Tensor, nn

import torchatlas as atlas
from torchatlas.errors import CaptureError, InvalidInputError


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def test_equal_models_do_not_differ() -> None:
    found = atlas.compare_runs(atlas.trace(model(), X), atlas.trace(model(), X), X)
    assert found
    assert found.same
    assert found.first is None
    assert found.worst is None
    assert "no difference" in str(found)
    assert [node.node for node in found.nodes] == ["input", "0.linear", "1.gelu", "2.linear", "output"]
    assert [node.depth for node in found.nodes] == [0, 1, 2, 3, 4]


def test_the_first_difference_is_where_a_weight_was_changed() -> None:
    one, other = model(), model()
    with torch.no_grad():
        other[2].weight[0, 0] += 0.5
    traced = atlas.trace(one, X)
    found = atlas.compare_runs(traced, atlas.trace(other, X), X)
    assert not found
    first = found.first
    assert first is not None
    assert (first.node, first.module, first.operation) == ("2.linear", "2", "aten.linear.default")
    assert (first.differing, first.numbers, first.inputs_differ) == (3, 6, False)
    hidden = traced.predict(X)["1.gelu"].output[:, 0]
    assert first.largest == pytest.approx(0.5 * hidden.abs().max().item(), rel=1e-5)
    expected = 0.5 * hidden.norm() / traced(X).norm()
    assert first.relative == pytest.approx(expected.item(), rel=1e-5)
    assert found.nodes[-1].inputs_differ
    assert "first difference: 2.linear: 3 of 6 numbers differ" in str(found)


def test_another_precision() -> None:
    traced = atlas.trace(model(), X)
    found = atlas.compare_runs(traced, torch.bfloat16, X)
    assert not found
    assert found.other == "torch.bfloat16"
    errors = [node.relative for node in found.nodes]
    assert 1e-4 < max(errors) < 0.05
    assert traced(X).dtype is torch.float32  # the model itself is not converted
    assert atlas.compare_runs(traced, torch.bfloat16, X, rtol=0.1, atol=0.1)


def test_another_device() -> None:
    assert atlas.compare_runs(atlas.trace(model(), X), "cpu", X)
    assert atlas.compare_runs(atlas.trace(model(), X), torch.device("cpu"), X)


def test_anything_that_can_be_called_is_compared_by_its_outputs() -> None:
    one = model()
    traced = atlas.trace(one, X)
    assert atlas.compare_runs(traced, one, X)
    found = atlas.compare_runs(traced, lambda x: one(x) + 1, X)
    assert [node.node for node in found.nodes] == ["output"]
    assert found.first is not None
    assert found.first.largest == pytest.approx(1, abs=1e-5)
    assert found.only_one == ["input", "0.linear", "1.gelu", "2.linear"]


def test_a_compiled_model() -> None:
    one = model()
    found = atlas.compare_runs(atlas.trace(one, X), torch.compile(one, backend="aot_eager"), X)
    assert found.same


class Adds(nn.Module):
    def __init__(self, shape: tuple[int, ...], value: float) -> None:
        super().__init__()
        self.register_buffer("offset", torch.full(shape, value))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.offset).sum(0)


def test_shapes_that_differ_and_numbers_that_are_none() -> None:
    one = atlas.trace(Adds((3, 4), 1.0).eval(), X)
    other = atlas.trace(Adds((2, 3, 4), 1.0).eval(), X)
    first = atlas.compare_runs(one, other, X).first
    assert first is not None
    assert first.reason == "shape (3, 4) in one run, (2, 3, 4) in the other"
    nan = atlas.trace(Adds((3, 4), torch.nan).eval(), X)
    assert atlas.compare_runs(nan, nan, X)
    apart = atlas.compare_runs(one, nan, X).first
    assert apart is not None
    assert apart.largest == torch.inf
    assert apart.differing == 12


def test_a_long_model_prints_a_short_table() -> None:
    long = nn.Sequential(*(nn.Linear(4, 4) for _ in range(200))).eval()
    other = copy.deepcopy(long)
    with torch.no_grad():
        other[7].bias += 1
    found = atlas.compare_runs(atlas.trace(long, X), atlas.trace(other, X), X)
    lines = str(found).splitlines()
    assert len(lines) < 60
    assert any("7.linear" in line for line in lines[4:])
    assert "more nodes in .nodes" in lines[-1]
    assert json.loads(json.dumps(found.to_dict()))["first"]["node"] == "7.linear"


def test_a_copy_that_does_not_run_is_not_the_model() -> None:
    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4).bfloat16()

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.bfloat16())

    traced = atlas.trace(Casts(), X)
    with pytest.raises(
        CaptureError, match=r"^a copy of Casts moved to torch.float64 cannot be traced: .*dtype"
    ) as caught:
        atlas.compare_runs(traced, torch.float64, X)
    assert "its own example" not in str(caught.value)
    assert "What forward casts by itself" in str(caught.value)


def test_what_cannot_be_compared_is_refused() -> None:
    traced = atlas.trace(model(), X)
    with pytest.raises(InvalidInputError, match="takes a traced model first, not Sequential"):
        atlas.compare_runs(model(), traced, X)
    with pytest.raises(InvalidInputError, match="a traced model, a dtype, a device or a callable, not 3"):
        atlas.compare_runs(traced, 3, X)
