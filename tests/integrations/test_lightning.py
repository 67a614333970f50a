"""The callback under a real Lightning Trainer."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchatlas as atlas
from torchatlas.integrations import callback as shared
from torchatlas.runs.run import Run

pl = pytest.importorskip("lightning.pytorch")

from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger  # noqa: E402

from torchatlas.integrations.lightning import AtlasCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings(  # what Lightning says of small models, of torch, and of its own loops
    "ignore:.*does not have many workers",
    "ignore:.*isinstance.treespec, LeafSpec",
    "ignore:.*accumulate_grad_batches",
    "ignore:.*number of training batches",
    "ignore:.*TensorBoardLogger",
    "ignore:.*litlogger",
    "ignore:.*Trainer already configured with model summary",
    "ignore:.*lazy modules",
    "ignore::DeprecationWarning",
)


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, fails_at: int = -1, validates: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 4))
        self.fails_at, self.validates = fails_at, validates

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if batch_idx == self.fails_at:
            raise ZeroDivisionError("of the module")
        loss: torch.Tensor = self.net(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("validated", self.net(batch[0]).tanh().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters())


class TwoOptimizers(Module):
    def __init__(self, steps: bool = True) -> None:
        super().__init__()
        self.automatic_optimization, self.steps = False, steps

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.net[0].parameters()), torch.optim.Adam(self.net[3].parameters())]

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.net(batch[0]).square().mean())
            if self.steps:
                optimizer.step()


def trainer(*callbacks: Any, **options: Any) -> Any:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    options = {"max_epochs": 2, "logger": False, "log_every_n_steps": 1, **options}
    return pl.Trainer(accelerator="cpu", devices=1, callbacks=list(callbacks), **quiet, **options)


def fit(module: Any, callback: Any = None, **options: Any) -> Any:
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(32, 8)), batch_size=4)
    found = trainer(*([] if callback is None else [callback]), **options)
    torch.manual_seed(1)
    found.fit(module, data, data)
    return found


def loaded(path: Any = "run.atlas") -> Run:
    found = atlas.load(path)
    assert isinstance(found, Run)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate_grad_batches": 3, "val_check_interval": 2},
        {"gradient_clip_val": 0.1, "precision": "bf16-mixed"},
    ],
    ids=["plain", "accumulating", "bfloat16"],
)
def test_training_ends_bit_equal(options: Any) -> None:
    alone, watched = Module(), Module()
    fit(alone, **options)
    callback = AtlasCallback(every=2, doctor=3)
    fit(watched, callback, **options)
    assert all(map(torch.equal, alone.parameters(), watched.parameters()))
    assert callback.report is not None
    assert callback.report.run is not None
    assert callback.report.findings is not None
    assert not callback.report.findings.failures


def test_steps_are_batches_without_what_lies_between() -> None:
    callback = AtlasCallback(every=1, keep="full")
    fit(Module(), callback)
    run = loaded()
    assert run.steps.numbers == list(range(16))
    assert callback.report is not None
    assert [path.name for path in callback.report.files] == ["run.html", "run.txt"]
    assert run.changes.keys() == {1, 8, 9}  # Adam makes its state in step 0; a new epoch resets Lightning's metrics
    graph = run.graph(9)
    assert not graph.where(operation="aten.tanh.default")  # validation
    assert {node.scope.path for node in graph.where(operation="aten.addmm.default", phase="forward")} == {
        "net.0",
        "net.3",
    }
    assert run.steps["gradient_norm"][0] > 0
    assert run.steps["loss"][0] > 0


def test_accumulated_batches_are_one_step_and_validation_among_them_is_none() -> None:
    callback = AtlasCallback(every=1, keep="full")
    fit(Module(), callback, max_epochs=1, accumulate_grad_batches=4, val_check_interval=2)
    run = loaded()
    assert len(run) == 2
    graph = run.graph(1)
    assert len(graph.where(operation="aten.addmm.default", phase="forward")) == 8
    assert not graph.where(operation="aten.tanh.default")
    fit(Module(), AtlasCallback(every=1, path="without.atlas"), max_epochs=1, accumulate_grad_batches=4)
    same = loaded("without.atlas")
    assert [one.ops for one in same.structures] == [one.ops for one in run.structures]


def test_several_optimizers_are_one_step() -> None:
    callback = AtlasCallback(every=2)
    found = fit(TwoOptimizers(), callback, max_epochs=1)
    assert found.global_step == 16
    run = loaded()
    assert run.steps.numbers == [0, 2, 4, 6]
    assert run.graph(0).where(scope="SGD")
    assert run.graph(0).where(scope="Adam")


def test_a_training_that_never_steps_says_so() -> None:
    callback = AtlasCallback(every=1, page=False)
    with pytest.warns(RuntimeWarning, match="without a step"):
        fit(TwoOptimizers(steps=False), callback, max_epochs=1)
    assert callback.report is not None
    assert "without a step" in callback.report.notes[0]


def test_an_exception_passes_unchanged() -> None:
    callback = AtlasCallback(every=1, doctor=True)
    with pytest.raises(ZeroDivisionError, match="of the module"):
        fit(Module(fails_at=3), callback)
    run = loaded()
    assert run.ended == "failed"
    assert run.steps.numbers[:3] == [0, 1, 2]
    assert "ZeroDivisionError: of the module" in run.notes[-1]
    assert callback.report is not None
    assert "ended with ZeroDivisionError" in str(callback.report)


def test_a_second_callback_in_one_training_does_nothing() -> None:
    first, second = AtlasCallback(every=5, page=False), AtlasCallback(every=3, page=False)
    data = DataLoader(TensorDataset(torch.randn(32, 8)), batch_size=4)
    with pytest.warns(RuntimeWarning, match="recorded already, in .*run.atlas: a second AtlasCallback"):
        trainer(first, second, max_epochs=1).fit(Module(), data, data)
    assert first.report is not None
    assert first.report.notes == ()
    assert loaded().steps.numbers == [0, 5]
    assert second.report is None


def test_a_second_fit_has_a_folder_of_its_own_and_counts_on() -> None:
    callback = AtlasCallback(every=1)
    module = Module()
    found = fit(module, callback, max_epochs=1)
    found.fit_loop.max_epochs = 2
    more = DataLoader(TensorDataset(torch.randn(8, 8)), batch_size=4)
    found.fit(module, more, more)
    assert loaded().steps.numbers == list(range(8))
    assert loaded("run-2.atlas").steps.numbers == [8, 9]


def test_the_trainers_loggers_are_written_to() -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = AtlasCallback(every=5)
    fit(Module(), callback, logger=[TensorBoardLogger("tb"), CSVLogger("csv")])
    folder = Path("tb/lightning_logs/version_0")
    assert len(loaded(folder / "run.atlas")) == 4
    assert (folder / "run.html").is_file()
    events = EventAccumulator(str(folder)).Reload()
    assert [one.step for one in events.Scalars("atlas/wall_ms")] == [0, 5, 10, 15]
    assert callback.report is not None
    assert callback.report.graph is not None
    assert len(events.Graph().node) == len(callback.report.graph.nodes)
    header = Path("csv/lightning_logs/version_0/metrics.csv").read_text().splitlines()[0]
    assert "atlas/peak_bytes" in header
    assert "loss" in header
    assert callback.report.notes == ()


def test_what_cannot_be_written_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("in the way")
    callback = AtlasCallback(path="file/run.atlas")
    with pytest.warns(RuntimeWarning, match="this training is not recorded"):
        found = fit(Module(), callback, max_epochs=1)
    assert found.global_step == 8
    assert callback.report is None
    monkeypatch.setattr(shared, "sinks_of", lambda _: 1 / 0)
    monkeypatch.setattr("torchatlas.integrations.lightning.sinks_of", lambda _: 1 / 0)
    with pytest.warns(RuntimeWarning, match="to files alone: ZeroDivisionError"):
        fit(Module(), callback := AtlasCallback(), max_epochs=1)
    assert callback.report is not None


def test_a_logger_without_a_folder_does_not_end_the_training() -> None:
    class Failing(CSVLogger):  # type: ignore[misc]
        @property
        def log_dir(self) -> str:
            if any(frame.function == "_folder" for frame in inspect.stack()):
                raise OSError("no folder")
            return str(super().log_dir)

    with pytest.warns(RuntimeWarning, match="this training is not recorded: OSError: no folder"):
        assert fit(Module(), AtlasCallback(), max_epochs=1, logger=Failing("csv")).global_step == 8


def test_other_ranks_and_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    callback = AtlasCallback(every=1, loggers=[])
    again = pickle.loads(pickle.dumps(callback))
    assert again.watch is None
    assert copy.deepcopy(callback)._wanted == callback._wanted
    monkeypatch.setattr(pl.Trainer, "global_rank", property(lambda self: 1))
    fit(Module(), callback, max_epochs=1)
    assert callback.report is None
    assert not Path("run.atlas").exists()
    fit(Module(), AtlasCallback(every=1, ranks="all"), max_epochs=1)
    assert len(loaded("run-rank1.atlas")) == 8


@pytest.mark.slow
@pytest.mark.child
def test_two_processes_of_ddp() -> None:
    program = Path(__file__).parent / "two_ranks.py"
    for ranks in ("none", "first", "all"):
        done = subprocess.run([sys.executable, str(program), ranks], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        assert "torchatlas:" not in done.stderr
    assert sorted(path.name for path in Path().glob("*.atlas")) == ["run-2.atlas", "run-rank1.atlas", "run.atlas"]
    for name in ("run.atlas", "run-2.atlas", "run-rank1.atlas"):
        assert loaded(name).steps.numbers == [0, 2]
        assert loaded(name).graph().where(operation_type="communication")
    alone, first, every = (torch.load(f"{ranks}.pt") for ranks in ("none", "first", "all"))
    assert all(torch.equal(alone[name], first[name]) and torch.equal(alone[name], every[name]) for name in alone)
