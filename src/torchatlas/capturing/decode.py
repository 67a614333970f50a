"""The event stream -> the columns of a graph: one pass that follows every tensor from op to op.

A tensor is followed by its number. Its current state is a Value; a write through any alias makes the states of the
others stale, which shows when they are next read (`_refresh`). All slow work hides behind that comparison of versions.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import Any

from torchatlas.capturing.collectives import BUFFERED, over_gloo
from torchatlas.capturing.describe import call_text, generic_call_text
from torchatlas.capturing.modules import CALL_ROW, Watch
from torchatlas.capturing.overlap import Layout, covers, overlap
from torchatlas.capturing.plans import ROW_HEAD, Plan
from torchatlas.capturing.rows import Target, flat_entries, flat_results, in_order, iteration_boundaries, pattern_of
from torchatlas.capturing.sequences import Sequences
from torchatlas.capturing.stream import STORAGE_ROW, TENSOR_ROW, Recorder

ACCUMULATE = 2**63  # AccumulateGrad nodes have the largest sequence number there is

# Phases and edge kinds by their position in the enums.
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = range(5)
DATA, ORDER = range(2)
OUTPUT_NODE, INPUT_NODE = -1, -2  # in place of a plan
# plan, start, time, sequence, call, source, phase, memory, iteration, forward, arguments, inputs, outputs, thread
NODE_ROW = 14
_SEQUENCE, _CALL, _SOURCE, _PHASE, _FORWARD, _THREAD = 3, 4, 5, 6, 9, 13
_NO_TARGETS: list[Target] = []
_ZEROS = [0] * 64
_MOST_READERS = 256  # exact orders for so many readers of one storage; beyond that, sound ones


class Decoded:
    """Columns as Python lists, one entry per node, value, edge ...; finish.py makes arrays of them."""

    def __init__(self, tensors: int, storages: int) -> None:
        self.nodes: list[int] = []  # NODE_ROW entries per node
        self.inputs: list[int] = []
        self.written: list[int] = []
        self.outputs: list[int] = []
        # values
        self.value_tensor: list[int] = []
        self.value_version: list[int] = []
        self.value_producer: list[int] = []
        self.value_output: list[int] = []
        self.value_view_of: list[int] = []
        # edges, flat: source, target, output index, input index, value, kind
        self.edges: list[int] = []
        self.from_outside: list[int] = []  # value, node, input index: who takes what no node made
        # storages
        self.born = [-1] * storages
        self.died = [-1] * storages
        self.value_of: list[int] = [-1] * tensors  # the current value of each tensor
        # tables
        self.argument_texts: dict[str, int] = {}
        self.source_keys: list[tuple[Any, int]] = []


class Decoder:
    """One pass over one recording."""

    def __init__(self, recorder: Recorder, watch: Watch, inputs: Collection[int] = ()) -> None:
        self.recorder, self.watch = recorder, watch
        self.there_before = {*watch.tensors, *inputs}
        self.arrived: dict[int, int] = {}  # other storages that no op made -> the node that first took them
        self.arrived_bytes = 0
        self.thread_names, self.first_sequence_nrs = [recorder.thread], [recorder.first_sequence_nr]
        tensors = in_order(recorder.tensors, TENSOR_ROW, tuple(recorder.tensors[1:TENSOR_ROW]))
        storages = in_order(recorder.storages, STORAGE_ROW, (None, 0, *recorder.storages[3:STORAGE_ROW]))
        self.storage_of: list[int] = tensors[1::TENSOR_ROW]
        self.shapes, self.strides = tensors[2::TENSOR_ROW], tensors[3::TENSOR_ROW]
        self.offsets, self.dtypes = tensors[4::TENSOR_ROW], tensors[5::TENSOR_ROW]
        self.references, self.devices = storages[1::STORAGE_ROW], storages[3::STORAGE_ROW]
        self.gradients = {storage for storage, named in watch.storages.items() if named.role == "gradient"}
        self.bytes: list[int] = storages[2::STORAGE_ROW]
        self.first_bytes = list(self.bytes)  # before any resizing
        self.early_bytes = dict(recorder.resized_early.values())  # of storages that were resized before they were used
        for storage, size in self.early_bytes.items():
            self.first_bytes[storage] = size
        self.most_bytes = list(self.bytes)
        self.resizes: list[tuple[int, int, int, int]] = []  # storage, node from which it counts, bytes before and after
        self.buffers: list[tuple[int, int]] = []  # collective, tensor: what it copied into a buffer of its own
        count = len(self.bytes)
        self.found = Decoded(len(self.storage_of), count)
        self.version = [0] * count
        self.origin = [-1] * count  # the first value on a storage
        self.readers: list[list[int] | None] = [None] * count  # node, tensor, ... since the last write
        self.writers: dict[int, list[tuple[int, int, int, int]]] = {}  # storage -> (version, node, output, tensor)
        self.several: dict[int, list[tuple[int, int]]] = {}  # value -> further (node, output) its data comes from
        self.laid_out: list[list[int] | None] = [None] * count  # tensors on a storage that `alike` does not know yet
        self.alike: dict[tuple[int, int, Any, Any, Any], int] = {}  # storage and layout -> the last tensor so laid out

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
                        for other, output in several[value]:
                            edges += (other, node, output, k, value, kind)
                else:
                    from_outside += (value, node, k)
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
                    if number not in made and not plan.changes_layout:
                        made[number] = self._write(number, node, overwritten)
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
                    self._after_who_filled(storage, node)
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
                text_key: Any = (head, repr(others))
            elif plain and not others and not keywords:
                text_key = head
            else:
                pattern = None if plain else pattern_of(entries)
                text_key = (head, pattern, repr(others), repr(keywords) if keywords else None)
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

    # -- reading -------------------------------------------------------------------------------------------------

    def _read(self, number: int, node: int, index: int) -> int:
        """The state of a tensor that a node takes, with the edges that bring it."""
        found, storage = self.found, self.storage_of[number]
        value = found.value_of[number]
        if value < 0:
            value = self._first_seen(number, storage)
        elif found.value_version[value] != self.version[storage]:
            value = self._refresh(number, storage, value)
        producer = found.value_producer[value]
        if producer >= 0:
            found.edges += (producer, node, found.value_output[value], index, value, DATA)
            for other, output in self.several.get(value, ()):
                found.edges += (other, node, output, index, value, DATA)
        else:
            found.from_outside += (value, node, index)
        reader = self.readers[storage]
        if reader is None:
            self.readers[storage] = [node, number]
        else:
            reader += (node, number)
        return value

    def _new_value(self, number: int, producer: int, output: int, view_of: int) -> int:
        found = self.found
        value = len(found.value_tensor)
        found.value_tensor.append(number)
        found.value_version.append(self.version[self.storage_of[number]])
        found.value_producer.append(producer)
        found.value_output.append(output)
        found.value_view_of.append(view_of)
        found.value_of[number] = value
        return value

    def _key(self, number: int) -> tuple[int, int, Any, Any, Any]:
        return (
            self.storage_of[number],
            self.offsets[number],
            self.shapes[number],
            self.strides[number],
            self.dtypes[number],
        )

    def _twin(self, number: int, storage: int) -> int | None:
        """The last tensor that lies exactly where this one lies."""
        for other in self.laid_out[storage] or ():
            self.alike[self._key(other)] = other
        self.laid_out[storage] = None
        return self.alike.get(self._key(number))

    def _first_seen(self, number: int, storage: int) -> int:
        """The value of a tensor that no op made before our eyes.

        Either it comes from outside, or it is a new Python object for memory we know: autograd hands out what it
        saved that way, and `.data` and C++ make aliases without an op.
        """
        if self.origin[storage] < 0:
            producer = self._buffer_of(number) if self.buffers and number not in self.there_before else -1
            value = self.origin[storage] = self._new_value(number, producer, -1 if producer < 0 else 0, -1)
            if producer >= 0:
                self.found.born[storage] = producer
                self.arrived_bytes += max(self.bytes[storage], 0)
            elif storage in self.early_bytes:
                self.arrived_bytes += self.bytes[storage] - self.early_bytes[storage]
            elif number not in self.watch.tensors:
                self.arrived_bytes += max(self.first_bytes[storage], 0)  # a resizing since then was counted already
                self.arrived[storage] = len(self.found.nodes) // NODE_ROW
            self.laid_out[storage] = [number]
            return value
        twin = self._twin(number, storage)
        if twin is not None and twin != number:
            value = self.found.value_of[twin]
            if self.found.value_version[value] != self.version[storage]:
                value = self._refresh(twin, storage, value)
            self.found.value_of[number] = value
            return value
        origin = self.origin[storage]
        value = self._new_value(number, self.found.value_producer[origin], self.found.value_output[origin], origin)
        self.found.value_version[value] = -1  # older than every write: let them all be looked at
        return self._refresh(number, storage, value, new=True)

    def _buffer_of(self, number: int) -> int:
        """The collective whose own buffer a tensor must be; -1 for all others."""
        for position, (node, copied) in enumerate(self.buffers):
            if self.shapes[copied] == self.shapes[number] and self.dtypes[copied] == self.dtypes[number]:
                del self.buffers[position]
                return node
        return -1

    def _refresh(self, number: int, storage: int, value: int, new: bool = False) -> int:
        """The state of a tensor after its storage was written, perhaps elsewhere in it."""
        found, since = self.found, self.found.value_version[value]
        mine = self._layout(number)
        sources: list[tuple[int, int]] = []
        covered = False
        for version, node, output, tensor in reversed(self.writers.get(storage, ())):
            if version <= since or covered:
                break
            theirs = self._layout(tensor)
            if self._touch(theirs, mine, tensor, number):
                sources.append((node, output))
                covered = self._covered(number, tensor)
        if not sources:
            found.value_version[value] = self.version[storage]
            return value
        producer, output = sources[0]
        older = found.value_producer[value]
        rest = sources[1:]
        if not covered and older >= 0:
            rest += [(older, found.value_output[value]), *self.several.get(value, ())]
        if new:
            found.value_producer[value], found.value_output[value] = producer, output
            found.value_version[value] = self.version[storage]
            fresh = value
        else:
            fresh = self._new_value(number, producer, output, found.value_view_of[value])
        if rest:
            self.several[fresh] = list(dict.fromkeys(pair for pair in rest if pair != sources[0]))
        return fresh

    def _layout(self, number: int) -> Layout | None:
        stride = self.strides[number]
        return None if type(stride) is str else (self.offsets[number], self.shapes[number], stride)

    def _same_size(self, one: int, other: int) -> bool:
        return bool(self.dtypes[one].itemsize == self.dtypes[other].itemsize)

    def _touch(self, theirs: Layout | None, mine: Layout | None, one: int, other: int) -> bool:
        if theirs is None or mine is None or not self._same_size(one, other):
            return True
        return overlap(theirs, mine)

    # -- writing -------------------------------------------------------------------------------------------------

    def _write(self, number: int, node: int, overwritten: bool) -> int:
        """A new state of a written tensor; older readers and writers of the same bytes must come first."""
        found, storage = self.found, self.storage_of[number]
        mine = self._layout(number)
        log = self.readers[storage] or []
        kept: list[int] = []
        crowded = len(log) > 2 * _MOST_READERS
        for position in range(0, len(log), 2):
            reader, tensor = log[position], log[position + 1]
            touched = tensor == number or self._touch(self._layout(tensor), mine, tensor, number)
            if (touched or crowded) and reader != node:
                found.edges += (reader, node, -1, -1, found.value_of[tensor], ORDER)
            if not (touched and self._covered(tensor, number)):
                kept += (reader, tensor)
        if crowded:  # this node comes after them all: it can stand for them before later writes
            kept = [node, found.value_tensor[self.origin[storage]]]
        self.readers[storage] = kept or None
        if overwritten:
            for _, writer, _, tensor in self.writers.get(storage, ()):
                if writer != node and self._touch(self._layout(tensor), mine, tensor, number):
                    found.edges += (writer, node, -1, -1, found.value_of[tensor], ORDER)
        self.version[storage] += 1
        history = self.writers.setdefault(storage, [])
        history[:] = [entry for entry in history if not self._covered(entry[3], number)]
        old = found.value_of[number]
        value = self._new_value(number, node, -1, found.value_view_of[old])
        history.append((self.version[storage], node, -1, number))
        return value

    def _after_who_filled(self, storage: int, node: int) -> None:
        """Let a node that got at memory by another way than a tensor, set_ to a storage say, follow its writers."""
        found, origin = self.found, self.origin[storage]
        for source in (found.value_producer[origin], *(writer for _, writer, _, _ in self.writers.get(storage, ()))):
            if source >= 0:
                found.edges += (source, node, -1, -1, origin, ORDER)

    def _covered(self, tensor: int, by: int) -> bool:
        """Whether every byte of a tensor lies in another."""
        if tensor == by:
            return type(self.strides[by]) is not str
        theirs, mine = self._layout(tensor), self._layout(by)
        return theirs is not None and mine is not None and self._same_size(tensor, by) and covers(mine, theirs)

    def _outputs(self, results: Any, node: int, taken: list[int], values: list[int], made: dict[int, int]) -> int:
        """Values for what a node returned, then for what it wrote and did not return; returns the bytes allocated."""
        found, allocated = self.found, 0
        returned = [] if results is None else [results] if type(results) is int else flat_results(results)
        index = 0
        for number in returned:
            if number in made:
                value = made.pop(number)
                found.value_output[value] = index
                self._set_writer_output(number, node, index)
            else:
                storage = self.storage_of[number]
                resized = next((other for other in made if self.storage_of[other] == storage), None)
                if resized is not None:  # out= of another size: the same tensor object under a new number
                    del made[resized]
                    self._set_writer_output(resized, node, index)
                view_of = found.value_of[number]
                if view_of < 0 and self.origin[storage] >= 0:
                    view_of = next(
                        (v for t, v in zip(taken, values, strict=True) if self.storage_of[t] == storage),
                        self.origin[storage],
                    )
                value = self._new_value(number, node, index, view_of)
                if self.origin[storage] < 0:
                    self.origin[storage] = value
                    found.born[storage] = node
                    allocated += max(self.bytes[storage], 0)
                others = self.laid_out[storage]
                if others is None:
                    self.laid_out[storage] = [number]
                else:
                    others.append(number)
            found.outputs.append(value)
            index += 1
        for number, value in made.items():
            found.value_output[value] = index
            self._set_writer_output(number, node, index)
            found.outputs.append(value)
            index += 1
        return allocated

    def _set_writer_output(self, number: int, node: int, index: int) -> None:
        history = self.writers[self.storage_of[number]]
        for position in range(len(history) - 1, -1, -1):
            version, writer, _, tensor = history[position]
            if writer == node and tensor == number:
                history[position] = (version, writer, index, tensor)
                return

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
