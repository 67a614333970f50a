"""`with atlas.recording(model, every=100) as run:`: watch a program step by step, for as long as it trains.

A step ends when an optimizer has stepped, or when `run.step()` is called. Every recorded step is a `Recording` of its
own; between two of them nothing is on the dispatcher, and only two hooks of torch's optimizers are left. Whatever fails
in here ends the recording and never the program.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import warnings
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as optimizers

from torchatlas.capturing import patches, pausing
from torchatlas.capturing import recording as recording_of
from torchatlas.capturing.recording import Recording
from torchatlas.errors import InvalidInputError, InvalidModelError, StateError
from torchatlas.escapes import clean
from torchatlas.graph.formats import as_path, suffix_of
from torchatlas.graph.shown import Shown
from torchatlas.interrupts import Bracket, signals_deferred
from torchatlas.runs.device import DeviceMeter
from torchatlas.runs.journal import FORMAT, VERSION, Beginning, Number, free_path
from torchatlas.runs.keeper import Keeper, RecordedStep
from torchatlas.runs.step_events import Listener, gradient_norms, has_closure, scalar
from torchatlas.sections import Lines, Section
from torchatlas.torch_private import current_autograd_node, dispatch_mode_stack, never_compiled

KEEPS = ("structure", "full")
MOST_OPS = 1_000_000  # of a step: one that nobody ends would fill the memory
_LIVE: weakref.WeakSet[RunRecording] = weakref.WeakSet()


class RunRecording(Shown, Bracket["RunRecording"]):
    """Records the steps of a program into a folder. `path` is the folder; `atlas.load(run.path)` reads it."""

    _framed = False  # steps are begun and ended by calls, and by nothing else: see framed_recording.py

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        every: int | None = None,
        steps: Iterable[int] | None = None,
        keep: str = "structure",
        last: int = 3,
        gradients: bool = False,
        path: str | os.PathLike[str] | None = None,
        native: bool | None = None,
        optimizers: Iterable[Any] = (),
        after_each: Callable[[int], None] | None = None,
        after_recorded: Callable[[dict[str, Number]], None] | None = None,
        after_error: Callable[[BaseException], None] | None = None,
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise InvalidModelError(f"recording(model) takes a torch.nn.Module, not {type(model).__name__}.")
        if every is not None and steps is not None:
            raise InvalidInputError("every= and steps= both say which steps to record: leave one out.")
        every = 1 if every is None else every
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InvalidInputError(f"every={every!r}: record every step (1), every second (2), every hundredth (100).")
        if keep not in KEEPS:
            raise InvalidInputError(f"keep={keep!r} is not one of {', '.join(map(repr, KEEPS))}.")
        if isinstance(last, bool) or not isinstance(last, int) or last < 0:
            raise InvalidInputError(f"last={last!r}: how many of the last steps to keep in full, 0 or more.")
        if path is not None and suffix_of(as_path(path)) != ".atlas":
            raise InvalidInputError(f"path={os.fspath(path)!r}: the folder of a run ends in .atlas, such as run.atlas.")
        self.model, self.every, self.keep, self.last, self.gradients = model, every, keep, last, gradients
        self.path: Path | None = None if path is None else as_path(path)
        self.notes: list[str] = []
        self._steps = None if steps is None else _step_numbers(steps)
        self._idle_until: float = 0  # no step before this one is recorded, nor told of: steps are only counted
        self._native = native
        # Whom to tell: of each step that ends, of a recorded one with its row, of an exception. They must not raise.
        self._tell_each, self._tell_recorded, self._tell_error = after_each, after_recorded, after_error
        self._state = "new"
        self._keeper: Keeper | None = None
        self._number = 0  # of the step that runs
        self._ended = 0  # how many steps have ended
        self._in_step = False  # of a framed run
        self._stepped = False  # an optimizer has, in the step that runs
        self._pause: AbstractContextManager[None] | None = None
        self._pause_began_ns = self._paused_ns = 0
        self._recording: Recording | None = None  # of the step that runs
        self._listener = Listener(self)
        self._listens = self._always_listens = False
        self._by_hand = False  # run.step() ends steps, and nothing else does
        self._ends_after_backward = False
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._newest: Any = None  # weak: the optimizer that was last to step for the first time, or the last given one
        given = list(optimizers)
        self._given: weakref.WeakSet[Any] | None = None  # others belong to other loops
        self._strangers: set[str] = set()  # classes of others that stepped
        if given:
            self._given, self._newest = weakref.WeakSet(given), weakref.ref(given[-1])
            self._optimizers.update(given)
        self._began_ns = self._step_began_ns = 0
        self._unrecorded_ns = self._unrecorded = 0  # of the steps since the last that was recorded
        self._loss: float | None = None
        self._norms: dict[int, dict[str, float]] = {}  # by id of the optimizer
        self._meter = DeviceMeter()
        self._thread, self._process, self._depth = 0, 0, 0
        self._hooks: list[Any] = []

    # -- for the program -----------------------------------------------------------------------------------------------

    @property
    def recorded(self) -> int:
        """How many steps were recorded so far."""
        return 0 if self._keeper is None else self._keeper.count

    def _count_only(self) -> None:
        """Let unrecorded steps be counted only, which is quicker."""
        self._tell_each = None

    @property
    def running(self) -> bool:
        """True while steps are recorded: from entering to leaving, unless something failed."""
        return self._state == "running"

    def step(self) -> None:
        """End the step that runs, in a loop without one of torch's optimizers.

        From the first call on, optimizers end no steps.

        Raises:
            StateError: The run has not begun.
        """
        if self._state == "new":
            raise StateError("This run has not begun: with atlas.recording(model, every=1) as run: ...")
        if not self._is_here():
            return
        with self._guarded():
            by_hand, self._by_hand, self._idle_until = self._by_hand, True, 0
            nothing_ran = self._recording is not None and not self._recording.length
            if not by_hand and self._number and nothing_ran:
                return  # the optimizer's step before this call has just ended the same step
            self._end_step()

    @property
    def steps_ended(self) -> int:
        """How many steps have ended so far, recorded or not."""
        return self._ended

    def _end_pause(self) -> None:
        if self._pause_began_ns:
            self._paused_ns += time.perf_counter_ns() - self._pause_began_ns
            self._pause_began_ns = 0
        pause, self._pause = self._pause, None
        if pause is not None and self._recording is not None:
            pause.__exit__(None, None, None)
            patches.join(self._recording._watch, self._recording._recorder.current)
            self._listen(True)

    def flush(self) -> None:
        """Write what was recorded so far to the disk. It is written every few seconds anyway."""
        if self._is_here() and self._keeper is not None:
            with self._guarded():
                self._keeper.flush()

    def _sections(self) -> Iterator[Section]:
        state = {"new": "not begun", "running": "still running"}.get(self._state, "over")
        where = f" in {clean(str(self.path))}" if self.path is not None else ""
        lines = [f"recording of a run, {state}: {self.recorded:,} step{'s' * (self.recorded != 1)} recorded{where}"]
        if self._state == "over":
            lines.append(f"atlas.load({str(self.path)!r}) reads it")
        yield Lines(lines, notes=self.notes)

    # -- beginning and end ---------------------------------------------------------------------------------------------

    def _begin(self) -> RunRecording:
        if self._state != "new":
            raise StateError("This run was recorded already; make a new one with atlas.recording(every=...).")
        self._thread, self._process = threading.get_ident(), os.getpid()
        if any(run._state == "running" and run._is_here() for run in _LIVE):
            raise StateError("A run is being recorded already: its steps cannot be those of a second one, too.")
        self.path = free_path() if self.path is None else self.path
        self.path = self.path.absolute()  # the program may go to another folder
        self._keeper = Keeper(self.path, self._beginning())
        self._state, self._depth = "running", len(dispatch_mode_stack())
        _LIVE.add(self)
        try:
            self._hooks = [optimizers.register_optimizer_step_pre_hook(self._before_step)]
            self._hooks.append(optimizers.register_optimizer_step_post_hook(self._after_step))
            self._began_ns = time.perf_counter_ns()
            if not self._framed:
                self._begin_step()
        except BaseException:
            self._detach(None)
            raise
        return self

    def _beginning(self) -> Beginning:
        from torchatlas import __version__

        model = "" if self.model is None else type(self.model).__name__
        version = torch.__version__.partition("+")[0]
        return Beginning(FORMAT, VERSION, __version__, version, model, self.every, self.keep, self.last, time.time())

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        was_running = self._state == "running" and self._process == os.getpid()
        recording = self._detach(error)
        if not was_running:
            return
        with self._guarded():
            assert self._keeper is not None
            failed = error is not None and not _is_success(error)
            if recording is not None and (failed or not self.recorded) and recording.length:
                self._keeper.take(self._recorded_step(recording, time.perf_counter_ns(), finished=False))
            if not self._ended:
                how = "" if self._framed else " run.step() ends one by hand."
                self._note(f"no step ended: no optimizer stepped in this thread.{how}")
            elif not self.recorded and self._steps is not None:
                self._note(f"no step was recorded: {self._ended:,} ended, and none of them was asked for by steps=.")
            self._keeper.end("failed" if failed else "finished", self._ending(error, recording))
        self._state = "over"

    def _ending(self, error: BaseException | None, recording: Recording | None) -> str:
        """What ended the program early, and where."""
        if error is None or _is_success(error):
            return ""
        message = str(error).strip()  # that of a Ctrl-C is empty
        text = f"{type(error).__name__}{': ' if message else ''}{message}"[:1000]
        if recording is None:
            return f"step {self._number:,}, which was not recorded: {text}"
        where = f", at {recording.failure._headline()}" if recording.failure is not None else ""
        return f"step {self._number:,}: {text}{where}"[:5000]

    def _detach(self, error: BaseException | None) -> Recording | None:
        """Leave torch as it was found. Returns the recording of the step that ran."""
        self._state, self._idle_until = "over", 0
        _LIVE.discard(self)
        while self._hooks:
            self._hooks.pop().remove()
        self._end_pause()
        recording, self._recording = self._recording, None
        if recording is not None:
            recording._ended_ns = time.perf_counter_ns()
            recording._close(error)
        self._listen(False)
        self.model = None
        return recording

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _is_chosen(self, number: int) -> bool:
        return number % self.every == 0 if self._steps is None else self._next_chosen(number - 1) == number

    def _next_chosen(self, number: int) -> float:
        """The first step after this one that is to be recorded."""
        if self._steps is None:
            return (number // self.every + 1) * self.every
        at = bisect_right(self._steps, number)
        return self._steps[at] if at < len(self._steps) else math.inf

    def _find_idle_steps(self) -> None:
        busy = self._recording is not None or self._tell_each is not None or self._by_hand or self._always_listens
        self._idle_until = 0 if busy or self._state != "running" else self._next_chosen(self._number)

    def _begin_step(self) -> None:
        if self._recording is not None:  # it has followed that of the step before
            self._meter.begin()
            self._recording._began_ns = time.perf_counter_ns()
        elif self._is_chosen(self._number):
            self._listen(True)
            recording = recording_of(self.model, native=self._native).start()
            self._recording = recording
            self._lower(recording)
            self._meter.begin()
        elif not self._always_listens:
            self._listen(False)
        self._loss = None
        self._norms.clear()
        self._stepped, self._paused_ns = False, 0
        self._find_idle_steps()
        self._step_began_ns = time.perf_counter_ns()

    def _lower(self, recording: Recording) -> None:
        """Put the mode of a recording below modes that the program has entered since the run began, and will leave."""
        stack = dispatch_mode_stack()
        inner = stack[self._depth : -1]
        if inner and stack[-1] is recording._recorder.mode:
            pausing._exchange([*inner, stack[-1]], [stack[-1], *inner])

    def _end_step(self, finished: bool = True) -> None:
        now = time.perf_counter_ns()
        self._end_pause()
        recording, self._recording = self._recording, None
        number, row = self._number, None
        if recording is None:
            self._end_unrecorded()
        else:
            assert self._keeper is not None
            recording._ended_ns = now
            self._recording = self._follow(recording) if finished else None
            if self._recording is None:
                recording._close(None)
            with nullcontext() if self._recording is None else pausing.looking_away():
                row = self._keeper.take(self._recorded_step(recording, now, finished))
            self._number += 1
            self._ended += 1
        if self._framed:
            self._listen(False)
            self._in_step = False
        if row is not None and self._tell_recorded is not None:
            self._tell_recorded(row)
        if self._tell_each is not None:
            self._tell_each(number)
        if not self._framed:
            self._begin_step()

    def _follow(self, recording: Recording) -> Recording | None:
        """The recording of the next step, begun where that of this one ended; None if there is none, or if code of
        somebody else may run in between."""
        must_tell = self._tell_recorded is not None or self._tell_each is not None
        if must_tell or self._framed or not self._begins_next:
            return None
        following = recording_of(self.model, native=self._native)
        return following if following.follow(recording) else None

    def _recorded_step(self, recording: Recording, now: int, finished: bool) -> RecordedStep:
        assert self._keeper is not None
        figures: dict[str, Number] = {
            "number": self._number,
            "start_ns": self._step_began_ns - self._began_ns,
            "wall_ns": now - self._step_began_ns - self._paused_ns,
            "process_bytes": self._keeper.resident.bytes(),
            "loss": self._loss,
        }
        if self._unrecorded:
            figures["unrecorded_ns"] = self._unrecorded_ns // self._unrecorded
            self._unrecorded = self._unrecorded_ns = 0
        norms: dict[str, float] | None = None
        if self._norms:
            norms = {}
            for optimizer_norms in self._norms.values():
                for path, norm in optimizer_norms.items():
                    norms[path] = math.hypot(norms.get(path, 0.0), norm)
        return RecordedStep(self._number, recording, finished, figures, self._meter.end(), norms)

    @never_compiled
    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Before an optimizer's step: its gradients are complete. And see to it that our other hook is the last one:
        it begins and ends recordings, which adds and removes hooks, and torch is going through them then."""
        if self._number + 1 < self._idle_until or not self._is_here() or not self._counts(optimizer):
            return
        if not self._is_busy and not self._begins_next:
            return
        hook = self._hooks[1]
        if not self.gradients and next(reversed(optimizers._global_optimizer_post_hooks)) == hook.id:
            return
        with self._guarded():
            if next(reversed(optimizers._global_optimizer_post_hooks)) != hook.id:
                hook.remove()
                self._hooks[1] = optimizers.register_optimizer_step_post_hook(self._after_step)
            if self.gradients and self._recording is not None and not has_closure(args, kwargs):
                self._measure_gradients(optimizer, self._recording)

    @property
    def _is_busy(self) -> bool:
        """True if the end of the step that runs is more than counting it."""
        return self._recording is not None or self._tell_each is not None

    @property
    def _begins_next(self) -> bool:
        """True if the step after the one that runs is to be recorded."""
        return self._is_chosen(self._number + 1)

    def _counts(self, optimizer: Any) -> bool:
        return self._given is None or optimizer in self._given

    def _ends_step(self, optimizer: Any) -> bool:
        """True if a step of this optimizer, which is known, ends a step of the run."""
        return (
            self._newest is not None and self._newest() is optimizer and not self._by_hand and not self._always_listens
        )

    def _end_unrecorded(self) -> None:
        now = time.perf_counter_ns()
        self._unrecorded_ns += now - self._step_began_ns - self._paused_ns
        self._unrecorded += 1
        self._number += 1
        self._ended += 1
        self._step_began_ns = now

    def _measure_gradients(self, optimizer: Any, recording: Recording) -> None:
        try:
            with recording.paused(), torch.no_grad():
                self._norms[id(optimizer)] = gradient_norms(optimizer, recording.parameter_names())
        except (RuntimeError, NotImplementedError, TypeError) as error:  # tensors that have no norm: fake, or of a kind
            self.gradients = False
            self._note(f"gradient norms could not be computed from step {self._number:,} on: {_reason(error)}")

    @never_compiled
    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._number + 1 < self._idle_until and get_ident() == self._thread:  # what most steps of a long run are
            if self._framed:
                self._stepped = self._stepped or self._counts(optimizer)
                return
            if self._newest is not None and self._newest() is optimizer:
                self._end_unrecorded()
                return
        if not self._is_here():
            return
        if not self._counts(optimizer):
            self._strangers.add(type(optimizer).__name__)
            return
        self._stepped = True
        if self.gradients and self._recording is not None and has_closure(args, kwargs):
            with self._guarded():  # only now: the closure has made them
                self._measure_gradients(optimizer, self._recording)
        if self._framed:
            return
        with self._guarded():
            if optimizer not in self._optimizers:
                self._optimizers.add(optimizer)
                self._newest = weakref.ref(optimizer)
            if self._by_hand:
                return
            if current_autograd_node() is not None:  # a hook of a gradient runs it: the step ends with backward
                self._ends_after_backward = self._always_listens = True
                self._idle_until = 0
                self._listen(True)
            elif self._ends_step(optimizer):
                self._end_step()

    def _after_backward(self, tensors: Any) -> None:
        """Backward was called in the program, and is over."""
        if not self._is_here():
            return
        if self._recording is not None:
            try:
                self._loss = self._recording.unrecorded(scalar, tensors)
            except Exception as error:
                self._give_up(error)
        if self._ends_after_backward and current_autograd_node() is None:
            self._ends_after_backward = False
            with self._guarded():
                self._end_step()

    def _after_error(self, error: BaseException) -> None:
        """An exception has left a module or a backward pass that the program called."""
        if self._tell_error is not None and self._is_here() and current_autograd_node() is None:
            self._tell_error(error)

    def _before_call(self) -> None:
        """The program is about to call a module, from outside of any."""
        if self._recording is not None and self._recording.length > MOST_OPS and self._is_here():
            with self._guarded():
                assert self._keeper is not None
                self._note(
                    f"step {self._number:,} was cut after {self._recording.length:,} ops: no optimizer had stepped. "
                    "run.step() ends a step by hand."
                )
                self._end_step(finished=False)

    # -- what must not disturb the program -----------------------------------------------------------------------------

    def _is_here(self) -> bool:
        """True in the thread and process that began the run, while it is recorded."""
        return self._state == "running" and self._thread == threading.get_ident() and self._process == os.getpid()

    def _listen(self, wanted: bool) -> None:
        if wanted and not self._listens:
            patches.join(self._listener, [-1, None])
        elif self._listens and not wanted:
            patches.leave(self._listener)
        self._listens = wanted

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """What fails in here ends the recording, not the program. Signals wait."""
        with signals_deferred():
            try:
                yield
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        text = f"recording of the run stopped at step {self._number:,}, and the program goes on: {_reason(error)}"
        try:
            self._detach(None)
            if self._keeper is not None:
                self._keeper.abandon(text)
        finally:
            self.notes.append(text)
            with contextlib.suppress(RuntimeWarning):  # if warnings are errors in this program, ours must not end it
                warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        if self._keeper is not None:
            self._keeper.note(text)

    def _leave_child(self) -> None:
        """In a forked process: stop recording, and write nothing."""
        self._state, self._idle_until = "over", 0
        if threading.get_ident() == self._thread and self._recording is not None:
            self._recording._close(None)
            self._recording = None
            self._listen(False)


def _after_fork() -> None:
    for run in list(_LIVE):
        run._leave_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _step_numbers(steps: Iterable[int]) -> Sequence[int]:
    """The numbers of steps that were asked for, in order."""
    if isinstance(steps, range) and steps.step > 0 and steps.start >= 0:
        return steps
    numbers = list(steps) if isinstance(steps, Iterable) and not isinstance(steps, (str, bytes)) else [None]
    if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers):
        raise InvalidInputError(f"steps={steps!r}: give the numbers of steps, such as {{0, 100}} or range(10).")
    return sorted({number for number in numbers if number is not None})


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
    return f"{type(error).__name__}: {error}"


def _is_success(error: BaseException) -> bool:
    """True if the program ran to its end all the same: many end in sys.exit(main()), and main returns None or 0."""
    return isinstance(error, SystemExit) and error.code in (None, 0)
