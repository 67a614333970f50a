"""Case numbers -> outcomes: long-lived forked workers that may die, hang or run out of memory without harm."""

import multiprocessing
import os
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

ROOM_BYTES = 4 << 30  # that a worker may take beyond what it has at the start
MOST_SECONDS = 5.0  # of processor time for one case
_STILL_SECONDS = 300.0  # without an answer: others use this machine as well, but what waits for nothing hangs


@dataclass(frozen=True)
class Outcome:
    """What became of a case. `word` is "refused", "loaded ..." or, for a failure, what failed and where."""

    case: int
    word: str
    failed: bool = False
    detail: str = ""


def outcomes(run: Callable[[int, Path], str], cases: Iterator[int], workers: int) -> Iterator[Outcome]:
    """Run all cases, each in one of the workers. `run` takes the case and a folder of the worker's own."""
    pool = [_Worker(run) for _ in range(workers)]
    try:
        for worker in pool:
            worker.give(next(cases, None))
        while busy := [worker for worker in pool if worker.case is not None]:
            ready = wait([worker.pipe for worker in busy], timeout=0.5)
            for place, worker in enumerate(pool):
                found = worker.outcome() if worker.pipe in ready else worker.overdue()
                if found is None:
                    continue
                if found.failed:  # it may have left anything behind
                    worker.end()
                    worker = pool[place] = _Worker(run)
                worker.give(next(cases, None))
                yield found
    finally:
        for worker in pool:
            worker.end()


class _Worker:
    """One process and the case it is at."""

    def __init__(self, run: Callable[[int, Path], str]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self._folder = tempfile.TemporaryDirectory()
        self._process = context.Process(target=_serve, args=(theirs, run, Path(self._folder.name)), daemon=True)
        self._process.start()
        theirs.close()
        self.case: int | None = None
        self._since = self._used = 0.0

    def give(self, case: int | None) -> None:
        self.case, self._since, self._used = case, time.monotonic(), self._processor_seconds()
        if case is not None:
            self.pipe.send(case)

    def outcome(self) -> Outcome:
        assert self.case is not None
        try:
            return Outcome(self.case, *self.pipe.recv())
        except EOFError:
            self._process.join()
            code = self._process.exitcode or 0
            why = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return Outcome(self.case, f"the process died: {why}", failed=True)

    def overdue(self) -> Outcome | None:
        if self.case is None:
            return None
        if self._processor_seconds() - self._used > 2 * MOST_SECONDS:
            return Outcome(self.case, f"no answer after {2 * MOST_SECONDS:.0f} seconds of processor time", failed=True)
        if time.monotonic() - self._since > _STILL_SECONDS:
            return Outcome(self.case, f"no answer after {_STILL_SECONDS:.0f} seconds", failed=True)
        return None

    def _processor_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()
        self._folder.cleanup()


def _serve(pipe: Connection, run: Callable[[int, Path], str], folder: Path) -> None:
    os.chdir(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * resource.getpagesize() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        pipe.send(_answer(run, case, folder))


def _answer(run: Callable[[int, Path], str], case: int, folder: Path) -> tuple[Any, ...]:
    begun = time.process_time()
    try:
        word = run(case, folder)
    except BaseException as error:
        return (f"{type(error).__name__} {_where(error)}", True, "".join(traceback.format_exception(error)))
    if (seconds := time.process_time() - begun) > MOST_SECONDS:
        return (f"took more than {MOST_SECONDS:.0f} seconds", True, f"{seconds:.1f} seconds of processor time")
    return (word,)


def _where(error: BaseException) -> str:
    """The step, and the innermost line of ours."""
    steps = [note for note in getattr(error, "__notes__", []) if note.startswith("step: ")]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/torchatlas/" in frame.filename]
    place = f"at {'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}" if frames else ""
    return f"({', '.join(steps)}) {place} {str(error)[:60]!r}"
