"""The part of a callback that is the same for all trainers: its arguments, its watch, and that it never raises.

A callback begins a TrainingWatch when the training begins, in the trainer's folder, and ends it with the training.
Every training gets a folder of its own: run.atlas, run-2.atlas ...
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from torchatlas.argument_errors import explains_arguments
from torchatlas.integrations.loggers import Sink, sinks_of
from torchatlas.integrations.training_report import TrainingReport
from torchatlas.integrations.training_watch import TrainingWatch, Wanted, warn
from torchatlas.runs.framed_recording import FramedRunRecording
from torchatlas.runs.journal import free_path

# Watches that a callback began, each with the training that it watches.
_LIVE: weakref.WeakKeyDictionary[TrainingWatch, weakref.ref[Any]] = weakref.WeakKeyDictionary()


class TrainingCallback:
    """Records chosen steps of a training, with times and memory by module, to files and to the trainer's loggers.

    Args:
        every: Record every such step; each hundredth unless `every` or `steps` is given.
        steps: Or record the steps with these numbers: {0, 100, 5000}, or range(10) for the first ten.
        doctor: Look for faults: True in the whole training, or a number of first steps. It watches every op, which
            takes time.
        gradients: Also record the norms of gradients.
        keep: "structure" keeps a graph per structure, "full" every recorded step as a graph.
        last: How many of the last recorded steps are kept in full.
        path: The folder of the run, such as "run.atlas"; None is run.atlas in the trainer's own folder. A second
            training goes to run-2.atlas.
        page: Also write the viewer's page beside it, when the training ends.
        loggers: Loggers to write to; None takes those of the trainer, () none.
        ranks: Of several processes, "first" lets the first one record, "all" every one into a folder of its own.
    Raises:
        InvalidInputError: An argument does not fit.
    """

    @explains_arguments
    def __init__(
        self,
        *,
        every: int | None = None,
        steps: Iterable[int] | None = None,
        doctor: bool | int = False,
        gradients: bool = True,
        keep: str = "structure",
        last: int = 3,
        path: str | os.PathLike[str] | None = None,
        page: bool = True,
        loggers: Sequence[Any] | None = None,
        ranks: str = "first",
    ) -> None:
        super().__init__()
        self._wanted = Wanted(every, steps, doctor, gradients, keep, last, path, page, loggers, ranks)
        self.watch: TrainingWatch | None = None  # of the training that runs, or of the last one
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._chosen_sinks = None if loggers is None else sinks_of(loggers)

    @property
    def report(self) -> TrainingReport | None:
        """What came of the last training; None before its end, and on ranks that do not record."""
        return None if self.watch is None else self.watch.report

    def _begin(
        self,
        training: object,
        model: nn.Module | None,
        folder: Callable[[], str | os.PathLike[str]],
        rank: int,
        own_sinks: Callable[[Path], list[Sink]],
        *,
        after_error: Callable[[BaseException], None] | None = None,
        first_logged: int = 0,
    ) -> None:
        """The training begins. `training` is an object that no other training has.

        Another training that nobody ended is ended, also of another callback. A second callback in one training does
        nothing.
        """
        self._end()
        self.watch = None
        for other, watched in list(_LIVE.items()):
            if other.running and other.recording._is_here():
                if watched() is training:
                    warn(f"this training is recorded already, in {other.path}: a second AtlasCallback does nothing")
                    return
                other.end()
        if rank and self._wanted.ranks == "first":
            return
        try:
            path = free_path(ranked(Path(self._wanted.path or Path(folder()) / "run.atlas"), rank))
            path.absolute().parent.mkdir(parents=True, exist_ok=True)
            sinks = [] if rank else self._sinks(lambda: own_sinks(path))
            options: dict[str, Any] = {"sinks": sinks, "after_error": after_error, "first_logged": first_logged}
            self.watch = TrainingWatch(self._wanted, model, path, framed=True, **options)._begin()
            self._finalizer = weakref.finalize(self, self.watch.end)  # also at the end of the process
            _LIVE[self.watch] = weakref.ref(training)
        except Exception as error:
            warn(f"this training is not recorded: {type(error).__name__}: {error}")

    def _sinks(self, own_sinks: Callable[[], list[Sink]]) -> list[Sink]:
        if self._chosen_sinks is not None:
            return list(self._chosen_sinks)
        try:
            return own_sinks()
        except Exception as error:  # a logger that is not as we know it
            warn(f"this training is recorded to files alone: {type(error).__name__}: {error}")
            return []

    @property
    def _frame(self) -> FramedRunRecording | None:
        """The recording that is told when steps begin and end; None while nothing is watched."""
        return self.watch._frame if self.watch is not None and self.watch.running else None

    def _end(self, error: BaseException | None = None) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None
        if self.watch is not None:
            self.watch.end(error)

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or the callback in another process, watches nothing yet."""
        return {**vars(self), "watch": None, "_finalizer": None}


def ranked(path: Path, rank: int) -> Path:
    """The folder of a rank: the first has the name itself.

    >>> str(ranked(Path("run.atlas"), 0)), str(ranked(Path("run.atlas"), 2))
    ('run.atlas', 'run-rank2.atlas')
    """
    return path.with_name(f"{path.name.removesuffix('.atlas')}-rank{rank}.atlas") if rank else path
