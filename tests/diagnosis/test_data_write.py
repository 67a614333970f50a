"""Which of several writes past autograd are told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import torchatlas as atlas
from torchatlas.diagnosis.faults.data_write import DataWrite
from torchatlas.diagnosis.visit import Visit


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


@pytest.mark.parametrize("alias", ["numpy", "view of .data"])
def test_a_write_to_one_of_two_that_share_memory_is_told_with_both_recorders(alias: str, recorder: str) -> None:
    w, buffer = torch.ones(3, requires_grad=True), torch.ones(3)
    other = torch.from_numpy(buffer.numpy()) if alias == "numpy" else buffer.data[:]
    with atlas.doctor(only="data-write") as visit:
        loss = (w * other).sum()
        buffer.mul_(2.0)
        loss.backward()
    assert visit.findings.keys == ["data-write"]


def test_the_native_recorder_tells_of_no_write_to_memory_that_one_tensor_has(native: None) -> None:
    told = list[str]()

    class Heard(DataWrite):
        def op_ran(self, plan: Any, args: Any, kwargs: Any, out: Any) -> None:
            told.append(plan.name)

    visit = Visit(only=(), native=True)
    visit.diagnoses.append(Heard(visit))
    with visit:
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        assert not told
        net.weight.data.mul_(2.0)
    assert told == ["aten.mul_.Tensor"]
