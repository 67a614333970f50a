"""Graphs that something holds: who holds them is named, and each is told once."""

from __future__ import annotations

import contextlib
from collections import deque
from types import ModuleType
from typing import Any

import pytest
import torch
from diagnosis.steps import net, step, train
from torch import Tensor, nn

import torchatlas as atlas
from torchatlas.diagnosis.findings import Severity


def test_all_graphs_that_are_held_are_counted() -> None:
    model, losses = net(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with atlas.doctor() as visit:
        for _ in range(40):
            loss = model(torch.ones(2, 4)).sum()
            train(optimizer, loss)
            losses.append(loss)
    (finding,) = visit.findings
    assert (finding.key, finding.severity) == ("graph-kept", Severity.WARNING)
    assert int(finding.what.split()[2]) >= 37


class Log:
    """Keeps what it is given, well wrapped."""

    def __init__(self) -> None:
        self.rounds: deque[Any] = deque()


def test_what_holds_graphs_is_named_however_deep_they_lie() -> None:
    model, log, history = net(), Log(), {"train": ([[]],)}  # type: ignore[var-annotated]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        for number in range(8):
            loss = step(model, optimizer)
            (history["train"][0][0] if number % 2 else log.rounds).append({"loss": (loss,)})
            del loss
    (finding,) = visit.findings
    assert finding.key == "graph-kept"
    assert "history" in finding.what
    assert "Log.rounds" in finding.what


def test_graphs_in_variables_of_another_module_are_named() -> None:
    module = ModuleType("bookkeeping")
    exec("losses = []", vars(module))
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(6):
            module.losses.append(step(model, optimizer))
    assert "held by bookkeeping.losses" in visit.findings[0].what


def test_graphs_that_functions_close_over_are_named() -> None:
    def later(loss: Tensor) -> Any:
        def tell() -> float:
            return loss.item()

        return tell

    model, told = net(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(6):
            told.append(later(step(model, optimizer)))
    assert ".later.<locals>.tell" in visit.findings[0].what
    assert "held by loss of " in visit.findings[0].what


@pytest.mark.parametrize("layers", [20, 230])  # many make more tensors than are looked at one by one
def test_activations_that_hooks_keep_are_told_once_also_if_the_program_fails(layers: int) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden: Tensor = 0.1 * self.inner(x)
            kept.append(hidden)
            result = x + hidden
            kept.append(result)
            return result

    kept: list[Tensor] = []
    model = nn.Sequential(*[Block() for _ in range(layers)], nn.Linear(2, 1))
    optimizer, visit = torch.optim.SGD(model.parameters(), 0.01), atlas.doctor(only="graph-kept")
    with contextlib.suppress(MemoryError), visit:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(2, 2)).sum().backward()
            optimizer.step()
        raise MemoryError
    (finding,) = visit.findings
    assert "at least 4 graphs of earlier iterations" in finding.what
    assert "held by kept" in finding.what
    first = Block.forward.__code__.co_firstlineno
    assert sorted(line for _, line in finding.lines) == [first + 1, first + 3]


def test_an_ensemble_that_keeps_its_losses_for_rounds_is_told_of() -> None:
    models = [net() for _ in range(3)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    for rounds, found in ((3, []), (5, ["graph-kept"])):
        losses = []
        with atlas.doctor() as visit:
            for _ in range(rounds):
                losses += [step(*each) for each in zip(models, optimizers, strict=True)]
        assert visit.findings.keys == found
