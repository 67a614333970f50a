"""The callback under a real Trainer of transformers."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import support
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.runs.run import Run

transformers = support.load_transformers()
pytest.importorskip("accelerate")

from torchatlas.integrations.transformers import AtlasCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*pin_memory", "ignore:.*lr_scheduler.step"
)


class Model(nn.Module):
    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 1))
        self.calls, self.fails_at = 0, fails_at

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.net(x)
        if self.training:
            if self.calls == self.fails_at:
                raise ZeroDivisionError("of the model")
            self.calls += 1
        out = out if self.training else out.tanh()
        return {"loss": (out[:, 0] - labels).square().mean(), "out": out}


def data(count: int = 24) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(8, generator=generator), "labels": torch.tensor(1.0)} for _ in range(count)]


def train(model: nn.Module, callback: Any = None, resume: Any = None, **options: Any) -> Any:
    quiet = {"disable_tqdm": True, "report_to": "none", "use_cpu": True, "save_strategy": "no", "logging_steps": 1}
    options = {"per_device_train_batch_size": 4, "num_train_epochs": 2, "output_dir": "out", **quiet, **options}
    arguments = transformers.TrainingArguments(**options)
    callbacks = callback if isinstance(callback, list) else [] if callback is None else [callback]
    trainer = transformers.Trainer(model, arguments, train_dataset=data(), eval_dataset=data(8), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def loaded(path: Any = "out/run.atlas") -> Run:
    found = atlas.load(path)
    assert isinstance(found, Run)
    return found


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 2}])
def test_training_ends_bit_equal(options: Any) -> None:
    alone, watched = Model(), Model()
    train(alone, **options)
    callback = AtlasCallback(every=2, doctor=3)
    train(watched, callback, **options)
    assert all(map(torch.equal, alone.parameters(), watched.parameters()))
    assert callback.report is not None
    assert callback.report.findings is not None
    assert not callback.report.findings.failures


def test_a_step_is_all_accumulated_batches_and_no_evaluation() -> None:
    callback = AtlasCallback(every=1, keep="full")
    train(Model(), callback, gradient_accumulation_steps=3, eval_strategy="steps", eval_steps=1, num_train_epochs=1)
    run = loaded()
    assert run.steps.numbers == [0, 1]
    graph = run.graph(1)
    products = graph.where(operation="aten.addmm.default", phase="forward")
    assert [node.scope.path for node in products] == ["net.0", "net.3"] * 3
    assert not graph.where(operation="aten.tanh.default")
    assert graph.where(scope="AdamW")
    assert run.steps["gradient_norm:net.3"][0] > 0


def test_an_exception_passes_and_leaves_nothing_on() -> None:
    callback = AtlasCallback(every=1, doctor=True)
    with pytest.raises(ZeroDivisionError, match="of the model"):
        train(Model(fails_at=3), callback)
    assert callback.report is not None  # it is over: the fixture looks whether torch is as before
    run = loaded()
    assert run.ended == "failed"
    assert run.steps["finished"] == [True, True, True, False]
    assert "ZeroDivisionError: of the model" in run.notes[-1]


def test_an_exception_in_a_step_that_is_not_recorded_blocks_nothing() -> None:
    first = AtlasCallback(every=100, page=False)
    with pytest.raises(ZeroDivisionError):
        train(Model(fails_at=3), first)
    second = AtlasCallback(every=100, page=False)
    with pytest.raises(ZeroDivisionError):
        train(Model(fails_at=3), second)  # warnings are errors: it is recorded
    assert first.report is not None
    assert loaded().steps.numbers == loaded("out/run-2.atlas").steps.numbers == [0]
    watch = second.watch
    assert watch is not None
    assert watch.running
    del second
    gc.collect()  # the Trainer is gone, and with it the callback
    assert not watch.running
    with atlas.recording(every=1, path="mine.atlas"):
        pass


@pytest.mark.filterwarnings("ignore:torchatlas. the training ended without a step")
def test_an_exception_of_the_trainer_in_a_recorded_step_leaves_nothing_on() -> None:
    class Failing(transformers.Trainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            super().compute_loss(*args, **kwargs)
            raise ZeroDivisionError

    quiet = {"disable_tqdm": True, "report_to": "none", "use_cpu": True, "save_strategy": "no"}
    arguments = transformers.TrainingArguments(output_dir="out", **quiet)
    with pytest.raises(ZeroDivisionError):
        Failing(Model(), arguments, train_dataset=data(), callbacks=[AtlasCallback(every=1, page=False)]).train()
    gc.collect()
    assert loaded().ended == "finished"


def test_a_program_that_goes_on_after_an_exception_has_a_second_run() -> None:
    class Forgiving(transformers.Trainer):  # type: ignore[misc]
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().training_step(*args, **kwargs)
            except ZeroDivisionError:
                self.model.fails_at = -1
                return super().training_step(*args, **kwargs)

    callback = AtlasCallback(every=1, page=False)
    quiet = {"disable_tqdm": True, "report_to": "none", "use_cpu": True, "save_strategy": "no"}
    arguments = transformers.TrainingArguments(
        output_dir="out", per_device_train_batch_size=4, num_train_epochs=1, **quiet
    )
    Forgiving(Model(fails_at=2), arguments, train_dataset=data(), callbacks=[callback]).train()
    assert loaded().steps["finished"] == [True, True, False]
    assert loaded("out/run-2.atlas").steps.numbers == [3, 4, 5]


def test_training_twice_and_resuming() -> None:
    callback = AtlasCallback(every=1, page=False)
    train(Model(), callback, num_train_epochs=1, save_strategy="steps", save_steps=3)
    train(Model(), callback, resume="out/checkpoint-3", num_train_epochs=1)
    assert loaded().steps.numbers == [0, 1, 2, 3, 4, 5]
    assert loaded("out/run-2.atlas").steps.numbers == [3, 4, 5]


def test_tensorboard_of_report_to() -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = AtlasCallback(every=2)
    train(Model(), callback, report_to=["tensorboard"], num_train_epochs=1)
    events = EventAccumulator("out/runs/torchatlas-run").Reload()
    assert [one.step for one in events.Scalars("atlas/wall_ms")] == [1, 3, 5]  # as the Trainer counts
    assert callback.report is not None
    assert callback.report.graph is not None
    assert len(events.Graph().node) == len(callback.report.graph.nodes)
    (theirs,) = [path for path in Path("out/runs").iterdir() if not path.name.startswith("torchatlas")]
    assert len([*theirs.glob("events*")]) == 1


def test_a_logger_without_a_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    from torchatlas.integrations.transformers import _sinks

    assert wandb.run is None
    arguments = transformers.TrainingArguments(output_dir="out", use_cpu=True, report_to="none")
    arguments.report_to = ["wandb"]
    with pytest.warns(RuntimeWarning, match="report_to='wandb', and there is no run"):
        assert _sinks(arguments, Path("run.atlas")) == []


def test_a_second_callback_in_one_training_does_nothing() -> None:
    first, second = AtlasCallback(every=4, page=False), AtlasCallback(every=3, page=False)
    with pytest.warns(RuntimeWarning, match="recorded already, in .*run.atlas: a second AtlasCallback") as warned:
        train(Model(), [first, second])
    assert len([one for one in warned if "torchatlas" in str(one.message)]) == 1
    assert first.report is not None
    assert first.report.notes == ()
    assert loaded().steps.numbers == [0, 4, 8]
    assert second.report is None
    assert not Path("out/run-2.atlas").exists()
