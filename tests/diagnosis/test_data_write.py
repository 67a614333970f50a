"""Which of several writes past autograd are told."""

from __future__ import annotations

import torch
from torch import Tensor

import torchatlas as atlas


def test_a_fault_is_told_though_another_one_came_before_it() -> None:
    w = torch.ones(3, requires_grad=True)

    def first() -> None:
        hidden = w.exp()
        hidden.data.clamp_(max=1.0)
        hidden.sum().backward()

    def second() -> None:
        hidden = w.exp()
        hidden.data.mul_(2.0)
        hidden.sum().backward()

    with atlas.doctor(only="data-write") as visit:
        for fault in (first, first, second):
            fault()
    lines = [finding.where[0].source.text for finding in visit.findings if finding.where[0].source is not None]
    assert sorted(lines) == ["hidden.data.clamp_(max=1.0)", "hidden.data.mul_(2.0)"]


def test_what_was_passed_over_is_told_by_a_later_pass() -> None:
    """The third pass of a line is passed over; the fourth goes through the same graph."""
    w = torch.ones(3, requires_grad=True)

    def hidden(rate: float) -> Tensor:
        made = w.exp()
        made.data.mul_(rate)
        return made

    with atlas.doctor(only="data-write") as visit:
        losses = [hidden(rate).sum() for rate in (1.0, 2.0, 3.0)]
        for loss in [*losses, losses[2]]:
            loss.backward(retain_graph=True)
    (finding,) = visit.findings
    assert finding.times == 3
