"""Watching a real run: `recording` for any code, `capture` for one call of a model."""

from __future__ import annotations

import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import nn

from torchatlas.capturing.describe import portable, source_row
from torchatlas.capturing.finish import graph_of, parameter_names
from torchatlas.capturing.keep import VALUES, Keeper
from torchatlas.capturing.modules import CALL_ROW, Watch
from torchatlas.capturing.plans import ROW_HEAD
from torchatlas.capturing.repeat import Runs, check_runs
from torchatlas.capturing.replaying import ReplayKeeper
from torchatlas.capturing.restore import Restorer
from torchatlas.capturing.stream import Around, Recorder, let_go
from torchatlas.capturing.wrappers import parts
from torchatlas.errors import InvalidInputError, InvalidModelError, StateError
from torchatlas.escapes import clean, clean_text
from torchatlas.graph import Graph, Phase, SourceLine
from torchatlas.graph.arguments import Call, TensorRef, encode
from torchatlas.graph.columns import PHASES
from torchatlas.graph.nouns import OperationType
from torchatlas.graph.timing import Timing
from torchatlas.inputs import argument_names, check_call, default_loss, mapped_tensors, named_tensors
from torchatlas.interrupts import Bracket, signals_deferred, whole
from torchatlas.torch_private import dispatch_mode_stack, never_compiled

_SUMS_OUT_OF_PLACE = (
    "while a recording runs, autograd sums gradients that meet out of place (add and detach instead of add_), "
    "so backward allocates a little more than without it"
)
_ROW_LENGTH = ROW_HEAD + 4  # of an op in the stream: it takes a tensor or two
_BEGINNINGS = "the time of a collective is the time to begin it: what waits for it is no op, except wait_tensor"


@dataclass(frozen=True)
class Failure:
    """Where a recording ended early."""

    operation: str
    scope: str
    source: SourceLine | None
    message: str

    def __str__(self) -> str:
        place = f" in {self.scope}" if self.scope else ""
        where = clean(f"{self.operation}{place}{f' at {self.source}' if self.source else ''}")
        return f"{where}: {clean_text(self.message)}"


class Recording(Bracket["Recording"]):
    """Records what runs between entering and leaving. `graph` is what was recorded, also after an exception."""

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        track_timing: bool = True,
        track_memory: bool = True,
        values: str | None = None,
        only_inputs: bool = False,
        guard: Restorer | None = None,
        after_op: Callable[[Any, list[Any]], None] | None = None,
        around: Around | None = None,
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise InvalidModelError(f"recording(model) takes a torch.nn.Module, not {type(model).__name__}.")
        self.failure: Failure | None = None
        self._keeper = Keeper(values) if values in ("stats", "all") else None
        self._replay = ReplayKeeper() if values == "replay" else None
        if guard is None and values is None and after_op is None and around is None:
            self._recorder = Recorder.take()
        else:
            self._recorder = Recorder(
                guard=None if guard is None else guard.before_write,
                keep=after_op if self._keeper is None else self._keeper.keep,
                around=around if self._replay is None else self._replay.around,
            )
        if self._replay is not None:
            self._replay.recorder = self._recorder
        if guard is not None:
            guard.recorder = self._recorder
        self._watch = Watch(
            self._recorder, model, on_model_call=Weakly(self, "arrived"), on_model_result=Weakly(self, "left")
        )
        self._thread = threading.current_thread()
        self._timing, self._memory, self._only_inputs = track_timing, track_memory, only_inputs
        self._input_names: dict[int, str] = {}
        self._unseen = False  # whether ops ran that were not recorded
        self._state = "new"
        self._began_ns = self._ended_ns = 0
        self._graph: Graph | None = None

    def start(self) -> Recording:
        return self.__enter__()

    def stop(self, error: BaseException | None = None) -> None:
        with signals_deferred():
            self._stop(error)

    def _begin(self) -> Recording:
        if self._state != "new":
            raise StateError("This recording was used already; make a new one with atlas.recording().")
        self._thread = threading.current_thread()
        try:
            self._watch.start()
            self._recorder.start()
        except BaseException:  # nobody will stop what has not begun
            self._close(None)
            raise
        self._state = "running"
        self._began_ns = time.perf_counter_ns()
        return self

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._stop(error)
        except StateError:
            if self._state == "running":  # nobody will stop it any more
                self._close(error)
            raise

    def _stop(self, error: BaseException | None) -> None:
        if self._state != "running":
            raise StateError(f"This recording is not running (it is {self._state}).")
        self._ended_ns = time.perf_counter_ns()
        stack, here = dispatch_mode_stack(), threading.current_thread()
        if self._recorder.mode not in stack and here is not self._thread and self._thread.is_alive():
            raise StateError(
                f"This recording began in thread {self._thread.name!r}: stop it there, not in {here.name!r}."
            )
        if error is None and self._recorder.mode in stack[:-1]:
            raise StateError("Recordings end in the reverse order of their beginning; an inner one is still running.")
        self._close(error)
        if error is None and self._recorder.mode not in stack and here is self._thread:
            raise StateError(
                "This recording began inside a backward pass, in a hook say, and torch ended it with that hook. "
                "Stop it in there, or begin it before backward. `graph` is what it saw."
            )

    def _close(self, error: BaseException | None) -> None:
        self._recorder.stop()
        self._watch.stop()
        if self._replay is not None:
            self._replay.finish()
        self._state = "done"
        if error is not None:
            self.failure = self._describe_failure(error)
            let_go(error)

    def __del__(self) -> None:
        """One that nobody asked for its graph forgets what it has seen as soon as it is dropped."""
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
        """What runs in here belongs to this call."""
        current = self._recorder.current
        before = current[0]
        if call is not None:
            current[0] = call
        try:
            yield
        finally:
            current[0] = before

    def leaves_with_new_gradients(self) -> list[torch.Tensor]:
        """Tensors from outside whose gradient came to be during the run."""
        return self._recorder.leaves_with_new_gradients()

    @property
    def running(self) -> bool:
        return self._state == "running"

    def paused(self) -> AbstractContextManager[None]:
        """What this thread runs in here is not recorded."""
        return self._recorder.paused()

    @property
    def length(self) -> int:
        """How many ops a running one has seen, roughly."""
        return len(self._recorder.stream) // _ROW_LENGTH

    @property
    def in_step(self) -> bool:
        """Whether one of torch's optimizers is at work, and not a closure that it calls."""
        return self._recorder.current[1] is not None

    def storage_id(self, tensor: torch.Tensor) -> int | None:
        """The id in `graph.storages` of what a tensor lies in, while the recording runs; None if it was not seen."""
        return self._recorder.storage_number(tensor)

    def parameter_names(self) -> dict[int, str]:
        """What the graph calls the parameters of all modules that ran, by the tensors' ids. Ask before `graph`."""
        return parameter_names(self._watch)

    @property
    def graph(self) -> Graph:
        """What was recorded; decoded when first asked for. While the recording runs: what there is so far."""
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
        graph.notes += self._notes(graph)
        if self._timing and self._state == "done" and graph.time_ns is not None:
            graph.timing = Timing(recorded_ns=(self._ended_ns - self._began_ns,))
        if self._keeper is not None:
            graph.recorded = self._keeper.recorded(graph)
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
                self._input_names.setdefault(self._recorder.number_of(part), name + suffix)

    @never_compiled
    def left(self, result: Any) -> None:
        """Note the tensors of a result as outputs."""
        numbers: list[int] = []

        def place(tensor: torch.Tensor) -> TensorRef | dict[str, TensorRef]:
            first, found = len(numbers), dict(parts(tensor))
            numbers.extend(self._recorder.number_of(part) for part in found.values())
            if self._replay is not None:
                self._replay.returned(list(found.values()))
            references = {suffix.removeprefix("."): TensorRef(first + i) for i, suffix in enumerate(found)}
            return references if len(references) > 1 else TensorRef(first)

        structure = mapped_tensors(result, place)
        if numbers:
            text = encode(Call((_portable_structure(structure),)))
            self._recorder.stream.append(("output", numbers, text))

    def _describe_failure(self, error: BaseException) -> Failure | None:
        found = self._recorder.failure
        chain: BaseException | None = error
        while chain is not None and found is not None and id(chain) != found[1]:
            chain = chain.__cause__ or chain.__context__
        if found is None or chain is None:
            return None
        name, _, message, call, code, at = found
        owner = self._watch.owners[self._watch.calls[call * CALL_ROW]] if call >= 0 else None
        source = source_row(code, at) if code is not None else None
        return Failure(name, owner.path if owner else "", source, message)

    def _notes(self, graph: Graph) -> list[str]:
        notes = []
        if (graph.columns["node_phase"] == PHASES.index(Phase.BACKWARD)).any():
            notes.append(_SUMS_OUT_OF_PLACE)
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
    """A method of a recording, for those who must not keep the recording alive."""

    def __init__(self, recording: Any, name: str) -> None:
        self.reference, self.name = weakref.ref(recording), name

    @never_compiled
    def __call__(self, *args: Any) -> None:
        if (found := self.reference()) is not None:
            getattr(found, self.name)(*args)


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


def recording(
    model: nn.Module | None = None,
    *,
    track_tensor_ops: bool = True,
    track_timing: bool = True,
    track_memory: bool = True,
    values: str | None = None,
) -> Recording:
    """Record any code: `with atlas.recording(model) as rec: ...`, then `rec.graph`.

    The code has exactly the effects it has alone. `model` names the modules; without it they are named after their
    class. With `track_tensor_ops=False` only module calls are recorded, at almost no cost. `values` keeps what every
    node produced: "all" the tensors, "stats" their minimum, maximum, mean, deviation and count of non-finite numbers;
    "replay" keeps what `atlas.verify` needs to run it all again.
    """
    if not track_tensor_ops:
        from torchatlas.capturing.coarse import CoarseRecording

        return CoarseRecording(model, track_timing=track_timing, track_memory=track_memory)
    return Recording(model, track_timing=track_timing, track_memory=track_memory, values=_checked(values))


def capture(
    model: Callable[..., Any],
    *args: Any,
    backward: bool = False,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Any = None,
    fake: bool = False,
    values: str | None = None,
    warmup: int = 0,
    repeat: int = 1,
    kwargs: dict[str, Any] | None = None,
    track_tensor_ops: bool = True,
    **model_kwargs: Any,
) -> Graph:
    """Run a model or function and return the graph of what happened.

    `backward=True` runs backward from `loss(outputs)`, by default the sum of the floating outputs; an `optimizer`
    (an instance, or a function of the parameters) takes a step after it. `fake=True` computes and allocates nothing;
    the model may then also live on the meta device or be a function that builds one. `values` keeps what every node
    produced, and `track_tensor_ops=False` records module calls only, as in `recording`.

    For times that can be believed, `warmup` runs come first and leave no trace, then it is recorded `repeat` times:
    times are medians over these runs, `node.time_spread_ns` their spread, and `graph.timing` tells what a whole run
    took, also without recording. Every run begins in the same state; with `repeat` above 1 parameters, buffers and
    inputs are copied for that. `values` are those of the last run.

    Arguments whose names collide with these go in `kwargs={...}`. Parameters, buffers, gradients, optimizer state,
    random numbers and flags are afterwards as before.
    """
    if not callable(model):
        raise InvalidModelError(f"capture takes a torch.nn.Module or a function, not {type(model).__name__}.")
    call_kwargs = {**(kwargs or {}), **model_kwargs}
    values = _checked(values)
    check_runs(warmup, repeat, untimed="fake=True" if fake else "")
    if fake:
        if values is not None:
            raise InvalidInputError(f"values={values!r} cannot be kept with fake=True: fake tensors have no values.")
        from torchatlas.capturing.fake import fake_mode, faked, values_refused, without_pretence

        mode = fake_mode(model, args, call_kwargs)
        with (
            Restorer(model, (args, call_kwargs), optimizer),  # flags, random numbers, and a model that is fake already
            values_refused(),
            whole(mode),
        ):
            model, args, call_kwargs, optimizer = faked(mode, model, args, call_kwargs, optimizer)
            step = _Step(model, args, call_kwargs, backward, loss, optimizer)
            graph: Graph = step.recorded(None, track_tensor_ops, None).graph
        without_pretence(graph)
        return graph
    check_call(model, args, call_kwargs)
    step = _Step(model, args, call_kwargs, backward, loss, optimizer)
    copied = not track_tensor_ops or repeat > 1  # runs that nothing records: nobody sees what they write to
    with Restorer(model, (args, call_kwargs), optimizer, whole=copied) as restorer:
        return Runs(
            record=lambda last: step.recorded(values if last else None, track_tensor_ops, restorer),
            plain=lambda: partial(step.run, _made(optimizer, step.module)),
            restorer=restorer,
            tensors=(args, call_kwargs, list(model.parameters()) if isinstance(model, nn.Module) else []),
        ).graph(warmup, repeat)


@dataclass(frozen=True)
class _Step:
    """A call of a model, and what of a training step follows it."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    backward: bool
    loss: Callable[[Any], torch.Tensor] | None
    optimizer: Any

    @property
    def module(self) -> nn.Module | None:
        return self.model if isinstance(self.model, nn.Module) else None

    def recorded(self, values: str | None, track_tensor_ops: bool, restorer: Restorer | None) -> Any:
        """Run it once under a recording, which is returned."""
        if track_tensor_ops:
            session: Any = Recording(self.module, values=values, only_inputs=True, guard=restorer)
        else:
            session = recording(self.module, track_tensor_ops=False)
        optimizer = _made(self.optimizer, self.module)
        try:
            self.run(optimizer, session)
        finally:
            if restorer is not None:
                restorer.after_run(session)
        return session

    def run(self, optimizer: Any, session: Any = None) -> None:
        """Run it once: alone, or under a recording."""
        with _explained(session), session or nullcontext():
            if self.module is None and session is not None:
                session.arrived(self.args, self.kwargs, self.model)
            result = self.model(*self.args, **self.kwargs)
            if self.module is None and session is not None:
                session.left(result)
            if self.backward or self.loss is not None or optimizer is not None:
                total = self.loss(result) if self.loss is not None else default_loss(result)
                total.backward()
                if optimizer is not None:
                    optimizer.step()
                del total
            del result


def _made(optimizer: Any, model: nn.Module | None) -> Any:
    """An optimizer as given, or made of the model's parameters."""
    if optimizer is None or isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    if not callable(optimizer) or model is None:
        raise InvalidInputError(
            "optimizer= takes a torch.optim.Optimizer, or with a torch.nn.Module a function of its parameters, "
            f"not {type(optimizer).__name__}."
        )
    return optimizer(model.parameters())


@contextmanager
def _explained(session: Any) -> Iterator[None]:
    """Add to the user's own exception where it happened."""
    try:
        yield
    except Exception as error:
        failure = getattr(session, "failure", None)
        if failure is not None:
            error.add_note(f"torchatlas was capturing; it happened at {failure}")
        raise


def _checked(values: str | None) -> str | None:
    if values is not None and values not in VALUES:
        raise InvalidInputError(f"values={values!r} is not one of None, {', '.join(map(repr, VALUES))}.")
    return values
