"""Gradients that are exactly zero at every step: which layer stops them, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import torchatlas as atlas
from torchatlas.diagnosis import Visit


def layers(activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), activation(), nn.Linear(6, 8), activation(), nn.Linear(8, 1))


def fit(model: nn.Module, steps: int = 6, scale: float = 1.0, loss: Callable[[Tensor], Tensor] | None = None) -> Visit:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with atlas.doctor() as visit:
        for _ in range(steps):
            optimizer.zero_grad()
            out = model(scale * torch.randn(5, 4))
            (loss(out) if loss is not None else (out - 1).square().mean()).backward()
            optimizer.step()
    return visit


def biased(model: nn.Sequential, layer: int, bias: float) -> nn.Sequential:
    nn.init.constant_(model[layer].bias, bias)  # type: ignore[arg-type]
    return model


def zeros(model: nn.Sequential, *chosen: int) -> nn.Sequential:
    for layer in chosen:
        nn.init.zeros_(model[layer].weight)  # type: ignore[arg-type]
        nn.init.zeros_(model[layer].bias)  # type: ignore[arg-type]
    return model


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ReLU6, nn.Hardswish])
def test_a_layer_of_dead_units_is_named_with_all_that_it_stops(activation: type[nn.Module]) -> None:
    (finding,) = fit(biased(layers(activation), 2, -100.0)).findings
    assert finding.key == "zero-gradients"
    assert finding.what == "the gradient of 0.weight, 0.bias, 2.weight and 2 more was exactly 0 at each of 6 steps"
    assert finding.why.startswith("all 8 units of layer 2 are")
    assert finding.where[0].source is not None
    assert "model(scale *" in finding.where[0].source.text


def test_the_last_of_three_passes_in_turn_is_looked_at() -> None:
    dead, one, other = biased(layers(), 2, -100.0), layers(), layers()
    parameters = [parameter for model in (dead, one, other) for parameter in model.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.05)
    with atlas.doctor() as visit:
        for _ in range(6):
            optimizer.zero_grad()
            x = torch.randn(5, 4)
            (one(x) - 1).square().mean().backward()
            (other(x) - 2).square().mean().backward()
            (dead(x) - 1).square().mean().backward()
            optimizer.step()
    assert visit.findings.keys == ["zero-gradients"]


def test_fewer_steps_than_five_are_not_judged() -> None:
    assert not fit(biased(layers(), 2, -100.0), steps=4).findings


def test_some_dead_units_are_no_dead_layer() -> None:
    model = layers()
    with torch.no_grad():
        model[0].bias[:5] = -100.0  # type: ignore[index]
    assert not fit(model).findings


def test_layers_of_zeros_in_a_row_never_begin_to_learn_and_one_does() -> None:
    (finding,) = fit(zeros(layers(), 0, 2, 4)).findings
    assert finding.what == "the gradient of 0.weight, 0.bias, 2.weight and 2 more was exactly 0 at each of 6 steps"
    assert finding.why.startswith("the weights of layer 4 are all 0 and stay so")
    assert not fit(zeros(layers(), 4)).findings
    assert not fit(zeros(layers(nn.Tanh), 2)).findings


def test_units_that_are_saturated() -> None:
    (finding,) = fit(layers(nn.Sigmoid), scale=1e12).findings
    assert finding.what == "the gradient of 0.weight, 0.bias was exactly 0 at each of 6 steps"
    assert finding.why.startswith("all 6 units of layer 0 are saturated")


def test_an_output_that_is_always_zero_and_a_margin_that_is_kept() -> None:
    model = nn.Sequential(*biased(layers(), 4, -100.0), nn.ReLU())
    (finding,) = fit(model).findings
    assert finding.why.startswith("the only unit of layer 4 is dead")
    kept = biased(layers(nn.Tanh), 4, 100.0)
    assert not fit(kept, loss=lambda out: functional.relu(1 - out).mean()).findings


class Masked(nn.Module):
    """A part that is multiplied by 0, and one whose gradient a hook sets to 0."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.off, self.fixed = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.out = nn.Linear(6, 1)
        for parameter in self.fixed.parameters():
            parameter.register_hook(torch.zeros_like)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        return self.out(hidden + 0.0 * self.off(hidden).relu() + self.fixed(hidden).relu())  # type: ignore[no-any-return]


def test_masks_and_hooks_are_meant_so() -> None:
    assert not fit(Masked()).findings


def test_rounding_is_told_by_another_key() -> None:
    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.out = nn.Linear(4, 6), nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.first(x).round())  # type: ignore[no-any-return]

    assert fit(Rounded(), scale=5.0).findings.keys == ["no-gradient"]


def test_a_layer_that_wakes_up_late_is_not_told() -> None:
    model = biased(layers(), 2, -100.0)
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.05)
    with atlas.doctor() as visit:
        for step in range(9):
            if step == 6:
                biased(model, 2, 1.0)
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
    assert not visit.findings
