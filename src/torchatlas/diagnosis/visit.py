"""`with atlas.doctor() as visit:`: any code, watched for faults. It has exactly the effects that it has alone."""

from __future__ import annotations

import re
import sys
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn

from torchatlas.capturing import patches
from torchatlas.capturing.frames import program_line
from torchatlas.capturing.portable import source_row
from torchatlas.capturing.recording import Recording
from torchatlas.diagnosis.backward import Pass, backward_passes
from torchatlas.diagnosis.case import Case
from torchatlas.diagnosis.diagnosis import DIAGNOSES, Diagnosis
from torchatlas.diagnosis.finding import Finding, Findings, OwnFailure, Severity, Where, explained, merged
from torchatlas.diagnosis.leaves import Leaf, Leaves
from torchatlas.diagnosis.notebook import running_cell
from torchatlas.errors import StateError
from torchatlas.graph import Graph, GraphNode, Phase
from torchatlas.graph.columns import KINDS, PHASES
from torchatlas.graph.nouns import NodeKind
from torchatlas.interrupts import Bracket
from torchatlas.torch_private import UninitializedTensor, never_compiled

_OP = KINDS.index(NodeKind.OP)
_MAKING = [PHASES.index(Phase.FORWARD), PHASES.index(Phase.OTHER)]  # nodes of autograd
# A recording ends when it has so many ops, or so many steps if these have more, after the next backward pass, and
# another begins. What is older than the last two is forgotten.
_MOST_OPS, _MOST_OPS_OF_STEPS, _FEWEST_STEPS = 20_000, 200_000, 8
_IGNORE = re.compile(r"#\s*atlas:\s*ignore\b([\w\s,-]*)")  # a comment of the program, with keys or for all of them


class Visit(Bracket["Visit"]):
    """Watches what runs between entering and leaving; `findings` is what was wrong with it."""

    def __init__(
        self, model: nn.Module | None = None, only: Iterable[str] | None = None, ignore: Iterable[str] = ()
    ) -> None:
        ignored = {key for key in ignore if DIAGNOSES[key] is not None}  # an unknown one is refused
        self.checks = tuple(key for key in (DIAGNOSES if only is None else only) if key not in ignored)
        kinds = dict.fromkeys(DIAGNOSES[key] for key in self.checks)
        self.model = model
        self.steps = 0  # of all optimizers
        self.ops = 0
        self.diagnoses = [kind(self) for kind in kinds]
        self.failures: list[OwnFailure] = []  # of ours: the program goes on without the diagnosis that failed
        self._op_listeners = [each for each in self.diagnoses if type(each).op_ran is not Diagnosis.op_ran]
        self._found: list[Finding] = []
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._recordings: list[Recording] = []  # the running one last
        self._graphs: dict[int, tuple[int, Graph]] = {}  # by recording: ops when it was read, and what was read
        self._leaves = Leaves()
        self._calls: list[tuple[int, int, Where]] = []  # of models, in the running recording: first op, last op, line
        self._call: tuple[int, Where] | None = None  # of the model that runs: first op, line
        self._first_op = 0  # that the running recording has seen
        self._first_step = 0
        self._latest_step = 0  # the number of ops at its end
        self._longest = 0  # ops from one step to the next
        self.recordings = 0  # that were begun
        self._in_step = False
        self._open = ExitStack()
        self._state = "new"
        self.complete = True  # unless it ended by an exception
        self.error: BaseException | None = None  # by which it ends, while `at_end` is told: nobody may keep it
        self.ended_by = ""  # its class
        self._cells: dict[str, str] = {}  # the notebook's that runs: its file and id

    # -- what the program's author sees --------------------------------------------------------------------------------

    @property
    def findings(self) -> Findings:
        """What was found; while it runs, so far."""
        order = {key: place for place, key in enumerate(self.checks)}
        looked_for = tuple(key for key in self.checks if key not in self.not_judged)
        found = [finding for finding in merged(self._found) if not _is_ignored(finding)]
        found = sorted(explained(found), key=lambda finding: (_WORST.index(finding.severity), order[finding.key]))
        return Findings(found, looked_for, self.not_judged, tuple(self.failures), self.ended_by, self._cells)

    @property
    def not_judged(self) -> tuple[str, ...]:
        """What could not be looked for to the end, and was not found before: the program did not get there, or the
        diagnosis failed."""
        failed = {key for failure in self.failures for key in failure.keys}
        unjudged = failed if self.complete else failed.union(*(DIAGNOSES[key].whole for key in self.checks))
        found = {finding.key for finding in self._found}
        return tuple(key for key in self.checks if key in unjudged and key not in found)

    def _begin(self) -> Visit:
        if self._state != "new":
            raise StateError("This visit is over; make a new one with atlas.doctor().")
        self._state = "running"
        with self.guarded():
            self._cells = running_cell()
        try:
            self._begin_recording()
            listener = _Listener(self)
            patches.join(listener, [-1, None])
            self._open.callback(patches.leave, listener)
            self._open.enter_context(backward_passes(self))
        except BaseException:
            self._close(None)
            raise
        return self

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._open.close()
            self.complete = error is None or _is_success(error)
            if error is not None and not self.complete:
                self.error, self.ended_by = error, type(error).__name__
            self._tell("at_end", self.complete)
        finally:
            self.error = None
            self._close(error)

    def _close(self, error: BaseException | None) -> None:
        self._open.close()
        for recording in self._recordings:
            if recording.running:
                recording.stop(error)
        self._state = "over"
        self.diagnoses, self._op_listeners, self._recordings = [], [], []
        self._graphs = {}

    def __str__(self) -> str:
        return str(self.findings)

    def _repr_html_(self) -> str:
        return self.findings._repr_html_()

    # -- what diagnoses ask --------------------------------------------------------------------------------------------

    def report(self, finding: Finding) -> None:
        if finding.key in self.checks:
            self._found.append(finding)

    @property
    def found(self) -> list[Finding]:
        """What was reported, as often as it was."""
        return self._found

    @property
    def graph(self) -> Graph:
        """What the running recording has seen so far."""
        return self._read(self._recordings[-1])

    def graphs(self) -> Iterator[Graph]:
        """What was recorded, the latest first."""
        return map(self._read, reversed(self._recordings))

    def _read(self, recording: Recording) -> Graph:
        known = self._graphs.get(id(recording))
        if known is None or (recording.running and known[0] != self.ops):
            known = self._graphs[id(recording)] = self.ops, recording.graph
        return known[1]

    def storage_of(self, tensor: torch.Tensor) -> int | None:
        """The storage of a tensor in `graph`; a lazy parameter has none yet."""
        if isinstance(tensor, UninitializedTensor):
            return None
        return self._recordings[-1].storage_id(tensor)

    def maker_of(self, sequence_nr: int) -> GraphNode | None:
        """The op that made a node of autograd."""
        return self.makers_of([sequence_nr]).get(sequence_nr)

    def makers_of(self, sequence_nrs: Iterable[int]) -> dict[int, GraphNode]:
        """The ops that made some nodes of autograd, by its numbers: those that are known."""
        missing, found = set(sequence_nrs), dict[int, GraphNode]()
        for graph in self.graphs():
            column, phase = graph.columns["node_sequence_nr"], graph.columns["node_phase"]
            rows = np.flatnonzero(np.isin(column, list(missing)) & np.isin(phase, _MAKING))
            found |= {int(column[row]): graph.nodes[row] for row in reversed(rows.tolist())}  # the first one stays
            missing -= found.keys()
            if not missing:
                break
        return found

    @property
    def steps_recorded(self) -> int:
        """The steps that the running recording has seen."""
        return self.steps - self._first_step

    @property
    def in_closure(self) -> bool:
        """Whether an optimizer's step runs that asks for the loss, perhaps several times."""
        return self._in_step

    @property
    def in_step(self) -> bool:
        """Whether an optimizer is at work."""
        return self._recordings[-1].in_step

    @staticmethod
    def line(what: str) -> Where:
        """The program's line that runs, with that of the installed package it has called, if it has."""
        rows = (
            None if frame is None else source_row(frame.f_code, frame.f_lasti)
            for frame in program_line(sys._getframe(1))
        )
        return Where(what, *rows)

    def roots(self) -> list[nn.Module]:
        """The modules that were called and that no other module called."""
        return [*([] if self.model is None else [self.model]), *self._roots]

    def call_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._roots.add(module)
        self._call = self.ops + 1, self.line("called")
        self._tell("module_called", module, args, kwargs)

    def call_ends(self, module: nn.Module, result: Any) -> None:
        self._tell("module_returned", module, result)

    def call_is_over(self) -> None:
        """Also if it raised."""
        if self._call is not None:
            first, line = self._call
            self._calls.append((first, self.ops, line))
            self._call = None

    def leaf(self, tensor: torch.Tensor) -> Leaf:
        """What is known of a tensor that is trained."""
        return self._leaves.of(tensor, self._roots)

    def name(self, tensor: torch.Tensor) -> str:
        return self.leaf(tensor).name

    def caller_of(self, node: GraphNode) -> Where | None:
        """The program's line that called the model in which an op of `graph` ran, if that is in another file."""
        line = self.call_of(node)
        return None if line is None or node.source is None else _elsewhere(line, node.source.file)

    def call_of(self, node: GraphNode) -> Where | None:
        """The program's line that called the model in which an op of `graph` ran."""
        ordinal = self._first_op + int((self.graph.columns["node_kind"][: node.id + 1] == _OP).sum())
        calls = self._calls if self._call is None else [*self._calls, (self._call[0], self.ops, self._call[1])]
        place = bisect_right(calls, ordinal, key=lambda call: call[0]) - 1
        return None if place < 0 or ordinal > calls[place][1] else calls[place][2]

    @property
    def caller(self) -> Where | None:
        """The program's line that called the model that runs."""
        return None if self._call is None else self._call[1]

    # -- what happens --------------------------------------------------------------------------------------------------

    def _begin_recording(self) -> None:
        """A long program is recorded in parts: the running one and the one before it are kept."""
        if self._recordings:
            self._recordings[-1].stop()
        self._recordings = [*self._recordings[-1:], Recording(track_timing=False, around=self._around)]
        self._graphs = {key: read for key, read in self._graphs.items() if key in map(id, self._recordings)}
        self._recordings[-1].start()
        self._calls, self._first_op, self._first_step = [], self.ops, self.steps
        self._leaves.forget_storages()
        self.recordings += 1

    def _tell(self, what: str, *args: Any) -> None:
        for each in list(self.diagnoses):
            try:
                getattr(each, what)(*args)
            except Exception as error:
                self.failed(error, each)

    def failed(self, error: Exception, diagnosis: Diagnosis | None = None) -> None:
        """Code of ours has raised: note it, and go on without the diagnosis. The program never sees it.

        Without a diagnosis it is the visit itself that failed, and all of them may have missed something.
        """
        self.failures.append(OwnFailure(self.checks if diagnosis is None else diagnosis.keys, error))
        gone = self.diagnoses if diagnosis is None else [diagnosis]
        self.diagnoses = [each for each in self.diagnoses if each not in gone]
        self._op_listeners[:] = [each for each in self._op_listeners if each not in gone]

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Nothing that the visit does by itself may reach the program."""
        try:
            yield
        except Exception as error:
            self.failed(error)

    def _around(self, plan: Any, run: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        listeners = self._op_listeners  # of which a diagnosis that fails is taken out

        def observed(args: Any, kwargs: Any) -> Any:
            out = run(args, kwargs)
            self.ops += 1
            try:
                for each in listeners:
                    each.op_ran(plan, args, kwargs, out)
            except Exception as error:
                self.failed(error, each)
            return out

        return observed

    def backward_begins(self, found: Pass) -> Case:
        case = Case(
            found.losses,
            self.model,
            lambda: self.graph,
            self.storage_of,
            self.line("backward"),
            self.parameters,
            self.caller_of,
            found.nodes,
            call_of=self.call_of,
        )
        self._tell("before_backward", case, found)
        return case

    def backward_ends(self, case: Case, found: Pass, error: BaseException | None) -> None:
        self._tell("after_backward", case, found, error)
        most = min(max(_MOST_OPS, _FEWEST_STEPS * self._longest), _MOST_OPS_OF_STEPS)
        if self._recordings[-1].length > most:
            self._tell("recording_ends")
            self._begin_recording()

    def step_ends(self, optimizer: Any) -> None:
        self.steps += 1
        self._longest = max(self._longest, self.ops - self._latest_step)
        self._latest_step = self.ops
        self._tell("after_step", optimizer, _parameters(optimizer))

    def paused(self) -> AbstractContextManager[None]:
        """What runs in here is not recorded."""
        return self._recordings[-1].paused()

    def parameters(self) -> Iterator[torch.Tensor]:
        """Of the modules that were called."""
        for module in self.roots():
            yield from module.parameters()


def _is_success(error: BaseException) -> bool:
    """Whether a program has run to its end all the same: many end in sys.exit(main()), and main returns None or 0."""
    if not isinstance(error, SystemExit):
        return False
    return error.code is None or (isinstance(error.code, int) and error.code == 0)


_WORST = list(Severity)


def _is_ignored(finding: Finding) -> bool:
    """Whether a comment in a line that it names says so: `# atlas: ignore`, or `# atlas: ignore not-zeroed`."""
    for place in finding.where:
        written = None if place.source is None else _IGNORE.search(place.source.text)
        if written is not None and finding.key in (
            re.split(r"[\s,]+", written[1].strip()) if written[1].strip() else [finding.key]
        ):
            return True
    return False


def _elsewhere(line: Where, file: str) -> Where | None:
    return line if line.source is not None and line.source.file != file else None


class _Listener:
    """Calls of modules and steps of optimizers, as patches.py tells them."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit

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
                self.visit.call_is_over()

    @never_compiled
    def _arrives(self, module: Any, args: Any, kwargs: Any) -> None:
        with self.visit.guarded():
            self.visit.call_begins(module, args, kwargs)

    @never_compiled
    def _leaves(self, module: Any, result: Any) -> None:
        with self.visit.guarded():
            self.visit.call_ends(module, result)

    def step_begins(self, cell: patches.Cell, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        self.visit._in_step = False
        with self.visit.guarded():
            self.visit._tell("before_step", optimizer, _parameters(optimizer))
        self.visit._in_step = True
        return args, kwargs

    def step_ends(self, cell: patches.Cell, optimizer: Any) -> None:
        self.visit._in_step = False
        with self.visit.guarded():
            self.visit.step_ends(optimizer)

    def scheduler_stepped(self, scheduler: Any) -> None:
        with self.visit.guarded():
            self.visit._tell("scheduler_stepped", scheduler)

    def backward_called(self, inner: Any, cell: patches.Cell, tensors: Any, args: Any, kwargs: Any) -> Any:
        return inner(tensors, *args, **kwargs)

    def graph_called(self, inner: Any, cell: patches.Cell, graph: Any, args: Any, kwargs: Any) -> Any:
        return inner(graph, *args, **kwargs)

    def may_have_recomputed(self) -> None: ...
    def data_set(self, tensor: Any) -> None: ...
    def before_resize(self, storage: Any) -> None: ...
    def after_resize(self, storage: Any) -> None: ...

    def join_thread(self, cell: patches.Cell, thread: Any) -> tuple[patches.Cell, Any]:
        """Calls of other threads are as if inside of one: what runs at the same time cannot be told apart."""
        return [0, None], None


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
