"""broadcast-in-loss: (n, 1) against (n,) by accident, and pairs on purpose."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchatlas as atlas
from torchatlas.diagnosis import Visit

Loss = Callable[[Tensor, Tensor], Tensor]  # of predictions (6, 1) and targets (6,)


def visit_of(loss: Loss) -> Visit:
    torch.manual_seed(0)
    layer, targets = nn.Linear(5, 1), torch.randn(2, 6).unbind()
    with warnings.catch_warnings(), atlas.doctor(only="broadcast-in-loss") as visit:
        warnings.simplefilter("ignore")  # torch's own
        for target in targets:
            loss(layer(torch.randn(6, 5)), target).backward()
    return visit


FAULTY: dict[str, Loss] = {
    "mse_loss": lambda p, y: F.mse_loss(p, y),
    "l1_loss": lambda p, y: F.l1_loss(p, y),
    "smooth_l1_loss": lambda p, y: F.smooth_l1_loss(p, y),
    "huber_loss": lambda p, y: F.huber_loss(p, y),
    "the other way round": lambda p, y: F.mse_loss(p.squeeze(1), torch.cat([y[i : i + 1, None] for i in range(6)])),
    "by hand": lambda p, y: ((p - y) ** 2).mean(),
    "a sum of means": lambda p, y: (p - y).abs().mean(0).sum(),
    "relative": lambda p, y: (((p - y) / (y + 3)) ** 2).mean().sqrt(),
    "weights": lambda p, y: (F.mse_loss(p, torch.zeros(6, 1), reduction="none") * y).mean(),
    "one term of several": lambda p, y: 0.1 * p.square().mean() + (y - p.tanh()).square().sum() / 6,
}


@pytest.mark.parametrize("name", FAULTY)
def test_by_accident(name: str) -> None:
    findings = visit_of(FAULTY[name]).findings
    assert findings.keys == ["broadcast-in-loss"], str(findings)
    assert findings[0].what == "(6, 1) and (6,) are broadcast to (6, 6) in the loss"
    assert findings[0].times == 2
    assert all(file == __file__ for file, _ in findings[0].lines)
    assert findings[0].lines


HEALTHY: dict[str, Loss] = {
    "equal shapes": lambda p, y: F.mse_loss(p.squeeze(1), y) + F.mse_loss(p, y.unsqueeze(1)),
    "asked for": lambda p, y: (p.squeeze(1).unsqueeze(1) - y).square().mean(),
    "by an index": lambda p, y: (p[:, 0][:, None] - y).square().mean(),
    "expanded": lambda p, y: F.mse_loss(p.expand(6, 6), y.expand(6, 6)),
    "the same tensor": lambda p, y: (p - p.squeeze(1)).square().mean(),
    "a row": lambda p, y: (p - y[None]).square().mean(),
    "kept dimension": lambda p, y: ((p * p).sum(1, keepdim=True) - y).square().mean(),
    "a kernel": lambda p, y: torch.exp(-((p - y) ** 2)).mean(),
    "the nearest": lambda p, y: (p - y).square().min(1).values.mean(),
    "a ranking": lambda p, y: F.relu(1 - p + y).mean(),
    "a grid": lambda p, y: (p - torch.linspace(0, 1, 6)).square().mean(),
    "one example": lambda p, y: (p[:1] - y[:1]).square().mean(),
    "a product": lambda p, y: (p @ y[None]).mean(),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_on_purpose(name: str) -> None:
    assert not visit_of(HEALTHY[name]).findings


def test_targets_of_pairs_for_predictions_of_pairs() -> None:
    layer, column, row = nn.Linear(5, 1), torch.randn(6, 1), torch.randn(6)
    with atlas.doctor(only="broadcast-in-loss") as visit:
        scores = layer(torch.randn(6, 5))
        F.mse_loss(torch.cdist(scores, scores), (column - row).abs()).backward()
    assert not visit.findings


def test_a_target_that_was_broadcast_before() -> None:
    layer, column, row = nn.Linear(5, 1), torch.randn(6, 1), torch.randn(6)
    with warnings.catch_warnings(), atlas.doctor(only="broadcast-in-loss") as visit:
        warnings.simplefilter("ignore")
        target = column + 0.9 * row
        F.mse_loss(layer(torch.randn(6, 5)), target).backward()
    assert [place.source.text for place in visit.findings[0].where if place.source] == ["target = column + 0.9 * row"]


def test_what_is_trained_for_each_example() -> None:
    weights = torch.randn(6, requires_grad=True)
    with atlas.doctor(only="broadcast-in-loss") as visit:
        (torch.randn(6, 1) * weights).square().mean().backward()
    assert not visit.findings


def test_only_a_loss_that_backward_goes_through() -> None:
    layer, y = nn.Linear(5, 1), torch.randn(6)
    with atlas.doctor(only="broadcast-in-loss") as visit:
        prediction = layer(torch.randn(6, 5))
        (prediction - y).square().mean().item()
        prediction.mean().backward()
    assert not visit.findings
