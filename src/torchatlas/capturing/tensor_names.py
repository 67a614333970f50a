"""Modules and optimizers -> the names of the tensors they hold: parameters, buffers, gradients, optimizer state.

While a recording runs, the recorder may only be asked for the numbers of the tensors, for all of a module at once
(`TensorNumbers.look`). Names are made of them when the recording is decoded (`settle`), in the order of asking.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import torch

from torchatlas.capturing.module_trees import ModuleTree
from torchatlas.capturing.tensor_numbers import TensorNumbers
from torchatlas.capturing.tensors import PLAIN, parts
from torchatlas.inputs import named_tensors
from torchatlas.torch_private import UninitializedTensor

_ONLY_DICTS, _ONLY_TENSORS = frozenset({dict}), frozenset({torch.Tensor})


@dataclass(slots=True)
class Named:
    """A tensor that has a name: a parameter, buffer, plain attribute, gradient or optimizer state."""

    role: str
    name: str
    root: int


class TensorNames:
    """The named tensors of one recording. `settle` comes before reading."""

    def __init__(self, numbers: TensorNumbers) -> None:
        self.numbers = numbers
        self.tensors: dict[int, Named] = {}  # by tensor number
        self.storages: dict[int, Named] = {}  # by storage number: gradients and optimizer state
        self.pieces: dict[int, Named] = {}  # the same by tensor number
        self.shared: set[int] = set()  # storages that hold several of them
        self._wrapped: set[tuple[str, int]] = set()  # names and roots of parameters that are wrappers
        # What was looked up and has no names yet: plain functions, or each recording would be a cycle that holds itself
        self._unsettled: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def settle(self) -> None:
        """Make names of all that was looked up."""
        unsettled, self._unsettled = self._unsettled, []
        for settle, arguments in unsettled:
            settle(self, *arguments)

    def _look(self, tensors: list[Any], how: str) -> bytes | None:
        """Numbers of plain tensors and their gradients, all at once; None where tensors have to be asked one by one."""
        if self.numbers.look is None or not PLAIN.issuperset(map(type, tensors)):
            return None
        return self.numbers.look(tensors, how)

    # -- modules -------------------------------------------------------------------------------------------------------

    def name_modules(self, tree: ModuleTree, tensors: list[Any], root: int) -> None:
        """Name what the modules of a tree hold, when they are first seen."""
        if (rows := self._look(tensors, "register")) is not None:
            self._unsettled.append((TensorNames._settle_modules, (tree, root, rows)))
        else:
            self.settle()
            for role, name, tensor in zip(tree.roles, tree.names, tensors, strict=True):
                if isinstance(tensor, torch.Tensor) and not isinstance(tensor, UninitializedTensor):
                    self._name_tensor(role, name, root, tensor)
        for name, constant in tree.constants():
            self.settle()
            for suffix, part in parts(constant):
                number = self.numbers.number_of(part)
                self.tensors.setdefault(number, Named("constant", name + suffix, root))

    def _name_tensor(self, role: str, name: str, root: int, tensor: torch.Tensor) -> None:
        for suffix, part in parts(tensor):
            self.tensors.setdefault(self.numbers.number_of(part), Named(role, name + suffix, root))
            if part is not tensor:
                self._wrapped.add((name, root))
        gradient = tensor.grad if tensor.is_leaf else None  # torch warns about asking others
        if gradient is not None:
            named = Named("gradient", name, root)
            for _, part in parts(gradient):
                self.tensors.setdefault(self.numbers.number_of(part), named)
            self._name_storage(gradient, named)

    def _settle_modules(self, tree: ModuleTree, root: int, rows: bytes) -> None:
        for role, name, (number, _, gradient, memory) in zip(tree.roles, tree.names, _looked_up(rows), strict=True):
            self.tensors.setdefault(number, Named(role, name, root))
            if gradient >= 0:
                named = Named("gradient", name, root)
                self.tensors.setdefault(gradient, named)
                self._settle_storage(gradient, memory, named)

    def name_late(self, tree: ModuleTree, root: int) -> None:
        """Name what was made during the run: gradients, and the parameters of lazy modules."""
        tensors = tree.held()
        if tensors is None:
            tree = tree.renewed()
            tensors = tree.held() or []
        if (rows := self._look(tensors, "seen")) is not None:
            self._unsettled.append((TensorNames._settle_late, (tree, root, rows)))
            return
        self.settle()
        for role, name, tensor in zip(tree.roles, tree.names, tensors, strict=True):
            self._name_tensor_late(role, name, root, tensor)

    def _name_tensor_late(self, role: str, name: str, root: int, tensor: torch.Tensor) -> None:
        for suffix, part in parts(tensor):
            number = self.numbers.known_number(part)
            if number is None or number in self.tensors:
                continue
            if part is not tensor or (name, root) not in self._wrapped:  # else gathered by FSDP
                self.tensors[number] = Named(role, name + suffix, root)
        gradient = tensor.grad if tensor.is_leaf else None
        if gradient is not None and self.numbers.known_number(gradient) not in self.pieces:  # else named early
            self._name_storage(gradient, Named("gradient", name, root))

    def _settle_late(self, tree: ModuleTree, root: int, rows: bytes) -> None:
        for role, name, (number, _, gradient, memory) in zip(tree.roles, tree.names, _looked_up(rows), strict=True):
            if number >= 0 and number not in self.tensors and (name, root) not in self._wrapped:
                self.tensors[number] = Named(role, name, root)
            if gradient >= 0 and gradient not in self.pieces:
                self._settle_storage(gradient, memory, Named("gradient", name, root))

    # -- optimizers ----------------------------------------------------------------------------------------------------

    def name_gradients(self, parameters: list[Any]) -> None:
        """Name the gradients that an optimizer is about to use."""
        if (rows := self._look(parameters, "seen")) is not None:
            self._unsettled.append((TensorNames._settle_gradients, (rows,)))
            return
        self.settle()
        for parameter in parameters:
            if (gradient := parameter.grad) is not None:
                self._name_storage(gradient, self.of_parameter(parameter, "gradient"))

    def _settle_gradients(self, rows: bytes) -> None:
        for number, _, gradient, memory in _looked_up(rows):
            if gradient >= 0:
                self._settle_storage(gradient, memory, self._of_number(number, "gradient"))

    def name_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Name what an optimizer keeps for each parameter."""
        parameters, states = [*optimizer.state], [*optimizer.state.values()]
        if _ONLY_DICTS.issuperset(map(type, states)):
            owners = [*chain.from_iterable(map(repeat, parameters, map(len, states)))]
            kept = [*chain.from_iterable(map(dict.values, states))]
        else:  # one's own optimizer keeps anything
            owners, kept = parameters, states
        if not _ONLY_TENSORS.issuperset(map(type, kept)):  # some keep lists of tensors
            pairs = [(owner, part) for owner, item in zip(owners, kept, strict=True) for _, part in named_tensors(item)]
            owners, kept = [owner for owner, _ in pairs], [part for _, part in pairs]
        rows_of_owners = self._look(owners, "seen")
        rows = None if rows_of_owners is None else self._look(kept, "in known memory")
        if rows_of_owners is not None and rows is not None:
            self._unsettled.append((TensorNames._settle_states, (rows_of_owners, rows)))
            return
        self.settle()
        for owner, item in zip(owners, kept, strict=True):
            self._name_storage(item, self.of_parameter(owner, "optimizer state"))

    def _settle_states(self, owners: bytes, rows: bytes) -> None:
        for owner, (number, storage, _, _) in zip(_looked_up(owners), _looked_up(rows), strict=True):
            if number >= 0:
                self._settle_storage(number, storage, self._of_number(owner[0], "optimizer state"))

    def of_parameter(self, parameter: torch.Tensor, role: str) -> Named:
        """The name of a parameter's gradient or state: that of the parameter."""
        self.settle()
        number = self.numbers.known_number(next(iter(parts(parameter)))[1])
        return self._of_number(-1 if number is None else number, role)

    def _of_number(self, number: int, role: str) -> Named:
        known = self.tensors.get(number)
        return Named(role, "", -1) if known is None else Named(role, known.name, known.root)

    # -- storages ------------------------------------------------------------------------------------------------------

    def _name_storage(self, tensor: torch.Tensor, named: Named) -> None:
        """Autograd and optimizers hand out new Python objects for what they keep: only the storage is the same."""
        for suffix, part in parts(tensor):
            storage = self.numbers.storage_number(part)
            if storage is not None:
                self._settle_storage(self.numbers.number_of(part), storage, named, suffix)

    def _settle_storage(self, number: int, storage: int, named: Named, suffix: str = "") -> None:
        first = self.storages.setdefault(storage, named)
        if first.name != named.name or first.root != named.root:
            self.shared.add(storage)  # of gradients in one bucket, or of what one reduction scattered
        self.pieces[number] = Named(named.role, named.name + suffix, named.root) if suffix else named


def _looked_up(rows: bytes) -> Iterator[tuple[int, int, int, int]]:
    """The numbers of a tensor, its storage, its gradient, and the gradient's storage; or -1."""
    return struct.iter_unpack("4i", rows)
