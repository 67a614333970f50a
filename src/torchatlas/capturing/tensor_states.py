"""Which state of which tensor an op takes and makes: values, storages and edges.

A tensor is followed by its number. Its current state is a Value; a write through any alias makes the states of the
others stale, which shows when they are next read (`_refresh`). All slow work hides behind that comparison of versions.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from typing import Any

from torchatlas.capturing.module_calls import Watch
from torchatlas.capturing.recorder import Recorder
from torchatlas.capturing.row_schema import (
    Died,
    Reshaped,
    Resized,
    ResizedEarly,
    StorageRow,
    Target,
    TensorRow,
    by_number,
    columns_of,
)
from torchatlas.capturing.storage_overlap import Layout, covers, overlap

DATA, ORDER = range(2)  # edge kinds by their position in the enum
_MOST_READERS = 256  # exact orders for so many readers of one storage; beyond that, sound ones


class TensorStates:
    """What every tensor of a recording holds, node by node."""

    def __init__(self, recorder: Recorder, watch: Watch, inputs: Collection[int] = ()) -> None:
        self.watch = watch
        tensor_rows, storage_rows = recorder.numbers.tensors, recorder.numbers.storages
        tensors = columns_of(by_number(tensor_rows, TensorRow, tensor_rows[: len(TensorRow._fields)]), TensorRow)
        storages = columns_of(by_number(storage_rows, StorageRow, [-1, None, 0, *storage_rows[3:4]]), StorageRow)
        self.storage_of: list[int] = tensors.storage
        self.shapes, self.strides, self.offsets, self.dtypes = tensors[2:]
        self.devices: list[Any] = storages.device
        self._number_of_reference = {id(reference): number for number, reference in enumerate(storages.reference)}
        self._on_meta = {n for n, device in enumerate(self.devices) if device is not None and device.type == "meta"}
        self._shapes_only: set[int] = set()  # storages on meta; see `_is_a_shape_only`
        # What becomes of nodes
        self.inputs: list[int] = []  # the values that nodes take, one after another
        self.written_inputs: list[int] = []  # positions in `inputs` of those that are written
        self.outputs: list[int] = []
        # Values
        self.value_tensor: list[int] = []
        self.value_version: list[int] = []
        self.value_producer: list[int] = []
        self.value_output_index: list[int] = []
        self.value_view_of: list[int] = []
        self.value_of: list[int] = [-1] * len(self.storage_of)  # the current value of each tensor
        # Edges, flat
        self.edges: list[int] = []  # source, target, output index, input index, value, kind
        self.from_outside: list[int] = []  # value that no node made, its taker, input index, value taken (or a part)
        # Storages
        count = len(storages.bytes)
        self.born = [-1] * count
        self.died = [-1] * count
        self.bytes: list[int] = storages.bytes
        self.first_bytes = list(self.bytes)  # before any resizing
        self.most_bytes = list(self.bytes)
        self.live_bytes = 0  # of what nodes made, and of what came from outside without a name
        self.resizes: list[tuple[int, int, int, int]] = []  # storage, node from which it counts, bytes before and after
        self._resized_early = recorder.numbers.resized_early
        self._early_bytes = dict(self._resized_early.values())  # of storages that were resized before they were used
        for storage, size in self._early_bytes.items():
            self.first_bytes[storage] = size
        self.arrived: dict[int, int] = {}  # storages without a name that no op made -> the first node that took them
        self.there_before = {*watch.names.tensors, *inputs}
        self.gradients = {storage for storage, named in watch.names.storages.items() if named.role == "gradient"}
        self.buffers: list[tuple[int, int]] = []  # collective, tensor: what it copied into a buffer of its own
        self.origin = [-1] * count  # the first value on a storage
        self._version = [0] * count
        self._readers: list[list[int] | None] = [None] * count  # node, tensor, ... since the last write
        self._writers: dict[int, list[tuple[int, int, int, int]]] = {}  # storage -> (version, node, output, tensor)
        # value -> further (node, output) its data comes from, or (~value, 0) for a value that no node made
        self._several: dict[int, list[tuple[int, int]]] = {}
        self._laid_out: list[list[int] | None] = [None] * count  # tensors on a storage that `_alike` does not know yet
        self._alike: dict[tuple[int, int, Any, Any, Any], int] = {}  # storage and layout -> the last tensor so laid out
        self._reshaped: dict[int, int] = {}  # an out= tensor before the op that resized it -> after

    # -- events ------------------------------------------------------------------------------------------------------

    def storage_died(self, event: Died, node: int) -> None:
        self.died[event.storage] = node - 1 if node else 0
        if (size := self.bytes[event.storage]) > 0:
            self.live_bytes -= size

    def reference_died(self, reference: Any, node: int) -> None:
        storage = self._number_of_reference.get(id(reference), -1)
        if storage >= 0:  # else of an earlier recording with the same recorder
            self.storage_died(Died(storage), node)

    def storage_resized(self, event: Resized, node: int) -> None:
        storage, size = event
        before, after = max(self.bytes[storage], 0), max(size, 0)
        self.live_bytes += after - before
        if size != self.bytes[storage]:
            self.resizes.append((storage, node, before, after))
        self.bytes[storage] = size
        self.most_bytes[storage] = max(size, self.most_bytes[storage])

    def storage_resized_early(self, event: ResizedEarly, node: int) -> None:
        storage, _ = self._resized_early.get(id(event.reference), (-1, 0))
        if storage in self._early_bytes:  # else it did not outlive the recording
            before, self._early_bytes[storage] = self._early_bytes[storage], event.bytes
            self.live_bytes += event.bytes - before
            self.resizes.append((storage, node, before, event.bytes))

    def tensor_reshaped(self, event: Reshaped, node: int) -> None:
        self._reshaped[event.before] = event.after

    def end(self, nodes: int) -> None:
        """After the last node: give a value to all that has a name and was never taken."""
        for number in self.there_before:
            if self.value_of[number] < 0:
                self._first_seen(number, self.storage_of[number], nodes)
        if not nodes:  # what died did so before the first node, and there is none
            self.died[:] = [-1] * len(self.died)

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, node: int, numbers: list[int], overwritten: Set[int] = frozenset()) -> list[int]:
        """The states of the tensors that a node takes, with the edges that bring them.

        `overwritten` are the positions of those that it writes without reading.
        """
        value_of, storage_of, readers, edges = self.value_of, self.storage_of, self._readers, self.edges
        value_version, version, value_producer = self.value_version, self._version, self.value_producer
        value_output_index, several = self.value_output_index, self._several
        values = []
        for index, number in enumerate(numbers):
            storage = storage_of[number]
            value = value_of[number]
            if value < 0:
                value = self._first_seen(number, storage, node)
            elif value_version[value] != version[storage]:
                value = self._refresh(number, storage, value)
            values.append(value)
            producer = value_producer[value]
            if producer >= 0:
                kind = ORDER if index in overwritten else DATA
                edges += (producer, node, value_output_index[value], index, value, kind)
                if value in several:
                    self._further_sources(value, node, index, kind)
            else:
                self.from_outside += (value, node, index, value)
            reader = readers[storage]
            if reader is None:
                readers[storage] = [node, number]
            else:
                reader += (node, number)
        self.inputs += values
        return values

    def _further_sources(self, value: int, node: int, index: int, kind: int) -> None:
        """Edges for a value that several nodes have filled: from all but its producer."""
        for other, output in self._several.get(value, ()):
            if other >= 0:
                self.edges += (other, node, output, index, value, kind)
            elif kind == DATA:
                self.from_outside += (~other, node, index, value)

    def _source_of(self, value: int) -> tuple[int, int]:
        """The node and output that made a value, as an entry of `_several`."""
        producer = self.value_producer[value]
        return (producer, self.value_output_index[value]) if producer >= 0 else (~value, 0)

    def _new_value(self, number: int, producer: int, output: int, view_of: int) -> int:
        value = len(self.value_tensor)
        self.value_tensor.append(number)
        self.value_version.append(self._version[self.storage_of[number]])
        self.value_producer.append(producer)
        self.value_output_index.append(output)
        self.value_view_of.append(view_of)
        self.value_of[number] = value
        return value

    def layout_key(self, number: int) -> tuple[int, int, Any, Any, Any]:
        """Equal for tensors that lie exactly alike in the same memory."""
        storage, offset = self.storage_of[number], self.offsets[number]
        return storage, offset, self.shapes[number], self.strides[number], self.dtypes[number]

    def _twin(self, number: int, storage: int) -> int | None:
        """The last tensor that lies exactly where this one lies."""
        for other in self._laid_out[storage] or ():
            self._alike[self.layout_key(other)] = other
        self._laid_out[storage] = None
        return self._alike.get(self.layout_key(number))

    def _first_seen(self, number: int, storage: int, node: int) -> int:
        """The value of a tensor that no recorded op returned, when a node takes it for the first time.

        Either it comes from outside, or it is a new Python object for memory we know: autograd hands out what it
        saved that way, and `.data` and C++ make aliases without an op.
        """
        if self.origin[storage] < 0:
            producer = self._buffer_of(number) if self.buffers and number not in self.there_before else -1
            value = self.origin[storage] = self._new_value(number, producer, -1 if producer < 0 else 0, -1)
            if producer >= 0:
                self.born[storage] = producer
                self.live_bytes += max(self.bytes[storage], 0)
            elif storage in self._early_bytes:
                self.live_bytes += self.bytes[storage] - self._early_bytes[storage]
            elif number not in self.watch.names.tensors:
                self.live_bytes += max(self.first_bytes[storage], 0)  # a resizing since then was counted already
                self.arrived[storage] = node
            self._laid_out[storage] = [number]
            return value
        twin = self._twin(number, storage)
        if twin is not None and twin != number:
            value = self.value_of[twin]
            if self.value_version[value] != self._version[storage]:
                value = self._refresh(twin, storage, value)
            self.value_of[number] = value
            return value
        origin = self.origin[storage]
        value = self._new_value(number, self.value_producer[origin], self.value_output_index[origin], origin)
        self.value_version[value] = -1  # older than every write: let them all be looked at
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
        sources, covered = self._writers_of(number, storage, self.value_version[value])
        if not sources:
            self.value_version[value] = self._version[storage]
            return value
        producer, output = sources[0]
        rest = sources[1:]
        if not covered:
            rest += [self._source_of(self.origin[storage] if new else value), *self._several.get(value, ())]
        if new:
            self.value_producer[value], self.value_output_index[value] = producer, output
            self.value_version[value] = self._version[storage]
            fresh = value
        else:
            fresh = self._new_value(number, producer, output, self.value_view_of[value])
        if rest:
            self._several[fresh] = list(dict.fromkeys(pair for pair in rest if pair != sources[0]))
        return fresh

    def _writers_of(self, number: int, storage: int, since: int) -> tuple[list[tuple[int, int]], bool]:
        """The writers of a tensor's bytes after some version, the last one first; and whether they wrote all of it."""
        mine = self._layout(number)
        sources: list[tuple[int, int]] = []
        for version, node, output, tensor in reversed(self._writers.get(storage, ())):
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

    def write(self, node: int, targets: list[Target], returned: list[int]) -> dict[int, int]:
        """New states of the tensors that a node writes, by their numbers.

        They are outputs of the node, also those that it does not return: these come after what it `returned`.
        """
        written: dict[int, int] = {}
        extra = len(returned)
        for _, before, overwritten in targets:
            number = self._reshaped.get(before, before)
            if number in written:
                continue
            if number in returned:
                written[number] = self._write(number, node, returned.index(number), overwritten, before)
            else:
                written[number] = self._write(number, node, extra, overwritten, before)
                extra += 1
        return written

    def _write(self, number: int, node: int, output: int, overwritten: bool, before: int) -> int:
        """A new state of a written tensor; older readers and writers of the same bytes must come first.

        `before` is the tensor before the op: another number where the op gave it another shape.
        """
        storage = self.storage_of[number]
        mine = self._layout(number)
        log = self._readers[storage] or []
        remaining: list[int] = []
        crowded = len(log) > 2 * _MOST_READERS
        for position in range(0, len(log), 2):
            reader, tensor = log[position], log[position + 1]
            touched = tensor == number or self._touch(self._layout(tensor), mine, tensor, number)
            if (touched or crowded) and reader != node:
                self.edges += (reader, node, -1, -1, self.value_of[tensor], ORDER)
            if not (touched and self._covered(tensor, number)):
                remaining += (reader, tensor)
        if crowded:  # this node comes after them all: it can stand for them before later writes
            remaining = [node, self.value_tensor[self.origin[storage]]]
        self._readers[storage] = remaining or None
        if overwritten:
            for _, writer, _, tensor in self._writers.get(storage, ()):
                if writer != node and self._touch(self._layout(tensor), mine, tensor, number):
                    self.edges += (writer, node, -1, -1, self.value_of[tensor], ORDER)
        self._version[storage] += 1
        history = self._writers.setdefault(storage, [])
        history[:] = [entry for entry in history if not self._covered(entry[3], number)]
        if before != number:
            self._laid_out[storage] = [*(self._laid_out[storage] or ()), number]
        history.append((self._version[storage], node, output, number))
        return self._new_value(number, node, output, self.value_view_of[self.value_of[before]])

    def _who_filled(self, number: int, node: int) -> list[tuple[int, int]]:
        """The sources of a tensor's data where no input of the node is a tensor on its storage: `set_` takes a storage.

        The node itself reads none of the data, and follows all writers.
        """
        storage = self.storage_of[number]
        origin = self.origin[storage]
        for source in (self.value_producer[origin], *(writer for _, writer, _, _ in self._writers.get(storage, ()))):
            if source >= 0:
                self.edges += (source, node, -1, -1, origin, ORDER)
        sources, covered = self._writers_of(number, storage, -1)
        return sources if covered else [*sources, self._source_of(origin)]

    def _covered(self, tensor: int, by: int) -> bool:
        """True if every byte of a tensor lies in another."""
        if tensor == by:
            return type(self.strides[by]) is not str
        theirs, mine = self._layout(tensor), self._layout(by)
        if theirs is None or mine is None:
            return False
        if not self._same_size(tensor, by):
            theirs, mine = self._in_bytes(theirs, tensor), self._in_bytes(mine, by)
        return covers(mine, theirs)

    def is_view(self, targets: list[Target]) -> bool:
        """True if one of the written tensors is a view."""
        return max([self.value_view_of[self.value_of[number]] for _, number, _ in targets]) >= 0

    # -- making ------------------------------------------------------------------------------------------------------

    def make(
        self, node: int, returned: list[int], numbers: list[int], values: list[int], written: dict[int, int] | None
    ) -> list[int]:
        """Values for what a node returned, then for what it wrote and did not return."""
        if not written:
            made = [self._result(number, node, output, numbers, values) for output, number in enumerate(returned)]
        else:
            made = []
            for number in returned:
                value = written.pop(number, -1)
                made.append(self._result(number, node, len(made), numbers, values) if value < 0 else value)
            made += written.values()
        self.outputs += made
        return made

    def _result(self, number: int, node: int, output: int, numbers: list[int], values: list[int]) -> int:
        """A value for a tensor that a node returned and did not write: new memory, or a view of what there is."""
        storage = self.storage_of[number]
        origin, view_of = self.origin[storage], self.value_of[number]
        value = len(self.value_tensor)
        if origin < 0:
            self.origin[storage] = value
            self.born[storage] = node
            if storage in self._on_meta and self._is_a_shape_only(storage, numbers):
                self.bytes[storage] = self.first_bytes[storage] = self.most_bytes[storage] = 0
            if (size := self.bytes[storage]) > 0:
                self.live_bytes += size
        elif view_of < 0:
            for taken, base in zip(numbers, values, strict=True):
                if self.storage_of[taken] == storage:
                    view_of = base
                    break
            else:
                view_of, self._several[value] = origin, self._who_filled(number, node)
        self.value_tensor.append(number)
        self.value_version.append(self._version[storage])
        self.value_producer.append(node)
        self.value_output_index.append(output)
        self.value_view_of.append(view_of)
        self.value_of[number] = value
        alike = self._laid_out[storage]
        if alike is None:
            self._laid_out[storage] = [number]
        else:
            alike.append(number)
        return value

    def _is_a_shape_only(self, storage: int, taken: list[int]) -> bool:
        """Whether new memory on meta stands for none: it was computed from tensors of devices, to learn a shape.

        torch does so for zeros without memory. What a program makes on meta, or keeps there, stands for memory.
        """
        sources = {self.storage_of[number] for number in taken}
        if not sources or (sources & self._on_meta) - self._shapes_only:
            return False
        self._shapes_only.add(storage)
        return True
