"""Pipelines that really run, in processes of this machine: the numbers of one process, and none left behind."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import support
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import torchatlas as atlas
from torchatlas.cli import main
from torchatlas.errors import InvalidInputError, InvalidModelError, PipelineError
from torchatlas.pipeline.split_model import beginnings

pytestmark = pytest.mark.child


class Residual(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Tied(nn.Module):
    """A weight used at both ends, a mask of bools that all layers use, batch norm that counts, an op that writes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(11, 8), nn.BatchNorm1d(6)
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        keep = (ids > 0).unsqueeze(-1)
        x = self.norm(self.embed(ids))
        x = self.one(x).relu_().masked_fill(~keep, 0.0)
        x = self.two(x).masked_fill(~keep, 0.0)
        return x @ self.embed.weight.t()


def workers() -> list[int]:
    """The processes of this machine that work on a pipeline."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and b"torchatlas.pipeline.worker" in (entry / "cmdline").read_bytes():
                found.append((int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()[1]))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return [pid for pid, parent in found if int(parent) == os.getpid()]


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    assert workers() == []


def test_one_forward_one_backward_is_equal_to_the_bit() -> None:
    torch.manual_seed(0)
    model = Residual()
    before = {name: p.clone() for name, p in model.named_parameters()}
    run = atlas.run_pipeline(model, torch.randn(8, 16), stages=2, microbatches=4)
    assert run.equal, str(run)
    assert [each.compared for each in run.differences] == [1, 4, 16, 0]
    assert all(torch.equal(before[name], p) and p.grad is None for name, p in model.named_parameters())
    assert run.predicted.bubble == pytest.approx(0.2, abs=0.02)
    assert 0 < run.replayed.bubble < 1
    assert 0 < run.measured.bubble < 1
    assert "gradients: 16 equal to the bit" in str(run)
    json.dumps(run.to_dict(), allow_nan=False)


def test_interleaved_with_a_loss_and_a_target_of_ones_own() -> None:
    torch.manual_seed(0)
    run = atlas.run_pipeline(
        Residual(),
        torch.randn(8, 16),
        stages=4,
        ranks=2,
        schedule="interleaved",
        loss=lambda output, target: nn.functional.smooth_l1_loss(output, target),
        target=torch.randn(8, 16),
    )
    assert run.equal, str(run)
    assert run.ranks == 2


def test_torchrun_starts_them_as_well() -> None:
    torch.manual_seed(0)
    run = atlas.run_pipeline(Residual(2), torch.randn(4, 16), stages=2, microbatches=2, torchrun=True)
    assert run.equal, str(run)


def test_tied_weights_masks_and_statistics() -> None:
    support.needs("pipeline-integers")
    torch.manual_seed(0)
    run = atlas.run_pipeline(Tied().train(), torch.randint(0, 11, (4, 6)), stages=2, schedule="gpipe", microbatches=2)
    outputs, losses, gradients, buffers = run.differences
    assert outputs.equal
    assert losses.equal
    assert set(gradients.differ) <= {"embed.weight"}
    assert buffers.equal
    assert buffers.compared == 3
    assert run.agrees
    assert run.shared == ("embed.weight",)
    assert "used in several stages" in run.notes[0]


def test_no_stage_begins_with_what_is_written_in_place_or_has_gaps() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            made = x.exp()
            made.mul_(2)
            turned = made.t()
            return turned.sin().cos()

    program = torch.export.export(Model(), (torch.randn(3, 4),)).module()
    graph = atlas.from_fx(program, torch.randn(3, 4))
    assert list(beginnings(graph).values()) == ["t"]  # sin and cos get what was turned, mul_ what it writes to


def test_a_worker_that_fails_dies_or_hangs_ends_the_run() -> None:
    model, x = Residual(2), torch.randn(4, 16)
    with pytest.raises(PipelineError, match=r"did not end within 500 ms; rank 0, 1 still ran"):
        atlas.run_pipeline(model, x, stages=2, microbatches=2, timeout=0.5, warmup=100_000)
    assert workers() == []

    def kill() -> None:
        while not (found := workers()):
            time.sleep(0.05)
        os.kill(found[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(PipelineError, match="was ended by SIGKILL: it may have run out of memory"):
        atlas.run_pipeline(model, x, stages=2, microbatches=2)
    killer.join()
    with pytest.raises(PipelineError, match=r"Rank \d of the pipeline failed: .*nccl|NCCL|cuda"):
        atlas.run_pipeline(model, x, stages=2, microbatches=2, backend="nccl")


class Wide(nn.Module):
    """Makes 490 MB of 64 short rows."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.two(self.one(x))
        return (y.unsqueeze(1).unsqueeze(1) * torch.ones(1, 600, 400, 1)).sum((1, 2))


def test_a_worker_that_runs_out_of_memory_ends_the_run() -> None:
    """Once torch is loaded, and takes no more, 300 MB are left to each."""
    over = threading.Event()

    def limit() -> None:
        took: dict[int, int] = {}
        while not over.wait(0.2):
            for pid in workers():
                with contextlib.suppress(OSError):  # it has ended
                    used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
                    if used == took.get(pid) and "libtorch" in Path(f"/proc/{pid}/maps").read_text():
                        resource.prlimit(pid, resource.RLIMIT_AS, (used + 300_000_000,) * 2)
                    took[pid] = used

    limiter = threading.Thread(target=limit)
    limiter.start()
    try:
        with pytest.raises(PipelineError, match=r"Rank \d of the pipeline failed: .*(allocate|memory|Memory)"):
            atlas.run_pipeline(Wide(), torch.randn(64, 16), stages=2, microbatches=2)
    finally:
        over.set()
        limiter.join()


def test_what_cannot_be_cut() -> None:
    with pytest.raises(InvalidModelError, match=r"takes a torch\.nn\.Module, not int"):
        atlas.run_pipeline(3, stages=2)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="did you mean 'microbatches'"):
        atlas.run_pipeline(nn.Linear(2, 2), torch.ones(4, 2), stages=1, microbatch=2)
    with pytest.raises(InvalidInputError, match="nothing to train"):
        atlas.run_pipeline(nn.Linear(2, 2).requires_grad_(False), torch.ones(4, 2), stages=1)
    with pytest.raises(InvalidInputError, match="one stage or more"):
        atlas.run_pipeline(Residual(), torch.randn(8, 16), stages=0)
    with pytest.raises(InvalidInputError, match="cannot be cut into as many of one size"):
        atlas.run_pipeline(Residual(), torch.randn(7, 16), stages=2)
    with pytest.raises(InvalidInputError, match="this model can be cut into 1"):
        atlas.run_pipeline(nn.LSTM(4, 4, batch_first=True), torch.randn(4, 3, 4), stages=2)
    with pytest.raises(InvalidInputError, match="draws random numbers"):
        atlas.run_pipeline(nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4)), torch.randn(4, 4), stages=2)


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models.py").write_text(
        "import torch\nfrom torch import nn\n\n\ndef build():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))\n"
    )
    monkeypatch.chdir(tmp_path)
    call = ["pipeline", "models.py:build", "--inputs", "8,8", "--stages", "2"]
    planned = CliRunner().invoke(main, call)
    assert planned.exit_code == 0, planned.output
    assert "2 stages by time" in planned.stdout
    ran = CliRunner().invoke(main, [*call, "--run", "--json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["equal"] is True
    script = CliRunner().invoke(main, ["pipeline", "models.py"])
    assert "name the model in it" in script.stderr
