"""Schedulers, clipping and optimizers in the wrong order: which calls count, and which are meant so."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diagnosis.steps import net, train
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR, ReduceLROnPlateau, SequentialLR, StepLR

import torchatlas as atlas
from torchatlas.diagnosis import Visit
from torchatlas.diagnosis.findings import Severity

Make = Callable[[torch.optim.Optimizer], Any]


class Own(StepLR):
    """As users write them: the constructor of torch calls this step, too."""

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)


def scheduled(make: Make, *, first: bool, before: int = 0, steps: int = 4) -> Visit:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor(only="order") as visit, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of the same fault
        scheduler = make(optimizer)
        arguments = (1.0,) if isinstance(scheduler, ReduceLROnPlateau) else ()
        for _ in range(before):
            scheduler.step(*arguments)
        for _ in range(steps):
            if first:
                scheduler.step(*arguments)
            train(optimizer, model(torch.ones(2, 4)).square().mean())
            if not first:
                scheduler.step(*arguments)
    return visit


SCHEDULERS: list[Make] = [
    lambda optimizer: StepLR(optimizer, 2),
    lambda optimizer: Own(optimizer, 2),
    lambda optimizer: SequentialLR(optimizer, [StepLR(optimizer, 2), ExponentialLR(optimizer, 0.9)], [2]),
    lambda optimizer: ChainedScheduler([StepLR(optimizer, 2), ExponentialLR(optimizer, 0.9)]),
    ReduceLROnPlateau,
    lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2),
]


@pytest.mark.parametrize("make", SCHEDULERS)
def test_a_scheduler_that_steps_first_is_told_and_one_that_steps_last_is_not(make: Make) -> None:
    (finding,) = scheduled(make, first=True).findings
    assert finding.severity is Severity.WARNING
    assert finding.where[0].source is not None
    assert finding.where[0].source.text in ("scheduler.step(*arguments)", "super().step(epoch)")
    assert not scheduled(make, first=False).findings
    assert not scheduled(make, first=False, before=2).findings  # wound forward to where an earlier run has ended


def test_a_single_iteration_is_not_judged() -> None:
    assert not scheduled(SCHEDULERS[0], first=True, steps=1).findings


def test_a_warning_of_a_scheduler_names_the_line_that_it_names_alone() -> None:
    model = net()
    scheduler = StepLR(torch.optim.SGD(model.parameters(), 0.1), 2)
    with atlas.doctor(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scheduler.step()
    assert [warning.filename for warning in caught] == [__file__]


def test_schedulers_are_as_they_were_afterwards() -> None:
    kinds = [each for each in vars(lr_scheduler).values() if isinstance(each, type)]
    before = [vars(each).get("step") for each in kinds]
    with atlas.doctor():
        assert vars(StepLR).get("step") is None
        assert vars(lr_scheduler.LRScheduler)["step"] is not before[kinds.index(lr_scheduler.LRScheduler)]
    assert [vars(each).get("step") for each in kinds] == before


CLIPS = [
    lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.1),
    lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.1, foreach=False),
    lambda parameters: nn.utils.clip_grad_value_(parameters, 0.1),
    lambda parameters: nn.utils.clip_grad_value_(parameters, 0.1, foreach=False),
]


def clipped(clip: Callable[[Any], Any], when: str, *, to_none: bool = True, steps: int = 4) -> Visit:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor(only="order") as visit:
        for step in range(steps):
            if when == "before zero_grad" and step:  # at first there is no gradient, and clip_grad_value_ raises
                clip(model.parameters())
            optimizer.zero_grad(set_to_none=to_none)
            loss = model(torch.ones(2, 4)).square().mean()
            if when == "before backward" and (step or to_none):
                clip(model.parameters())
            loss.backward()
            if when == "between":
                clip(model.parameters())
            optimizer.step()
            if when == "after":
                clip(model.parameters())
    return visit


@pytest.mark.parametrize("clip", CLIPS)
def test_clipping_counts_between_backward_and_step(clip: Callable[[Any], Any]) -> None:
    assert not clipped(clip, "between").findings
    for when in ("after", "before zero_grad"):
        (finding,) = clipped(clip, when).findings
        assert finding.what == "clipping has no effect: no step uses the gradients that it clips"
    assert clipped(clip, "before backward", to_none=False).findings
    assert not clipped(clip, "after", steps=1).findings


@pytest.mark.parametrize("steps", [3, 10])
def test_clipping_after_the_step_is_counted_whenever_it_ran(steps: int) -> None:
    (finding,) = clipped(CLIPS[0], "after", steps=steps).findings
    assert finding.times == steps
    (finding,) = clipped(CLIPS[0], "before backward", steps=steps).findings
    assert finding.times == steps


def test_clipping_of_gradients_that_are_not_there_yet() -> None:
    assert clipped(CLIPS[0], "before backward").findings
    frozen = list(net().requires_grad_(False).parameters())  # nothing there to be clipped, ever
    assert not clipped(lambda _: CLIPS[0](frozen), "before backward").findings


def test_measuring_norms_is_no_clipping() -> None:
    assert not clipped(lambda parameters: nn.utils.clip_grad_norm_(parameters, float("inf")), "after").findings


def test_gradients_of_two_optimizers_are_clipped_each_before_its_own_step() -> None:
    first, second = net(), net()
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (first, second)]
    with atlas.doctor(only="order") as visit:
        for _ in range(4):
            (first(torch.ones(2, 4)) + second(torch.ones(2, 4))).square().mean().backward()
            for model, optimizer in zip((first, second), optimizers, strict=True):
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
    assert not visit.findings


@pytest.mark.parametrize("scale", [1.0, 256.0])
@pytest.mark.parametrize("unscale", [True, False])
def test_clipping_with_a_scaler_comes_after_unscaling(scale: float, unscale: bool) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with atlas.doctor(only="order") as visit:
        for step in range(4):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean() * (float("inf") if step == 1 else 1.0)
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)  # left out once
            scaler.update(scale)
    if unscale or scale == 1:
        assert not visit.findings
    else:
        (finding,) = visit.findings
        assert (finding.severity, finding.times) == (Severity.ERROR, 4)


def remade(make: Callable[[Any], torch.optim.Optimizer], times: int = 9, steps: int = 1, **options: bool) -> Visit:
    model = net()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    held = []
    with atlas.doctor(only="order") as visit:
        for _ in range(times):
            optimizer = make(model.parameters())
            if options.get("held"):
                held.append(optimizer)
            if options.get("reset"):
                model.load_state_dict(start)
            for _ in range(steps):
                train(optimizer, model(torch.ones(2, 4)).square().mean())
            for each in held:
                train(each, model(torch.ones(2, 4)).square().mean())
    return visit


def test_a_state_that_is_lost_again_and_again() -> None:
    (finding,) = remade(lambda parameters: torch.optim.Adam(parameters, 1e-2)).findings
    assert finding.what == "9 Adam optimizers were made for the same parameters, one after the other"
    assert finding.severity is Severity.WARNING
    assert remade(lambda parameters: torch.optim.SGD(parameters, 1e-2, momentum=0.9), steps=3).findings


@pytest.mark.parametrize("options", [{"times": 3}, {"steps": 20}, {"reset": True}, {"held": True}])
def test_optimizers_that_are_made_again_on_purpose(options: dict[str, Any]) -> None:
    assert not remade(lambda parameters: torch.optim.Adam(parameters, 1e-2), **options).findings


def test_an_optimizer_without_a_state_has_none_to_lose() -> None:
    assert not remade(lambda parameters: torch.optim.SGD(parameters, 1e-2)).findings
