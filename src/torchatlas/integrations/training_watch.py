"""What all callbacks share: a TrainingWatch, which records chosen steps, asks the doctor, and writes files and logs.

A TrainingWatch is told when the training begins, when steps begin and end (unless optimizers end them) and when it is
over. From its beginning on no method raises: what fails in here is a note and a warning, and the training goes on.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from torchatlas.diagnosis.visit import Visit
from torchatlas.errors import InvalidInputError
from torchatlas.files import replacing
from torchatlas.graph import Graph
from torchatlas.graph.shown import Shown
from torchatlas.integrations.loggers import Sink, figures_of
from torchatlas.integrations.training_report import TrainingReport, module_shares
from torchatlas.runs.framed_recording import FramedRunRecording
from torchatlas.runs.journal import Number
from torchatlas.runs.run import Run
from torchatlas.runs.run_recording import RunRecording
from torchatlas.sections import Lines, Section

EVERY = 100  # steps, unless other ones are asked for
RANKS = ("first", "all")


@dataclass(frozen=True)
class Wanted:
    """What to record of a training, and where to: the arguments that all callbacks share. Wrong ones are refused."""

    every: int | None = None
    steps: Iterable[int] | None = None
    doctor: bool | int = False  # True the whole training, or how many of its first steps
    gradients: bool = True
    keep: str = "structure"
    last: int = 3
    path: str | os.PathLike[str] | None = None
    page: bool = True
    loggers: Sequence[Any] | None = None
    ranks: str = "first"

    def __post_init__(self) -> None:
        if self.steps is not None and not isinstance(self.steps, range):
            object.__setattr__(self, "steps", tuple(self.steps) if isinstance(self.steps, Iterable) else self.steps)
        if not isinstance(self.doctor, int) or self.doctor < 0:
            raise InvalidInputError(f"doctor={self.doctor!r}: True for the whole training, or a number of first steps.")
        if self.ranks not in RANKS:
            raise InvalidInputError(f"ranks={self.ranks!r} is not one of {', '.join(map(repr, RANKS))}.")
        if isinstance(self.loggers, (str, bytes)) or not isinstance(self.loggers, (Iterable, type(None))):
            raise InvalidInputError(f"loggers={self.loggers!r}: give a list of loggers, such as [SummaryWriter()].")
        RunRecording(**self.of_the_run(), path=self.path)  # refuses what it does not take

    def of_the_run(self) -> dict[str, Any]:
        """The arguments for the recording of the run."""
        every = EVERY if self.every is None and self.steps is None else self.every
        return {"every": every, "steps": self.steps, "keep": self.keep, "last": self.last, "gradients": self.gradients}


class TrainingWatch(Shown):
    """Watches one training. Print it to see how far it is; `report` is there when it has ended."""

    def __init__(
        self,
        wanted: Wanted,
        model: nn.Module | None,
        path: Path | None,
        *,
        sinks: Iterable[Sink] = (),
        framed: bool = False,
        optimizers: Iterable[Any] = (),
        after_error: Callable[[BaseException], None] | None = None,
        first_logged: int = 0,
    ) -> None:
        options: dict[str, Any] = wanted.of_the_run() | {"path": path, "after_recorded": self._recorded}
        options |= {"optimizers": optimizers, "after_error": after_error}
        if wanted.doctor:
            options["after_each"] = self._ended
        self.recording: RunRecording = (FramedRunRecording if framed else RunRecording)(model, **options)
        self.report: TrainingReport | None = None
        self.notes: list[str] = []
        self._wanted, self._sinks = wanted, list(sinks)
        self._visit = Visit(model) if wanted.doctor else None
        self._first_logged = first_logged  # the number under which loggers of this trainer have the first step
        self._state, self._process = "new", 0

    # -- for the program -----------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        """The folder of the run."""
        return self.recording.path

    @property
    def running(self) -> bool:
        """True from the beginning of the training to its end, in the process that began it."""
        return self._state == "running" and self._process == os.getpid()

    def end(self, error: BaseException | None = None) -> TrainingReport | None:
        """End the watch: write what was recorded, the page and the report. A second call does nothing.

        Args:
            error: The exception that ended the training, if one did.
        Returns:
            The report; None if the watch never began.
        """
        if self.running:  # a process that was forked off leaves the files to the one that began
            self._state = "over"
            self._end(error)
        return self.report

    def __enter__(self) -> TrainingWatch:
        """The watch itself, which runs already; leaving the block ends it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.end(error)

    def _sections(self) -> Iterator[Section]:
        if self.report is not None:
            yield from self.report._sections()
            return
        state = {"new": "not begun", "running": "still running"}.get(self._state, "over")
        recorded = f"{self.recording.recorded:,} of {self.recording.steps_ended:,} steps recorded"
        text = f"watch of a training, {state}: {recorded}"
        yield Lines([text if self.path is None else f"{text} in {self.path}"], notes=self.notes)

    # -- for callbacks -------------------------------------------------------------------------------------------------

    def _begin(self) -> TrainingWatch:
        """Begin. This alone may raise: the folder cannot be made, or another run is recorded."""
        if self._visit is not None:
            self._visit.__enter__()  # first: recordings end in the reverse order of their beginning
        try:
            self.recording.__enter__()
        except BaseException:
            if self._visit is not None:
                self._visit.__exit__(None, None, None)
            raise
        self._state, self._process = "running", os.getpid()
        return self

    @property
    def _frame(self) -> FramedRunRecording:
        """The recording that is told when steps begin and end; for a watch that was made with `framed`."""
        assert isinstance(self.recording, FramedRunRecording)
        return self.recording

    # -- while it runs -------------------------------------------------------------------------------------------------

    def _recorded(self, row: dict[str, Number]) -> None:
        """A step was recorded."""
        figures, number = figures_of(row), int(row["number"] or 0) + self._first_logged
        for sink in list(self._sinks):
            with self._attempt(f"logging to {sink.name}", sink):
                sink.log(figures, number)

    def _ended(self, number: int) -> None:
        """A step has ended, recorded or not."""
        if self._wanted.doctor is not True and self.recording.steps_ended >= self._wanted.doctor:
            self.recording._count_only()
            self._leave_doctor(None)

    def _leave_doctor(self, error: BaseException | None) -> None:
        if self._visit is not None and self._visit._begun:
            with self._attempt("the doctor"):
                self._visit.__exit__(None if error is None else type(error), error, None)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _end(self, error: BaseException | None) -> None:
        with self._attempt("ending the recording"):
            self.recording.__exit__(None if error is None else type(error), error, None)
        self._leave_doctor(error)
        findings = None
        with self._attempt("the doctor"):
            findings = None if self._visit is None else self._visit.findings
        if self._visit is not None and self.recording.recorded:
            until = "all steps" if self._wanted.doctor is True else f"the first {self._wanted.doctor:,} steps"
            self.notes.append(f"the doctor watched {until}: their times include its work")
        if not self.recording.steps_ended:
            self._warn(f"the training ended without a step: {self._why_none()}")
        elif not self.recording.recorded and self._wanted.steps:
            self._warn(f"no step was recorded: {self.recording.steps_ended:,} ended, and none of them is in steps=")
        report = TrainingReport(None, (), findings, (), ())
        with self._attempt("reading the run"):
            report = self._read(report)
        with self._attempt("writing the page"):
            report = self._write_page(report)
        with self._attempt("writing the report"):
            report = self._write(report)
        self.report = replace(report, notes=tuple(self.notes))
        for sink in self._sinks:
            with self._attempt(f"logging to {sink.name}"):
                sink.finish(self.report)
        self.report = replace(report, notes=tuple(self.notes))
        self._visit = None
        self._sinks.clear()

    def _why_none(self) -> str:
        if not (strangers := self.recording._strangers):
            return "no optimizer of torch stepped while it was watched"
        watched = ", ".join(sorted(type(one).__name__ for one in self.recording._given or ())) or "one that is gone"
        return f"another optimizer stepped ({', '.join(sorted(strangers))}) than those that are watched ({watched})"

    def _read(self, report: TrainingReport) -> TrainingReport:
        assert self.path is not None
        run = Run.load(self.path)
        graph: Graph | None = run.graph() if len(run) and (run.kept or run.structures) else None
        return replace(report, run=run, graph=graph, modules=module_shares(run, graph))

    def _write_page(self, report: TrainingReport) -> TrainingReport:
        if not self._wanted.page or report.run is None or report.graph is None:
            return report
        page = report.run.save(report.run.path.with_suffix(".html"))
        return replace(report, files=(*report.files, page))

    def _write(self, report: TrainingReport) -> TrainingReport:
        assert self.path is not None
        path = self.path.with_suffix(".txt")
        report = replace(report, files=(*report.files, path), notes=tuple(self.notes))
        with replacing(path) as file:
            file.write(f"{report}\n".encode())
        return report

    @contextmanager
    def _attempt(self, what: str, sink: Sink | None = None) -> Iterator[None]:
        """Keep exceptions of ours, and of loggers, from the training. A logger that fails is left out from then on."""
        try:
            yield
        except Exception as error:
            if sink is not None:
                self._sinks.remove(sink)
            self._warn(f"{what} failed, and the training goes on: {type(error).__name__}: {error}")

    def _warn(self, text: str) -> None:
        self.notes.append(text)
        warn(text)


def warn(text: str) -> None:
    """Warn, also where warnings are errors: ours must not end the training."""
    with suppress(RuntimeWarning):
        warnings.warn(f"torchatlas: {text}", RuntimeWarning, stacklevel=3)
