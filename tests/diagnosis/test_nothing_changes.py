"""Training that changes nothing: which reason is told, and what only looks like it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diagnosis.steps import net, train
from torch import Tensor, nn
from torch.optim import lr_scheduler

import torchatlas as atlas
from torchatlas.diagnosis import Visit
from torchatlas.diagnosis.parameter_changes import EarlierNumbers

X = torch.linspace(-1, 1, 12).view(3, 4)


def loss_of(model: nn.Module) -> Tensor:
    return model(X).square().mean()  # type: ignore[no-any-return]


def trained(rate: float = 0.1, steps: int = 6, schedule: Callable[[Any], Any] | None = None) -> Visit:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), rate)
    scheduler = None if schedule is None else schedule(optimizer)
    with atlas.doctor() as visit:
        for _ in range(steps):
            train(optimizer, loss_of(model))
            if scheduler is not None:
                scheduler.step()
    return visit


def test_numbers_tell_by_how_much_all_have_changed_together() -> None:
    tensors = [torch.ones(1_000), torch.zeros(3), torch.randn(2, 2, dtype=torch.complex64)]
    numbers = EarlierNumbers([*tensors, torch.ones(2, dtype=torch.int64)])
    assert numbers.change() == 0
    tensors[0][1] += 1  # between two of those that are remembered
    assert 1e-4 < (numbers.change() or 0) < 1e-2
    tensors[1] += 1
    assert (numbers.change() or 0) > 1e-2
    tensors.clear()
    assert numbers.change() is None  # it holds none of them


def test_a_rate_of_zero_is_told_after_three_steps() -> None:
    (finding,) = trained(0.0).findings
    assert (finding.key, finding.why) == ("nothing-changes", "the learning rate was 0 at each of them")
    assert finding.what == "no parameter changed in 6 steps"
    assert trained(0.0, 3).findings
    assert not trained(0.0, 2).findings
    assert trained(1e-12).findings[0].why == "the learning rate was 1e-12 at most"


@pytest.mark.parametrize(
    "factor",
    [
        lambda step: step / 4,  # begins with 0
        lambda step: max(0.0, 1 - step / 5),  # ends with it
        lambda step: float(step % 3 == 2),
        lambda step: 0.5**step,
    ],
)
def test_schedules_that_are_zero_at_times_are_healthy(factor: Callable[[int], float]) -> None:
    assert not trained(schedule=lambda optimizer: lr_scheduler.LambdaLR(optimizer, factor)).findings


def test_a_rate_that_is_almost_zero_for_most_of_the_run() -> None:
    (finding,) = trained(steps=30, schedule=lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.1)).findings
    assert finding.what == "no parameter changes any more in the last 23 of 30 steps"
    assert "0.1 to almost 0" in finding.why
    assert [place.what for place in finding.where] == ["scheduler.step()", "step"]
    assert not trained(steps=13, schedule=lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.1)).findings


def test_a_program_that_is_cut_short_is_not_judged() -> None:
    def program() -> None:
        trained(0.0)
        raise ValueError

    visit = atlas.doctor()
    with pytest.raises(ValueError), visit:
        program()
    assert "nothing-changes" in visit.findings.not_judged


def without_steps(
    passes: int = 5, *, zero: bool = True, inputs: bool = False, steps: int = 0, look: Callable[[Tensor], Any] = id
) -> Visit:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    with atlas.doctor() as visit:
        for _ in range(passes):
            if zero:
                optimizer.zero_grad()
            x = X.clone().requires_grad_(inputs)
            model(x).square().mean().backward()
            look(model[0].weight.grad)  # type: ignore[arg-type]
        for _ in range(steps):
            optimizer.step()
    return visit


def test_an_optimizer_that_never_steps() -> None:
    (finding,) = without_steps().findings
    names = "0.weight, 0.bias, 2.weight and 1 more"
    assert finding.what == f"{names} got gradients in 5 backward passes, and no step was ever taken"
    assert finding.why == "optimizer (Adam) holds them, and its step() is never called"
    assert not without_steps(2).findings
    assert not without_steps(steps=1).findings
    assert not without_steps(zero=False).findings  # gathered for a step that the program did not come to
    assert not without_steps(inputs=True).findings  # gradients of the data were asked for
    assert without_steps(look=lambda gradient: gradient.detach().norm()).findings
    assert not without_steps(look=lambda gradient: gradient.detach().square()).findings  # gathers their squares, say


@pytest.mark.parametrize("replace", [copy.deepcopy, lambda _: net()])
def test_a_model_that_was_replaced_after_its_optimizer_was_made(replace: Callable[[nn.Module], nn.Module]) -> None:
    model: nn.Module = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model = replace(model)
    with atlas.doctor() as visit:
        for _ in range(2):
            model.zero_grad()
            train(optimizer, loss_of(model))
    (finding,) = visit.findings
    assert finding.key == "nothing-changes"
    assert "0.weight, 0.bias, 2.weight and 1 more" in finding.what
    assert "replaced after the optimizer was made" in finding.why


def test_moving_a_model_does_not_replace_it() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model = model.to(torch.float64).to("cpu")
    with atlas.doctor() as visit:
        for _ in range(4):
            train(optimizer, model(X.double()).square().mean())
    assert not visit.findings


def by_hand(update: Callable[[list[nn.Parameter]], Any], passes: int = 5) -> Visit:
    model = net()
    with atlas.doctor() as visit:
        for _ in range(passes):
            model.zero_grad()
            loss_of(model).backward()
            update(list(model.parameters()))
    return visit


def rebind(parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        p = p - 0.1 * p.grad  # type: ignore[assignment,operator]


def write_to_copies(parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        new = p.detach().clone()
        new.add_(p.grad, alpha=-0.1)  # type: ignore[arg-type]


@torch.no_grad()
def write(parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        p -= 0.1 * p.grad  # type: ignore[operator]


def assign(parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        p.data = p.data - 0.1 * p.grad  # type: ignore[operator]


def look(parameters: list[nn.Parameter]) -> float:
    return sum(float((p.detach() * p.grad).sum()) for p in parameters)


def test_updates_by_hand_that_go_elsewhere() -> None:
    for update, line in ((rebind, "p = p - 0.1"), (write_to_copies, "new.add_(p.grad")):
        (finding,) = by_hand(update).findings
        assert finding.what.endswith("never changed: the updates went elsewhere")
        assert finding.where[0].source is not None
        assert line in finding.where[0].source.text
    for healthy in (write, assign, look, lambda parameters: None):
        assert not by_hand(healthy).findings


def test_parameters_that_are_gone_at_the_end_are_not_taken_to_be_unchanged() -> None:
    def program() -> None:
        model = nn.Linear(4, 1, bias=False)
        for _ in range(6):
            model.zero_grad()
            loss_of(model).backward()
            write(list(model.parameters()))

    with atlas.doctor() as visit:
        program()
    assert not visit.findings


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("by_norm", [True, False])
def test_gradients_that_are_clipped_to_almost_nothing(kind: Any, by_norm: bool) -> None:
    clip: Any = nn.utils.clip_grad_norm_ if by_norm else nn.utils.clip_grad_value_
    model = net()
    optimizer = kind(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(5):
            optimizer.zero_grad()
            loss_of(model).backward()
            clip(model.parameters(), 1e-8)
            optimizer.step()
    if kind is torch.optim.Adam:  # divides by the size of gradients
        assert not visit.findings
    else:
        (finding,) = visit.findings
        assert finding.why == "gradients were clipped to 1e-08"
        assert finding.where[0].what == "clipping"


def test_parameters_that_are_frozen_all_of_them() -> None:
    model = net().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(4):
            train(optimizer, loss_of(model).requires_grad_())
    (finding,) = visit.findings
    assert finding.what == "4 steps were taken, and nothing that the optimizer holds requires a gradient"


def test_another_optimizer_that_works_is_enough() -> None:
    first, second = net(), net()
    optimizers = [torch.optim.SGD(first.parameters(), 0.1), torch.optim.SGD(second.parameters(), 0.0)]
    with atlas.doctor() as visit:
        for _ in range(5):
            for model, optimizer in zip((first, second), optimizers, strict=True):
                train(optimizer, loss_of(model))
    assert not visit.findings


@pytest.mark.parametrize(("steps", "found"), [(12, True), (6, False)])
def test_a_scaler_that_leaves_out_every_step(steps: int, found: bool) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    with atlas.doctor() as visit:
        for _ in range(steps):
            optimizer.zero_grad()
            scaler.scale(loss_of(model) * float("inf")).backward()
            scaler.step(optimizer)
            scaler.update()
    keys = ["nothing-changes"] if found else []
    assert visit.findings.keys == keys
    if found:
        assert visit.findings[0].what == "the scaler left out all of 12 steps"
