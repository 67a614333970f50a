"""Workers of a pipeline as processes of this machine: all end well, or all are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from torchatlas.errors import PipelineError
from torchatlas.interrupts import bracketed
from torchatlas.pipeline.folder import error_file, read_job
from torchatlas.pipeline.parent import HAS_PARENT
from torchatlas.units import format_seconds

WORKER = "torchatlas.pipeline.worker"
_POLL_S = 0.05
_PATIENCE_S = 10.0
_NOT_THE_CAUSE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")  # of who waited for another


def launch(folder: Path, timeout: float, *, torchrun: bool = False) -> None:
    """Run the job of a folder, and wait for its workers. What one of them failed of, all failed of.

    With `torchrun` that starts and watches them, as it would on several machines.
    """
    with _workers(folder, torchrun) as workers:
        _wait(folder, workers, timeout)


@bracketed
def _workers(folder: Path, torchrun: bool) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes, which have ended in the end. Each holds the reading end of a pipe of ours: see parent.py."""
    ranks = read_job(folder).ranks
    workers: list[subprocess.Popen[bytes]] = []
    try:
        if torchrun:
            workers.append(_start(folder, 0, _by_torchrun(ranks), {}))
        else:
            for rank in range(ranks):
                environment = {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
                workers.append(_start(folder, rank, ["-m", WORKER], environment))
        yield workers
    finally:
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.close()
            if worker.poll() is None:
                worker.terminate()
        for worker in workers:
            _await(worker)


def _start(folder: Path, rank: int, program: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with (folder / f"rank{rank}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *program, str(folder)],
            env={**os.environ, "GLOO_SOCKET_IFNAME": _loopback(), HAS_PARENT: "1", **environment},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _by_torchrun(ranks: int) -> list[str]:
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m", WORKER]


def _await(worker: subprocess.Popen[bytes]) -> None:
    """torchrun, which gives its workers sessions of their own, takes its time."""
    try:
        worker.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def _loopback() -> str:
    return "lo0" if sys.platform == "darwin" else "lo"


def _wait(folder: Path, workers: list[subprocess.Popen[bytes]], timeout: float) -> None:
    end = time.monotonic() + timeout
    while True:
        codes = [worker.poll() for worker in workers]
        if all(code == 0 for code in codes):
            return
        failed = {rank: code for rank, code in enumerate(codes) if code}
        if failed:
            time.sleep(_POLL_S)  # who failed of the others' end may have been quicker to say so
            raise PipelineError(_cause(folder, failed))
        if time.monotonic() > end:
            running = [str(rank) for rank, code in enumerate(codes) if code is None]
            raise PipelineError(
                f"The pipeline did not end within {format_seconds(timeout)}; rank {', '.join(running)} still ran and "
                f"was ended. Give it more time, or look for a hang: {_last_line(folder, int(running[0]))}"
            )
        time.sleep(_POLL_S)


def _cause(folder: Path, failed: dict[int, int]) -> str:
    """Which rank failed first, as far as they say, and of what."""
    told = {rank: _error(folder, rank) for rank in range(read_job(folder).ranks)}
    told = {rank: text for rank, text in told.items() if text or rank in failed}
    first = min(told, key=lambda rank: (any(text in told[rank] for text in _NOT_THE_CAUSE), not told[rank], rank))
    code = failed.get(first, 1)
    if code < 0:
        name = signal.Signals(-code).name
        memory = ": it may have run out of memory" if -code == signal.SIGKILL else ""
        return f"Rank {first} of the pipeline was ended by {name}{memory}. {_last_line(folder, first)}"
    return f"Rank {first} of the pipeline failed: {told[first] or _last_line(folder, first)}"


def _error(folder: Path, rank: int) -> str:
    """The exception, without the way it came."""
    file = error_file(folder, rank)
    return file.read_text().strip() if file.is_file() else ""


def _last_line(folder: Path, rank: int) -> str:
    lines = (folder / f"rank{rank}.log").read_text(errors="replace").strip().splitlines()
    return f"Its last words: {lines[-1]}" if lines else "It said nothing."
