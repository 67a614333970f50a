"""Leaving the user's world as found: what a captured run changes is put back, also after an exception.

Tensors are saved when an op is about to write them for the first time, so that nothing is copied that is not written.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import nn

from torchatlas.capturing.recorder import Recorder
from torchatlas.capturing.tensors import parts, storages_of
from torchatlas.inputs import named_tensors
from torchatlas.interrupts import Bracket
from torchatlas.torch_private import (
    TorchDispatchMode,
    UninitializedTensor,
    dispatch_mode_stack,
    no_dispatch_modes,
    pop_mode,
    push_mode,
    set_version_counters,
)


class Restorer(Bracket["Restorer"]):
    """Saves on entering and before writes; puts everything back on leaving.

    With `whole=True`, for runs in which no dispatch mode sees the writes, all parameters, buffers and inputs are copied
    first. `rewind` puts everything back between two runs.
    """

    def __init__(self, model: Any, inputs: Any, optimizer: Any = None, *, whole: bool = False) -> None:
        self.recorder: Recorder | None = None
        self._modules = list(model.modules()) if isinstance(model, nn.Module) else []
        self._tree = inputs
        self._inputs = [tensor for _, tensor in named_tensors(inputs)]
        self._optimizer = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
        self._whole = whole
        self._storages: dict[int, tuple[Any, Any]] = {}
        self._versions: dict[int, tuple[torch.Tensor, int]] = {}
        self._generators: dict[int, tuple[torch.Generator, torch.Tensor]] = {}
        self._undo: list[Callable[[], Any]] = []
        self._new_gradients: list[torch.Tensor] = []
        self._modes: list[TorchDispatchMode] = []

    def _begin(self) -> Restorer:
        self._modes = dispatch_mode_stack()
        try:
            with no_dispatch_modes():  # what we do is no part of the program, whoever else is watching
                self._reshard()
                self._save_flags()
                self._save_inputs(self._tree)
                self._save_modules()
                self._save_tensors()
                self._save_optimizer()
        except BaseException:
            self._end(None, None, None)  # gradients may have been put aside already
            raise
        return self

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            _modes_back(self._modes)
            with no_dispatch_modes():
                self._restore()
        finally:
            self._forget()

    def rewind(self) -> None:
        """Put everything back between two runs, so that the next one begins as the first did.

        A run that is not watched may follow one that was recorded: what it writes to was saved then.
        """
        _modes_back(self._modes)
        with no_dispatch_modes():
            self._restore()
            self._put_gradients_aside()

    def _restore(self) -> None:
        self._reshard()
        for storage, copy in self._storages.values():
            if storage.nbytes() != copy.nbytes():
                storage.resize_(copy.nbytes())
            storage.copy_(copy)
        for tensor in self._new_gradients:
            tensor.grad = None
        for generator, state in self._generators.values():
            generator.set_state(state)
        for undo in reversed(self._undo):
            undo()
        changed = [(tensor, version) for tensor, version in self._versions.values() if tensor._version != version]
        if changed:
            set_version_counters(tuple(tensor for tensor, _ in changed), tuple(version for _, version in changed))

    def _reshard(self) -> None:
        """FSDP knows which parameters are gathered: it has to put its shards back into the modules itself."""
        kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
        for module in self._modules:
            if isinstance(module, kind):
                module.reshard()

    def _forget(self) -> None:
        """Let go of the user's objects: a recorder refers to us, and lives until the garbage collector comes by."""
        self.recorder = self._optimizer = self._tree = None
        containers: tuple[Any, ...] = (self._modules, self._inputs, self._undo, self._new_gradients, self._modes)
        for container in (*containers, self._storages, self._versions, self._generators):
            container.clear()

    def before_write(self, target: Any) -> None:
        """Called by the recorder with what an op is about to change."""
        if isinstance(target, torch.Tensor):
            for storage in storages_of(target):
                self._save_storage(storage)
        elif isinstance(target, torch.UntypedStorage):
            self._save_storage(target)
        elif isinstance(target, torch.Generator):
            self._generators.setdefault(id(target), (target, target.get_state()))
        elif isinstance(target, (list, tuple)):
            for part in target:
                self.before_write(part)

    def after_run(self, session: Any) -> None:
        """Tensors that a function reached by itself, through a closure say, shall have no new gradients either."""
        self._new_gradients += session.leaves_with_new_gradients()

    def _save_storage(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self._storages:
            return
        if self.recorder is not None and self.recorder.numbers.made_here(storage):
            return
        with no_dispatch_modes():  # a mode around the capture shall not see our copies
            self._storages[storage._cdata] = (storage, storage.clone())

    def _save_parts(self, tensor: torch.Tensor) -> None:
        for _, part in parts(tensor):
            for storage in storages_of(part):
                self._save_storage(storage)

    def _save_tensors(self) -> None:
        for tensor in self._all_tensors():
            if not tensor.is_inference():
                self._versions[id(tensor)] = (tensor, tensor._version)
            alias = tensor.detach()
            self._undo.append(_data_back(tensor, alias))
            gradient, needs = tensor.grad if tensor.is_leaf else None, tensor.requires_grad
            self._undo.append(_gradient_back(tensor, gradient, needs))
            if self._whole:
                self._save_parts(tensor)
        self._put_gradients_aside()

    def _put_gradients_aside(self) -> None:
        for tensor in self._all_tensors():
            if tensor.is_leaf and tensor.grad is not None:
                tensor.grad = None

    def _all_tensors(self) -> list[torch.Tensor]:
        tensors = {id(tensor): tensor for tensor in self._inputs}
        for module in self._modules:
            for group in (module._parameters, module._buffers):
                for tensor in group.values():
                    if tensor is not None and not isinstance(tensor, UninitializedTensor):
                        tensors[id(tensor)] = tensor
        return list(tensors.values())

    def _save_inputs(self, tree: Any) -> None:
        """Save the caller's lists and dictionaries: caches are filled in place."""
        if isinstance(tree, (list, dict)):
            self._save_container(tree)
        if isinstance(tree, (list, tuple)):
            for part in tree:
                self._save_inputs(part)
        elif isinstance(tree, dict):
            for part in tree.values():
                self._save_inputs(part)

    def _save_modules(self) -> None:
        for module in self._modules:
            attributes = dict(vars(module))
            for item in attributes.values():
                self._save_container(item)
            self._undo.append(_attributes_back(module, attributes))
            self._undo.append(_class_back(module, type(module)))
            for tensor in [*module._parameters.values(), *module._buffers.values()]:
                if isinstance(tensor, UninitializedTensor):
                    self._undo.append(_class_back(tensor, type(tensor)))

    def _save_container(self, item: Any) -> None:
        if type(item) is list:
            self._undo.append(_list_back(item, list(item)))
        elif isinstance(item, dict):
            self._undo.append(_dict_back(item, dict(item)))
        elif type(item) is set:
            self._undo.append(_dict_back(item, set(item)))

    def _save_optimizer(self) -> None:
        if self._optimizer is None:
            return
        for group in self._optimizer.param_groups:
            self._save_container(group)
        for state in self._optimizer.state.values():
            self._save_container(state)
            for item in state.values():
                self._save_container(item)
                if self._whole and isinstance(item, torch.Tensor):
                    self._save_parts(item)
        self._save_container(self._optimizer.state)

    def _save_flags(self) -> None:
        undo = self._undo
        undo.append(_call(torch.set_rng_state, torch.get_rng_state()))
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            undo.append(_call(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
        undo.append(_call(random.setstate, random.getstate()))
        if "numpy" in sys.modules:
            import numpy as np

            undo.append(_call(np.random.set_state, np.random.get_state()))  # noqa: NPY002  # the one a user may have seeded
        undo.append(_call(torch.set_grad_enabled, torch.is_grad_enabled()))
        undo.append(_call(torch.set_default_dtype, torch.get_default_dtype()))
        undo.append(_threads_back(torch.get_num_threads()))
        undo.append(_determinism_back(_determinism()))


def _call(function: Callable[[Any], Any], argument: Any) -> Callable[[], Any]:
    return lambda: function(argument)


def _modes_back(modes: list[TorchDispatchMode]) -> None:
    """Put the dispatcher's modes back. An interrupt may have left one that was ending, or kept a paused one away."""
    stack = dispatch_mode_stack()
    while stack != modes[: len(stack)]:
        pop_mode()
        stack.pop()
    for mode in modes[len(stack) :]:
        push_mode(mode)


def _threads_back(count: int) -> Callable[[], None]:
    def undo() -> None:
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)

    return undo


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _determinism_back(before: tuple[bool, bool]) -> Callable[[], None]:
    def undo() -> None:
        if _determinism() != before:  # setting it, even to what it is, imports torch's compiler and sets it there too
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])

    return undo


def _data_back(tensor: torch.Tensor, alias: torch.Tensor) -> Callable[[], None]:
    def undo() -> None:
        if _place(tensor) != _place(alias):
            tensor.data = alias

    return undo


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor's data lies and how; a nested one does not tell its shape."""
    regular = not tensor.is_nested and tensor.layout is torch.strided
    strides = (tensor.stride(), tensor.storage_offset()) if regular else None
    shape = None if tensor.is_nested else tensor.shape
    return [storage._cdata for storage in storages_of(tensor)], tensor.layout, tensor.dtype, shape, strides


def _gradient_back(tensor: torch.Tensor, gradient: torch.Tensor | None, needs: bool) -> Callable[[], None]:
    def undo() -> None:
        if tensor.is_leaf:
            if tensor.requires_grad != needs:
                tensor.requires_grad_(needs)
            if tensor.grad is not gradient:
                tensor.grad = gradient

    return undo


def _class_back(item: Any, kind: type) -> Callable[[], None]:
    """A lazy module becomes an ordinary one in its first call, and so do its parameters."""

    def undo() -> None:
        if type(item) is not kind:
            if isinstance(item, torch.Tensor):
                item.data = torch.empty(0, dtype=item.dtype, device=item.device)
                item.grad = None
            item.__class__ = kind

    return undo


def _attributes_back(module: nn.Module, attributes: dict[str, Any]) -> Callable[[], None]:
    def undo() -> None:
        current = vars(module)
        for name in [name for name in current if name not in attributes]:
            del current[name]
        current.update(attributes)

    return undo


def _list_back(item: list[Any], content: list[Any]) -> Callable[[], None]:
    def undo() -> None:
        item[:] = content

    return undo


def _dict_back(item: Any, content: Any) -> Callable[[], None]:
    def undo() -> None:
        item.clear()
        item.update(content)

    return undo
