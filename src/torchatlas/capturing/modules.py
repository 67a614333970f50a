"""Which module call, optimizer step or backward an op belongs to: the calls of a recording and who is called what.

process.py tells a Watch what is called; it gives every call a number and every module and tensor a name.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from torchatlas.capturing import process
from torchatlas.capturing.process import Cell
from torchatlas.capturing.stream import Recorder, user_line
from torchatlas.torch_private import UninitializedTensor, current_autograd_node, next_sequence_nr

CALL_ROW = 2  # owner number, parent call
_STANDARD = frozenset(vars(nn.Module()))  # attributes every module has


@dataclass
class Owner:
    """A module or optimizer that was called. `path` is relative to `root`, the owner whose tree it belongs to."""

    reference: weakref.ref[Any]
    type: str
    path: str
    root: int
    kind: str = "module"  # module | optimizer | thread
    thread: str = ""  # the name of a thread
    first_sequence_nr: int = 0  # autograd counts in every thread anew


@dataclass
class Named:
    """A tensor that has a name: a parameter, buffer, plain attribute, gradient or optimizer state."""

    role: str
    name: str
    root: int


@dataclass
class Watch:
    """The calls of one recording."""

    recorder: Recorder
    model: nn.Module | None = None
    calls: list[int] = field(default_factory=list)  # CALL_ROW entries per call
    owners: list[Owner] = field(default_factory=list)
    tensors: dict[int, Named] = field(default_factory=dict)  # by tensor number
    storages: dict[int, Named] = field(default_factory=dict)  # by storage number: gradients and optimizer state
    on_model_call: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None
    on_model_result: Callable[[Any], None] | None = None
    steps: list[tuple[int, int]] = field(default_factory=list)  # (position in the stream, owner) at the end of each
    _numbers: dict[int, int] = field(default_factory=dict)  # id of a module or optimizer -> owner number
    _forks: list[Recorder] = field(default_factory=list)  # of the recorder, one per thread that joined
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        if self.model is not None:
            self._add_tree(self.model)
        self.recorder.on_failure = self._leave_step
        process.join(self, self.recorder.current)

    def stop(self) -> None:
        process.leave(self)
        for fork in self._forks:
            fork.silence()
        for owner in self.owners:
            found = owner.reference()
            if found is not None and owner.kind == "optimizer":
                self._name_states(found)
        for owner in self.owners:
            found = owner.reference()
            if found is not None and owner.kind == "module":
                self._name_late(found, owner)

    def number(self, module: Any) -> int:
        """The owner number of a module; one that was not seen before brings its whole tree."""
        number = self._numbers.get(id(module))
        if number is not None and self.owners[number].reference() is module:
            return number
        return self._add_tree(module)

    def module_called(self, inner: Any, cell: Cell, module: Any, args: Any, kwargs: Any) -> Any:
        outer = cell[0]
        number = self._numbers.get(id(module))
        if number is None or self.owners[number].reference() is not module:
            number = self.number(module)
        outermost = module is self.model and outer < 0 and current_autograd_node() is None
        if outermost and self.on_model_call is not None:
            self.on_model_call(args, kwargs)
        cell[0] = self._call(number, outer)
        try:
            result = inner(module, *args, **kwargs)
        finally:
            cell[0] = outer
        if outermost and self.on_model_result is not None:
            self.on_model_result(result)
        return result

    def backward_called(self, inner: Any, cell: Cell, tensors: Any, args: Any, kwargs: Any) -> Any:
        return inner(tensors, *args, **kwargs)

    def data_set(self, tensor: Any) -> None:
        self.recorder.forget(tensor)

    def join_thread(self, cell: Cell, thread: threading.Thread) -> tuple[Cell, Any]:
        """What a new thread runs belongs to the call that started it. Returns its own cell and its dispatch mode."""
        fork = self.recorder.fork()
        self._forks.append(fork)
        owner = self.owners[self.calls[cell[0] * CALL_ROW]] if cell[0] >= 0 else None
        path, root, kind = (owner.path, owner.root, owner.type) if owner is not None else ("", -1, "")
        self.owners.append(Owner(weakref.ref(thread), kind, path, root, "thread", thread.name, next_sequence_nr()))
        fork.current[0] = self._call(len(self.owners) - 1, cell[0])
        return fork.current, fork.mode

    def _call(self, owner: int, outer: int) -> int:
        """A new call; its number. Rows go in whole, so that threads do not mix them."""
        with self._lock:
            self.calls.extend((owner, outer))
            return len(self.calls) // CALL_ROW - 1

    def _add_tree(self, module: nn.Module) -> int:
        root = len(self.owners)
        stack: list[tuple[str, nn.Module]] = [("", module)]
        while stack:
            path, found = stack.pop()
            known = self._numbers.get(id(found))
            if known is not None and known >= root:
                continue  # the same module under a second name: the first one counts
            if known is not None and self.owners[known].reference() is found:
                continue  # belongs to a tree seen earlier
            self._numbers[id(found)] = len(self.owners)
            self.owners.append(Owner(weakref.ref(found), type(found).__name__, path, root))
            prefix = f"{path}." if path else ""
            self._name_tensors(found, prefix, root)
            children = [(prefix + name, child) for name, child in found._modules.items() if child is not None]
            stack.extend(reversed(children))
        return self._numbers[id(module)]

    def _name_tensors(self, module: nn.Module, prefix: str, root: int) -> None:
        number_of = self.recorder.number_of
        for role, group in (("parameter", module._parameters), ("buffer", module._buffers)):
            for name, tensor in group.items():
                if isinstance(tensor, torch.Tensor) and not _uninitialized(tensor):
                    self.tensors.setdefault(number_of(tensor), Named(role, prefix + name, root))
                    if tensor.grad is not None:
                        number_of(tensor.grad)
                        self._name_storage(tensor.grad, Named("gradient", prefix + name, root))
        for name, item in vars(module).items():
            if name not in _STANDARD and isinstance(item, torch.Tensor):
                self.tensors.setdefault(number_of(item), Named("constant", prefix + name, root))

    def _name_storage(self, tensor: torch.Tensor, named: Named) -> None:
        """Autograd and optimizers hand out new Python objects for what they keep: only the storage is the same."""
        storage = self.recorder.storage_number(tensor)
        if storage is not None:
            self.storages.setdefault(storage, named)

    def _named(self, parameter: torch.Tensor, role: str) -> Named:
        """What a parameter's gradient or state is called: like the parameter."""
        number = self.recorder.known_number(parameter)
        found = None if number is None else self.tensors.get(number)
        return Named(role, "" if found is None else found.name, -1 if found is None else found.root)

    def _name_late(self, module: nn.Module, owner: Owner) -> None:
        """Name what came to be during the run: gradients, and the parameters of lazy modules."""
        prefix = f"{owner.path}." if owner.path else ""
        for role, group in (("parameter", module._parameters), ("buffer", module._buffers)):
            for name, tensor in group.items():
                number = None if tensor is None else self.recorder.known_number(tensor)
                if number is not None:
                    self.tensors.setdefault(number, Named(role, prefix + name, owner.root))
                if tensor is not None and tensor.is_leaf and tensor.grad is not None:
                    self._name_storage(tensor.grad, Named("gradient", prefix + name, owner.root))

    def _name_states(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter, state in optimizer.state.items():
            for item in state.values():
                if isinstance(item, torch.Tensor):
                    self._name_storage(item, self._named(parameter, "optimizer state"))

    def step_begins(self, cell: Cell, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        number = self._numbers.get(id(optimizer))
        if number is None or self.owners[number].reference() is not optimizer:
            number = self._numbers[id(optimizer)] = len(self.owners)
            kind = type(optimizer).__name__
            self.owners.append(Owner(weakref.ref(optimizer), kind, "", number, "optimizer"))
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._name_storage(parameter.grad, self._named(parameter, "gradient"))
        outer, inside = cell[0], self._call(number, cell[0])
        ours = type(optimizer).__module__.startswith("torch.optim")  # then no line inside the step is the user's
        line = user_line(sys._getframe(1)) if ours else None
        cell[:] = inside, line

        def outside(closure: Callable[[], Any]) -> Callable[[], Any]:
            """The closure is the program's forward and backward, not the optimizer's work."""

            def run() -> Any:
                cell[:] = outer, None
                result = closure()  # if it raises, the step is over
                cell[:] = inside, line
                return result

            return run

        if len(args) > 1 and callable(args[1]):
            return (args[0], outside(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": outside(kwargs["closure"])}
        return args, kwargs

    def _leave_step(self, cell: Cell) -> None:
        """An op raised: if it was in an optimizer step, no hook will tell that the step is over."""
        if cell[0] >= 0 and self.owners[self.calls[cell[0] * CALL_ROW]].kind == "optimizer":
            cell[:] = self.calls[cell[0] * CALL_ROW + 1], None

    def step_ends(self, cell: Cell, optimizer: Any) -> None:
        cell[1] = None
        while cell[0] >= 0:  # an exception may have left deeper calls open
            owner, parent = self.calls[cell[0] * CALL_ROW : cell[0] * CALL_ROW + CALL_ROW]
            if self.owners[owner].kind == "thread":
                break
            cell[0] = parent
            if self.owners[owner].reference() is optimizer:
                break
        self.steps.append((len(self.recorder.stream), self._numbers[id(optimizer)]))


def _uninitialized(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, UninitializedTensor)
