"""Which state of which tensor an op takes and makes: the columns of values and edges.

A tensor is followed by its number. Its current state is a Value; a write through any alias makes the states of the
others stale, which shows when they are next read (`_refresh`). All slow work hides behind that comparison of versions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torchatlas.capturing.module_calls import Watch
from torchatlas.capturing.overlap import Layout, covers, overlap
from torchatlas.capturing.recorder import STORAGE_ROW, TENSOR_ROW, Recorder
from torchatlas.capturing.rows import flat_results, in_order

DATA, ORDER = range(2)  # edge kinds by their position in the enum
# plan, start, time, sequence, call, source, phase, memory, iteration, forward, arguments, inputs, outputs, thread
NODE_ROW = 14
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
        self.from_outside: list[int] = []  # value no node made, who takes it, input index, value taken (it may be part)
        # storages
        self.born = [-1] * storages
        self.died = [-1] * storages
        self.value_of: list[int] = [-1] * tensors  # the current value of each tensor
        # tables
        self.argument_texts: dict[str, int] = {}
        self.source_keys: list[tuple[Any, int]] = []


class States:
    """What every tensor of a recording holds, node by node."""

    def __init__(self, recorder: Recorder, watch: Watch, inputs: Collection[int] = ()) -> None:
        self.recorder, self.watch = recorder, watch
        self.there_before = {*watch.tensors, *inputs}
        self.arrived: dict[int, int] = {}  # other storages that no op made -> the node that first took them
        self.arrived_bytes = 0
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
        # value -> further (node, output) its data comes from, or (~value, 0) for a value that no node made
        self.several: dict[int, list[tuple[int, int]]] = {}
        self.laid_out: list[list[int] | None] = [None] * count  # tensors on a storage that `alike` does not know yet
        self.alike: dict[tuple[int, int, Any, Any, Any], int] = {}  # storage and layout -> the last tensor so laid out

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
            self._further_sources(value, node, index, DATA)
        else:
            found.from_outside += (value, node, index, value)
        reader = self.readers[storage]
        if reader is None:
            self.readers[storage] = [node, number]
        else:
            reader += (node, number)
        return value

    def _further_sources(self, value: int, node: int, index: int, kind: int) -> None:
        """The edges of a value that several have filled, but for the one from its producer."""
        found = self.found
        for other, output in self.several.get(value, ()):
            if other >= 0:
                found.edges += (other, node, output, index, value, kind)
            elif kind == DATA:
                found.from_outside += (~other, node, index, value)

    def _source_of(self, value: int) -> tuple[int, int]:
        """Who made a value, as an entry of `several`."""
        producer = self.found.value_producer[value]
        return (producer, self.found.value_output[value]) if producer >= 0 else (~value, 0)

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
        found = self.found
        sources, covered = self._writers_of(number, storage, found.value_version[value])
        if not sources:
            found.value_version[value] = self.version[storage]
            return value
        producer, output = sources[0]
        rest = sources[1:]
        if not covered:
            rest += [self._source_of(self.origin[storage] if new else value), *self.several.get(value, ())]
        if new:
            found.value_producer[value], found.value_output[value] = producer, output
            found.value_version[value] = self.version[storage]
            fresh = value
        else:
            fresh = self._new_value(number, producer, output, found.value_view_of[value])
        if rest:
            self.several[fresh] = list(dict.fromkeys(pair for pair in rest if pair != sources[0]))
        return fresh

    def _writers_of(self, number: int, storage: int, since: int) -> tuple[list[tuple[int, int]], bool]:
        """Who wrote to the bytes of a tensor after some version, the last one first; whether they wrote all of them."""
        mine = self._layout(number)
        sources: list[tuple[int, int]] = []
        for version, node, output, tensor in reversed(self.writers.get(storage, ())):
            if version <= since:
                break
            if self._touch(self._layout(tensor), mine, tensor, number):
                sources.append((node, output))
                if self._covered(number, tensor):
                    return sources, True
        return sources, False

    def _layout(self, number: int) -> Layout | None:
        stride = self.strides[number]
        return None if type(stride) is str else (self.offsets[number], self.shapes[number], stride)

    def _same_size(self, one: int, other: int) -> bool:
        return bool(self.dtypes[one].itemsize == self.dtypes[other].itemsize)

    def _touch(self, theirs: Layout | None, mine: Layout | None, one: int, other: int) -> bool:
        if theirs is None or mine is None:
            return True
        if not self._same_size(one, other):
            theirs, mine = self._in_bytes(theirs, one), self._in_bytes(mine, other)
        return overlap(theirs, mine)

    def _in_bytes(self, layout: Layout, number: int) -> Layout:
        """A layout that counts bytes, to compare tensors whose elements are of different sizes."""
        (offset, shape, stride), size = layout, self.dtypes[number].itemsize
        return offset * size, (*shape, size), (*(step * size for step in stride), 1)

    # -- writing -------------------------------------------------------------------------------------------------

    def _write(self, number: int, node: int, overwritten: bool, before: int) -> int:
        """A new state of a written tensor; older readers and writers of the same bytes must come first.

        `before` is the tensor as the op found it: another number where the op gave it another shape.
        """
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
        if before != number:
            self.laid_out[storage] = [*(self.laid_out[storage] or ()), number]
        value = self._new_value(number, node, -1, found.value_view_of[found.value_of[before]])
        history.append((self.version[storage], node, -1, number))
        return value

    def _who_filled(self, number: int, node: int) -> list[tuple[int, int]]:
        """Where the data of a tensor comes from that a node got at by another way than a tensor: set_ to a storage.

        The node itself, which reads none of it, follows all writers.
        """
        found, storage = self.found, self.storage_of[number]
        origin = self.origin[storage]
        for source in (found.value_producer[origin], *(writer for _, writer, _, _ in self.writers.get(storage, ()))):
            if source >= 0:
                found.edges += (source, node, -1, -1, origin, ORDER)
        sources, covered = self._writers_of(number, storage, -1)
        return sources if covered else [*sources, self._source_of(origin)]

    def _covered(self, tensor: int, by: int) -> bool:
        """Whether every byte of a tensor lies in another."""
        if tensor == by:
            return type(self.strides[by]) is not str
        theirs, mine = self._layout(tensor), self._layout(by)
        if theirs is None or mine is None:
            return False
        if not self._same_size(tensor, by):
            theirs, mine = self._in_bytes(theirs, tensor), self._in_bytes(mine, by)
        return covers(mine, theirs)

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
