"""An optimizer that was given nothing: which of the reasons is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.diagnosis.findings import Severity


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(2, 2)]


def used_up() -> Any:
    weights = nn.Linear(2, 2).parameters()
    list(weights)
    return torch.optim.SGD(weights, 0.1)


def used_up_filter() -> Any:
    trained = filter(lambda weight: weight.requires_grad, nn.Linear(2, 2).parameters())
    list(trained)
    return torch.optim.Adam(trained, 0.1)


def frozen() -> Any:
    model = nn.Linear(2, 2).requires_grad_(False)
    return torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], 0.1)


def listed() -> Any:
    model = Listed()
    return torch.optim.AdamW(model.parameters(), 0.1)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (used_up, "weights is a generator"),
        (used_up_filter, "trained is a generator"),
        (frozen, "all 2 parameters are frozen"),
        (listed, "in a plain list or dict"),
    ],
)
def test_the_reason_and_the_line_are_told(program: Callable[[], Any], why: str) -> None:
    visit = atlas.doctor()
    with contextlib.suppress(ValueError), visit:
        program()
    (finding,) = visit.findings
    assert (finding.key, finding.severity) == ("optimizer-misses", Severity.ERROR)
    assert why in finding.why
    (place,) = finding.where
    assert place.source is not None
    assert "torch.optim" in place.source.text


def test_a_refusal_that_the_program_handles_or_raises_itself_is_none() -> None:
    with atlas.doctor() as visit, contextlib.suppress(ValueError):
        used_up()
    assert not visit.findings
    again = atlas.doctor()
    with contextlib.suppress(ValueError), again:
        raise ValueError("no optimizer got an empty parameter list here")
    assert not again.findings
