"""Which module call, optimizer step or backward an op belongs to: the calls of a recording and who is called what.

While a recording runs, `nn.Module._call_impl` and the setter of `Tensor.data` are wrapped and torch's global optimizer
hooks are used; `Watch.stop` takes everything away again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from torchatlas.capturing.stream import Recorder
from torchatlas.torch_private import UninitializedTensor, current_autograd_node, tensor_data

CALL_ROW = 2  # owner number, parent call
_STANDARD = frozenset(vars(nn.Module()))  # attributes every module has


@dataclass
class Owner:
    """A module or optimizer that was called. `path` is relative to `root`, the owner whose tree it belongs to."""

    reference: weakref.ref[Any]
    type: str
    path: str
    root: int
    kind: str = "module"


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
    _undo: list[Callable[[], Any]] = field(default_factory=list)

    def start(self) -> None:
        if self.model is not None:
            self._add_tree(self.model)
        self.recorder.on_failure = self._leave_step
        self._undo.append(self._patch_module_call())
        self._undo.append(_patch_data(self.recorder))
        self._undo.append(register_optimizer_step_pre_hook(self._step_begins).remove)
        self._undo.append(register_optimizer_step_post_hook(self._step_ends).remove)

    def stop(self) -> None:
        while self._undo:
            self._undo.pop()()
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

    def _patch_module_call(self) -> Callable[[], None]:
        original: Any = nn.Module._call_impl
        current, calls, model = self.recorder.current, self.calls, self.model
        find, owners, number_of = self._numbers.get, self.owners, self.number

        def call_impl(module: Any, *args: Any, **kwargs: Any) -> Any:
            outer = current[0]
            number = find(id(module))
            if number is None or owners[number].reference() is not module:
                number = number_of(module)
            outermost = module is model and outer < 0 and current_autograd_node() is None
            if outermost and self.on_model_call is not None:
                self.on_model_call(args, kwargs)
            current[0] = len(calls) // CALL_ROW
            calls.extend((number, outer))
            try:
                result = original(module, *args, **kwargs)
            finally:
                current[0] = outer
            if outermost and self.on_model_result is not None:
                self.on_model_result(result)
            return result

        return replace_call(original, call_impl)

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

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        number = self._numbers.get(id(optimizer))
        if number is None or self.owners[number].reference() is not optimizer:
            number = self._numbers[id(optimizer)] = len(self.owners)
            kind = type(optimizer).__name__
            self.owners.append(Owner(weakref.ref(optimizer), kind, "", number, "optimizer"))
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._name_storage(parameter.grad, self._named(parameter, "gradient"))
        current = self.recorder.current
        outer = current[0]
        current[0] = len(self.calls) // CALL_ROW
        self.calls.extend((number, outer))
        inside = current[0]

        def outside(closure: Callable[[], Any]) -> Callable[[], Any]:
            """The closure is the program's forward and backward, not the optimizer's work."""

            def run() -> Any:
                current[0] = outer
                result = closure()  # if it raises, the step is over
                current[0] = inside
                return result

            return run

        if len(args) > 1 and callable(args[1]):
            return (args[0], outside(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": outside(kwargs["closure"])}
        return None

    def _leave_step(self) -> None:
        """An op raised: if it was in an optimizer step, no hook will tell that the step is over."""
        current = self.recorder.current
        if current[0] >= 0 and self.owners[self.calls[current[0] * CALL_ROW]].kind == "optimizer":
            current[0] = self.calls[current[0] * CALL_ROW + 1]

    def _step_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        current, calls = self.recorder.current, self.calls
        while current[0] >= 0:  # an exception may have left deeper calls open
            owner, parent = calls[current[0] * CALL_ROW : current[0] * CALL_ROW + CALL_ROW]
            current[0] = parent
            if self.owners[owner].reference() is optimizer:
                break
        self.steps.append((len(self.recorder.stream), self._numbers[id(optimizer)]))


def replace_call(original: Any, replacement: Any) -> Callable[[], None]:
    """Put a function in the place of nn.Module._call_impl; the result takes it away again.

    Replacing __call__ itself would make Python renew a slot in every subclass there is: 0.1 to 0.3 ms a time.
    """
    nn.Module._call_impl = replacement  # type: ignore[method-assign]

    def undo() -> None:
        nn.Module._call_impl = original  # type: ignore[method-assign]

    return undo


def _patch_data(recorder: Recorder) -> Callable[[], None]:
    """`x.data = y` changes the storage of x without an op: a recorder must forget what it knows of x."""
    outer = vars(torch.Tensor).get("data")  # of a recording around this one
    found = outer or tensor_data

    def set_data(tensor: Any, value: Any) -> None:
        found.__set__(tensor, value)
        recorder.forget(tensor)

    torch.Tensor.data = property(found.__get__, set_data)  # type: ignore[assignment]

    def undo() -> None:
        if outer is None:
            del torch.Tensor.data
        else:
            torch.Tensor.data = outer

    return undo


def _uninitialized(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, UninitializedTensor)
