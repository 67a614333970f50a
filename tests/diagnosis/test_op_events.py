"""What diagnoses hear of ops: the same from both recorders, and nothing that nobody wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchatlas.capturing.op_listening import Wants
from torchatlas.diagnosis.events import Diagnosis
from torchatlas.diagnosis.visit import Visit
from torchatlas.graph.names import short_name


class Heard(Diagnosis):
    """Writes down what it hears."""

    keys = ("heard",)

    def __init__(self, visit: Visit, wanted: Callable[[str], Wants]) -> None:
        super().__init__(visit)
        self.wanted = wanted
        self.ops: list[str] = []
        self.asked: list[str] = []

    def wants(self, plan: Any) -> Wants:
        self.asked.append(plan.name)
        return self.wanted(short_name(plan.name))

    def op_ran(self, plan: Any, args: Any, kwargs: Any, out: Any) -> None:
        self.ops.append(short_name(plan.name))
        self.latest = args, kwargs, out, self.history.ops


def heard(wanted: Callable[[str], Wants], program: Callable[[], Any], native: bool) -> Heard:
    visit = Visit(only=(), native=native)
    listener = Heard(visit, wanted)
    visit.diagnoses.append(listener)
    with visit:
        program()
    return listener


@pytest.fixture
def is_native(recorder: str) -> bool:
    return recorder == "native"


def test_ops_are_told_of_with_what_they_took_and_made(is_native: bool) -> None:
    x, y = torch.ones(2, 3), torch.zeros(2, 3)

    def program() -> None:
        (x + 1).relu()
        torch.add(x, 2.0, out=y)
        y.mul_(3.0)

    found = heard(lambda name: Wants.ALWAYS if name == "mul_" else Wants.NOTHING, program, is_native)
    args, kwargs, out, ops = found.latest
    assert found.ops == ["mul_"]
    assert (args[0] is y, args[1], kwargs, out is y, ops) == (True, 3.0, {}, True, 4)
    assert sorted(found.asked) == sorted(set(found.asked))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_numbers_that_are_not_finite(is_native: bool, dtype: torch.dtype) -> None:
    finite = torch.ones(700, 5, dtype=dtype)
    last = finite.clone()
    last[-1, -1] = float("nan")
    inside = torch.ones(4, 6, dtype=dtype)
    inside[2, 4] = float("inf")

    def program() -> None:
        finite.neg()
        torch.ones(3, dtype=torch.int64).neg()
        torch.empty(0, dtype=dtype).neg()
        last.abs()
        inside.unsafe_chunk(2, 1)  # not dense
        inside[:, :3].clone()

    found = heard(lambda name: Wants.NOT_FINITE, program, is_native)
    assert found.ops == ["abs", "unsafe_split"]


def test_the_first_op_without_gradients_after_a_node_was_made(is_native: bool) -> None:
    model, x = nn.Linear(2, 1), torch.ones(1, 2)

    def program() -> None:
        with torch.no_grad():
            x.neg().abs()
        model(x)
        with torch.no_grad():
            x.exp().log()
        x.sin()  # gradients are enabled

    found = heard(lambda name: Wants.FIRST_WITHOUT_GRADIENTS, program, is_native)
    assert found.ops == ["neg", "exp"]


def test_ops_outside_of_the_steps_of_optimizers(is_native: bool) -> None:
    w = torch.ones(2, requires_grad=True)
    other = torch.ones(2)
    optimizer = torch.optim.SGD([w], 0.1, momentum=0.9)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        other.mul_(2.0)
        loss = w.square().sum()
        loss.backward()
        return loss

    def program() -> None:
        for _ in range(2):  # in the second step the optimizer multiplies its momentum
            optimizer.step(closure)
        other.mul_(3.0)

    found = heard(lambda name: Wants.OUTSIDE_STEPS if name == "mul_" else Wants.NOTHING, program, is_native)
    assert found.ops == ["mul_"] * 3
    everywhere = heard(lambda name: Wants.ALWAYS if name == "mul_" else Wants.NOTHING, program, is_native)
    assert everywhere.ops == ["mul_"] * 5


def test_a_diagnosis_that_fails_is_told_of_nothing_more(is_native: bool) -> None:
    class Fails(Heard):
        def op_ran(self, plan: Any, args: Any, kwargs: Any, out: Any) -> None:
            self.ops.append("told")
            raise ValueError("ours")

    visit = Visit(only=(), native=is_native)
    listener = Fails(visit, lambda name: Wants.ALWAYS)
    visit.diagnoses.append(listener)
    with visit:
        result = torch.ones(2).neg().abs()
    assert result.tolist() == [1.0, 1.0]
    assert listener.ops == ["told"]
    assert [str(failure.error) for failure in visit.failures] == ["ours"]


def test_a_diagnosis_that_fails_when_it_is_asked_is_left_out(is_native: bool) -> None:
    def asked(name: str) -> Wants:
        if name == "abs":
            raise ValueError("ours")
        return Wants.ALWAYS

    visit = Visit(only=(), native=is_native)
    fails, other = Heard(visit, asked), Heard(visit, lambda name: Wants.ALWAYS)
    visit.diagnoses += [fails, other]
    with visit:
        x = torch.full((2,), -1.0)
        result = x.neg().abs().neg()
    assert result.tolist() == [-1.0, -1.0]
    assert (fails.ops[-1], other.ops[-3:]) == ("neg", ["neg", "abs", "neg"])
    assert len(other.ops) == len(fails.ops) + 2
    assert [str(failure.error) for failure in visit.failures] == ["ours"]


def test_the_first_op_after_a_node_was_made(is_native: bool) -> None:
    w = torch.ones(2, requires_grad=True)
    visit = Visit(only=(), native=is_native)
    with visit:
        torch.ones(1)
        y = w * 2
        with torch.no_grad():
            torch.ones(1)
        w.sin()
        number = y.grad_fn._sequence_nr()
        history = visit.history
        assert history.ops == 4
        assert [history.first_op(number), history.first_op(number + 1), history.first_op(number + 2)] == [2, 4, None]
        assert history.first_op(number, with_gradients=True) == 2
