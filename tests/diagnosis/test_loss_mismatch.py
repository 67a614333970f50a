"""loss-mismatch: a loss that gets something else than it expects, and losses that are near to one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchatlas as atlas
from torchatlas.diagnosis import Visit

Loss = Callable[[Tensor, Tensor], Tensor]  # of scores (6, 4) and class numbers


def visit_of(loss: Loss, outputs: int = 4) -> Visit:
    torch.manual_seed(0)
    layer = nn.Linear(5, outputs)
    with atlas.doctor(only="loss-mismatch") as visit:
        for _ in range(2):
            loss(layer(torch.randn(6, 5)), torch.randint(0, 4, (6,))).backward()
    return visit


FAULTY: dict[str, tuple[Loss, str]] = {
    "softmax": (
        lambda s, y: F.cross_entropy(s.softmax(1), y),
        "cross_entropy (or log_softmax) gets the result of",
    ),
    "softmax, another shape": (
        lambda s, y: F.cross_entropy(s.softmax(-1).view(2, 3, 4).transpose(1, 2), y.view(2, 3)),
        "gets the result of softmax",
    ),
    "softmax, targets are probabilities": (
        lambda s, y: F.cross_entropy(s.softmax(1), F.one_hot(y, 4).float()),
        "gets the result of softmax",
    ),
    "sigmoid": (lambda s, y: F.cross_entropy(s.sigmoid(), y), "cross_entropy gets the result of sigmoid"),
    "sigmoid twice": (
        lambda s, y: F.binary_cross_entropy_with_logits(s.sigmoid()[:, 0], (y > 1).float()),
        "binary_cross_entropy_with_logits gets the result of sigmoid",
    ),
    "scores for log-probabilities": (lambda s, y: F.nll_loss(s, y), "nll_loss gets the result of a linear layer"),
    "probabilities for log-probabilities": (lambda s, y: F.nll_loss(s.softmax(1), y), "the result of softmax"),
    "over the batch": (lambda s, y: F.nll_loss(s.log_softmax(0), y), "log_softmax of (6, 4) runs over dimension 0"),
    "log of softmax over the batch": (
        lambda s, y: F.nll_loss((s.softmax(0) + 1e-9).log(), y),
        "softmax of (6, 4) runs over dimension 0",
    ),
    "squared error of softmax over the batch": (
        lambda s, y: F.mse_loss(s.softmax(0), F.one_hot(y, 4).float()),
        "softmax of (6, 4) runs over dimension 0",
    ),
    "class 2 of 2": (
        lambda s, y: F.binary_cross_entropy_with_logits(s[:, 0], y.clamp(1, 2).float() + (y == y[0])),
        "gets targets in [",
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_what_a_loss_does_not_expect(name: str) -> None:
    loss, told = FAULTY[name]
    findings = visit_of(loss).findings
    assert findings.keys == ["loss-mismatch"], str(findings)
    assert told in findings[0].what
    assert findings[0].times == 2
    assert findings[0].lines
    assert all(file == __file__ for file, _ in findings[0].lines)


HEALTHY: dict[str, Loss] = {
    "scores": lambda s, y: F.cross_entropy(s, y),
    "twice log_softmax": lambda s, y: F.cross_entropy(s.log_softmax(1), y),
    "temperature": lambda s, y: F.cross_entropy(s.softmax(1) / 0.05, y),
    "log of softmax": lambda s, y: F.nll_loss((s.softmax(1) + 1e-9).log(), y),
    "classes in front": lambda s, y: F.nll_loss(s.t().log_softmax(0).t(), y),
    "a product after softmax": lambda s, y: F.cross_entropy(s.softmax(1) @ torch.randn(4, 4), y),
    "both directions of a square": lambda s, y: F.nll_loss((s @ s.t()).log_softmax(0), torch.arange(6)),
    "weighted log-probabilities": lambda s, y: F.nll_loss(-2 * s.log_softmax(1), y),
    "probabilities of classes": lambda s, y: F.binary_cross_entropy(s.softmax(1), F.one_hot(y, 4).float()),
    "one of a set": lambda s, y: F.binary_cross_entropy(s.softmax(0), torch.eye(6)[:, :4]),
    "policy": lambda s, y: -torch.distributions.Categorical(s.softmax(1)).log_prob(y).mean(),
    "missing labels": lambda s, y: (
        F.binary_cross_entropy_with_logits(s[:, 0], y - 1.0, reduction="none") * (y > 0)
    ).sum(),
    "missing labels by weight": lambda s, y: F.binary_cross_entropy_with_logits(
        s[:, 0], y.clamp(max=2) - 1.0, (y > 0).float()
    ),
    "cross entropy by hand": lambda s, y: s.logsumexp(1).mean() + F.nll_loss(s, y),
    "a little outside": lambda s, y: F.binary_cross_entropy_with_logits(s[:, 0], (y > 1) * 1.2 - 0.1),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_near_to_it(name: str) -> None:
    assert not visit_of(HEALTHY[name]).findings


def test_one_class() -> None:
    findings = visit_of(lambda s, y: F.cross_entropy(s, torch.zeros_like(y)), outputs=1).findings
    assert [finding.what for finding in findings] == ["cross_entropy gets one class: (6, 1)"]


def test_the_lowest_loss_is_told_and_can_be_reached() -> None:
    findings = visit_of(FAULTY["softmax"][0]).findings
    best = F.cross_entropy(F.one_hot(torch.arange(4)).float(), torch.arange(4))
    assert f"never below {best:.2f}" in findings[0].why


def test_only_a_loss_that_backward_goes_through() -> None:
    layer = nn.Linear(5, 4)
    with atlas.doctor(only="loss-mismatch") as visit:
        scores = layer(torch.randn(6, 5))
        F.cross_entropy(scores.softmax(1), torch.zeros(6, dtype=torch.long)).item()
        F.cross_entropy(scores, torch.zeros(6, dtype=torch.long)).backward()
    assert not visit.findings


REFUSED: dict[str, tuple[Loss, str]] = {
    "float classes": (lambda s, y: F.cross_entropy(s, y.float()), "of another type than int64"),
    "a column of classes": (lambda s, y: F.cross_entropy(s, y[:, None]), "a dimension too many"),
    "no such class": (lambda s, y: F.cross_entropy(s, y + 4), "no output for"),
    "scores": (lambda s, y: F.binary_cross_entropy(s, s.detach().sigmoid()), "numbers outside of [0, 1]"),
    "classes for numbers": (lambda s, y: F.mse_loss(s, y.float()), "of another shape"),
    "another shape": (lambda s, y: F.binary_cross_entropy(s.sigmoid(), y.float()), "of another shape"),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_is_explained(name: str) -> None:
    loss, told = REFUSED[name]
    visit = atlas.doctor()
    with pytest.raises((RuntimeError, ValueError, IndexError)), visit:
        loss(nn.Linear(5, 4)(torch.randn(6, 5)), torch.randint(0, 4, (6,)))
    assert visit.findings.keys == ["loss-mismatch"], str(visit.findings)
    assert told in visit.findings[0].what
    assert [file for file, _ in visit.findings[0].lines] == [__file__]


def test_the_same_words_from_elsewhere_are_not_explained() -> None:
    visit = atlas.doctor()
    with pytest.raises(RuntimeError), visit:
        raise RuntimeError("Target 5 is out of bounds.")
    assert not visit.findings
