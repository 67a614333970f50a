"""The tensors that nodes of an autograd graph saved for their backward, their versions, and whether they are freed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchatlas.capturing.tensors import storages_of
from torchatlas.torch_private import FakeTensor, unobserved, unpack_saved

_VERSIONS = re.compile(r"is at version (\d+); expected version (\d+)")
_PREFIX = "_raw_saved_"
_SLOTS: dict[type, tuple[str, ...]] = {}  # of each kind of node


@dataclass(frozen=True, eq=False)
class SavedSlot:
    """One tensor that a node saved."""

    slot: str  # self, other, result, weight ...; several in one slot: tensors[0]
    data: torch.Tensor | None  # None: freed, never there, or packed by a hook
    state: str  # saved | freed | packed | none
    handle: Any  # torch's SavedTensor
    node: Any = None

    @property
    def version(self) -> int:
        """The version of the tensor now; see `expected_version`."""
        return -1 if self.data is None or self.data.is_inference() else self.data._version

    def expected_version(self) -> int | None:
        """The version at which it was saved; None if unknown. Only torch's error of a mismatch tells a version."""
        if self.state != "saved":
            return None
        try:
            with unobserved():  # it detaches what an op has saved of its own result
                unpack_saved(self.handle, self.node, self.slot)
        except RuntimeError as error:
            match = _VERSIONS.search(str(error)) or _VERSIONS.search(self._asked_through_its_node())
            return int(match[2]) if match is not None else self.version
        return self.version

    def _asked_through_its_node(self) -> str:
        """The error of torch for an output that its own node saved, which cannot be unpacked alone."""
        slot = self.slot.partition("[")[0]
        try:
            with unobserved():
                getattr(self.node, "saved_tensors" if slot == "tensors" else f"_saved_{slot}")  # of a custom Function
        except RuntimeError as error:
            return str(error)
        return ""


def saved_by(node: Any) -> list[SavedSlot]:
    """The tensors that a node saved, in the order of its slots."""
    slots: list[SavedSlot] = []
    for name in _slots(type(node)):
        slots += _in_slot(node, name)
    return slots


def saved_data(kind: type, nodes: Iterable[Any]) -> Iterator[tuple[Any, torch.Tensor]]:
    """The tensors that nodes of one kind saved, as far as they can be read: `saved_by` in half the time."""
    slots = _slots(kind)
    for node in nodes if slots else ():
        for name in slots:
            try:
                held = getattr(node, name)
            except RuntimeError:  # freed
                continue
            for each in held if isinstance(held, (list, tuple)) else (held,):
                if each is not None and each.unpack_hook is None and (data := each.data) is not None:
                    yield node, data


def _slots(kind: type) -> tuple[str, ...]:
    slots = _SLOTS.get(kind)
    if slots is None:
        slots = _SLOTS[kind] = tuple(name for name in dir(kind) if name.startswith(_PREFIX))
    return slots


def _in_slot(node: Any, name: str) -> Iterator[SavedSlot]:
    slot = name.removeprefix(_PREFIX)
    try:
        held = getattr(node, name)
    except RuntimeError:  # "trying to access saved tensors after they have already been freed"
        yield SavedSlot(slot, None, "freed", None, node)
        return
    if isinstance(held, (list, tuple)):
        for index, each in enumerate(held):
            yield _saved(f"{slot}[{index}]", each, node)
    elif held is not None:
        yield _saved(slot, held, node)


def _saved(slot: str, handle: Any, node: Any) -> SavedSlot:
    if handle is None:
        return SavedSlot(slot, None, "none", None, node)
    if handle.unpack_hook is not None:  # unpacking would run the user's function, or compute a checkpoint again
        return SavedSlot(slot, None, "packed", handle, node)
    data = handle.data
    if data is not None:
        return SavedSlot(slot, data, "saved", handle, node)
    try:
        empty = unpack_saved(handle, node, slot) is None  # nothing was saved there
    except RuntimeError:
        empty = False
    return SavedSlot(slot, None, "none" if empty else "freed", handle, node)


def storage_key(tensor: torch.Tensor) -> int:
    """A number that tensors have in common if they share memory, as long as they live."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse, or without memory
        return id(tensor)


def memory_address(tensor: torch.Tensor) -> int:
    """The address at which the storage of a tensor begins; 0 if it has none, as on the meta device.

    The storage itself is not asked: once Python has an object of it, the native recorder takes it for shared.
    """
    if tensor.layout is not torch.strided or tensor.is_nested or isinstance(tensor, FakeTensor):  # those would warn
        return 0
    try:
        address = tensor.data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
    return address - int(tensor.storage_offset()) * tensor.itemsize if address else 0


def storage_bytes(tensor: torch.Tensor | None) -> int:
    """All of the memory that a tensor lies in; -1 if it has none of its own."""
    storages = [] if tensor is None else storages_of(tensor)
    return sum(int(storage.nbytes()) for storage in storages) if storages else -1


def is_parameter(tensor: torch.Tensor) -> bool:
    """True for parameters, trained or not, and for views of them."""
    return isinstance(tensor if tensor._base is None else tensor._base, nn.Parameter)
