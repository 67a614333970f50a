"""A process that is killed at any moment leaves a run that opens."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from runs.programs_with_steps import trained

import torchatlas as atlas
from torchatlas.runs.run import Run


def be_killed(path: Path) -> None:
    model, _, step = trained()
    with atlas.recording(model, every=1, path=path) as run:
        for at in range(6):
            step()
            if at == 3:
                run.flush()
        model(torch.ones(2, 8))
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.child
def test_kill_9_loses_at_most_what_was_not_flushed(tmp_path: Path) -> None:
    path = tmp_path / "killed.atlas"
    child = os.fork()
    if not child:
        try:
            be_killed(path)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    run = atlas.load(path)
    assert isinstance(run, Run)
    assert run.steps.numbers[:4] == [0, 1, 2, 3]
    assert run.ended == ""
    assert "still being recorded, or its process was killed" in run.notes[0]
    assert run.kept == [1, 2, 3]
    assert len(run.graph(3)) > 30
