"""The rows of a recording (row_schema.py) -> nodes: one pass that follows every tensor from op to op.

For each op `Decoder._op` asks: which states of which tensors does it take, write and make (tensor_states.py); in which
phase does it run; to which forward op does it belong (forward_links.py); in which module call, on which line of the
user's; with which arguments.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Set
from itertools import pairwise
from typing import Any

from torchatlas.capturing.collectives import over_gloo
from torchatlas.capturing.forward_links import ACCUMULATE, ForwardLinks
from torchatlas.capturing.module_calls import Watch
from torchatlas.capturing.recorder import Recorder
from torchatlas.capturing.row_schema import (
    RECOMPUTING,
    WRITES_VIEW,
    Died,
    NodeRow,
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
from torchatlas.capturing.table_rows import call_text, generic_call_text
from torchatlas.capturing.tensor_states import TensorStates
from torchatlas.graph.arguments import exact_text
from torchatlas.graph.columns import PHASES
from torchatlas.graph.nouns import Phase
from torchatlas.operations import of

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = map(
    PHASES.index, (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER, Phase.OTHER)
)
OUTPUT_NODE, INPUT_NODE = -1, -2  # in place of a plan
_FIXED, _WIDTH = len(OpRow._fields), len(NodeRow._fields)
_PLAN, _SEQUENCE_NR, _CALL, _SOURCE, _PHASE, _FORWARD = map(
    NodeRow._fields.index, ("plan", "sequence_nr", "call", "source", "phase", "forward")
)
_NO_TARGETS: list[Target] = []
_NOTHING: Set[int] = frozenset()


class Decoder:
    """One pass over one recording. `inputs` are the numbers of the tensors that were passed in."""

    def __init__(self, recorder: Recorder, watch: Watch, inputs: Collection[int] = ()) -> None:
        self.recorder, self.watch, self.plans = recorder, watch, recorder.plans
        # Threads may go on: first where the rows end, then what these rows refer to.
        self._end = len(recorder.rows) if recorder.end is None else recorder.end
        self.call_owner = list(watch.call_owner)
        self.call_parent = watch.call_parent[: len(self.call_owner)]
        self.nodes: list[int] = []  # flat: NodeRow
        watch.names.settle()
        self.states = TensorStates(recorder, watch, inputs)
        self.argument_texts: dict[str, int] = {}
        self.source_lines: list[tuple[Any, int]] = []  # code object and instruction of each line
        self.thread_names, self._thread_of_call, first_numbers = self._threads()
        self._links = ForwardLinks(self.nodes, self.states, first_numbers)
        self._knows_views = recorder.knows_views
        self._node = 0
        self._iteration = 0
        self._phase = FORWARD  # of the last op
        self._trained = False  # a backward pass ran since the last module call
        self._ran_in: dict[int, int] = {}  # the running call of backward nodes, which get that of their forward node
        self._texts: dict[Any, int] = {}  # what tells one call from another -> its row in `argument_texts`
        self._sources: dict[tuple[int, int], int] = {}  # id of a code object and instruction -> `source_lines`
        optimizers = {number for number, owner in enumerate(watch.owners) if owner.kind == "optimizer"}
        self._optimizer_calls = {call for call, owner in enumerate(self.call_owner) if owner in optimizers}
        # An optimizer step that a hook runs inside a backward node: its call -> the node's number
        self._steps_in_backward = {call: number for call, (number, _) in watch.in_backward.items()}
        names = list(enumerate(plan.name for plan in self.plans))
        self._scaling = {number for number, name in names if name.startswith("aten._amp_")}  # of a GradScaler
        self._buffered = {number for number, name in names if of(name).gloo_buffered}
        self._seeds = {number for number, name in names if name == "aten.ones_like.default"}

    def run(self) -> None:
        rows, states, end = self.recorder.rows, self.states, self._end
        events: dict[type, Callable[[Any, int], None]] = {
            weakref.ref: states.reference_died,
            Died: states.storage_died,
            Resized: states.storage_resized,
            ResizedEarly: states.storage_resized_early,
            Reshaped: states.tensor_reshaped,
            Recomputed: self._recomputed,
            Returned: self._returned,
        }
        steps = list(self.watch.steps)
        positions = self.recorder.positions([mark for mark, _ in steps])
        ended = list(zip(positions, (owner for _, owner in steps), strict=True))
        boundaries = [*_iteration_boundaries(ended, end), end + 1]
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
        # The fields of OpRow, in their order: attributes of a tuple would take half a microsecond per op.
        number, start_ns, end_ns, next_nr, backward_nr, call, code, instruction, grad_mode, needs_grad, callers = rows[
            at : at + _FIXED
        ]
        plan: Plan = self.plans[number]
        states, node = self.states, self._node
        entries, others, keywords, results, following = plan.tail(rows, at + _FIXED)
        # What it takes, writes and makes
        numbers = [entry for entry in entries if type(entry) is int]
        plain, targets = len(numbers) == len(entries), _NO_TARGETS
        if plan.writes or (plan.takes_lists and not plain):
            numbers, targets = plan.inputs(entries, others)
        returned = [results] if type(results) is int else [] if results is None else flat_numbers(results)
        overwritten, written = _NOTHING, None
        if targets:
            first_input = len(states.inputs)
            states.written_inputs += [first_input + index for index, _, _ in targets]
            overwritten = {index for index, _, only_written in targets if only_written}
        values = states.read(node, numbers, overwritten)
        if targets and not plan.changes_layout:
            written = states.write(node, targets, returned)
        made = states.make(node, returned, numbers, values, written)
        if number in self._buffered and over_gloo(self.recorder.metadata, others):
            states.buffers += [(node, number) for index, number in enumerate(numbers) if index not in overwritten]
        # When, where and with which arguments
        thread = self._thread_of_call[call]
        writes_view = bool(targets) and (needs_grad == WRITES_VIEW if self._knows_views else states.is_view(targets))
        sequence_nr, forward = (
            self._links.sequence_nr(node, plan, returned, thread, next_nr, bool(needs_grad), writes_view),
            -1,
        )
        phase = self._phase_of(number, call, backward_nr, grad_mode, numbers)
        if phase == BACKWARD:
            assert backward_nr is not None
            if self._phase != BACKWARD:
                self._count_seeds()
            forward = self._links.forward_node(backward_nr, thread, values)
            if backward_nr >= ACCUMULATE:
                sequence_nr = -1
                states.gradients.update(states.storage_of[states.value_tensor[value]] for value in made)
            else:
                sequence_nr = backward_nr
            call, source = self._forward_place(call, forward, values)
        else:
            if phase == RECOMPUTE:
                self._recomputed(Recomputed(backward_nr), node)
            source = self._source(code, instruction, call)
        self._phase = phase
        arguments = self._arguments(number, plan, plain, entries, others, keywords)
        # The fields of NodeRow, in their order
        self.nodes += (
            number,
            start_ns,
            end_ns,
            sequence_nr,
            call,
            source,
            phase,
            states.live_bytes,
            self._iteration,
            forward,
            arguments,
            thread,
            callers,
            len(values),
            len(made),
        )
        self._node = node + 1
        return following

    def _threads(self) -> tuple[list[str], list[int], list[int]]:
        """The names of the threads, the thread of each call, and the first sequence number of each thread.

        The last entry is for no call: what runs in no call runs in the thread that began the recording.
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

    def _phase_of(self, plan: int, call: int, backward_nr: int | None, grad_mode: int, numbers: list[int]) -> int:
        if backward_nr is not None and self._steps_in_backward.get(call) != backward_nr:
            if grad_mode == RECOMPUTING:
                return RECOMPUTE
            self._trained = True
            return BACKWARD
        if call in self._optimizer_calls:
            return OPTIMIZER
        if call < 0 and (
            (self._trained and not grad_mode)
            or plan in self._scaling
            or not self.states.gradients.isdisjoint(self.states.storage_of[number] for number in numbers)
        ):
            return OTHER
        self._trained = self._trained and call < 0  # a module runs: the next forward pass has begun
        return FORWARD

    def _count_seeds(self) -> None:
        """Count the `ones_like` that a backward pass starts from as backward: it runs just before the pass."""
        nodes, at = self.nodes, len(self.nodes) - _WIDTH
        line = nodes[at + _SOURCE] if at >= 0 else -1
        while at >= 0 and nodes[at + _PLAN] in self._seeds and nodes[at + _PHASE] == FORWARD and nodes[at + _CALL] < 0:
            if nodes[at + _SOURCE] != line:
                break
            nodes[at + _PHASE] = BACKWARD
            at -= _WIDTH

    def _recomputed(self, event: Recomputed, node: int) -> None:
        """A backward node recomputes its checkpoint before all else: what ran in it so far was the recomputation."""
        nodes, at = self.nodes, len(self.nodes) - _WIDTH
        while at >= 0 and nodes[at + _PHASE] == BACKWARD and nodes[at + _SEQUENCE_NR] == event.backward_nr:
            nodes[at + _PHASE], nodes[at + _SEQUENCE_NR], nodes[at + _FORWARD] = RECOMPUTE, -1, -1
            nodes[at + _CALL] = self._ran_in.get(at // _WIDTH, nodes[at + _CALL])
            at -= _WIDTH

    # -- modules and lines -------------------------------------------------------------------------------------------

    def _forward_place(self, call: int, forward: int, values: list[int]) -> tuple[int, int]:
        """The module call and the line of a backward op: those of its forward op, or of the node that made its data."""
        if call >= 0:
            self._ran_in[self._node] = call
        if forward < 0:
            producers = (self.states.value_producer[value] for value in values)
            forward = next((producer for producer in producers if producer >= 0), -1)
        if forward < 0:
            return -1, -1
        return self.nodes[forward * _WIDTH + _CALL], self.nodes[forward * _WIDTH + _SOURCE]

    def _source(self, code: Any, instruction: int, call: int) -> int:
        """The number of the user's line that ran an op; -1 if there is none."""
        if code is None:
            _, line = self.watch.in_backward.get(call, (None, None))
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
                key = (
                    number,
                    pattern,
                    exact_text(others) if others else None,
                    exact_text(keywords) if keywords else None,
                )
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
        """Add the output node."""
        values, unknown = self.states.read(node, event.tensors), dict.fromkeys(NodeRow._fields, -1)
        known = {"plan": OUTPUT_NODE, "phase": FORWARD, "iteration": self._iteration, "thread": 0}
        known |= {"memory_bytes": self.states.live_bytes, "arguments": self._text(event.arguments)}
        known |= {"input_count": len(values), "output_count": 0}
        self.nodes += NodeRow(**unknown | known)
        self._node += 1


def _pattern_of(entries: list[Any]) -> tuple[Any, ...]:
    """A key for the tensor arguments of a row, equal if only the tensors differ: rows of one plan then share a text."""
    pattern: list[Any] = []
    for entry in entries:
        if type(entry) is int or entry is None:
            pattern.append(entry is None)
        elif type(entry) is tuple:
            pattern.append(exact_text(entry))  # 2, 2.0 and True are equal, and not the same
        else:
            pattern.append(tuple([len(item) if type(item) is list else item is None for item in entry]))
    return tuple(pattern)


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
