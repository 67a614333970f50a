"""What a program has done so far: its recorded ops, the calls of its models, and the tensors it trains."""

from __future__ import annotations

import sys
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType

import numpy as np
import torch
from torch import nn

from torchatlas.capturing.frames import is_installed, is_users, program_line
from torchatlas.capturing.op_listening import OpListener
from torchatlas.capturing.recording import Recording
from torchatlas.capturing.table_rows import source_row
from torchatlas.diagnosis.findings import Where
from torchatlas.diagnosis.leaf_tensors import Leaf, Leaves
from torchatlas.graph import Graph, GraphNode, Phase, SourceLine
from torchatlas.graph.columns import KINDS, PHASES
from torchatlas.graph.nouns import NodeKind
from torchatlas.torch_private import UninitializedTensor

_OP = KINDS.index(NodeKind.OP)
_MAKING = [PHASES.index(Phase.FORWARD), PHASES.index(Phase.OTHER)]  # phases whose ops make nodes of autograd
# A recording ends when it has so many ops, or so many steps if these have more, after the next backward pass, and
# another begins. What is older than the last two is forgotten.
_MOST_OPS, _MOST_OPS_OF_STEPS, _FEWEST_STEPS = 20_000, 200_000, 8


def running_line(what: str) -> Where:
    """The program's line that runs, with that of the installed package it has called, if it has."""
    rows = (
        None if frame is None else source_row(frame.f_code, frame.f_lasti) for frame in program_line(sys._getframe(1))
    )
    return Where(what, *rows)


@dataclass(frozen=True)
class Raised:
    """Where an exception came from."""

    line: SourceLine | None  # the last line of the program that it came through
    frames: list[FrameType]  # of the program, the innermost last
    called: list[FrameType]  # of the code that this line called


def raised_at(error: BaseException) -> Raised:
    """Where an exception came from. A traceback knows the instruction; its frame may have gone on since."""
    line, frames, called, trace = None, list[FrameType](), list[FrameType](), error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        called.append(frame)
        if is_users(frame.f_code.co_filename) and not is_installed(frame.f_code.co_filename):
            line, called = source_row(frame.f_code, trace.tb_lasti), []
            frames.append(frame)
        trace = trace.tb_next
    return Raised(line, frames, called)


class Recorded:
    """A recording of a forward pass that the caller made, or none: all that `doctor(loss)` knows of the program."""

    is_whole = True  # the recording holds all that ran

    def __init__(self, graph: Graph | None = None, model: nn.Module | None = None) -> None:
        self._graph, self.model = graph, model

    @property
    def graph(self) -> Graph | None:
        return self._graph

    def storage_of(self, tensor: torch.Tensor) -> int | None:
        """The storage of a tensor in `graph`; None if it is not known."""
        return None

    def parameters(self) -> Iterable[torch.Tensor]:
        """The parameters of the models that are known."""
        return () if self.model is None else self.model.parameters()

    def call_of(self, node: GraphNode) -> Where | None:
        """The program's line that called the model in which an op of `graph` ran."""
        return None

    def caller_of(self, node: GraphNode) -> Where | None:
        """The program's line that called the model in which an op of `graph` ran, if that is in another file."""
        line = self.call_of(node)
        if line is None or node.source is None or line.source is None or line.source.file == node.source.file:
            return None
        return line


class History(Recorded):
    """The past of a program that runs. It is recorded in parts: the running one and the one before it are kept."""

    def __init__(self, model: nn.Module | None, listener: OpListener, native: bool | None = None) -> None:
        super().__init__(None, model)
        self.steps = 0  # of all optimizers
        self.recordings = 0  # that were begun
        self._listener, self._native = listener, native
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._recordings: list[Recording] = []  # the running one last
        self._graphs: dict[int, tuple[int, Graph]] = {}  # by recording: ops when it was read, and what was read
        self._leaves = Leaves()
        self._calls: list[tuple[int, int, Where]] = []  # of models, in the running recording: first op, last op, line
        self._call: tuple[int, Where] | None = None  # of the model that runs: first op, line
        self._step_line: Where | None = None  # of the optimizer's step that runs, once somebody has asked
        self._first_op = self._first_step = 0  # of the running recording
        self._latest_step = self._longest = 0  # the number of ops at the end of a step; ops from one step to the next

    # -- recordings ----------------------------------------------------------------------------------------------------

    def begin_recording(self) -> None:
        new = Recording(track_timing=False, native=self._native, listener=self._listener)
        first_op = self.ops
        if not self._recordings:
            new.start()
        else:  # in the place of the one before: a recording that began later may be on, and goes on
            new.start_in_place_of(self._recordings[-1])
        self._recordings = [*self._recordings[-1:], new]
        self._graphs = {key: read for key, read in self._graphs.items() if key in map(id, self._recordings)}
        self._calls, self._first_op, self._first_step = [], first_op, self.steps
        self._leaves.forget_storages()
        self.recordings += 1

    @property
    def ops(self) -> int:
        """How many ops have run."""
        return self._first_op + (self._recordings[-1].clock.ops if self._recordings else 0)

    def first_op(self, number: int, with_gradients: bool = False) -> int | None:
        """The first op of the running recording that ended when autograd had given out a number, or a later one."""
        first = self._recordings[-1].clock.first_op(number, with_gradients)
        return None if first is None else self._first_op + first

    @property
    def is_long(self) -> bool:
        """True when the running recording should be replaced by a new one."""
        most = min(max(_MOST_OPS, _FEWEST_STEPS * self._longest), _MOST_OPS_OF_STEPS)
        return self._recordings[-1].length > most

    def close(self, error: BaseException | None) -> None:
        for recording in self._recordings:
            if recording.running:
                recording.stop(error)
        self._first_op = self.ops
        self._recordings, self._graphs = [], {}

    def leave_to_parent(self) -> None:
        """In a process that was just forked: record nothing there. Nobody may ever end it: a worker keeps every op."""
        for recording in self._recordings:
            if recording.running:
                recording.leave_to_parent()
        self._first_op = self.ops
        self._recordings, self._graphs = [], {}

    def paused(self) -> AbstractContextManager[None]:
        """What runs in here is not recorded."""
        return self._recordings[-1].paused()

    @property
    def is_whole(self) -> bool:  # type: ignore[override]
        return self.recordings == 1

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
        return None if isinstance(tensor, UninitializedTensor) else self._recordings[-1].storage_id(tensor)

    def live_storages(self) -> list[int] | None:
        """The storages, in `graph`, that the program has made and not let go of; None if that is not known of all."""
        return self._recordings[-1].live_storages() if self.is_whole else None

    def storages_of(self, tensors: Iterable[torch.Tensor]) -> frozenset[int]:
        """The storages of some tensors in `graph`, as far as they are known."""
        return frozenset(storage for each in tensors if (storage := self.storage_of(each)) is not None)

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

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step_begins(self) -> None:
        self._step_line = None

    @property
    def step_line(self) -> Where:
        """The program's line that calls the optimizer's step that runs."""
        if self._step_line is None:
            self._step_line = running_line("step")
        return self._step_line

    def step_ends(self) -> None:
        self.steps += 1
        self._longest = max(self._longest, self.ops - self._latest_step)
        self._latest_step = self.ops

    @property
    def steps_recorded(self) -> int:
        """The steps that the running recording has seen."""
        return self.steps - self._first_step

    @property
    def in_step(self) -> bool:
        """True while an optimizer is at work, and not a closure that it calls."""
        return self._recordings[-1].in_step

    # -- models and what they train ------------------------------------------------------------------------------------

    def call_begins(self, module: nn.Module) -> None:
        if module not in self._roots:
            self._roots.add(module)
            self._leaves.model_called(self._roots)
        self._call = self.ops + 1, running_line("called")

    def call_is_over(self) -> None:
        """Also if it raised."""
        if self._call is not None:
            first, line = self._call
            self._calls.append((first, self.ops, line))
            self._call = None

    @property
    def caller(self) -> Where | None:
        """The program's line that called the model that runs."""
        return None if self._call is None else self._call[1]

    def call_of(self, node: GraphNode) -> Where | None:
        ordinal = self._first_op + int((self.graph.columns["node_kind"][: node.id + 1] == _OP).sum())
        calls = self._calls if self._call is None else [*self._calls, (self._call[0], self.ops, self._call[1])]
        place = bisect_right(calls, ordinal, key=lambda call: call[0]) - 1
        return None if place < 0 or ordinal > calls[place][1] else calls[place][2]

    def roots(self) -> list[nn.Module]:
        """The modules that were called and that no other module called."""
        return [*([] if self.model is None else [self.model]), *self._roots]

    def parameters(self) -> Iterator[torch.Tensor]:
        for module in self.roots():
            yield from module.parameters()

    def leaf(self, tensor: torch.Tensor) -> Leaf:
        """What is known of a tensor that is trained."""
        return self._leaves.of(tensor, self._roots)

    def name(self, tensor: torch.Tensor) -> str:
        return self.leaf(tensor).name
