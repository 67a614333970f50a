"""The event stream -> the columns of a graph: one pass that follows every tensor from op to op.

What the commonest ops do to tensors is written out in the loop; states.py does the rest, and says how it is done.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import Any

from torchatlas.capturing.collectives import BUFFERED, over_gloo
from torchatlas.capturing.forward_links import Sequences
from torchatlas.capturing.module_calls import CALL_ROW, Watch
from torchatlas.capturing.portable import call_text, generic_call_text
from torchatlas.capturing.recorder import Recorder
from torchatlas.capturing.recording_functions import ROW_HEAD, Plan
from torchatlas.capturing.rows import Target, flat_entries, flat_results, iteration_boundaries, pattern_of
from torchatlas.capturing.tensor_states import DATA, NODE_ROW, ORDER, Decoded, States
from torchatlas.graph.arguments import exact_text

ACCUMULATE = 2**63  # AccumulateGrad nodes have the largest sequence number there is

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = range(5)  # phases by their position in the enum
OUTPUT_NODE, INPUT_NODE = -1, -2  # in place of a plan
_SEQUENCE, _CALL, _SOURCE, _PHASE, _FORWARD, _THREAD = 3, 4, 5, 6, 9, 13
_NO_TARGETS: list[Target] = []
_ZEROS = [0] * 64


class Decoder(States):
    """One pass over one recording."""

    def __init__(self, recorder: Recorder, watch: Watch, inputs: Collection[int] = ()) -> None:
        super().__init__(recorder, watch, inputs)
        self.thread_names, self.first_sequence_nrs = [recorder.thread], [recorder.first_sequence_nr]

    # -- the pass ------------------------------------------------------------------------------------------------

    def run(self) -> Decoded:
        recorder, found = self.recorder, self.found
        stream, plans, began = recorder.stream, recorder.plans, recorder.began_ns
        number_of_death = {id(ref): i for i, ref in enumerate(self.references)}
        optimizer_calls, in_backward = self._optimizer_calls(), self.watch.in_backward
        ran_in: dict[int, int] = {}  # the running call of backward nodes, which get that of their forward node
        end = len(stream) if recorder.end is None else recorder.end
        boundaries = [*iteration_boundaries(self.watch.steps, end), end + 1]
        value_of, value_version, value_producer = found.value_of, found.value_version, found.value_producer
        value_output, version, storage_of, readers = found.value_output, self.version, self.storage_of, self.readers
        edges, inputs, written_flags, from_outside = found.edges, found.inputs, found.written, found.from_outside
        several, born, died, sizes = self.several, found.born, found.died, self.bytes
        value_tensor, value_view_of, nodes, outputs = (
            found.value_tensor,
            found.value_view_of,
            found.nodes,
            found.outputs,
        )
        first_on, laid_out = self.origin, self.laid_out
        scaling = {i for i, plan in enumerate(plans) if plan.name.startswith("aten._amp_")}  # of a GradScaler
        buffered = {i for i, plan in enumerate(plans) if plan.name in BUFFERED}
        seeds = {i for i, plan in enumerate(plans) if plan.name == "aten.ones_like.default"}
        phase = FORWARD
        thread_of_call = self._threads()
        numbered = [Sequences(first) for first in self.first_sequence_nrs]
        gradients = self.gradients
        sources: dict[tuple[int, int], int] = {}
        texts: dict[Any, int] = {}
        relaid: dict[int, int] = {}  # an out= tensor as the op found it -> as the op left it
        node, live, iteration, trained = 0, 0, 0, False
        i = 0
        while i < end:
            head = stream[i]
            if type(head) is not int:
                if type(head) is weakref.ref:
                    storage = number_of_death.get(id(head), -1)
                    if storage >= 0:  # else of an earlier recording with the same recorder
                        died[storage] = max(node - 1, 0)
                        live -= max(sizes[storage], 0)
                elif head[0] == "resize early":
                    storage, _ = recorder.resized_early.get(id(head[1]), (-1, 0))
                    if storage in self.early_bytes:  # else it did not outlive the recording
                        live += head[2] - self.early_bytes[storage]
                        self.resizes.append((storage, node, self.early_bytes[storage], head[2]))
                        self.early_bytes[storage] = head[2]
                elif head[0] == "recomputed":
                    _recomputed_before(nodes, head[1], ran_in)
                elif head[0] == "relaid":
                    relaid[head[1]] = head[2]
                elif head[0] == "resize":
                    live += max(head[2], 0) - max(sizes[head[1]], 0)
                    if head[2] != sizes[head[1]]:
                        self.resizes.append((head[1], node, max(sizes[head[1]], 0), max(head[2], 0)))
                    sizes[head[1]] = head[2]
                    self.most_bytes[head[1]] = max(head[2], self.most_bytes[head[1]])
                else:
                    node += self._mark(head, node, live, iteration)
                i += 1
                continue
            while i >= boundaries[iteration]:
                iteration += 1
            plan: Plan = plans[head]
            _, t0, t1, sequence, back, call, code, at, grad, needs = stream[i : i + ROW_HEAD]
            # inputs
            _slots, j = plan.slots, i + ROW_HEAD + len(plan.slots)
            entries = stream[i + ROW_HEAD : j]
            others: Any = ()
            keywords: Any = {}
            if plan.others:
                others = stream[j]
                j += 1
            if plan.has_keywords:
                keywords = stream[j]
                j += 1
            numbers: list[int] = [entry for entry in entries if type(entry) is int]
            plain, targets = len(numbers) == len(entries), _NO_TARGETS
            if plan.writes or not (plain or plan.single):
                numbers, targets = flat_entries(plan, entries, others)
            only_written = {index for index, _, overwritten in targets if overwritten} if targets else ()
            k = 0
            for number in numbers:
                storage = storage_of[number]
                value = value_of[number]
                if value < 0:
                    value = self._first_seen(number, storage)
                elif value_version[value] != version[storage]:
                    value = self._refresh(number, storage, value)
                inputs.append(value)
                producer = value_producer[value]
                if producer >= 0:
                    kind = ORDER if k in only_written else DATA
                    edges += (producer, node, value_output[value], k, value, kind)
                    if value in several:
                        self._further_sources(value, node, k, kind)
                else:
                    from_outside += (value, node, k, value)
                reader = readers[storage]
                if reader is None:
                    readers[storage] = [node, number]
                else:
                    reader += (node, number)
                k += 1
            results = stream[j]
            if self.arrived_bytes:
                live += self.arrived_bytes
                self.arrived_bytes = 0
            # writes
            made: dict[int, int] = {}
            if targets:
                marks = [0] * k
                for index, number, overwritten in targets:
                    marks[index] = 1
                    after = relaid.get(number, number)
                    if after not in made and not plan.changes_layout:
                        made[after] = self._write(after, node, overwritten, number)
                written_flags += marks
            else:
                written_flags += _ZEROS[:k] if k <= len(_ZEROS) else [0] * k
            # outputs
            before = len(outputs)
            if type(results) is int and not made and value_of[results] < 0 and first_on[storage_of[results]] < 0:
                storage = storage_of[results]  # by far the commonest: one new tensor in new memory
                first_on[storage] = value_of[results] = value = len(value_tensor)
                value_tensor.append(results)
                value_version.append(version[storage])
                value_producer.append(node)
                value_output.append(0)
                value_view_of.append(-1)
                laid_out[storage] = [results]
                born[storage] = node
                outputs.append(value)
                if sizes[storage] > 0:
                    live += sizes[storage]
            elif type(results) is int and not made and value_of[results] < 0:
                storage = storage_of[results]  # and next: one new view
                base = first_on[storage]
                for q, number in enumerate(numbers):
                    if storage_of[number] == storage:
                        base = inputs[len(inputs) - k + q]
                        break
                else:
                    several[len(value_tensor)] = self._who_filled(results, node)
                value_of[results] = value = len(value_tensor)
                value_tensor.append(results)
                value_version.append(version[storage])
                value_producer.append(node)
                value_output.append(0)
                value_view_of.append(base)
                twins = laid_out[storage]
                if twins is None:
                    laid_out[storage] = [results]
                else:
                    twins.append(results)
                outputs.append(value)
            elif results is not None or made:
                live += self._outputs(results, node, numbers, inputs[len(inputs) - k :] if k else [], made)
            if head in buffered and over_gloo(recorder.metadata, others):
                self.buffers += [(node, number) for index, number in enumerate(numbers) if index not in only_written]
            writes_view = bool(targets) and any(value_view_of[value_of[n]] >= 0 for _, n, _ in targets)
            makes_node = bool(needs) and not plan.detaches
            thread = thread_of_call[call]
            sequences = numbered[thread]
            if makes_node and sequences.lent >= 0:
                makes_node = self._differentiable(plan, results)
                if makes_node and (borrower := sequences.take_back(sequence)) >= 0:
                    nodes[borrower * NODE_ROW + _SEQUENCE] = -1
            # where and when
            forward = -1
            if back is None or (call in in_backward and in_backward[call][0] == back):
                if call in optimizer_calls:
                    phase = OPTIMIZER
                elif call < 0 and (
                    (trained and not grad)
                    or head in scaling
                    or not gradients.isdisjoint(storage_of[n] for n in numbers)
                ):
                    phase = OTHER
                else:
                    phase = FORWARD
                    trained = trained and call < 0  # a module runs: the next forward pass has begun
                own_sequence = sequences.give(sequence, node, plan.clones, makes_node, writes_view)
            elif grad == 2:
                phase = RECOMPUTE
                own_sequence = sequences.give(sequence, node, plan.clones, makes_node, writes_view)
                _recomputed_before(nodes, back, ran_in)
            else:
                if phase != BACKWARD:
                    _count_seed(nodes, seeds)
                phase, trained = BACKWARD, True
                sequences.give(sequence, node, plan.clones, makes_node, writes_view)  # it may build a graph of its own
                own_sequence = back if back < ACCUMULATE else -1
                forward = sequences.node_of.get(back, -1)
                if len(numbered) > 1:
                    forward = self._forward_in(numbered, thread, back, inputs[len(inputs) - k :] if k else [])
                if back >= ACCUMULATE:
                    for output in outputs[before:]:
                        gradients.add(storage_of[value_tensor[output]])
            if phase == BACKWARD:
                if call >= 0:
                    ran_in[node] = call
                origin = forward if forward >= 0 else self._data_comes_from(inputs[len(inputs) - k :] if k else [])
                call = nodes[origin * NODE_ROW + _CALL] if origin >= 0 else -1
                source = nodes[origin * NODE_ROW + _SOURCE] if origin >= 0 else -1
            elif code is None and (call not in in_backward or in_backward[call][1] is None):
                source = -1
            else:
                if code is None:
                    code, at = in_backward[call][1]
                key = (id(code), at)
                known = sources.get(key)
                if known is None:
                    known = sources[key] = len(found.source_keys)
                    found.source_keys.append((code, at))
                source = known
            # the call
            if not plan.readable:
                text_key: Any = (head, exact_text(others))
            elif plain and not others and not keywords:
                text_key = head
            else:
                pattern = None if plain else pattern_of(entries)
                text_key = (head, pattern, exact_text(others), exact_text(keywords) if keywords else None)
            text = texts.get(text_key)
            if text is None:
                if plan.readable:
                    words = call_text(plan, text_key, entries, others, keywords)
                else:
                    words = generic_call_text(others[1])
                text = texts[text_key] = self._text(words)
            nodes += (
                head,
                t0 - began,
                t1 - t0,
                own_sequence,
                call,
                source,
                phase,
                live,
                iteration,
                forward,
                text,
                k,
                len(outputs) - before,
                thread,
            )
            node += 1
            i = j + 1
        for number in self.there_before:
            if value_of[number] < 0:
                self._first_seen(number, storage_of[number])
        if not node:  # what died did so before the first node, and there is none
            died[:] = [-1] * len(died)
        return found

    def _threads(self) -> list[int]:
        """The thread of each call; the last entry, for no call, is the thread that began the recording."""
        owners, calls = self.watch.owners, self.watch.calls
        threads: list[int] = []
        for owner, outer in zip(calls[0::CALL_ROW], calls[1::CALL_ROW], strict=True):
            if owners[owner].kind == "thread":
                self.thread_names.append(owners[owner].thread)
                self.first_sequence_nrs.append(owners[owner].first_sequence_nr)
                threads.append(len(self.thread_names) - 1)
            else:
                threads.append(threads[outer] if outer >= 0 else 0)
        return [*threads, 0]

    def _forward_in(self, numbered: list[Sequences], thread: int, back: int, values: list[int]) -> int:
        """The forward node of a number that several threads may have given out: the one its data belongs to."""
        nodes = self.found.nodes
        found = {t: sequences.node_of[back] for t, sequences in enumerate(numbered) if back in sequences.node_of}
        for value in values if len(found) > 1 else ():
            before = self.found.value_producer[value]
            origin = nodes[before * NODE_ROW + _FORWARD] if before >= 0 else -1
            near = origin if origin >= 0 else before  # what forward saved, or what a backward op made of it
            if near >= 0 and nodes[near * NODE_ROW + _THREAD] in found:
                return found[nodes[near * NODE_ROW + _THREAD]]
        return found.get(thread, next(iter(found.values()), -1))

    def _optimizer_calls(self) -> set[int]:
        owners = self.watch.owners
        return {
            position
            for position, owner in enumerate(self.watch.calls[0::CALL_ROW])
            if owners[owner].kind == "optimizer"
        }

    def _differentiable(self, plan: Plan, results: Any) -> bool:
        """Whether autograd makes a node for what an op returned: not for whole numbers, nor for new tensors."""
        name = plan.name.split(".")[1]
        found = [results] if type(results) is int else flat_results(results or [])
        real = any(self.dtypes[number].is_floating_point or self.dtypes[number].is_complex for number in found)
        return real and not name.endswith("_like") and not name.startswith("new_")

    def _data_comes_from(self, values: list[int]) -> int:
        """The node that made the first input that a node made; -1 when none did."""
        return next((p for p in (self.found.value_producer[value] for value in values) if p >= 0), -1)

    def _text(self, words: str) -> int:
        """The row of a call in the table; equal calls share one."""
        return self.found.argument_texts.setdefault(words, len(self.found.argument_texts))

    # -- marks ---------------------------------------------------------------------------------------------------

    def _mark(self, mark: tuple[Any, ...], node: int, live: int, iteration: int) -> int:
        """An output node: ("output", tensor numbers, text of the structure)."""
        found = self.found
        for index, number in enumerate(mark[1]):
            value = self._read(number, node, index)
            found.inputs.append(value)
            found.written.append(0)
        text = self._text(mark[2])
        live += self.arrived_bytes  # of what the output itself brought; the next op counts it for good
        row = (OUTPUT_NODE, -1, -1, -1, -1, -1, FORWARD, live, iteration, -1, text, len(mark[1]), 0, 0)
        found.nodes += row
        return 1


def _count_seed(nodes: list[int], seeds: set[int]) -> None:
    """The ones that start a backward pass are made just before it, for a wrapper several: count them with it."""
    row = len(nodes) - NODE_ROW
    line = nodes[row + _SOURCE] if row >= 0 else -1
    while row >= 0 and nodes[row] in seeds and nodes[row + _PHASE] == FORWARD and nodes[row + _CALL] < 0:
        if nodes[row + _SOURCE] != line:
            break
        nodes[row + _PHASE] = BACKWARD
        row -= NODE_ROW


def _recomputed_before(nodes: list[int], back: int, ran_in: dict[int, int]) -> None:
    """A backward node has its checkpoint recomputed before it does anything: what ran in it so far was that."""
    row = len(nodes) - NODE_ROW
    while row >= 0 and nodes[row + _PHASE] == BACKWARD and nodes[row + _SEQUENCE] == back:
        nodes[row + _PHASE], nodes[row + _SEQUENCE], nodes[row + _FORWARD] = RECOMPUTE, -1, -1
        nodes[row + _CALL] = ran_in.get(row // NODE_ROW, nodes[row + _CALL])
        row -= NODE_ROW
