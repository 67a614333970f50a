"""A state that is carried over with its graph, and the graphs that grow so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diagnosis.steps import net
from torch import Tensor, nn

import torchatlas as atlas
from torchatlas.diagnosis import backward_passes
from torchatlas.diagnosis.findings import Severity


def carry(steps: int) -> atlas.diagnosis.Visit:
    weight, state = torch.ones(4, requires_grad=True), torch.zeros(4)
    with atlas.doctor() as visit:
        for _ in range(steps):
            state = 0.5 * state + weight
            state.sum().backward(retain_graph=True)
    return visit


def test_a_state_that_is_carried_over_is_told_after_three_iterations() -> None:
    assert not carry(3).findings
    (finding,) = carry(6).findings
    assert (finding.key, finding.severity, finding.times) == ("kept-state", Severity.WARNING, 5)
    assert next(place.source.text for place in finding.where if place.source) == "state = 0.5 * state + weight"
    assert "(state = state.detach())" in finding.fix


def test_a_state_in_a_tuple_is_detached_by_its_own_name() -> None:
    weight, memory = torch.ones(4, requires_grad=True), (torch.zeros(4), torch.zeros(4))
    with atlas.doctor() as visit:
        for _ in range(6):
            memory = 0.5 * memory[0] + weight, memory[1] + 1.0
            memory[0].sum().backward(retain_graph=True)
    (finding,) = visit.findings
    assert "(memory = tuple(each.detach() for each in memory))" in finding.fix


def test_what_was_made_once_before_the_loop_is_no_state() -> None:
    weight = torch.ones(4, requires_grad=True)
    with atlas.doctor() as visit:
        scaled = weight * 0.1
        for _ in range(6):
            scaled.exp().sum().backward(retain_graph=True)
    assert "kept-state" not in visit.findings.keys


def test_a_graph_that_grows_is_seldom_walked_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    walked, reached = [], backward_passes.reached
    monkeypatch.setattr(backward_passes, "reached", lambda roots: walked.append(1) or reached(roots))
    carry(60)
    assert len(walked) <= 9


def test_the_backward_ops_of_a_graph_that_grows_are_recorded_seldom_by_the_doctor_and_always_by_others() -> None:
    with atlas.recording() as alone:
        weight, state = torch.ones(4, requires_grad=True), torch.zeros(4)
        for _ in range(40):
            state = 0.5 * state + weight
            state.sum().backward(retain_graph=True)
    with atlas.recording() as beside:
        visit = carry(40)
    backward_ops = [len(rec.graph.where(phase="backward")) for rec in (alone, beside)]
    assert backward_ops[0] == backward_ops[1]
    assert visit.history.ops < len(alone.graph) / 2


def test_two_models_with_equal_names_are_told_apart() -> None:
    first, second = net(), net()
    optimizers = [torch.optim.SGD(each.parameters(), 0.01) for each in (first, second)]
    with atlas.doctor() as visit:
        for _ in range(3):
            for model, optimizer in zip((first, second), optimizers, strict=True):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
    told = " ".join(finding.what for finding in visit.findings)
    assert visit.findings.keys[0] == "not-zeroed"
    assert "first.0.weight" in told or "second.0.weight" in told


def test_a_leaf_that_is_written_to_is_found_by_the_exception() -> None:
    x = nn.Parameter(torch.ones(2))
    visit = atlas.doctor()
    with pytest.raises(RuntimeError, match="leaf Variable"), visit:
        x += 1
    (finding,) = visit.findings
    assert finding.key == "in-place"
    assert finding.where[0].source is not None
    assert finding.where[0].source.text == "x += 1"


class Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()


class Solves(torch.autograd.Function):
    """As solvers of differential equations do: other Functions inside, and results written one by one, then saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        steps = torch.empty(3, *x.shape)
        for number in range(3):
            steps[number] = Inner.apply(x) * number
        ctx.save_for_backward(steps)
        return steps

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (steps,) = ctx.saved_tensors
        return (gradient * steps).sum(0)


@pytest.mark.parametrize("written", [False, True])
def test_what_a_function_writes_before_it_saves_is_no_fault(written: bool) -> None:
    weight = torch.ones(4, requires_grad=True)
    with atlas.doctor() as visit:
        for _ in range(3):
            steps = Solves.apply(weight)
            if written:
                steps.data.mul_(2)
            steps.square().sum().backward()
    assert visit.findings.keys == ["data-write"] * written
