"""The rows of a recording (row_schema.py) -> nodes: one pass that follows every tensor from op to op.

For each op `Decoder._op` asks: which states of which tensors does it take, write and make (tensor_states.py); in which
phase does it run; to which forward op does it belong (forward_links.py); in which module call, on which line of the
user's; with which arguments.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from torchatlas.capturing.collectives import BUFFERED, over_gloo
from torchatlas.capturing.forward_links import ACCUMULATE, ForwardLinks
from torchatlas.capturing.module_calls import Watch
from torchatlas.capturing.portable import call_text, generic_call_text
from torchatlas.capturing.recorder import Recorder
from torchatlas.capturing.row_schema import (
    RECOMPUTING,
    OpRow,
    Plan,
    Recomputed,
    Reshaped,
    Resized,
    ResizedEarly,
    Returned,
    Target,
    flat_numbers,
)
from torchatlas.capturing.tensor_states import TensorStates
from torchatlas.graph.arguments import exact_text
from torchatlas.graph.columns import PHASES
from torchatlas.graph.nouns import Phase

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = map(
    PHASES.index, (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER, Phase.OTHER)
)
OUTPUT_NODE, INPUT_NODE = -1, -2  # in place of a plan
_FIXED = len(OpRow._fields)
_NO_TARGETS: list[Target] = []


@dataclass(slots=True)
class NodeColumns:
    """One entry per node in each list, as in the columns of a graph."""

    plan: list[int] = field(default_factory=list)
    start_ns: list[int] = field(default_factory=list)
    time_ns: list[int] = field(default_factory=list)
    sequence_nr: list[int] = field(default_factory=list)
    call: list[int] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    phase: list[int] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    iteration: list[int] = field(default_factory=list)
    forward: list[int] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    thread: list[int] = field(default_factory=list)
    input_count: list[int] = field(default_factory=list)
    output_count: list[int] = field(default_factory=list)


class Decoder:
    """One pass over one recording. `inputs` are the numbers of the tensors that were passed in."""

    def __init__(self, recorder: Recorder, watch: Watch, inputs: Collection[int] = ()) -> None:
        self.recorder, self.watch, self.plans = recorder, watch, recorder.plans
        # Threads may go on: first where the rows end, then what these rows refer to.
        self._end = len(recorder.rows) if recorder.end is None else recorder.end
        self.call_owner = list(watch.call_owner)
        self.call_parent = watch.call_parent[: len(self.call_owner)]
        self.nodes = nodes = NodeColumns()
        self.states = TensorStates(recorder, watch, inputs)
        self.argument_texts: dict[str, int] = {}
        self.source_lines: list[tuple[Any, int]] = []  # code object and instruction of each line
        self.thread_names, self._thread_of_call, first_numbers = self._threads()
        self._links = ForwardLinks(
            self.states, first_numbers, sequence_nr=nodes.sequence_nr, forward=nodes.forward, thread=nodes.thread
        )
        self._node = 0
        self._iteration = 0
        self._phase = FORWARD  # of the last op
        self._trained = False  # a backward pass ran since the last module call
        self._ran_in: dict[int, int] = {}  # the running call of backward nodes, which get that of their forward node
        self._texts: dict[Any, int] = {}  # what tells one call from another -> its row in `argument_texts`
        self._sources: dict[tuple[int, int], int] = {}  # id of a code object and instruction -> `source_lines`
        optimizers = {number for number, owner in enumerate(watch.owners) if owner.kind == "optimizer"}
        self._optimizer_calls = {call for call, owner in enumerate(self.call_owner) if owner in optimizers}
        names = list(enumerate(plan.name for plan in self.plans))
        self._scaling = {number for number, name in names if name.startswith("aten._amp_")}  # of a GradScaler
        self._buffered = {number for number, name in names if name in BUFFERED}
        self._seeds = {number for number, name in names if name == "aten.ones_like.default"}

    def run(self) -> None:
        rows, states, end = self.recorder.rows, self.states, self._end
        events: dict[type, Callable[[Any, int], None]] = {
            weakref.ref: states.storage_died,
            Resized: states.storage_resized,
            ResizedEarly: states.storage_resized_early,
            Reshaped: states.tensor_reshaped,
            Recomputed: self._recomputed,
            Returned: self._returned,
        }
        boundaries = [*_iteration_boundaries(self.watch.steps, end), end + 1]
        at = 0
        while at < end:
            head = rows[at]
            if type(head) is int:
                while at >= boundaries[self._iteration]:
                    self._iteration += 1
                at = self._op(rows, at)
            else:
                events[type(head)](head, self._node)
                at += 1
        states.end(self._node)

    def _op(self, rows: list[Any], at: int) -> int:
        """Decode the row of an op; returns the position of the next row."""
        row = OpRow._make(rows[at : at + _FIXED])
        plan, states, node = self.plans[row.plan], self.states, self._node
        entries, others, keywords, results, following = plan.tail(rows, at + _FIXED)
        # What it takes, writes and makes
        numbers = [entry for entry in entries if type(entry) is int]
        plain, targets = len(numbers) == len(entries), _NO_TARGETS
        if plan.writes or (plan.takes_lists and not plain):
            numbers, targets = plan.inputs(entries, others)
        returned = [results] if type(results) is int else [] if results is None else flat_numbers(results)
        overwritten: Collection[int] = ()
        written: dict[int, int] = {}
        first_input = len(states.inputs)
        if targets:
            overwritten = {index for index, _, only_written in targets if only_written}
            states.written_inputs += [first_input + index for index, _, _ in targets]
        values = states.read(node, numbers, overwritten)
        if targets and not plan.changes_layout:
            written = states.write(node, targets, returned)
        made = states.make(node, returned, numbers, values, written)
        if row.plan in self._buffered and over_gloo(self.recorder.metadata, others):
            states.buffers += [(node, number) for index, number in enumerate(numbers) if index not in overwritten]
        # When, where and with which arguments
        thread = self._thread_of_call[row.call]
        writes_view = bool(targets) and any(states.value_view_of[states.value_of[n]] >= 0 for _, n, _ in targets)
        sequence_nr, forward = self._links.sequence_nr(node, row, plan, results, thread, writes_view), -1
        phase = self._phase_of(row, numbers)
        if phase == BACKWARD:
            assert row.backward_nr is not None
            if self._phase != BACKWARD:
                self._count_seeds()
            forward = self._links.forward_node(row.backward_nr, thread, values)
            if row.backward_nr >= ACCUMULATE:
                sequence_nr = -1
                states.gradients.update(states.storage_of[states.value_tensor[value]] for value in made)
            else:
                sequence_nr = row.backward_nr
            call, source = self._forward_place(row, forward, values)
        else:
            if phase == RECOMPUTE:
                self._recomputed(Recomputed(row.backward_nr), node)
            call, source = row.call, self._source(row)
        self._phase = phase
        nodes = self.nodes
        nodes.plan.append(row.plan)
        nodes.start_ns.append(row.start_ns)
        nodes.time_ns.append(row.end_ns - row.start_ns)
        nodes.sequence_nr.append(sequence_nr)
        nodes.call.append(call)
        nodes.source.append(source)
        nodes.phase.append(phase)
        nodes.memory_bytes.append(states.live_bytes)
        nodes.iteration.append(self._iteration)
        nodes.forward.append(forward)
        nodes.arguments.append(self._arguments(row.plan, plan, plain, entries, others, keywords))
        nodes.thread.append(thread)
        nodes.input_count.append(len(values))
        nodes.output_count.append(len(made))
        self._node = node + 1
        return following

    def _threads(self) -> tuple[list[str], list[int], list[int]]:
        """The names of the threads, the thread of each call, and the first sequence number of each thread.

        The last call is none: what runs in no call runs in the thread that began the recording.
        """
        names, first_numbers = [self.recorder.thread], [self.recorder.first_sequence_nr]
        threads: list[int] = []
        for number, outer in zip(self.call_owner, self.call_parent, strict=True):
            owner = self.watch.owners[number]
            if owner.kind == "thread":
                names.append(owner.thread)
                first_numbers.append(owner.first_sequence_nr)
                threads.append(len(names) - 1)
            else:
                threads.append(threads[outer] if outer >= 0 else 0)
        return names, [*threads, 0], first_numbers

    # -- phases ------------------------------------------------------------------------------------------------------

    def _phase_of(self, row: OpRow, numbers: list[int]) -> int:
        if row.backward_nr is not None and not self._is_step_in_backward(row):
            if row.grad_mode == RECOMPUTING:
                return RECOMPUTE
            self._trained = True
            return BACKWARD
        if row.call in self._optimizer_calls:
            return OPTIMIZER
        if row.call < 0 and (
            (self._trained and not row.grad_mode)
            or row.plan in self._scaling
            or not self.states.gradients.isdisjoint(self.states.storage_of[number] for number in numbers)
        ):
            return OTHER
        self._trained = self._trained and row.call < 0  # a module runs: the next forward pass has begun
        return FORWARD

    def _is_step_in_backward(self, row: OpRow) -> bool:
        """True for an op of an optimizer step, or of what it calls, that a hook runs inside a backward node."""
        step = self.watch.in_backward.get(row.call)
        return step is not None and step[0] == row.backward_nr

    def _count_seeds(self) -> None:
        """The ones that start a backward pass are made just before it, for a wrapper several: count them with it."""
        nodes, node = self.nodes, self._node - 1
        line = nodes.source[node] if node >= 0 else -1
        while node >= 0 and nodes.plan[node] in self._seeds and nodes.phase[node] == FORWARD and nodes.call[node] < 0:
            if nodes.source[node] != line:
                break
            nodes.phase[node] = BACKWARD
            node -= 1

    def _recomputed(self, event: Recomputed, node: int) -> None:
        """A backward node has its checkpoint recomputed before it does anything: what ran in it so far was that."""
        nodes = self.nodes
        node -= 1
        while node >= 0 and nodes.phase[node] == BACKWARD and nodes.sequence_nr[node] == event.backward_nr:
            nodes.phase[node], nodes.sequence_nr[node], nodes.forward[node] = RECOMPUTE, -1, -1
            nodes.call[node] = self._ran_in.get(node, nodes.call[node])
            node -= 1

    # -- modules and lines -------------------------------------------------------------------------------------------

    def _forward_place(self, row: OpRow, forward: int, values: list[int]) -> tuple[int, int]:
        """The module call and the line of a backward op: those of its forward op, or of the node that made its data."""
        if row.call >= 0:
            self._ran_in[self._node] = row.call
        if forward < 0:
            producers = (self.states.value_producer[value] for value in values)
            forward = next((producer for producer in producers if producer >= 0), -1)
        return (self.nodes.call[forward], self.nodes.source[forward]) if forward >= 0 else (-1, -1)

    def _source(self, row: OpRow) -> int:
        """The number of the user's line that ran an op; -1 if there is none."""
        code, instruction = row.code, row.instruction
        if code is None:
            _, line = self.watch.in_backward.get(row.call, (None, None))
            if line is None:
                return -1
            code, instruction = line
        key = (id(code), instruction)
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = len(self.source_lines)
            self.source_lines.append((code, instruction))
        return source

    # -- arguments ---------------------------------------------------------------------------------------------------

    def _arguments(
        self, number: int, plan: Plan, plain: bool, entries: list[Any], others: Any, keywords: dict[str, Any]
    ) -> int:
        """The row of a call in the table of arguments; equal calls share one."""
        if plan.readable:
            if plain and not others and not keywords:
                key: Any = number
            else:
                pattern = None if plain else _pattern_of(entries)
                key = (number, pattern, exact_text(others), exact_text(keywords) if keywords else None)
        else:
            key = (number, exact_text(others))
        known = self._texts.get(key)
        if known is None:
            readable = plan.readable
            text = call_text(plan, key, entries, others, keywords) if readable else generic_call_text(others[1])
            known = self._texts[key] = self._text(text)
        return known

    def _text(self, text: str) -> int:
        return self.argument_texts.setdefault(text, len(self.argument_texts))

    def _returned(self, event: Returned, node: int) -> None:
        """An output node."""
        nodes, values = self.nodes, self.states.read(node, event.tensors)
        row = {"plan": OUTPUT_NODE, "phase": FORWARD, "memory_bytes": self.states.live_bytes, "thread": 0}
        row |= {"iteration": self._iteration, "arguments": self._text(event.arguments)}
        row |= {"input_count": len(values), "output_count": 0}
        for name in NodeColumns.__slots__:
            getattr(nodes, name).append(row.get(name, -1))
        self._node += 1


def _pattern_of(entries: list[Any]) -> tuple[Any, ...]:
    """What tells the tensor arguments of a row from those of another of its plan, beside the tensors themselves."""
    return tuple(
        -1
        if type(entry) is int
        else exact_text(entry)  # 2, 2.0 and True are equal, and not the same
        if entry is None or type(entry) is tuple
        else tuple(len(item) if type(item) is list else item is None for item in entry)
        for entry in entries
    )


def _iteration_boundaries(steps: list[tuple[int, int]], end: int) -> list[int]:
    """Positions among the rows where a new iteration begins. `steps` are the ends of optimizer steps: position, owner.

    Optimizers take turns: an iteration is over when the first of them steps again, and it ended right after the
    step before that.
    """
    boundaries = []
    for (ended, _), (_, owner) in pairwise(steps):
        if owner == steps[0][1]:
            boundaries.append(ended)
    last = boundaries[-1] if boundaries else -1
    if steps and steps[-1][0] < end and {owner for at, owner in steps if at > last} == {owner for _, owner in steps}:
        boundaries.append(steps[-1][0])
    return boundaries
