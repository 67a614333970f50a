"""`atlas.watch`: plain loops, and what all callbacks share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from runs.programs_with_steps import trained
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.tensorboard import SummaryWriter

import torchatlas as atlas
from torchatlas.errors import FileSystemError, InvalidInputError, StateError
from torchatlas.graph.formats import imported
from torchatlas.integrations import training_watch
from torchatlas.integrations import watch as watching
from torchatlas.integrations.loggers import Sink
from torchatlas.runs.run import Run


def test_a_loop_is_recorded_and_ends_as_it_ends_alone() -> None:
    model, optimizer, step = trained(torch.optim.Adam)
    watch = atlas.watch(optimizer, model, every=3, doctor=4)
    for _ in range(10):
        step()
    assert "4 of 10 steps recorded" in str(watch)
    report = watch.end()
    assert watch.end() is report
    assert report is not None
    assert report.run is not None
    assert report.run.steps.numbers == [0, 3, 6, 9]
    assert report.run.ended == "finished"
    assert report.findings is not None
    assert report.findings.keys == []
    assert {module.path for module in report.modules} == {"0", "1", "2", "Adam", "(top level)"}
    shares = {module.path: module for module in report.modules}
    assert shares["0"].peak_bytes == atlas.memory(report.run.graph()).by_module["0"].bytes
    assert [path.name for path in report.files] == ["run.html", "run.txt"]
    assert all(path.is_file() for path in report.files)
    assert "their times include its work" in report.notes[0]
    assert "time (median of 4 steps)" in Path("run.txt").read_text()
    assert report.to_dict()["run"]["steps"] == 4
    alone, _, same = trained(torch.optim.Adam)
    for _ in range(10):
        same()
    assert all(map(torch.equal, model.parameters(), alone.parameters()))


@pytest.mark.parametrize(
    ("chosen", "recorded"),
    [({"every": 4}, [0, 4]), ({"steps": {1, 5, 99}}, [1, 5]), ({"steps": range(2)}, [0, 1]), ({"steps": ()}, [])],
)
def test_chosen_steps(chosen: Any, recorded: list[int]) -> None:
    model, optimizer, step = trained()
    with atlas.watch(optimizer, model, page=False, **chosen) as watch:
        for _ in range(7):
            step()
    assert watch.report is not None
    assert watch.report.run is not None
    assert watch.report.run.steps.numbers == recorded
    with atlas.recording(model, path="again.atlas", **chosen) as run:
        for _ in range(7):
            step()
    assert run.recorded == len(recorded)


def test_the_doctor_says_what_it_found() -> None:
    model, optimizer, _ = trained()
    with atlas.watch(optimizer, model, steps=(), doctor=True) as watch:
        for _ in range(4):
            model(torch.ones(2, 8)).mean().backward()
            optimizer.step()
    assert watch.report is not None
    assert watch.report.findings is not None
    assert watch.report.findings.keys == ["not-zeroed"]
    assert "error[not-zeroed]" in Path("run.txt").read_text()


@pytest.mark.parametrize("recorder", ["python", "native"])
def test_the_doctor_may_change_recordings_while_a_step_is_recorded(
    recorder: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("native" if recorder == "native" else "in_python")
    monkeypatch.setattr("torchatlas.diagnosis.history._MOST_OPS", 100)
    monkeypatch.setattr("torchatlas.diagnosis.history._FEWEST_STEPS", 1)
    model, optimizer, step = trained()
    with atlas.watch(optimizer, model, every=1, doctor=True, page=False) as watch:
        for _ in range(8):
            step()
    assert watch.report is not None
    assert watch.report.findings is not None
    assert watch.report.findings.failures == ()
    assert watch.report.run is not None
    assert watch.report.run.notes == []
    assert watch.report.run.graph().metadata["recorder"] == recorder
    assert len(set(watch.report.run.steps["ops"][1:])) == 1
    with profile(activities=[ProfilerActivity.CPU]):  # torch 2.15 refuses if a recording lies where it begins
        pass


def test_only_its_own_optimizers_end_steps() -> None:
    one, first, step = trained()
    *_, second, other = trained()
    *_, stranger = trained()
    with atlas.watch([first, second], one, every=1, page=False) as watch:
        for _ in range(3):
            step(), other(), stranger()
    assert watch.report is not None
    assert watch.report.run is not None
    assert watch.report.run.steps.numbers == [0, 1, 2]
    assert watch.recording.steps_ended == 3


def test_accumulated_gradients_are_one_step() -> None:
    model, optimizer, _ = trained()
    with atlas.watch(optimizer, model, every=1, page=False) as watch:
        for _ in range(3):
            for _ in range(4):
                model(torch.ones(2, 8)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert watch.report is not None
    assert watch.report.run is not None
    assert len(watch.report.run) == 3
    assert len(watch.report.run.graph(1).where(operation="aten.addmm.default")) == 8


def test_an_exception_passes_and_what_ran_stays() -> None:
    model, optimizer, step = trained()
    with pytest.raises(ZeroDivisionError) as caught, atlas.watch(optimizer, model, every=1) as watch:  # noqa: PT012
        step()
        model(torch.ones(2, 8))
        raise ZeroDivisionError("mine")
    assert caught.value.args == ("mine",)
    assert watch.report is not None
    run = atlas.load("run.atlas")
    assert isinstance(run, Run)
    assert run.ended == "failed"
    assert "ZeroDivisionError: mine" in run.notes[-1]
    assert run.steps["finished"] == [True, False]


def test_a_loop_that_never_steps_says_so() -> None:
    model, optimizer, _ = trained()
    watch = atlas.watch(optimizer, model, every=1)
    model(torch.ones(2, 8))
    with pytest.warns(RuntimeWarning, match="without a step"):
        report = watch.end()
    assert report is not None
    assert "without a step" in report.notes[0]
    assert "without a step" in Path("run.txt").read_text()
    assert report.run is not None
    assert "no step ended" in report.run.notes[0]


def test_another_optimizer_than_the_watched_one_is_named() -> None:
    model, optimizer, _ = trained()
    watch = atlas.watch(optimizer, model, every=1, page=False)
    other = torch.optim.RMSprop(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    other.step()
    said = rf"another optimizer stepped \(RMSprop\) than those that are watched \({type(optimizer).__name__}\)"
    with pytest.warns(RuntimeWarning, match=said):
        watch.end()


def test_steps_that_never_came_are_told_of() -> None:
    model, optimizer, step = trained()
    watch = atlas.watch(optimizer, model, steps={50})
    step()
    with pytest.warns(RuntimeWarning, match="1 ended, and none of them is in steps="):
        watch.end()


def failing(*_: Any) -> None:
    raise ValueError("no disk, no net")


def test_a_logger_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    sinks = [Sink("Bad", failing, failing), Sink("Good", lambda figures, step: seen.append(step), lambda _: None)]
    monkeypatch.setattr("torchatlas.integrations.watch.sinks_of", lambda _: sinks)
    model, optimizer, step = trained()
    with pytest.warns(RuntimeWarning, match="logging to Bad failed, and the training goes on: ValueError"):  # noqa: PT031
        watch = atlas.watch(optimizer, model, every=1, page=False)
        for _ in range(3):
            step()
        watch.end()
    assert seen == [0, 1, 2]
    assert len(watch.notes) == 1


@pytest.mark.parametrize("broken", ["_read", "_write_page", "_write"])
def test_our_own_failure_is_not_the_trainings(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    monkeypatch.setattr(training_watch.TrainingWatch, broken, failing)
    model, optimizer, step = trained()
    watch = atlas.watch(optimizer, model, every=1)
    step()
    with pytest.warns(RuntimeWarning, match="failed, and the training goes on: ValueError: no disk"):
        watch.end()
    assert watch.report is not None
    assert watch.report.notes


def test_bad_arguments_are_answered(tmp_path: Path) -> None:
    model, optimizer, _ = trained()
    for call, words in [
        (lambda: atlas.watch(model), "an optimizer of torch, not Sequential"),
        (lambda: atlas.watch([]), "at least one"),
        (lambda: atlas.watch(optimizer, every=2, steps={1}), "leave one out"),
        (lambda: atlas.watch(optimizer, steps="all"), "give the numbers of steps"),
        (lambda: atlas.watch(optimizer, steps=[-1]), "give the numbers of steps"),
        (lambda: atlas.watch(optimizer, doctor=-2), "doctor=-2"),
        (lambda: atlas.watch(optimizer, ranks="some"), "ranks='some'"),
        (lambda: atlas.watch(optimizer, loggers="wandb"), "give a list of loggers"),
        (lambda: atlas.watch(optimizer, loggers=[None]), "wandb.init"),
        (lambda: atlas.watch(optimizer, loggers=[3]), "int, which is no logger"),
        (lambda: atlas.watch(optimizer, path="run"), r"ends in \.atlas"),
        (lambda: atlas.watch(optimizer, evry=3), "did you mean 'every'"),
    ]:
        with pytest.raises(InvalidInputError, match=words):
            call()
    (tmp_path / "there.atlas").mkdir()
    with pytest.raises(FileSystemError, match="is there already"):
        atlas.watch(optimizer, doctor=True, path=tmp_path / "there.atlas")
    with atlas.watch(optimizer, model, steps=()) as first:
        with pytest.raises(StateError, match="watched already"):
            atlas.watch(optimizer, model)
        trained()
        optimizer.step()
    assert not first.running


def test_a_new_watch_ends_that_of_an_optimizer_that_is_gone() -> None:
    first = atlas.watch(torch.optim.SGD(nn.Linear(2, 2).parameters()), steps={3}, page=False)
    model, optimizer, step = trained()
    with pytest.warns(RuntimeWarning, match="without a step"):
        second = atlas.watch(optimizer, model, every=1, page=False)
    assert not first.running
    step()
    second.end()
    assert Path("run-2.atlas").is_dir()


def test_files_of_the_user_are_not_written_over() -> None:
    Path("run.txt").write_text("mine")
    Path("run-2.html").write_text("mine, too")
    model, optimizer, step = trained()
    with atlas.watch(optimizer, model, every=1, page=False) as watch:
        step()
    assert watch.path is not None
    assert watch.path.name == "run-3.atlas"
    assert Path("run.txt").read_text() == "mine"
    Path("named.html").write_text("mine")
    with pytest.raises(FileSystemError, match=r"named\.html is there already, and this training would write it"):
        atlas.watch(optimizer, model, path="named.atlas")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_process_writes_no_report() -> None:
    model, optimizer, step = trained()
    watch = atlas.watch(optimizer, model, every=1, page=False)
    step()
    child = os.fork()
    if not child:
        try:
            watch.end()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert not Path("run.txt").exists()
    assert watch.end() is not None
    assert Path("run.txt").exists()


def test_ranks_agree_on_a_number() -> None:
    Path("run.atlas").mkdir()  # of the first rank, which was faster
    model, optimizer, step = trained()
    with atlas.watch(optimizer, model, every=1, rank=1, ranks="all", page=False) as watch:
        step()
    assert watch.path is not None
    assert watch.path.name == "run-rank1.atlas"


def test_an_exception_from_before_the_watch_did_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, step = trained()
    monkeypatch.setattr(sys, "last_value", ValueError("of another cell"), raising=False)
    for later, ended in [(sys.last_value, "finished"), (ValueError("of this one"), "failed")]:
        watch = atlas.watch(optimizer, model, every=1, page=False)
        step()
        monkeypatch.setattr(sys, "last_value", later)
        watching._end_all()
        assert watch.report is not None
        assert watch.report.run is not None
        assert watch.report.run.ended == ended


def test_findings_that_fail_are_not_the_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_watch.Visit, "findings", property(failing))
    model, optimizer, step = trained()
    watch = atlas.watch(optimizer, model, every=1, doctor=True, page=False)
    step()
    with pytest.warns(RuntimeWarning, match="the doctor failed, and the training goes on"):
        assert watch.end() is not None


def test_the_other_ranks_do_not_record_unless_asked() -> None:
    model, optimizer, step = trained()
    with atlas.watch(optimizer, model, every=1, rank=1) as watch:
        step()
    assert watch.report is None
    assert not list(Path().iterdir())
    with atlas.watch(optimizer, model, every=1, rank=1, ranks="all", loggers=[]) as watch:
        step()
    assert watch.path is not None
    assert watch.path.name == "run-rank1.atlas"


PROGRAM = """
import sys, torch, torchatlas as atlas
assert not [name for name in sys.modules if name.startswith("torchatlas.integrations")]
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watch = atlas.watch(optimizer, model, every=1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
assert not {"lightning", "transformers", "accelerate", "tensorboard", "wandb", "mlflow"} & set(sys.modules)
print("done")
"""


@pytest.mark.child
@pytest.mark.parametrize("ends", [pytest.param("", marks=pytest.mark.slow), "1 / 0"])
def test_a_watch_ends_with_the_program(ends: str) -> None:
    Path("train.py").write_text(f"{PROGRAM}{ends}\n")
    done = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, timeout=200)
    assert done.stdout == "done\n"
    assert done.stderr.strip().endswith("ZeroDivisionError: division by zero" if ends else "")
    run = atlas.load("run.atlas")
    assert isinstance(run, Run)
    assert run.ended == ("failed" if ends else "finished")
    assert run.steps["finished"][:3] == [True] * 3
    assert Path("run.html").is_file()


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("tensorboard", "wandb", "mlflow", "lightning.pytorch", "transformers.trainer_callback"):
        monkeypatch.setitem(sys.modules, package, None)
    for name in ("lightning", "transformers"):
        monkeypatch.delitem(sys.modules, f"torchatlas.integrations.{name}", raising=False)
    monkeypatch.delitem(sys.modules, "pytorch_lightning", raising=False)
    graph = atlas.capture(nn.Linear(2, 2), torch.ones(1, 2))
    from torchatlas.integrations import mlflow, tensorboard, wandb

    for extra, use in {
        "tensorboard": lambda: tensorboard.add_graph("logs", graph),
        "wandb": lambda: wandb.log_graph(graph),
        "mlflow": lambda: mlflow.log_graph(graph),
        "lightning": lambda: imported("torchatlas.integrations.lightning", "x"),
        "transformers": lambda: imported("torchatlas.integrations.transformers", "x"),
    }.items():
        with pytest.raises(atlas.errors.MissingDependencyError) as caught:
            use()
        cause = caught.value.__cause__ if "torchatlas.integrations" in str(caught.value) else caught.value
        assert f"pip install 'torchatlas[{extra}]'" in str(cause)


def test_a_summary_writer_gets_figures_and_the_graph() -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model, optimizer, step = trained()
    with SummaryWriter("logs") as writer, atlas.watch(optimizer, model, every=2, loggers=[writer]) as watch:
        for _ in range(5):
            step()
    assert watch.report is not None
    assert watch.report.run is not None
    events = EventAccumulator("logs").Reload()
    for column, tag, factor in [
        ("wall_ns", "atlas/wall_ms", 1e6),
        ("peak_bytes", "atlas/peak_bytes", 1),
        ("gradient_norm", "atlas/gradient_norm", 1),
        ("gradient_norm:2", "atlas/gradient_norm_by_module/2", 1),
        ("time_ns:0", "atlas/time_ms_by_module/0", 1e6),
    ]:
        logged = events.Scalars(tag)
        assert [one.step for one in logged] == [0, 2, 4]
        numbers = [number / factor for number in watch.report.run.steps[column]]
        assert [one.value for one in logged] == pytest.approx(numbers, rel=1e-6)
    assert events.Tags()["run_metadata"] == ["step 4"]
