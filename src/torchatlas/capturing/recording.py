"""`atlas.recording`: record whatever code runs between entering and leaving a `with` statement."""

from __future__ import annotations

import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import nn

from torchatlas.argument_errors import explains_arguments
from torchatlas.capturing.module_calls import Watch
from torchatlas.capturing.op_listening import OpClock, OpListener
from torchatlas.capturing.recorded_graph import graph_of
from torchatlas.capturing.recorded_values import VALUES, ValueRecorder
from torchatlas.capturing.recorder import Around, Recorder, let_go
from torchatlas.capturing.replaying import ReplayKeeper
from torchatlas.capturing.restore import Restorer
from torchatlas.capturing.row_schema import Returned
from torchatlas.capturing.table_rows import portable, source_row
from torchatlas.capturing.tensor_roles import parameter_names
from torchatlas.capturing.tensors import parts
from torchatlas.errors import InvalidInputError, InvalidModelError, NotAvailableError, StateError
from torchatlas.escapes import clean, clean_text
from torchatlas.graph import Graph, Phase, SourceLine
from torchatlas.graph.arguments import Call, TensorRef, encode
from torchatlas.graph.columns import PHASES
from torchatlas.graph.nouns import OperationType
from torchatlas.graph.shown import Shown, ShownPart
from torchatlas.graph.timing import Timing
from torchatlas.inputs import argument_names, described, mapped_tensors, named_tensors
from torchatlas.interrupts import Bracket, signals_deferred
from torchatlas.sections import Lines, Section
from torchatlas.torch_private import fake_tensors_run, never_compiled

_SUMS_OUT_OF_PLACE = (
    "while a recording runs, autograd sums gradients that meet out of place (add and detach instead of add_), "
    "so backward allocates a little more than without it"
)
_BEGINNINGS = "the time of a collective is the time to begin it: what waits for it is no op, except wait_tensor"


@dataclass(frozen=True, repr=False)
class Failure(ShownPart):
    """Where a recording ended early."""

    operation: str
    scope: str
    source: SourceLine | None
    message: str

    @property
    def where(self) -> str:
        """The operation, its module and the user's line."""
        module = f" in {self.scope}" if self.scope else ""
        return clean(f"{self.operation}{module}{f' at {self.source}' if self.source else ''}")

    def __str__(self) -> str:
        return f"{self.where}: {clean_text(self.message)}"

    def _headline(self) -> str:
        return str(self).partition("\n")[0]


class Recording(Shown, Bracket["Recording"]):
    """Records what runs between entering and leaving. `graph` is what was recorded, also after an exception."""

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        track_timing: bool = True,
        track_memory: bool = True,
        values: str | None = None,
        native: bool | None = False,
        only_inputs: bool = False,
        guard: Restorer | None = None,
        after_op: Callable[[Any, list[Any]], None] | None = None,
        around: Around | None = None,
        listener: OpListener | None = None,
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise InvalidModelError(f"recording(model) takes a torch.nn.Module, not {described(model)}.")
        self.failure: Failure | None = None
        self._values = ValueRecorder(values) if values in ("stats", "all") else None
        self._replay = ReplayKeeper() if values == "replay" else None
        self._guard, self._after_op, self._around, self._listener = guard, after_op, around, listener
        self._native, self._taken_over = native, ""  # why the recorder in Python took over from the native one
        self._recorder = self._make_recorder()
        self._watch = Watch(
            self._recorder, model, on_model_call=Weakly(self, "arrived"), on_model_result=Weakly(self, "left")
        )
        self._thread = threading.current_thread()
        self._timing, self._memory, self._only_inputs = track_timing, track_memory, only_inputs
        self._input_names: dict[int, str] = {}
        self._unseen = False  # whether ops ran that were not recorded
        self._state = "new"
        self._began_ns = self._ended_ns = 0
        self._fake = False  # whether it began among fake tensors
        self._own_error: BaseException | None = None  # of ours, while it recorded
        self._graph: Graph | None = None

    def _make_recorder(self) -> Recorder:
        guard = None if self._guard is None else self._guard.before_write
        values = self._values or self._replay
        in_python = self._after_op is not None or self._around is not None
        plain = values is None and not in_python
        # Keeping values takes Python at every op: the native recorder does it only if it is asked for.
        native = not in_python and (self._native or (self._native is None and plain))
        recorder: Recorder
        if native and (module := native_module(required=bool(self._native))) is not None:
            from torchatlas.capturing.native.recorder import NativeRecorder

            if guard is None and plain and self._listener is None:
                recorder = NativeRecorder.take()
            else:
                recorder = NativeRecorder(module, guard=guard, listener=self._listener, values=values)
        elif guard is None and plain and self._listener is None:
            recorder = Recorder.take()
        else:
            recorder = Recorder(
                guard=guard,
                keep=self._after_op if self._values is None else self._values.keep,
                around=self._around if self._replay is None else self._replay.around,
                listener=self._listener,
            )
        if self._replay is not None:
            self._replay.recorder = recorder
        if self._guard is not None:
            self._guard.recorder = recorder
        return recorder

    def _take_over(self) -> None:
        """Let the recorder in Python record what the native one could not see."""
        if self._recorder.kind == "native":
            from torchatlas.capturing.native.recorder import missing_here

            keeps_values = self._values is not None or self._replay is not None
            self._taken_over = missing_here(keeps_values) or ""
            if self._taken_over:
                self._native = False
                self._recorder.release()
                self._recorder = self._watch.recorder = self._make_recorder()

    def start(self) -> Recording:
        """Begin to record, as entering the `with` block does.

        Raises:
            StateError: It was started before.
        """
        return self.__enter__()

    def follow(self, other: Recording) -> bool:
        """Begin at the moment at which another recording of this thread ends, and in its place: callbacks and patches
        stay on. False, and nothing has happened, if that cannot be. Called while signals wait."""
        self._take_over()
        if not other._recorder.hand_over(self._recorder):
            return False
        self._thread, self._state, self._fake = other._thread, "running", False
        try:
            self._watch.start(other._watch)
        finally:
            other._watch.finish()
            other._finish(None)
        self._began_ns = time.perf_counter_ns()
        return True

    def stop(self, error: BaseException | None = None) -> None:
        """End the recording, as leaving the `with` block does.

        Args:
            error: The exception that ended the code, if one did: the graph then says where.
        Raises:
            StateError: It does not run.
        """
        with signals_deferred():
            self._stop(error)

    def _begin(self) -> Recording:
        if self._state != "new":
            raise StateError("This recording was used already; make a new one with atlas.recording().")
        self._thread = threading.current_thread()
        self._take_over()
        try:
            self._watch.start()
            self._recorder.start()
        except BaseException:  # what has not begun will not be stopped
            self._close(None)
            raise
        self._state, self._fake = "running", fake_tensors_run()
        self._began_ns = time.perf_counter_ns()
        return self

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._stop(error)
        except StateError:
            if self._state == "running":  # it will not be stopped any more
                self._close(error)
            raise

    def _stop(self, error: BaseException | None) -> None:
        if self._state != "running":
            raise StateError(f"This recording is not running (it is {self._state}).")
        self._ended_ns = time.perf_counter_ns()
        here, is_on = threading.current_thread(), self._recorder.is_on()
        if not is_on and here is not self._thread and self._thread.is_alive():
            raise StateError(
                f"This recording began in thread {self._thread.name!r}: stop it there, not in {here.name!r}."
            )
        if error is None and not self._recorder.is_innermost():
            raise StateError("Recordings end in the reverse order of their beginning; an inner one is still running.")
        self._close(error)
        if error is None and not is_on and here is self._thread:
            raise StateError(
                "This recording began inside a backward pass, in a hook say, and torch ended it with that hook. "
                "Stop it in there, or begin it before backward. `graph` is what it saw."
            )

    def _close(self, error: BaseException | None) -> None:
        self._recorder.stop()
        self._watch.stop()
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        self._own_error = self._recorder.own_error()
        if self._own_error is not None:
            warnings.warn(f"{_own_failure(self._own_error)}.", RuntimeWarning, stacklevel=2)
        if self._replay is not None:
            self._replay.finish()
        self._state = "done"
        if error is not None:
            self.failure = self._describe_failure(error)
            let_go(error)

    def leave_to_parent(self) -> None:
        """In a process that was just forked: end there, without a graph. What was recorded is the parent's."""
        self._recorder.abandon()
        self._watch.abandon()
        self._state = "left"

    def __del__(self) -> None:
        """A recording that is dropped before its graph was asked for gives its recorder back."""
        if getattr(self, "_state", "new") == "running" and not sys.is_finalizing():
            with signals_deferred():
                self._close(None)
            warnings.warn("a recording was dropped while it ran: keep it, and stop it", ResourceWarning, stacklevel=2)
        if getattr(self, "_state", "new") == "done" and self._graph is None:
            self._recorder.release()

    def open_call(self, path: str, type_name: str, outer: int | None) -> int:
        """A call of a module that is known by path and class only, inside another or the one that runs."""
        return self._watch.call_named(path, type_name, self._recorder.current[0] if outer is None else outer)

    @contextmanager
    def inside(self, call: int | None) -> Iterator[None]:
        """A context in which ops belong to this call."""
        current = self._recorder.current
        before = current[0]
        if call is not None:
            current[0] = call
        try:
            yield
        finally:
            current[0] = before

    def leaves_with_new_gradients(self) -> list[torch.Tensor]:
        """Tensors from outside whose gradient was made during the run."""
        return self._recorder.numbers.leaves_with_new_gradients()

    @property
    def running(self) -> bool:
        """Whether it records at this moment."""
        return self._state == "running"

    def _sections(self) -> Iterator[Section]:
        state = {"new": "not begun", "running": "still running"}.get(self._state, "over")
        lines = [f"recording, {state}"]
        if self.failure is not None:
            lines.append(f"it ended early: {self.failure._headline()}")
        if state == "over":
            lines.append(f"graph: {self.graph!r}")
        yield Lines(lines)

    def paused(self) -> AbstractContextManager[None]:
        """A context in which nothing that this thread runs is recorded."""
        return self._recorder.paused()

    def unrecorded(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """What a function returns that runs in this thread and is not recorded."""
        return self._recorder.unrecorded(function, argument)

    def start_in_place_of(self, other: Recording) -> None:
        """Stop another recording of this thread and begin where it was: those that began after it go on."""
        with other._recorder.above_lifted():
            other.stop()
            self.start()
        self._recorder.succeed(other._recorder)

    @property
    def length(self) -> int:
        """Roughly how many ops it has seen so far."""
        return self._recorder.length

    @property
    def clock(self) -> OpClock:
        """Counts the ops, if there is a listener."""
        return self._recorder.clock

    @property
    def in_step(self) -> bool:
        """True while one of torch's optimizers is at work, and not a closure that it calls."""
        return self._recorder.current[1] is not None

    def storage_id(self, tensor: torch.Tensor) -> int | None:
        """The id in `graph.storages` of what a tensor lies in, while the recording runs; None if it was not seen."""
        return self._recorder.numbers.storage_number(tensor)

    def live_storages(self) -> list[int] | None:
        """The ids of the storages that were made meanwhile and are still there; None if the recorder cannot tell."""
        return self._recorder.numbers.live_storages()

    def parameter_names(self) -> dict[int, str]:
        """The names of the parameters of all modules that ran, by the ids of the tensors. Ask before `graph`."""
        return parameter_names(self._watch)

    @property
    def graph(self) -> Graph:
        """The graph of what was recorded, or was recorded so far; decoded when first asked for."""
        if self._state == "new":
            raise StateError(
                "Nothing was recorded yet: enter the recording first (with atlas.recording() as rec: ...)."
            )
        if self._graph is not None:
            return self._graph
        graph = graph_of(
            self._recorder,
            self._watch,
            input_names=self._input_names,
            only_inputs=self._only_inputs,
            unseen=self._unseen,
            timing=self._timing,
            memory=self._memory,
        )
        if self._fake:
            from torchatlas.capturing.fake import without_pretence

            without_pretence(graph)
        graph.metadata["recorder"] = self._recorder.kind
        graph.notes += self._notes(graph)
        if self._timing and self._state == "done" and graph.time_ns is not None:
            graph.timing = Timing(recorded_ns=(self._ended_ns - self._began_ns,))
        if self._values is not None:
            graph.recorded = self._values.recorded(graph)
        if self._replay is not None:
            graph.recorded = self._replay.recorded(graph)
        if self._state == "done":
            self._graph = graph
            self._recorder.release()
            del self._recorder, self._watch
        return graph

    @never_compiled
    def arrived(self, args: tuple[Any, ...], kwargs: dict[str, Any], model: Callable[..., Any] | None = None) -> None:
        """Note the tensors of a call as inputs, under the names the model gives them."""
        target = model or self._watch.model
        named = argument_names(target, args, kwargs) if target is not None else {"input": args, **kwargs}
        for name, tensor in named_tensors(named):
            for suffix, part in parts(tensor):
                self._input_names.setdefault(self._recorder.numbers.number_of(part), name + suffix)

    @never_compiled
    def left(self, result: Any) -> None:
        """Note the tensors of a result as outputs."""
        numbers: list[int] = []

        def place(tensor: torch.Tensor) -> TensorRef | dict[str, TensorRef]:
            first, plain = len(numbers), dict(parts(tensor))
            numbers.extend(self._recorder.numbers.number_of(part) for part in plain.values())
            if self._replay is not None:
                self._replay.returned(list(plain.values()))
            references = {suffix.removeprefix("."): TensorRef(first + i) for i, suffix in enumerate(plain)}
            return references if len(references) > 1 else TensorRef(first)

        structure = mapped_tensors(result, place)
        if numbers:
            text = encode(Call((_portable_structure(structure),)))
            self._recorder.note(Returned(numbers, text))

    def _describe_failure(self, error: BaseException) -> Failure | None:
        failure = self._recorder.failure_of(error)
        if failure is None:
            return None
        name, message, call, code, at = failure
        owner = self._watch.owners[self._watch.call_owner[call]] if call >= 0 else None
        source = source_row(code, at) if code is not None else None
        return Failure(name, owner.path if owner else "", source, message)

    def _notes(self, graph: Graph) -> list[str]:
        notes = []
        native = self._recorder.kind == "native"
        if not native and (graph.columns["node_phase"] == PHASES.index(Phase.BACKWARD)).any():
            notes.append(_SUMS_OUT_OF_PLACE)
        if native and (reasons := self._recorder.taken_over):
            why = ", ".join(dict.fromkeys(reasons))
            notes.append(f"the recorder in Python took over from the native one in the middle: {why}")
        if self._own_error is not None:
            notes.append(_own_failure(self._own_error))
        if self._taken_over:
            notes.append(f"recorded by the recorder in Python, not the native one: {self._taken_over}")
        if self.failure is not None:
            notes.append(f"the program stopped at {self.failure}")
        handled = self._recorder.handled[: -1 if self.failure is not None else None]
        if handled:
            notes.append(f"raised and handled by the program: {', '.join(dict.fromkeys(handled))}")
        if self._timing and any(operation.type == OperationType.COMMUNICATION for operation in graph.tables.operations):
            notes.append(_BEGINNINGS)
        devices = {device.partition(":")[0] for device in graph.tables.devices} - {"cpu", "meta"}
        if devices and self._timing:
            notes.append(f"time on {', '.join(sorted(devices))} is launch time on the host, not time on the device")
        return notes


class Weakly:
    """A method of a recording, for code that must not keep the recording alive."""

    def __init__(self, recording: Any, name: str) -> None:
        self.reference, self.name = weakref.ref(recording), name

    @never_compiled
    def __call__(self, *args: Any) -> None:
        if (recording := self.reference()) is not None:
            getattr(recording, self.name)(*args)


def _own_failure(error: BaseException) -> str:
    return (
        f"a fault of torchatlas: the native recorder met {type(error).__name__}: {error}; ops may be missing or "
        "incomplete. native=False records in Python"
    )


def _portable_structure(tree: Any) -> Any:
    if isinstance(tree, TensorRef):
        return tree
    if isinstance(tree, list):
        return [_portable_structure(part) for part in tree]
    if isinstance(tree, tuple):
        return tuple(_portable_structure(part) for part in tree)
    if isinstance(tree, dict):
        return {portable(key): _portable_structure(part) for key, part in tree.items()}
    return portable(tree)


@explains_arguments
def recording(
    model: nn.Module | None = None,
    *,
    track_tensor_ops: bool = True,
    track_timing: bool = True,
    track_memory: bool = True,
    values: str | None = None,
    native: bool | None = None,
) -> Recording:
    """Record one graph; `torchatlas.recording` says what the arguments mean, and also records whole runs."""
    if not track_tensor_ops:
        from torchatlas.capturing.modules_only import ModulesOnlyRecording

        return ModulesOnlyRecording(model, track_timing=track_timing, track_memory=track_memory)
    return Recording(
        model, track_timing=track_timing, track_memory=track_memory, values=checked_values(values), native=native
    )


def native_module(*, required: bool = False) -> Any:
    """The module of the recorder in C++; None if it is not built. If it is `required`, that is an error."""
    from torchatlas.capturing.native import build

    module = build.load()
    if module is None and required:
        raise NotAvailableError(f"native=True: {build.status().reason}.")
    return module


def checked_values(values: str | None) -> str | None:
    if values is not None and values not in VALUES:
        raise InvalidInputError(f"values={values!r} is not one of None, {', '.join(map(repr, VALUES))}.")
    return values
