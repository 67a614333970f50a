"""Workers of a pipeline as processes of this machine: all end well, or all are ended.

A worker does not outlive the process that started the pipeline, and the folder of the pipeline does not outlive both.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from torchatlas.errors import PipelineError
from torchatlas.interrupts import bracketed
from torchatlas.pipeline.folder import error_file, read_job
from torchatlas.units import format_seconds

WORKER = "torchatlas.pipeline.worker"
_HAS_PARENT = "TORCHATLAS_PIPELINE_HAS_PARENT"  # stdin is a pipe that ends with the process that started the pipeline
_POLL_S = 0.05
_PATIENCE_S = 10.0
# What ranks say that failed only because another one had ended.
_NOT_THE_CAUSE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


def launch(folder: Path, timeout: float, *, torchrun: bool = False) -> None:
    """Run the job of a folder, and wait for its workers. If one fails, all are ended and its error is raised.

    With `torchrun`, torchrun starts and watches them, as it would on several machines.
    """
    with _workers(folder, torchrun) as workers:
        _wait(folder, workers, timeout)


@bracketed
def _workers(folder: Path, torchrun: bool) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the processes, and end them afterwards. Each holds the reading end of a pipe of ours: `end_with_parent`."""
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
            env={**os.environ, "GLOO_SOCKET_IFNAME": _loopback(), _HAS_PARENT: "1", **environment},
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
            time.sleep(_POLL_S)  # a rank that failed because another ended may have been quicker to say so
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
    errors = {rank: _error(folder, rank) for rank in range(read_job(folder).ranks)}
    errors = {rank: text for rank, text in errors.items() if text or rank in failed}
    first = min(errors, key=lambda rank: (any(text in errors[rank] for text in _NOT_THE_CAUSE), not errors[rank], rank))
    code = failed.get(first, 1)
    if code < 0:
        name = signal.Signals(-code).name
        memory = ": it may have run out of memory" if -code == signal.SIGKILL else ""
        return f"Rank {first} of the pipeline was ended by {name}{memory}. {_last_line(folder, first)}"
    return f"Rank {first} of the pipeline failed: {errors[first] or _last_line(folder, first)}"


def _error(folder: Path, rank: int) -> str:
    """The exception of a rank, without its traceback."""
    file = error_file(folder, rank)
    return file.read_text().strip() if file.is_file() else ""


def _last_line(folder: Path, rank: int) -> str:
    lines = (folder / f"rank{rank}.log").read_text(errors="replace").strip().splitlines()
    return f"Its last words: {lines[-1]}" if lines else "It said nothing."


# -- in a worker -------------------------------------------------------------------------------------------------------


def end_with_parent(folder: Path) -> None:
    """End this worker as soon as its parent ends. Workers that torchrun starts have its stdin, so the same pipe."""
    if os.environ.get(_HAS_PARENT):
        threading.Thread(target=_end_after_parent, args=(folder,), daemon=True).start()


def _end_after_parent(folder: Path) -> None:
    while os.read(0, 1):  # not through sys.stdin, whose lock Python wants when it ends
        pass
    shutil.rmtree(folder, ignore_errors=True)  # every worker tries: the last one finds no file that another writes
    os._exit(1)
