"""Long programs are recorded in parts: memory stays flat, models die as they do alone, faults are found as before."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from typing import Any

import pytest
import torch
from diagnosis.steps import net, step
from torch import Tensor, nn

import torchatlas as atlas
from torchatlas.diagnosis import history, leaf_tensors


def test_a_long_program_is_recorded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MOST_OPS", 20)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(6):
            step(model, optimizer, zero=False)
            assert len(visit.history._recordings) <= 2
        late = torch.zeros(3, requires_grad=True)
        late.sqrt().mul(0).sum().backward()
    assert set(visit.findings.keys) == {"not-zeroed", "not-finite-backward"}


def test_models_die_as_they_do_alone() -> None:
    def fit() -> weakref.ref[Tensor]:
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            step(model, optimizer)
        with torch.no_grad():
            model(torch.randn(3, 4))
        return weakref.ref(model[0].weight)

    with atlas.doctor() as visit:
        references = [fit() for _ in range(3)]
        gc.collect()
        assert [reference() for reference in references] == [None] * 3
    assert visit.findings.keys == []  # what the model returned in training mode was not looked at


def test_a_backward_pass_inside_of_a_model_and_a_model_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another recording may begin at the end of a pass, in the middle of a call."""

    class Force(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy, self.fails = nn.Linear(3, 1), False

        def forward(self, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            (force,) = torch.autograd.grad(self.energy(x).square().sum(), x, create_graph=True)
            if self.fails:
                raise ZeroDivisionError
            return force

    monkeypatch.setattr(history, "_MOST_OPS", 5)
    model = Force()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 3)).square().sum().backward()
            optimizer.step()
        model.fails = True
        with pytest.raises(ZeroDivisionError):
            model(torch.randn(2, 3))
        assert visit.history.caller is None
        assert visit.history.recordings > 1
    assert visit.findings.keys == []


def test_of_what_is_forgotten_it_does_not_say_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MOST_OPS", 5)
    model = nn.ModuleDict({"used": nn.Linear(4, 1), "early": nn.Linear(4, 1)})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atlas.doctor() as visit:
        model["early"](torch.randn(2, 4))
        for _ in range(4):
            step(model["used"], optimizer)
    (finding,) = visit.findings
    assert finding.key == "no-gradient"
    assert finding.why == "they were not used lately; what is older is forgotten"


@pytest.mark.slow
def test_memory_stays_flat_over_a_long_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of a step goes with the recording it was in; 21 KB of each stayed before."""
    monkeypatch.setattr(history, "_MOST_OPS", 1_000)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    held = []
    tracemalloc.start()
    try:
        with atlas.doctor() as visit:
            for number in range(1, 301):
                step(model, optimizer).item()
                if number in (100, 300):
                    gc.collect()
                    held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert visit.history.recordings > 10
    assert held[1] - held[0] < 200 * 1_000


@pytest.mark.parametrize("most", [30, 100, 300])
def test_a_long_program_is_judged_wherever_its_recordings_end(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Also an evaluation that was forgotten, and parameters that have no gradient in the last recording either."""
    monkeypatch.setattr(history, "_MOST_OPS", most)
    monkeypatch.setattr(history, "_FEWEST_STEPS", 1)
    model, unused = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)), nn.Linear(4, 4)
    optimizer = torch.optim.Adam([*model.parameters(), *unused.parameters()], 0.1)
    with atlas.doctor() as visit:
        for number in range(12):
            step(model, optimizer)
            unused(torch.ones(2, 4)).detach()
            if number < 6:
                with torch.no_grad():
                    model(torch.randn(3, 4)).sum().item()
    assert visit.history.recordings > 1
    assert set(visit.findings.keys) == {"no-gradient", "train-mode"}
    assert "unused.weight, unused.bias get no gradient" in str(visit)


def test_parameters_without_modules_are_not_searched_for_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search goes through all objects of Python."""
    searches = list[type]()
    search = leaf_tensors.instances_of

    def counted(kind: type) -> list[Any]:
        searches.append(kind)
        return search(kind)

    monkeypatch.setattr(leaf_tensors, "instances_of", counted)
    weights = [nn.Parameter(torch.eye(2)) for _ in range(100)]
    optimizer = torch.optim.SGD(weights, 0.01)
    with atlas.doctor():
        for _ in range(2):
            optimizer.zero_grad()
            torch.stack(weights).square().sum().backward()
            optimizer.step()
    assert 0 < len(searches) < 10
