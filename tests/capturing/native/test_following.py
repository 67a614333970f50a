"""In a run, the recording of a step begins where that of the step before ends: nothing is taken off in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs.programs_with_steps import trained
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import torchatlas as atlas
from torchatlas.capturing import patches
from torchatlas.capturing.native.recorder import NativeRecorder
from torchatlas.graph.columns import COLUMNS
from torchatlas.runs import keeper

pytestmark = pytest.mark.usefixtures("native")
NOT_COMPARED = {"node_start_ns", "node_time_ns", "node_time_spread_ns", "node_sequence_nr"}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[list[bool], list[None]]:
    """The outcomes of handing over, and the beginnings of recorders that did not follow."""
    outcomes: list[bool] = []
    begun: list[None] = []
    hand_over, start = NativeRecorder.hand_over, NativeRecorder.start

    def handing(recorder: NativeRecorder, successor: Any) -> bool:
        outcomes.append(hand_over(recorder, successor))
        return outcomes[-1]

    def starting(recorder: NativeRecorder) -> None:
        begun.append(None)
        start(recorder)

    monkeypatch.setattr(NativeRecorder, "hand_over", handing)
    monkeypatch.setattr(NativeRecorder, "start", starting)
    return outcomes, begun


def plain(step: Callable[..., torch.Tensor], at: int) -> None:
    step(3 if at == 2 else 6)


def threaded(step: Callable[..., torch.Tensor], at: int) -> None:
    if at == 2:
        thread = threading.Thread(target=lambda: torch.ones(3).add(1))
        thread.start()
        thread.join()
    step()


def in_a_mode(step: Callable[..., torch.Tensor], at: int) -> None:
    if at == 2:
        with FlopCounterMode(display=False):
            step()
    else:
        step()


def profiled(step: Callable[..., torch.Tensor], at: int) -> None:
    if at == 2:
        with torch.profiler.profile(profile_memory=True):
            step()
    else:
        step()


def failing(step: Callable[..., torch.Tensor], at: int) -> None:
    if at == 2:
        with pytest.raises(RuntimeError):
            torch.ones(2) @ torch.ones(3)
    step()


def steps_of(program: Callable[..., None], path: str, with_model: bool) -> list[atlas.Graph]:
    model, _, step = trained(torch.optim.Adam)
    with atlas.recording(model if with_model else None, every=1, keep="full", path=path) as run:
        for at in range(5):
            program(step, at)
    assert run.notes == []
    return [atlas.load(path).graph(at) for at in range(5)]


@pytest.mark.parametrize("with_model", [True, False])
@pytest.mark.parametrize("program", [plain, threaded, in_a_mode, profiled, failing])
def test_graphs_are_those_of_recordings_that_begin_anew(
    program: Callable[..., None], with_model: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a step with a mode, only the mode is in another place: the recorder in Python takes over where it begins."""
    anew = NativeRecorder.hand_over
    monkeypatch.setattr(NativeRecorder, "hand_over", lambda recorder, successor: False)
    begun = steps_of(program, "begun.atlas", with_model)
    monkeypatch.setattr(NativeRecorder, "hand_over", anew)
    outcomes, _ = counted(monkeypatch)
    followed = steps_of(program, "followed.atlas", with_model)
    assert any(outcomes)
    for one, other in zip(begun, followed, strict=True):
        assert other.metadata["recorder"] == one.metadata["recorder"]
        assert other.notes == one.notes
        assert list(other.tables.names) == list(one.tables.names)
        different = [name for name in COLUMNS if not np.array_equal(one.columns[name], other.columns[name])]
        assert set(different) <= NOT_COMPARED


def test_only_the_first_step_puts_anything_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, step = trained()
    outcomes, begun = counted(monkeypatch)
    with atlas.recording(model, every=1):
        for _ in range(6):
            step()
    assert (outcomes, len(begun)) == ([True] * 6, 1)
    assert not patches._WATCHES
    with atlas.recording(model, every=2):
        for _ in range(6):
            step()
    assert (len(outcomes), len(begun)) == (6, 5)  # with unrecorded steps in between nothing may stay on


def test_what_is_done_between_two_steps_is_in_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are decoded and written while the recording of the next one is there already."""
    model, _, step = trained()
    outcomes, _ = counted(monkeypatch)
    monkeypatch.setattr(keeper, "FLUSH_S", 0.0)
    monkeypatch.setattr(keeper, "_FLUSH_SHARE", 0)
    monkeypatch.setattr(keeper.Keeper, "note", lambda self, text: None)
    flush = keeper.Keeper.flush

    def flushing(self: keeper.Keeper) -> None:
        torch.ones(1000).add(1)
        flush(self)

    monkeypatch.setattr(keeper.Keeper, "flush", flushing)
    with atlas.recording(model, every=1) as run:
        for _ in range(5):
            step()
    assert outcomes == [True] * 5
    found = atlas.load(run.path)
    assert len({*found.steps["ops"][1:]}) == 1
    assert not any("1000" in str(node.output_shapes) for node in found.graph())


def test_a_disk_that_fills_up_ends_what_has_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, step = trained()
    outcomes, _ = counted(monkeypatch)

    def full(self: keeper.Keeper, recorded: Any) -> Any:
        raise OSError(28, "No space left on device")

    def program(run: Any) -> None:
        step()
        monkeypatch.setattr(keeper.Keeper, "take", full)
        step()
        assert not run.running
        assert not patches._WATCHES
        step()

    with pytest.warns(RuntimeWarning, match="No space left on device"), atlas.recording(model, every=1) as run:
        program(run)
    assert outcomes == [True, True]
    with atlas.recording(model) as rec:
        step()
    assert len(rec.graph.where(kind="op")) > 20


def test_trees_of_modules_are_as_they_are_now() -> None:
    """A tree is remembered between recordings, and modules change."""

    def weights(model: nn.Module) -> set[str]:
        with atlas.recording(model, native=True) as rec:
            model(torch.ones(2, 8)).sum().backward()
        held = {value.parameter for value in rec.graph.values if value.role in ("parameter", "buffer", "constant")}
        return {name for name in held if name}

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, bias=False))
    assert weights(model) == weights(model) == {"0.weight", "0.bias", "1.weight"}
    model[1].bias = nn.Parameter(torch.zeros(8))
    assert weights(model) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    model[0] = nn.BatchNorm1d(8)
    assert {"0.weight", "0.running_mean", "1.weight"} < weights(model)
    model.append(nn.Linear(8, 2))
    assert {"2.weight", "2.bias"} < weights(model)
    del model[0]
    assert weights(model) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    scale = torch.full((2,), 3.0)
    model[1].forward = lambda x: nn.functional.linear(x, model[1].weight) * model[1].scale
    model[1].scale = scale
    assert "1.scale" in weights(model)
    model[1].scale = 2.0
    assert "1.scale" not in weights(model)
