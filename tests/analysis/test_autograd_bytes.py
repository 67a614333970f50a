"""A model in eval mode costs what inference costs, and results that only backward needs are counted apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchatlas as atlas
from torchatlas.analysis.autograd_bytes import only_for_backward
from torchatlas.errors import InvalidInputError, InvalidModelError
from torchatlas.operations.formulas import FORMULAS, results_for_backward

PICTURE, ROWS = (torch.randn(2, 4, 8, 8),), (torch.randn(5, 8),)
POOLED = 2 * 4 * 4 * 4  # results of a pool over windows of 2 x 2


class Loss(nn.Module):
    def forward(self, logits: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64))


class Unpools(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y, indices = nn.functional.max_pool2d(x, 2, return_indices=True)
        return nn.functional.max_unpool2d(y, indices, 2)


# a module, its inputs, and the bytes that only backward needs, counted by hand
SAVED: dict[str, tuple[nn.Module, tuple[Any, ...], int]] = {
    "max pool: an int64 index per result": (nn.MaxPool2d(2), PICTURE, 8 * POOLED),
    "max pool whose indices are returned": (nn.MaxPool2d(2, return_indices=True), PICTURE, 0),
    "max pool whose indices are used": (Unpools(), PICTURE, 0),
    "average pool": (nn.AvgPool2d(2), PICTURE, 0),
    "layer norm: mean and deviation per row": (nn.LayerNorm(8), ROWS, 2 * 4 * 5),
    "group norm: mean and deviation per group": (nn.GroupNorm(2, 4), PICTURE, 2 * 4 * 2 * 2),
    "batch norm in training: per channel": (nn.BatchNorm2d(4).train(), PICTURE, 2 * 4 * 4),
    "batch norm in eval mode: none": (nn.BatchNorm2d(4).eval(), PICTURE, 0),
    "negative log likelihood: the total weight": (Loss(), ROWS, 4),
    "a module without such results": (nn.Sequential(nn.Flatten(), nn.Threshold(0, 0)), PICTURE, 0),
}


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("backward", [False, True])
def test_bytes_that_only_backward_needs(name: str, backward: bool) -> None:
    module, inputs, expected = SAVED[name]
    needs = tuple(one.clone().requires_grad_() for one in inputs)
    graph = atlas.capture(module, *needs, backward=backward)
    report = atlas.cost(graph)
    assert report.total.saved_for_backward_bytes == expected
    assert report.by_phase["forward"].saved_for_backward_bytes == expected
    assert report.total.bytes_written >= expected
    assert ("only backward needs" in str(report)) == bool(expected)


def test_parts_sum_to_the_total() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.MaxPool2d(2), nn.GroupNorm(2, 4))
    report = atlas.cost(atlas.capture(model, *PICTURE, backward=True))
    total = report.total.saved_for_backward_bytes
    assert total == 8 * 2 * 4 * 3 * 3 + 2 * 4 * 2 * 2
    for groups in (report.by_phase, report.by_operation_type, report.by_operation, report.by_bound):
        assert sum(one.saved_for_backward_bytes for one in groups.values()) == total
    assert sum(report.by_module[path].saved_for_backward_bytes for path in "012") == total
    assert report.to_dict()["total"]["saved_for_backward_bytes"] == total


@pytest.mark.parametrize("name", [name for name in FORMULAS if results_for_backward(name)])
def test_results_for_backward_are_results(name: str) -> None:
    packet = getattr(torch.ops.aten, name.removeprefix("aten."), None)
    if packet is None:
        pytest.skip("not an operator of this version of torch")
    returned = [len(getattr(packet, overload)._schema.returns) for overload in packet.overloads()]
    positions = results_for_backward(name)
    assert 0 < min(positions) < max(returned)
    longest = max(positions)
    assert longest < max(returned) or name.endswith(("_attention", "_forward", "_overrideable"))


class Looks(nn.Module):
    """Looks at the indices of a pool through a view, and returns that or not."""

    def __init__(self, returns: bool) -> None:
        super().__init__()
        self.returns = returns

    def forward(self, x: Tensor) -> Any:
        y, indices = nn.functional.max_pool2d(x, 2, return_indices=True)
        flat = indices.view(-1)
        return (y, flat) if self.returns else y


@pytest.mark.parametrize("returns", [False, True])
def test_a_view_alone_is_no_reading(returns: bool) -> None:
    graph = atlas.capture(Looks(returns), *PICTURE)
    made = graph["max_pool2d_with_indices"].outputs
    assert [bool(only_for_backward(graph)[value.id]) for value in made] == [False, not returns]


# -- inference ---------------------------------------------------------------------------------------------------------


def mobile() -> nn.Module:
    """An activation in place after a convolution: autograd copies what it overwrites."""
    return nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU6(inplace=True), nn.Conv2d(8, 4, 1))


def copied(report: Any) -> int:
    return report.by_operation["aten.clone.default"].bytes if "aten.clone.default" in report.by_operation else 0


@pytest.mark.parametrize(
    ("training", "gradients", "with_autograd"),
    [(False, None, False), (False, True, True), (True, None, True), (True, False, False)],
)
def test_eval_mode_is_costed_as_inference(training: bool, gradients: bool | None, with_autograd: bool) -> None:
    model = mobile().train(training)
    report = atlas.cost(model, inputs=PICTURE, gradients=gradients)
    assert report.with_autograd is with_autograd
    assert copied(report) == (2 * 4 * 2 * 8 * 6 * 6 if with_autograd else 0)  # read and written
    assert ("recorded with autograd" in str(report)) is with_autograd
    assert ("as inference" in str(report)) is not with_autograd
    assert report.to_dict()["with_autograd"] is with_autograd
    assert model.training is training
    assert torch.is_grad_enabled()


def test_a_graph_stays_what_it_is() -> None:
    model = mobile().eval()
    assert atlas.cost(atlas.capture(model, *PICTURE)).with_autograd
    with torch.no_grad():
        alone = atlas.cost(atlas.capture(model, *PICTURE))
    found = atlas.cost(model, inputs=PICTURE)
    assert not alone.with_autograd
    assert alone.total.bytes == found.total.bytes == atlas.cost(atlas.trace(model, *PICTURE).graph).total.bytes


def test_inference_takes_attention_apart() -> None:
    """The fused fast path of eval mode would be one opaque operator."""
    layer, x = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval(), torch.randn(2, 5, 16)
    report = atlas.cost(layer, inputs=x)
    with_autograd = atlas.cost(layer, inputs=x, gradients=True)
    assert "aten._transformer_encoder_layer_fwd.default" not in report.by_operation
    assert report.macs == with_autograd.macs
    assert np.array_equal(report.by_module["linear1"].macs, with_autograd.by_module["linear1"].macs)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("inputs", [PICTURE[0], PICTURE, {"input": PICTURE[0]}], ids=["tensor", "tuple", "dictionary"])
def test_inputs_in_every_form(inputs: Any) -> None:
    assert atlas.cost(nn.ReLU(), inputs=inputs).total.operations == 1


def test_bad_input() -> None:
    graph = atlas.capture(nn.ReLU(), *PICTURE)
    with pytest.raises(InvalidInputError, match="recorded already"):
        atlas.cost(graph, inputs=PICTURE)
    with pytest.raises(InvalidInputError, match="recorded already"):
        atlas.cost(graph, gradients=False)
    with pytest.raises(InvalidInputError, match=r"cost\(model, inputs=x\)"):
        atlas.cost(nn.ReLU())
    with pytest.raises(InvalidModelError, match="not function"):
        atlas.cost(lambda x: x, inputs=PICTURE)
