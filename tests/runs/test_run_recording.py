"""Recording whole runs: which steps there are, what is known of each, and that the program is left as it is alone."""

from __future__ import annotations

import errno
import gc
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from runs.programs_with_steps import trained
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

import torchatlas as atlas
from torchatlas.capturing import patches
from torchatlas.errors import FileSystemError, InvalidInputError, InvalidModelError, NodeNotFoundError, StateError
from torchatlas.runs import journal, keeper, run_recording
from torchatlas.runs.run import Run


def world() -> tuple[Any, ...]:
    """What a recording may not leave behind in torch and Python."""
    hooks = len(optimizers._global_optimizer_post_hooks), len(optimizers._global_optimizer_pre_hooks)
    modes = len(_get_current_dispatch_mode_stack())
    return modes, hooks, len(patches._UNDO), len(patches._WATCHES), gc.get_threshold(), nn.Module._call_impl


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = world()
    yield
    assert world() == before


def loaded(path: Any = "run.atlas") -> Run:
    found = atlas.load(path)
    assert isinstance(found, Run)
    return found


# -- steps -------------------------------------------------------------------------------------------------------------


def test_steps_structures_and_the_last_ones_in_full() -> None:
    model, _, step = trained(torch.optim.Adam)
    losses = []
    with atlas.recording(model, every=1, gradients=True) as run:
        for at in range(8):
            losses.append(step(3 if at == 5 else 6).item())
    assert run.recorded == 8
    assert run.notes == []
    assert "8 steps recorded" in str(run)
    found = loaded(run.path)
    assert found.ended == "finished"
    assert found.steps.numbers == list(range(8))
    assert found.steps["loss"] == losses
    # Adam makes its state in step 0; `item()` runs before each step but the first; step 5 has another batch
    assert found.steps["structure"] == [0, 1, 1, 1, 1, 2, 1, 1]
    assert [one.count for one in found.structures] == [1, 6, 1]
    assert found.changes.keys() == {1, 5, 6}
    assert "makes float32[3, 8], not float32[6, 8]" in found.changes[5]
    assert found.changes[6] == "structure 1 again, first met in step 1"
    assert found.kept == [5, 6, 7]
    assert found.graph().metadata["step"] == 7
    assert found.graph(5).metadata["step"] == 5
    same = found.graph(3)  # not kept in full
    assert same.metadata["step"] == 1
    assert "step 3 was not kept in full: this is step 1" in same.notes[-1]
    assert found.graph(1).hash == same.hash
    with pytest.raises(NodeNotFoundError, match="step 9 was not recorded"):
        found.graph(9)


def test_figures_are_those_of_the_decoded_step() -> None:
    """Peak, ops and times come from rows that were not decoded; here every step is kept, and says what they are."""
    model, _, step = trained(torch.optim.Adam)
    kept_alive = []
    with atlas.recording(model, every=1, keep="full") as run:
        for at in range(6):
            loss = step()
            kept_alive += [loss] * (at % 2)  # it dies later than those of other steps
    assert run.notes == []
    found = loaded(run.path)
    assert found.kept == list(range(6))
    for row in found.steps:
        graph = found.graph(row["number"])
        by_module = [time for name, time in row.items() if name.startswith("time_ns:") and time is not None]
        assert row["peak_bytes"] == graph.peak_bytes
        assert row["ops"] == len(graph.where(kind="op"))
        assert row["ops_ns"] == sum(by_module) == graph.time_ns
        assert row["time_ns:0"] == sum(node.time_ns for node in graph.where(scope="0", kind="op"))
        assert row["wall_ns"] >= row["ops_ns"]


def test_gradient_norms_are_those_before_the_step() -> None:
    model, _, step = trained()
    with atlas.recording(model, every=1, gradients=True) as run:
        step()
        norms = {
            name: math.hypot(*(parameter.grad.norm().item() for parameter in model.get_submodule(name).parameters()))
            for name in ("0", "2")
        }
    found = loaded(run.path)
    for name, norm in norms.items():
        assert found.steps[f"gradient_norm:{name}"][0] == pytest.approx(norm)
    assert found.steps["gradient_norm"][0] == pytest.approx(math.hypot(*norms.values()))


def test_gradients_of_a_closure_are_measured_when_it_has_run() -> None:
    model, optimizer, _ = trained()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(torch.ones(2, 8)).square().mean()
        loss.backward()
        return loss

    with atlas.recording(model, every=1, gradients=True) as run:
        optimizer.step(closure)
        norm = math.hypot(*(parameter.grad.norm().item() for parameter in model.parameters()))
    assert loaded(run.path).steps["gradient_norm"][0] == pytest.approx(norm)


@pytest.mark.usefixtures("in_python")
def test_between_recorded_steps_nothing_is_left_but_two_hooks() -> None:
    model, _, step = trained()
    alone, seen = world(), []
    with atlas.recording(model, every=3) as run:
        for _ in range(8):
            modes, _, installed, *_ = world()
            seen.append((modes, installed > 0))
            step()
    on, off = (1, True), (0, False)
    assert seen == [on, off, off, on, off, off, on, off]
    assert world() == alone
    found = loaded(run.path)
    assert found.steps.numbers == [0, 3, 6]
    assert [one is not None for one in found.steps["unrecorded_ns"]] == [False, True, True]
    with pytest.raises(NodeNotFoundError, match="One in 3 was"):
        found.graph(4)


def of_two_optimizers() -> Callable[[], object]:
    *_, one = trained()
    *_, other = trained()
    return lambda: [one(), other()]


def of_accumulation() -> Callable[[], object]:
    model, optimizer, _ = trained()

    def step() -> None:
        for _ in range(3):
            model(torch.ones(2, 8)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def of_a_closure() -> Callable[[], object]:
    model, optimizer, _ = trained(torch.optim.LBFGS, max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(torch.ones(2, 8)).square().mean()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


def of_steps_in_backward() -> Callable[[], object]:
    model, *_ = trained()
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], 0.1)

        def hook(parameter: Any, optimizer: Any = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(hook)
    return lambda: model(torch.ones(2, 8)).square().mean().backward()


def of_batches_of_workers() -> Callable[[], object]:
    model, optimizer, _ = trained()
    loader = iter(DataLoader(TensorDataset(torch.randn(30, 8)), batch_size=3, num_workers=1))

    def step() -> None:
        optimizer.zero_grad()
        model(next(loader)[0]).mean().backward()
        optimizer.step()

    return step


def of_a_compiled_model() -> Callable[[], object]:
    model, optimizer, _ = trained()
    compiled = torch.compile(model, backend="aot_eager")

    def step() -> None:
        optimizer.zero_grad()
        compiled(torch.ones(2, 8)).mean().backward()
        optimizer.step()

    step()
    return step


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(
    ("make", "extra"),
    [
        (of_two_optimizers, 1),  # the first step ends at the first optimizer: nobody knows yet that there is another
        (of_accumulation, 0),
        (of_a_closure, 0),
        (of_steps_in_backward, 0),
        pytest.param(of_batches_of_workers, 0, marks=pytest.mark.child),
        (of_a_compiled_model, 0),
    ],
)
def test_what_a_step_is(make: Callable[[], Callable[[], object]], extra: int, every: int) -> None:
    step = make()
    with atlas.recording(every=every) as run:
        for _ in range(5):
            step()
    assert run.notes == []
    found = loaded(run.path)
    assert found.steps.numbers == list(range(0, 5 + extra, every))
    assert all(found.steps["finished"])
    assert len(set(found.steps["structure"][2:])) == 1 or make is of_a_closure
    assert all(loss is not None for loss in found.steps["loss"])


def test_steps_by_hand() -> None:
    model, _, step = trained()
    with atlas.recording(model, every=1, path="eval.atlas") as run, torch.no_grad():
        for _ in range(4):
            model(torch.ones(2, 8))
            run.step()
    assert loaded("eval.atlas").steps["ops"] == [6, 6, 6, 6]
    with atlas.recording(model, every=1, path="both.atlas") as run:
        for _ in range(3):
            step()
            run.step()  # the optimizer has just ended the first one
    assert len(set(loaded("both.atlas").steps["ops"])) == 1
    assert loaded("both.atlas").steps.numbers == [0, 1, 2]
    run.step()  # over: nothing to end
    with pytest.raises(StateError, match="has not begun"):
        atlas.recording(model, every=1).step()


def test_no_step_ever_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    model, *_ = trained()
    with atlas.recording(model, every=1) as run:
        for _ in range(4):
            model(torch.ones(2, 8))
    found = loaded(run.path)
    assert found.steps["finished"] == [False]
    assert found.kept == [0]
    assert "no optimizer stepped" in found.notes[0]
    monkeypatch.setattr(run_recording, "MOST_OPS", 10)
    with atlas.recording(model, every=1, path="long.atlas") as run:
        for _ in range(12):
            model(torch.ones(2, 8))
    found = loaded("long.atlas")
    assert len(found) >= 3, "a step that nobody ends must not fill the memory"
    assert "was cut after" in found.notes[0]


def test_many_structures_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "MOST_STRUCTURES", 2)
    model, _, step = trained()
    with atlas.recording(model, every=1, last=0) as run:
        for size in (6, 6, 5, 4, 3, 6):
            step(size)
    found = loaded(run.path)
    assert found.steps["structure"] == [0, 0, 1, None, None, 0]
    assert found.kept == []
    assert "more than 2 structures" in found.notes[0]
    with pytest.raises(NodeNotFoundError, match="nor was its structure"):
        found.graph(4)


# -- what ends a run ---------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stays() -> None:
    model, _, step = trained()
    with atlas.recording(model, every=1, last=1) as run:
        for at in range(6):
            step(factor=math.nan if at == 2 else 1.0)
    found = loaded(run.path)
    assert found.kept == [2, 3, 4, 5]  # three that are not finite, and the last one
    assert math.isnan(found.steps["loss"][2])
    assert "loss is nan" in str(found.odd())


@pytest.mark.usefixtures("in_python")
def test_an_exception_leaves_the_step_that_raised() -> None:
    model, _, step = trained()

    def failing() -> None:
        for at in range(5):
            step()
            if at == 3:
                model(torch.ones(2, 9))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), atlas.recording(model, every=1) as run:
        failing()
    found = loaded(run.path)
    assert found.ended == "failed"
    assert found.steps["finished"] == [True, True, True, True, False]
    assert "ended early at step 4: RuntimeError" in found.notes[0]

    def interrupted() -> None:
        step()
        model(torch.ones(2, 8)).sum()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), atlas.recording(model, every=1, path="interrupted.atlas", last=0):
        interrupted()
    found = loaded("interrupted.atlas")
    assert found.steps["finished"] == [True, False]
    assert len(found.graph(1).where(kind="op")) == 8

    def fail() -> None:
        step()
        raise ValueError("off")

    with pytest.raises(ValueError, match="off"), atlas.recording(model, every=9, path="off.atlas"):
        fail()
    assert "step 1, which was not recorded: ValueError: off" in loaded("off.atlas").notes[0]


class FullDisk:
    """A file that has room for so many bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data: Any) -> int:
        if self._room <= 0:
            self._room = 10_000  # somebody makes some
            raise OSError(errno.ENOSPC, "No space left on device")
        part = bytes(data[: self._room])
        self._room -= len(part)
        return int(self._file.write(part))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("warnings_are", ["warnings", "errors"])
def test_a_disk_that_is_full_ends_the_recording_and_not_the_program(
    warnings_are: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "FLUSH_S", 0.0)
    monkeypatch.setattr(keeper, "_FLUSH_SHARE", 0)
    model, _, step = trained()
    alone = trained()[2]
    expected = [alone().item() for _ in range(10)]
    with warnings.catch_warnings(record=warnings_are == "warnings") as said:
        warnings.simplefilter("always" if warnings_are == "warnings" else "error")
        with atlas.recording(model, every=1) as run:
            losses = [step().item() for _ in range(4)]
            assert run._keeper is not None
            run._keeper._journal._file = FullDisk(run._keeper._journal._file, 100)
            losses += [step().item() for _ in range(6)]
            assert not run.running
    assert losses == expected
    assert "No space left on device" in run.notes[0]
    assert "recording of the run stopped at step 4" in str(run)
    if said is not None:
        assert [str(one.message) for one in said] == run.notes
    found = loaded(run.path)
    assert found.steps.numbers == [0, 1, 2, 3]
    assert found.ended == "stopped"


def test_our_own_failure_is_not_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, step = trained()

    def fail(*args: Any) -> None:
        raise ZeroDivisionError("ours")

    def program() -> None:
        step()
        monkeypatch.setattr(keeper.StepReader, "read", fail)
        for _ in range(3):
            step()

    with pytest.warns(RuntimeWarning, match="ZeroDivisionError: ours"), atlas.recording(model, every=1) as run:
        program()
    assert run.notes
    assert loaded(run.path).ended == "stopped"


def test_gradients_without_a_norm_are_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, step = trained()

    def fail(*args: Any) -> None:
        raise NotImplementedError("no norm")

    monkeypatch.setattr(run_recording, "gradient_norms", fail)
    with atlas.recording(model, every=1, gradients=True) as run:
        step(), step()
    found = loaded(run.path)
    assert len(found) == 2
    assert "gradient norms could not be computed from step 0 on" in found.notes[0]


# -- the program's world -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 2])
def test_the_program_computes_what_it_computes_alone(every: int) -> None:
    def program() -> list[torch.Tensor]:
        model, _, step = trained(torch.optim.Adam)
        model.insert(1, nn.Dropout(0.5))
        for _ in range(5):
            step()
        return [*model.parameters(), torch.rand(3)]

    alone = program()
    with atlas.recording(every=every, gradients=True):
        beside = program()
    assert all(map(torch.equal, alone, beside))


@pytest.mark.usefixtures("in_python")
def test_modes_and_recordings_of_the_program_may_span_steps() -> None:
    model, _, step = trained()
    with FlopCounterMode(display=False) as alone:
        step(), step()
    with atlas.recording(model, every=1) as run:
        step()
        with FlopCounterMode(display=False) as counter:
            step(), step()
        with atlas.recording(model) as rec:
            step(), step()
        step()
    assert counter.get_total_flops() == alone.get_total_flops()
    assert {node.iteration for node in rec.graph.where(kind="op")} == {0, 1}
    assert loaded(run.path).steps["structure"] == [0] * 6


def test_hooks_of_the_program_may_come_and_go() -> None:
    """torch goes through all hooks of optimizers while ours begins and ends recordings, which adds and removes some."""
    model, _, step = trained()
    calls = []
    with atlas.recording(model, every=2) as run:
        step()
        handle = optimizers.register_optimizer_step_post_hook(lambda *args: calls.append(1))
        step(), step(), step()
        handle.remove()
        step()
    assert calls == [1, 1, 1]
    assert loaded(run.path).steps.numbers == [0, 2, 4]


@pytest.mark.child
def test_a_fork_goes_on_unrecorded() -> None:
    model, _, step = trained()
    with atlas.recording(model, every=1) as run:
        step()
        model(torch.ones(2, 8))
        child = os.fork()
        if not child:
            code = 1
            try:
                step(), run.step(), run.flush()
                code = 2 * bool(_get_current_dispatch_mode_stack()) + 4 * bool(patches._WATCHES)
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        step()
    assert loaded(run.path).steps.numbers == [0, 1]


def test_steps_of_other_threads_are_not_this_runs() -> None:
    _, _, step = trained()
    *_, other = trained()
    with atlas.recording(every=1) as run:
        step()
        thread = threading.Thread(target=lambda: [other() for _ in range(3)])
        thread.start()
        thread.join()
        step()
    assert loaded(run.path).steps.numbers == [0, 1]


# -- what is asked for -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"every": 0}, InvalidInputError, "record every step"),
        ({"every": True}, InvalidInputError, "record every step"),
        ({"every": 1.5}, InvalidInputError, "record every step"),
        ({"every": 1, "keep": "all"}, InvalidInputError, "'structure', 'full'"),
        ({"every": 1, "last": -1}, InvalidInputError, "0 or more"),
        ({"every": 1, "path": "run.parquet"}, InvalidInputError, "ends in .atlas"),
        ({"every": 1, "values": "all"}, InvalidInputError, "values= is for one graph"),
        ({"path": "run.atlas"}, InvalidInputError, "path= is for whole runs"),
        ({"every": 1, "model": "resnet18"}, InvalidModelError, "torch.nn.Module"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        atlas.recording(**options)


def test_where_it_is_written(tmp_path: Path) -> None:
    _, _, step = trained()
    paths = []
    for _ in range(2):
        with atlas.recording(every=1) as run:
            os.chdir("/")  # the program may go elsewhere
            step()
        os.chdir(tmp_path)
        paths.append(run.path)
    assert paths == [tmp_path / "run.atlas", tmp_path / "run-2.atlas"]
    for path, words in (
        (tmp_path / "run.atlas", "is there already"),
        (tmp_path / "none" / "run.atlas", "does not exist"),
        (tmp_path / "run.atlas" / journal.JOURNAL / "run.atlas", "is a file, not a folder"),
    ):
        with pytest.raises(FileSystemError, match=words), atlas.recording(every=1, path=path):
            pass
    with (
        pytest.raises(StateError, match="being recorded already"),
        atlas.recording(every=1),
        atlas.recording(every=1, path="second.atlas"),
    ):
        pass
    assert not Path("second.atlas").exists()
    with pytest.raises(StateError, match="was recorded already"), run:
        pass
