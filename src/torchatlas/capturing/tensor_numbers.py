"""Numbers for the tensors and storages that a recording meets, and the rows that describe them (row_schema.py).

What runs for every op is a closure over plain lists and dictionaries, and makes no object that the garbage collector
follows where a number will do: a full collection in a process that has imported torch costs more than a thousand
recorded ops.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchatlas.capturing.row_schema import Reshaped, Resized, ResizedEarly, TensorRow
from torchatlas.capturing.tensors import layout_name, shape_of, storages_of
from torchatlas.torch_private import FakeTensor, UninitializedTensor


class TensorNumbers:
    """The tensors and storages that are known. Events about them go to `rows`."""

    # The numbers of plain tensors and their gradients, all at once, if the recorder can tell: see NativeNumbers.look
    look: Callable[[list[Any], str], bytes | None] | None = None

    def __init__(self, rows: list[Any]) -> None:
        self.tensors: list[Any] = []  # flat rows: TensorRow
        self.storages: list[Any] = []  # flat rows: StorageRow
        self.resized_early: dict[int, tuple[int, int]] = {}  # id of a weak reference -> storage, bytes before
        self.sizes: dict[Any, Any] = {}  # shapes and strides: one object for all that are equal
        self.counters = [itertools.count(), itertools.count()]  # of tensors and storages
        self._rows = rows
        self._known: dict[int, tuple[weakref.ref[Any], int, int]] = {}  # id -> reference, number, storage's number
        self._known_storages: dict[int, tuple[weakref.ref[Any], int, bool]] = {}  # id -> reference, number, external
        self._strangers: dict[int, tuple[weakref.ref[Any], int]] = {}  # resized storages: reference, bytes before
        self._define()

    def clear(self) -> None:
        for container in (self.tensors, self.storages):
            container.clear()
        for table in (self.resized_early, self._known, self._known_storages, self._strangers):
            table.clear()
        self.counters[:] = itertools.count(), itertools.count()

    def _define(self) -> None:
        """The functions that the recording functions call: with lists and dictionaries as variables of their own."""
        known, known_storages = self._known, self._known_storages
        find, find_storage = known.get, known_storages.get
        log = self._rows.append  # the callback of a storage's weak reference, which so appends itself
        describe, allocate = self.tensors.extend, self.storages.extend  # a TensorRow, a StorageRow
        same = self.sizes.setdefault
        ref, base, counters = weakref.ref, torch.Tensor, self.counters

        def register(tensor: Any, external: bool = False) -> Any:
            """Give a tensor a number. `external` says that its storage, if it is new, was there before the op."""
            # Numbers come from counters and rows carry them: another thread, or an op that the garbage collector sets
            # off in between, cannot disturb them.
            try:
                storage = tensor.untyped_storage()
                key = id(storage)  # torch keeps the Python object as long as the storage itself
                entry = find_storage(key)
                if entry is None or entry[0]() is not storage:
                    entry = known_storages[key] = (ref(storage, log), next(counters[1]), external)
                    plain = type(tensor) is base or not isinstance(tensor, FakeTensor)
                    device = tensor.device if plain else tensor.fake_device
                    allocate((entry[1], entry[0], storage.nbytes(), device))
                shape, stride, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
                number = next(counters[0])
                describe((number, entry[1], same(shape, shape), same(stride, stride), offset, tensor.dtype))
            except (RuntimeError, NotImplementedError):
                entry = scattered(tensor, external)
                number = next(counters[0])
                describe((number, entry[1], shape_of(tensor), layout_name(tensor), 0, tensor.dtype))
            except AttributeError:
                if isinstance(tensor, base):
                    raise
                return (tensor,)  # Python numbers arrive where a tensor is expected: add.Tensor(x, 2)
            known[id(tensor)] = (ref(tensor), number, entry[1])
            return number

        def scattered(tensor: Any, external: bool) -> Any:
            """The entry of a tensor with several storages, or with none that it shows: one storage stands for all."""
            held = storages_of(tensor)
            if not held:  # the tensor object stands for its memory
                entry = (ref(tensor, log), next(counters[1]), external)
                allocate((entry[1], entry[0], -1, tensor.device))
                return entry
            values, seen = held[-1], [find_storage(id(part)) for part in held]
            new = {id(p): p for p, entry in zip(held, seen, strict=True) if entry is None or entry[0]() is not p}
            if id(values) in new:
                entry = known_storages[id(values)] = (ref(values, log), next(counters[1]), external)
                allocate((entry[1], entry[0], sum(part.nbytes() for part in new.values()), tensor.device))
            entry = known_storages[id(values)]
            for part in new.values():
                known_storages.setdefault(id(part), (ref(part), entry[1], external))
            return entry

        def made_without_memory(tensor: Any) -> Any:
            """Register zeros that are only a promise: their storage tells a size, but there is nothing behind it."""
            storage = tensor.untyped_storage()
            entry = known_storages[id(storage)] = (ref(storage, log), next(counters[1]), False)
            allocate((entry[1], entry[0], 0, tensor.device))
            return register(tensor)

        def number_of(tensor: Any) -> Any:
            """The number of a tensor; one that is new was there before the op."""
            entry = find(id(tensor))
            return entry[1] if entry is not None and entry[0]() is tensor else register(tensor, True)

        def number_of_result(tensor: Any) -> Any:
            """The number of a tensor that an op returned; one that is new was just made."""
            entry = find(id(tensor))
            return entry[1] if entry is not None and entry[0]() is tensor else register(tensor, False)

        def results(out: Any) -> Any:
            """The numbers in what an op returned, in lists as it returned them."""
            if isinstance(out, base):
                return number_of_result(out)
            return [results(item) for item in out] if isinstance(out, (list, tuple)) else None

        self.find, self.register, self.made_without_memory = find, register, made_without_memory
        self.number_of, self.number_of_result, self.results = number_of, number_of_result, results

    def known_number(self, tensor: Any) -> int | None:
        """The number of a tensor if it was seen."""
        entry = self._known.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def storage_number(self, tensor: Any) -> int | None:
        """The number of a tensor's storage if it was seen."""
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[2]
        entry = self._storage_entry(tensor.untyped_storage()) if tensor.layout is torch.strided else None
        return None if entry is None else entry[1]

    def made_here(self, storage: Any) -> bool:
        """True for a storage that an op of this recording allocated."""
        entry = self._storage_entry(storage)
        return entry is not None and not entry[2]

    def live_storages(self) -> list[int] | None:
        """The storages that were made meanwhile and are still there; None if they are not counted."""
        return None

    def leaves_with_new_gradients(self) -> list[Any]:
        """Tensors whose gradient was not there when they were first seen."""
        leaves = []
        for reference, _, _ in list(self._known.values()):
            tensor = reference()
            if tensor is not None and tensor.requires_grad and tensor.is_leaf and tensor.grad is not None:
                strided = tensor.grad.layout is torch.strided
                entry = self._storage_entry(tensor.grad.untyped_storage()) if strided else None
                if entry is None or not entry[2]:
                    leaves.append(tensor)
        return leaves

    def _storage_entry(self, storage: Any) -> tuple[weakref.ref[Any], int, bool] | None:
        entry = self._known_storages.get(id(storage))
        return entry if entry is not None and entry[0]() is storage else None

    def _log(self, event: Any) -> None:
        self._rows.append(event)

    # -- changes of tensors and storages that keep their identity ----------------------------------------------------

    def forget(self, tensor: Any) -> None:
        """Give a tensor a new number next time: its storage or shape changed without an op that says so."""
        self._known.pop(id(tensor), None)
        if not isinstance(tensor, UninitializedTensor) and tensor.layout is torch.strided:
            self._note_size(tensor.untyped_storage())

    def reshaped(self, target: Any) -> None:
        """Note if an op gave an out= argument, or one in a list of them, another shape."""
        for tensor in target if isinstance(target, (list, tuple)) else (target,):
            entry = self._known.get(id(tensor))
            if entry is not None and self._shape_of(entry[1]) != tensor.shape:
                self.forget(tensor)
                self._log(Reshaped(entry[1], self.register(tensor)))

    def _shape_of(self, number: int) -> Any:
        width = len(TensorRow._fields)
        at = number * width
        if self.tensors[at] != number:  # threads have changed the order
            at = self.tensors[0::width].index(number) * width
        return TensorRow(*self.tensors[at : at + width]).shape

    def _note_size(self, storage: Any) -> None:
        entry = self._storage_entry(storage)
        if entry is not None:
            self._log(Resized(entry[1], storage.nbytes()))

    def before_resize(self, storage: Any) -> None:
        """A storage is about to be resized without an op."""
        noted = self._strangers.get(id(storage))
        if self._storage_entry(storage) is None and (noted is None or noted[0]() is not storage):
            self._strangers[id(storage)] = (weakref.ref(storage), storage.nbytes())

    def after_resize(self, storage: Any) -> None:
        if self._storage_entry(storage) is not None:
            self._note_size(storage)
        else:
            self._log(ResizedEarly(self._strangers[id(storage)][0], storage.nbytes()))

    def meet_strangers(self) -> None:
        """Number the storages that were resized before any op took them: FSDP makes room for what it gathers."""
        for reference, size in self._strangers.values():
            storage = reference()
            entry = None if storage is None else self._storage_entry(storage)
            if entry is not None:
                self.resized_early[id(reference)] = entry[1], size
