"""Writes to saved tensors that leave no version: through `.data`, so that backward runs and is wrong."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import torch

from torchatlas.autograd.saved import saved_by
from torchatlas.autograd.walk import sequence_nr
from torchatlas.capturing.frames import probing
from torchatlas.capturing.overlap import Layout, overlap
from torchatlas.capturing.row_schema import Plan
from torchatlas.diagnosis.backward import Pass
from torchatlas.diagnosis.case import Case, short
from torchatlas.diagnosis.diagnosis import Diagnosis, diagnosis
from torchatlas.diagnosis.finding import Finding, at
from torchatlas.diagnosis.in_place import written_by
from torchatlas.torch_private import FakeTensor, FunctionNode, next_sequence_nr

Part = tuple[torch.dtype, Layout]


@diagnosis
class DataWrite(Diagnosis):
    keys = ("data-write",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        # By address: an alias that came through numpy is another storage, and memory that was saved is not reused.
        # Then by part: the op, the storage in the recording.
        self._written: dict[int, dict[Part, tuple[int, int | None]]] = {}
        self._numbers: list[int] = []  # autograd's, as they rose
        self._ops: list[int] = []  # and the first op that ran under each
        self._with_gradients: list[tuple[int, int]] = []  # the same of ops with gradients enabled
        self._told: set[tuple[int, str]] = set()  # autograd's number of a node, and the slot

    def op_ran(self, plan: Plan, args: Any, kwargs: Any, out: Any) -> None:
        number = next_sequence_nr() - 1
        if not self._numbers or number > self._numbers[-1]:
            self._numbers.append(number)
            self._ops.append(self.visit.ops)
        if torch.is_grad_enabled() and (not self._with_gradients or number > self._with_gradients[-1][0]):
            self._with_gradients.append((number, self.visit.ops))
        if plan.writes and not probing():
            for slot in plan.slots:
                if slot.written:
                    given = args[slot.position] if slot.position is not None and slot.position < len(args) else None
                    self._note(given if given is not None else kwargs.get(slot.name))

    def _note(self, given: Any) -> None:
        for tensor in given if isinstance(given, (list, tuple)) else (given,):
            if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.is_nested:
                continue
            if address := _address(tensor):
                parts = self._written.setdefault(address, {})
                parts[_part(tensor)] = self.visit.ops, self.visit.storage_of(tensor)

    def before_backward(self, case: Case, found: Pass) -> None:
        for node in found.nodes:
            number = sequence_nr(node)
            first = self._after_forward(number) if isinstance(node, FunctionNode) else self._made(number) + 1
            for saved in saved_by(node):
                if saved.data is None or saved.data.layout is not torch.strided or saved.data.is_nested:
                    continue
                part = _part(saved.data)
                written = [
                    storage
                    for other, (op, storage) in self._written.get(_address(saved.data), {}).items()
                    if op >= first and _touches(other, part)
                ]
                if written and (number, saved.slot) not in self._told and saved.expected_version() == saved.version:
                    self._told.add((number, saved.slot))
                    self._report(case, node, saved, written)

    def _after_forward(self, number: int) -> int:
        """The first op that can have run after the forward of a custom Function, which saves when that is over.

        Its forward runs without gradients, and may apply other Functions, which have numbers of their own.
        """
        place = bisect_left(self._with_gradients, (number, 0))
        return self._with_gradients[place][1] if place < len(self._with_gradients) else self.visit.ops + 1

    def _made(self, number: int) -> int:
        """The op that made a node, or a later one: of some that write in place, the number is an earlier one."""
        place = bisect_left(self._numbers, number)
        return self._ops[place] if place < len(self._ops) else self.visit.ops

    def _report(self, case: Case, node: Any, saved: Any, aliases: list[int | None]) -> None:
        op = case.op_of(node)
        storages = {storage for storage in [*aliases, case.storage_of(saved.data)] if storage is not None}
        writers = [] if op is None else case.written_after(op, storages)
        if op is None or not writers:  # nothing to point at
            return
        self.visit.report(
            Finding(
                "data-write",
                f"{short(node)} saved {saved.slot} {tuple(saved.data.shape)}, and other numbers are in it now",
                (*written_by(writers), at("saved by", op)),
                "it was written to through .data or another alias that counts no versions: backward does not notice, "
                "and its gradients are wrong",
                "write under torch.no_grad() instead of through .data, so that torch can tell; or to a copy; or after "
                "backward",
            )
        )

    def recording_ends(self) -> None:
        """What was written or saved in it has no line any more."""
        self._written.clear()
        self._numbers.clear()
        self._ops.clear()
        self._with_gradients.clear()
        self._told.clear()


def _address(tensor: torch.Tensor) -> int:
    """0 for what has no memory of its own, as on the meta device: there all would be one. torch warns if a fake tensor
    is asked.
    """
    try:
        return 0 if isinstance(tensor, FakeTensor) else tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def _part(tensor: torch.Tensor) -> Part:
    """Which part of its storage a tensor is."""
    return tensor.dtype, (int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride())


def _touches(one: Part, other: Part) -> bool:
    """The chunks that a GRU writes to lie in one storage and share nothing."""
    return one[0].itemsize != other[0].itemsize or overlap(one[1], other[1])
