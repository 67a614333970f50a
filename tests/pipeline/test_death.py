"""A pipeline whose parent is ended, in every way: no worker lives on, and no weights stay on the disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.child, pytest.mark.slow]

PROGRAM = """
import signal, sys, torch
import torchatlas as atlas
from torch import nn

def handler(number, frame):
    print("handled", number, flush=True)
    {handler}

if {handler!r}:
    signal.signal(signal.SIGTERM, handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a terminal-less parent may have it ignored
print("begun", flush=True)
layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)]
atlas.run_pipeline(nn.Sequential(*layers), torch.randn(8, 16), stages=2, warmup={warm_up}, torchrun={torchrun})
print("ran", flush=True)
"""
_LONG = 100_000  # passes before the one that is measured: hours


class Parent:
    """A process that runs a pipeline, with a folder of its own for temporary files."""

    def __init__(self, folder: Path, *, handler: str = "", torchrun: bool = False, warm_up: int = _LONG) -> None:
        self.folder = folder
        text = PROGRAM.format(handler=handler, torchrun=torchrun, warm_up=warm_up)
        self.process = subprocess.Popen(
            [sys.executable, "-c", text],
            env={**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, what: Callable[[], bool], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end, f"not after {seconds} s"
            time.sleep(0.02)

    def files(self) -> list[Path]:
        return [path for path in self.folder.glob("torchatlas-pipeline-*/*") if path.is_file()]

    def workers(self) -> list[int]:
        """Those of this pipeline, however they were started."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if any(word.startswith(f"{self.folder}/torchatlas-pipeline-".encode()) for word in words):
                found.append(int(entry.name))
        return found

    def works(self) -> bool:
        """Whether the workers have met."""
        return any(path.name == "store" for path in self.files())

    def gone(self, seconds: float = 60) -> tuple[list[int], list[str]]:
        """What is left of it after so long: workers and folders."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and (self.workers() or self.folders()):
            time.sleep(0.05)
        return self.workers(), self.folders()

    def folders(self) -> list[str]:
        return [name for name in os.listdir(self.folder) if name.startswith("torchatlas-")]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        for pid in self.workers():  # that a failing test has left
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("torchrun", [False, True], ids=["own", "torchrun"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_of_a_pipeline_whose_parent_dies(
    number: signal.Signals, torchrun: bool, tmp_path: Path
) -> None:
    parent = Parent(tmp_path, torchrun=torchrun)
    try:
        parent.until(parent.works)
        assert len(parent.workers()) >= 2
        parent.process.send_signal(number)
        assert parent.process.wait(60) == -number
        assert parent.gone() == ([], [])
    finally:
        parent.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_nothing_is_left_if_it_dies_before_there_are_workers(number: signal.Signals, tmp_path: Path) -> None:
    parent = Parent(tmp_path)
    try:
        parent.until(lambda: bool(list(tmp_path.glob("torchatlas-pipeline-*"))))
        parent.process.send_signal(number)
        assert parent.process.wait(60) == -number
        assert parent.gone() == ([], [])
    finally:
        parent.end()


def test_a_handler_of_the_programs_own_decides(tmp_path: Path) -> None:
    """One that returns goes on; one that raises leaves, and nothing stays."""
    parent = Parent(tmp_path, handler="pass", warm_up=1)
    try:
        parent.until(lambda: bool(parent.files()))
        parent.process.send_signal(signal.SIGTERM)
        out, error = parent.process.communicate(timeout=120)
        assert (parent.process.returncode, out.split()) == (0, ["begun", "handled", "15", "ran"]), error
    finally:
        parent.end()
    parent = Parent(tmp_path, handler="sys.exit(3)")
    try:
        parent.until(parent.works)
        parent.process.send_signal(signal.SIGTERM)
        assert parent.process.wait(60) == 3
        assert parent.gone() == ([], [])
    finally:
        parent.end()


def test_workers_end_while_they_still_import_torch(tmp_path: Path) -> None:
    parent = Parent(tmp_path)
    try:
        parent.until(lambda: bool(parent.workers()))
        parent.process.kill()
        parent.process.wait(60)
        assert parent.gone() == ([], [])
    finally:
        parent.end()
