"""dropout-in-eval: functional dropout that does not follow the mode of its module."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchatlas as atlas
from torchatlas.diagnosis import Visit


class Layer(nn.Module):
    def __init__(self, drop: Callable[[Layer, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.drop, self.inner = nn.Parameter(torch.ones(4)), drop, nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self, x * self.weight)


def attention(x: Tensor, p: float) -> Tensor:
    q = x[None, None]
    return F.scaled_dot_product_attention(q, q, q, dropout_p=p)


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        model.train()
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        model.eval()


def visit_of(model: nn.Module, grad_mode: AbstractContextManager[object]) -> Visit:
    torch.manual_seed(0)
    with atlas.doctor(only="dropout-in-eval") as visit:
        train(model)
        with grad_mode:
            model(torch.randn(3, 4)).sum().item()
    return visit


FAULTY: dict[str, Callable[[Layer, Tensor], Tensor]] = {
    "p": lambda layer, x: F.dropout(x, 0.5),
    "nothing": lambda layer, x: F.dropout(x),
    "several lines": lambda layer, x: F.dropout(
        x.exp(),
        p=0.1,
    ),
    "dropout1d": lambda layer, x: F.dropout1d(x, 0.5),
    "attention": lambda layer, x: attention(x, 0.5),
}
MODES = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "gradients": torch.enable_grad}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FAULTY)
def test_dropout_that_stays_on(name: str, mode: str) -> None:
    findings = visit_of(Layer(FAULTY[name]), MODES[mode]()).findings
    assert findings.keys == ["dropout-in-eval"], str(findings)
    assert findings[0].times == 1  # not in training
    assert findings[0].what.startswith("Layer is in eval mode")
    assert [file for file, _ in findings[0].lines] == [__file__]


HEALTHY: dict[str, Callable[[Layer, Tensor], Tensor]] = {
    "by mode": lambda layer, x: F.dropout(x, 0.5, training=layer.training),
    "by position": lambda layer, x: F.dropout(x, 0.5, layer.training),
    "meant": lambda layer, x: F.dropout(x, 0.5, training=True),
    "meant by position": lambda layer, x: F.dropout(x, 0.5, True),
    "off": lambda layer, x: F.dropout(x, 0.0),
    "a module": lambda layer, x: layer.inner.train()(x),
    "attention by mode": lambda layer, x: attention(x, 0.5 if layer.training else 0.0),
    "a mask": lambda layer, x: x * torch.empty_like(x).bernoulli_(0.5),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HEALTHY)
def test_dropout_that_follows_the_mode(name: str, mode: str) -> None:
    assert not visit_of(Layer(HEALTHY[name]), MODES[mode]()).findings


def test_a_module_that_is_not_trained_here() -> None:
    model = Layer(FAULTY["p"]).eval()
    with atlas.doctor(only="dropout-in-eval") as visit, torch.no_grad():
        model(torch.randn(3, 4))
    assert not visit.findings


def test_the_same_input_again_is_looked_at_on_purpose() -> None:
    model = Layer(FAULTY["p"])
    with atlas.doctor(only="dropout-in-eval") as visit:
        train(model)
        with torch.no_grad():
            torch.stack([model(torch.ones(3, 4)) for _ in range(3)]).std(0)
    assert not visit.findings


def test_what_backward_goes_through_is_training() -> None:
    model = Layer(FAULTY["p"])
    with atlas.doctor(only="dropout-in-eval") as visit:
        train(model)
        model(torch.randn(3, 4)).sum().backward()
    assert not visit.findings


def test_outside_of_a_module() -> None:
    model = Layer(HEALTHY["by mode"])
    with atlas.doctor(only="dropout-in-eval") as visit:
        train(model)
        with torch.no_grad():
            model(F.dropout(torch.randn(3, 4)))
    assert not visit.findings
