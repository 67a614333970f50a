"""`with atlas.doctor() as visit:`: watch any code for faults. The code has exactly the effects that it has alone."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, overload

import torch
from torch import nn

from torchatlas.capturing import patches
from torchatlas.diagnosis.backward_passes import BackwardPass, watch_backward
from torchatlas.diagnosis.events import DIAGNOSES, Diagnosis
from torchatlas.diagnosis.findings import Finding, Findings, OwnFailure, Severity, sorted_findings
from torchatlas.diagnosis.findings_html import running_cell
from torchatlas.diagnosis.history import History
from torchatlas.diagnosis.op_events import OpEvents
from torchatlas.errors import StateError
from torchatlas.interrupts import Bracket
from torchatlas.torch_private import never_compiled

_RUNNING: weakref.WeakSet[Visit] = weakref.WeakSet()


class Visit(Bracket["Visit"], Sequence[Finding]):
    """Watches what runs between entering and leaving. It is a sequence of what was found so far; False if nothing."""

    def __init__(
        self,
        model: nn.Module | None = None,
        only: Iterable[str] | None = None,
        ignore: Iterable[str] = (),
        native: bool | None = None,
    ) -> None:
        ignored = {key for key in ignore if DIAGNOSES[key] is not None}  # an unknown one is refused
        self.checks = tuple(key for key in (DIAGNOSES if only is None else only) if key not in ignored)
        self._op_events = OpEvents(self)
        self.history = History(model, self._op_events, native)
        self.diagnoses = [kind(self) for kind in dict.fromkeys(DIAGNOSES[key] for key in self.checks)]
        self._told_of: dict[str, list[Diagnosis]] = {}  # by event: those that it concerns
        self.failures: list[OwnFailure] = []  # of ours: the program goes on without the diagnosis that failed
        self.found: list[Finding] = []  # as often as it was reported
        self.in_closure = False  # an optimizer's step runs that asks for the loss, perhaps several times
        self.complete = True  # unless an exception ended it
        self.error: BaseException | None = None  # that ends it, during `at_end` alone: nobody may keep it
        self.ended_by = ""  # the class of that exception
        self.left_to_parent = False  # in a process that the program has forked: its parent is watched
        self.guarded = _Guarded(self)
        self._open = ExitStack()
        self._state = "new"
        self._cells: dict[str, str] = {}  # of the notebook that runs: file -> id of the cell

    @classmethod
    def of_findings(cls, found: Iterable[Finding], checks: tuple[str, ...]) -> Visit:
        """A visit that is over: of a loss that was looked at without running anything."""
        visit = cls(only=())
        visit.found, visit.checks, visit._state = list(found), checks, "over"
        return visit

    # -- what the program's author sees --------------------------------------------------------------------------------

    @property
    def findings(self) -> Findings:
        """What was found so far."""
        looked_for = tuple(key for key in self.checks if key not in self.not_judged)
        found = sorted_findings(self.found, self.checks)
        return Findings(found, looked_for, self.not_judged, tuple(self.failures), self.ended_by, self._cells)

    @property
    def not_judged(self) -> tuple[str, ...]:
        """Faults that were not found and cannot be ruled out: the program ended too early, or the diagnosis failed."""
        failed = {key for failure in self.failures for key in failure.keys}
        unjudged = failed if self.complete else failed.union(*(DIAGNOSES[key].needs_the_end for key in self.checks))
        found = {finding.key for finding in self.found}
        return tuple(key for key in self.checks if key in unjudged and key not in found)

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> list[Finding]: ...
    def __getitem__(self, index: int | slice) -> Finding | list[Finding]:
        """A finding by its position, or several."""
        return self.findings[index]

    def __iter__(self) -> Iterator[Finding]:
        """The findings so far."""
        return iter(self.findings)

    def __len__(self) -> int:
        """How many findings there are so far."""
        return len(self.findings)

    @property
    def keys(self) -> list[str]:
        """The keys of the findings."""
        return self.findings.keys

    @property
    def worst(self) -> Severity | None:
        """The severity of the worst finding; None if there is none."""
        return self.findings.worst

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return self.findings.to_dict()

    def __str__(self) -> str:
        return str(self.findings)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.findings._repr_html_()

    # -- beginning and end ---------------------------------------------------------------------------------------------

    def _begin(self) -> Visit:
        if self._state != "new":
            raise StateError("This visit is over; make a new one with atlas.doctor().")
        self._state = "running"
        _RUNNING.add(self)
        with self.guarded:
            self._cells = running_cell()
        try:
            self.history.begin_recording()
            listener = _Listener(self)
            patches.join(listener, [-1, None])
            self._open.callback(patches.leave, listener)
            self._open.enter_context(watch_backward(self))
        except BaseException:
            self._close(None)
            raise
        return self

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.left_to_parent:
            return
        try:
            self._open.close()
            self.complete = error is None or _is_success(error)
            if error is not None and not self.complete:
                self.error, self.ended_by = error, type(error).__name__
            self.tell("at_end", self.complete)
        finally:
            self.error = None
            self._close(error)

    def _close(self, error: BaseException | None) -> None:
        self._open.close()
        self.history.close(error)
        self._state = "over"
        _RUNNING.discard(self)
        self._go_on_without(self.diagnoses)

    def _leave_child(self) -> None:
        """In a process that was forked off: let it run as if nobody watched. What was found is its parent's."""
        self.history.leave_to_parent()
        self.left_to_parent, self._state, self.found, self.checks = True, "over", [], ()
        self._go_on_without(self.diagnoses)
        self._open.close()

    # -- telling diagnoses of events -----------------------------------------------------------------------------------

    def tell(self, event: str, *args: Any) -> None:
        """Tell all diagnoses of an event, by the name of the method."""
        told = self._told_of.get(event)
        if told is None:
            nobody = getattr(Diagnosis, event)
            told = self._told_of[event] = [each for each in self.diagnoses if getattr(type(each), event) is not nobody]
        for each in told:
            try:
                getattr(each, event)(*args)
            except Exception as error:
                self.failed(error, each)

    def report(self, finding: Finding) -> None:
        if finding.key in self.checks:
            self.found.append(finding)

    def failed(self, error: Exception, diagnosis: Diagnosis | None = None) -> None:
        """Code of ours has raised: note it, and go on without the diagnosis. The program never sees it.

        Without a diagnosis it is the visit itself that failed, and all of them may have missed something.
        """
        self.failures.append(OwnFailure(self.checks if diagnosis is None else diagnosis.keys, error))
        self._go_on_without(self.diagnoses if diagnosis is None else [diagnosis])

    def _go_on_without(self, gone: list[Diagnosis]) -> None:
        self._op_events.without(gone)
        self.diagnoses, self._told_of = [each for each in self.diagnoses if each not in gone], {}

    def backward_ends(self, backward: BackwardPass, error: BaseException | None) -> None:
        self.tell("after_backward", backward, error)
        if self.history.is_long:
            self.tell("recording_ends")
            self.history.begin_recording()


def _is_success(error: BaseException) -> bool:
    """True if the program ran to its end all the same: many end in sys.exit(main()), and main returns None or 0."""
    if not isinstance(error, SystemExit):
        return False
    return error.code is None or (isinstance(error.code, int) and error.code == 0)


class _Guarded:
    """A context that keeps exceptions of ours from the program. One serves for all events, also inside of each other:
    there are many, and a generator takes a microsecond to make."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, Exception):
            self._visit.failed(error)
            return True
        return False


def _after_fork() -> None:
    for visit in list(_RUNNING):
        visit._leave_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Listener:
    """Passes calls of modules and steps of optimizers and schedulers on to a visit; see capturing/patches.py."""

    touches_nodes = True  # diagnoses walk the graph of a loss
    outermost_only = False
    hears_schedulers, is_native = True, False

    def __init__(self, visit: Visit) -> None:
        self.visit = visit

    def function_operator_called(self, inner: Any, cell: patches.Cell, operator: Any, args: Any, kwargs: Any) -> Any:
        return inner(operator, *args, **kwargs)

    def module_called(self, inner: Any, cell: patches.Cell, module: Any, args: Any, kwargs: Any) -> Any:
        outer = cell[0]
        if outer < 0:
            self._arrives(module, args, kwargs)
        cell[0] = 0
        try:
            result = inner(module, *args, **kwargs)
            if outer < 0:
                self._leaves(module, result)
            return result
        finally:
            cell[0] = outer
            if outer < 0:
                self.visit.history.call_is_over()

    @never_compiled
    def _arrives(self, module: Any, args: Any, kwargs: Any) -> None:
        with self.visit.guarded:
            self.visit.history.call_begins(module)
            self.visit.tell("module_called", module, args, kwargs)

    @never_compiled
    def _leaves(self, module: Any, result: Any) -> None:
        with self.visit.guarded:
            self.visit.tell("module_returned", module, result)

    def step_begins(self, cell: patches.Cell, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        self.visit.in_closure = False
        with self.visit.guarded:
            self.visit.history.step_begins()
            self.visit.tell("before_step", optimizer, _parameters(optimizer))
        self.visit.in_closure = True
        return args, kwargs

    def step_ends(self, cell: patches.Cell, optimizer: Any) -> None:
        self.visit.in_closure = False
        with self.visit.guarded:
            self.visit.history.step_ends()
            self.visit.tell("after_step", optimizer, _parameters(optimizer))

    def scheduler_stepped(self, scheduler: Any) -> None:
        with self.visit.guarded:
            self.visit.tell("scheduler_stepped", scheduler)

    def backward_called(self, inner: Any, cell: patches.Cell, tensors: Any, args: Any, kwargs: Any) -> Any:
        return inner(tensors, *args, **kwargs)

    def graph_called(self, inner: Any, cell: patches.Cell, graph: Any, args: Any, kwargs: Any) -> Any:
        return inner(graph, *args, **kwargs)

    def hooks_begin(self, cell: patches.Cell) -> None: ...
    def may_have_recomputed(self) -> None: ...
    def data_set(self, tensor: Any) -> None: ...
    def before_resize(self, storage: Any) -> None: ...
    def after_resize(self, storage: Any) -> None: ...

    def join_thread(self, cell: patches.Cell, thread: Any) -> tuple[patches.Cell, Any]:
        """Calls of other threads count as inner ones: what runs at the same time cannot be told apart."""
        return [0, None], None


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
