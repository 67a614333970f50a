"""data-write: writes through `.data` to saved tensors, which count no version: backward runs, and is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchatlas.autograd.graph_walk import sequence_nr
from torchatlas.autograd.saved_tensors import SavedSlot, memory_address, saved_by, saved_data
from torchatlas.capturing.frames import probing
from torchatlas.capturing.op_listening import Wants
from torchatlas.capturing.row_schema import Plan
from torchatlas.capturing.storage_overlap import Layout, overlap
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.events import Diagnosis, Doublings, diagnosis
from torchatlas.diagnosis.faults.in_place import written_by
from torchatlas.diagnosis.findings import at
from torchatlas.diagnosis.loss_graph import short
from torchatlas.torch_private import FunctionNode

Part = tuple[torch.dtype, Layout]


@diagnosis
class DataWrite(Diagnosis):
    keys = ("data-write",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        # By address: an alias that came through numpy is another storage, and memory that was saved is not reused.
        # Then by part, the latest last: the op, the storage in the recording.
        self._written: dict[int, dict[Part, tuple[int, int | None]]] = {}
        self._latest = 0  # op that has written
        self._suspected = Doublings()  # passes, by the kind of node, the slot and the line of backward
        self._reported: set[tuple[int, str]] = set()  # autograd's number of a node, and the slot

    def wants(self, plan: Plan) -> Wants:
        return Wants.SHARED_WRITE if any(slot.written for slot in plan.slots) else Wants.NOTHING

    def op_ran(self, plan: Plan, args: Any, kwargs: Any, out: Any) -> None:
        if not probing():
            for slot in plan.slots:
                if slot.written:
                    argument = args[slot.position] if slot.position is not None and slot.position < len(args) else None
                    self._note(argument if argument is not None else kwargs.get(slot.name))

    def _note(self, argument: Any) -> None:
        for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
            if isinstance(tensor, torch.Tensor) and (address := memory_address(tensor)):
                parts, part = self._written.setdefault(address, {}), _part(tensor)
                parts.pop(part, None)
                self._latest = self.history.ops
                parts[part] = self._latest, self.history.storage_of(tensor)

    def before_backward(self, backward: BackwardPass) -> None:
        suspects = dict[tuple[int, str], tuple[Any, SavedSlot, list[int | None]]]()
        looks = dict[tuple[str, str], bool]()  # by the kind of node and the slot
        begins = self.history.first_op(backward.oldest) if self._written else None
        if begins is None or self._latest < begins:  # as in a loop whose steps write to parameters
            return
        for kind, numbers in backward.kinds.items():
            for node, data in saved_data(kind, map(backward.nodes.__getitem__, numbers)):
                parts = self._written.get(memory_address(data))
                if parts is None or next(reversed(parts.values()))[0] < begins:
                    continue
                number = sequence_nr(node)
                first = self._first_after(node, number)
                if any(True for _ in _written_since(parts, first, data)):
                    for saved, written in self._suspects(node, number, first, looks):
                        kind_and_slot = short(node), saved.slot
                        if kind_and_slot not in looks:
                            looks[kind_and_slot] = self._suspected.count((kind_and_slot, backward.line))
                        if looks[kind_and_slot]:
                            suspects[number, saved.slot] = node, saved, written
        for key, (node, saved, written) in suspects.items():  # the recording is read
            self._reported.add(key)
            self._report(backward, node, saved, written)

    def _suspects(
        self, node: Any, number: int, first: int, looks: dict[tuple[str, str], bool]
    ) -> Iterator[tuple[SavedSlot, list[int | None]]]:
        """The slots of a node that were written to since, unnoticed by torch; and the storages written through.

        Without the slots that are not looked at in this pass.
        """
        for saved in saved_by(node):
            parts = None if saved.data is None else self._written.get(memory_address(saved.data))
            if saved.data is None or parts is None or not looks.get((short(node), saved.slot), True):
                continue
            written = list(_written_since(parts, first, saved.data))
            if written and (number, saved.slot) not in self._reported and saved.expected_version() == saved.version:
                yield saved, written

    def _first_after(self, node: Any, number: int) -> int:
        """The first op that can have written to what a node saved.

        That is the op after the one that made the node, or a later one: of some that write in place, the number is an
        earlier one. A custom Function saves when its forward is over; that runs without gradients, and may apply other
        Functions, which have numbers of their own.
        """
        custom = isinstance(node, FunctionNode)
        first = self.history.first_op(number, with_gradients=custom)
        if first is None:
            return self.history.ops + 1
        return first if custom else first + 1

    def _report(self, backward: BackwardPass, node: Any, saved: Any, aliases: list[int | None]) -> None:
        op = backward.op_of(node)
        storages = {storage for storage in [*aliases, self.history.storage_of(saved.data)] if storage is not None}
        writers = [] if op is None else backward.written_after(op, storages)
        if op is None or not writers:  # nothing to point at
            return
        self.report(
            "data-write",
            f"{short(node)} saved {saved.slot} {tuple(saved.data.shape)}, and other numbers are in it now",
            (*written_by(writers), at("saved by", op)),
            "it was written to through .data or another alias that counts no versions: backward does not notice, and "
            "its gradients are wrong",
            "write under torch.no_grad() instead of through .data, so that torch notices; or write to a copy; or write "
            "after backward",
        )

    def recording_ends(self) -> None:
        """Forget what was written and reported: without the recording, nothing of it has a line."""
        self._written.clear()
        self._reported.clear()


def _written_since(parts: dict[Part, tuple[int, int | None]], first: int, data: torch.Tensor) -> Iterator[int | None]:
    """The storages through which op `first` or a later one has written to a tensor, the latest first."""
    for part, (op, storage) in reversed(parts.items()):  # the latest first
        if op < first:
            return
        if _touches(part, _part(data)):
            yield storage


def _part(tensor: torch.Tensor) -> Part:
    """The part of its storage that a tensor covers."""
    return tensor.dtype, (int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride())


def _touches(one: Part, other: Part) -> bool:
    """True if two parts of one memory overlap. The chunks that a GRU writes to share a storage and do not."""
    return one[0].itemsize != other[0].itemsize or overlap(one[1], other[1])
