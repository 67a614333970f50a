"""What is known of the tensors that a program trains, also after it has let go of them."""

from __future__ import annotations

import gc
import inspect
import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn

from torchatlas.capturing.frames import is_users
from torchatlas.capturing.tensors import shape_of

_TORCHS = frozenset(vars(nn.Module()))  # attributes that every module has
_DEEPEST = 3  # containers in containers
_LONGEST = 1_000  # items of a container that is looked into: layers are few, a memory of samples is long


@dataclass(eq=False)
class Leaf:
    """A tensor that gets gradients, or could."""

    name: str
    of_module: bool  # a parameter, and not a tensor of its own
    reference: weakref.ref[torch.Tensor]
    requires_grad: bool
    number: int  # in the order of the models and their parameters
    storage: int | None = None  # in the recording that ran when it was last looked at
    reached: bool = False  # a gradient has come to it
    moved: bool = False  # one that was not zero


class Leaves:
    """Knows them by themselves, weakly: the program's models live and die as they do alone."""

    def __init__(self) -> None:
        self._known: dict[int, Leaf] = {}  # by id, which another tensor may get after this one
        self._models: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()  # what they are called
        self._count = 0

    def of(self, tensor: torch.Tensor, roots: Collection[nn.Module]) -> Leaf:
        found = self._find(tensor)
        if found is None:
            variables = _variables()
            self._learn(roots, variables)
            found = self._find(tensor)
            if found is None:
                name = variables.get(id(tensor), f"a leaf {list(shape_of(tensor))}")
                found = self._add(tensor, name, of_module=False)
        found.requires_grad = tensor.requires_grad
        return found

    def forget_storages(self) -> None:
        """Another recording numbers them anew."""
        for leaf in self._known.values():
            leaf.storage = None

    def _find(self, tensor: torch.Tensor) -> Leaf | None:
        found = self._known.get(id(tensor))
        return found if found is not None and found.reference() is tensor else None

    def _add(self, tensor: torch.Tensor, name: str, of_module: bool) -> Leaf:
        self._count += 1
        found = Leaf(name, of_module, weakref.ref(tensor), tensor.requires_grad, self._count)
        self._known[id(tensor)] = found
        return found

    def _learn(self, roots: Collection[nn.Module], variables: dict[int, str]) -> None:
        """Parameters are called by their path in the model; after the variable that holds the model, or its class, if
        there are several models.

        All modules are looked for: one that is never called has parameters, too.
        """
        modules = [item for item in gc.get_objects() if issubclass(type(item), nn.Module) and "_modules" in vars(item)]
        inside = {id(child) for module in modules for child in module._modules.values()}
        tops = [module for module in modules if id(module) not in inside]
        called = [top for top in tops if any(module in roots for module in nn.Module.modules(top))]
        held = _held_by([*called, *tops], {id(top) for top in tops if id(top) not in variables})
        tops = [top for top in tops if id(top) not in held]
        trained = [top for top in called if id(top) not in held and next(nn.Module.parameters(top), None) is not None]
        only = trained[0] if len(trained) == 1 else None
        for top in tops:
            self._add_all(
                top, only, variables, nn.Module.named_parameters(top)
            )  # not by their own way: it may do anything
        for top in tops:
            self._add_all(top, only, variables, _in_containers(top, held))

    def _add_all(
        self,
        top: nn.Module,
        only: nn.Module | None,
        variables: dict[int, str],
        named: Iterator[tuple[str, nn.Parameter]],
    ) -> None:
        for name, parameter in named:
            if self._find(parameter) is None:
                path = name if top is only else f"{self._called(top, variables)}.{name}"
                self._add(parameter, path, of_module=True)

    def _called(self, top: nn.Module, variables: dict[int, str]) -> str:
        """What a model is called among the others: once and for all."""
        if top not in self._models:
            name, taken = variables.get(id(top), type(top).__name__), set(self._models.values())
            numbered = (name if number == 0 else f"{name}_{number}" for number in range(len(taken) + 1))
            self._models[top] = next(each for each in numbered if each not in taken)
        return self._models[top]


def _held_by(tops: list[nn.Module], nameless: set[int]) -> set[int]:
    """The models, of some, that another has in a plain list or dict: parts of it that torch does not know of."""
    held: set[int] = set()
    holders: set[int] = set()  # a part may point back at its whole
    for top in tops:
        if id(top) not in held:
            holders.add(id(top))
            waiting = [top]
            while waiting:
                inner = [item for _, item in _plainly_held(waiting.pop()) if isinstance(item, nn.Module)]
                found = {id(item): item for item in inner if id(item) in nameless - held - holders}
                held |= found.keys()
                waiting += found.values()
    return held


def _in_containers(top: nn.Module, held: set[int]) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that plain lists and dicts of a model hold, by themselves or in modules."""
    waiting, seen = deque([("", top)]), {id(top)}
    while waiting:
        path, module = waiting.popleft()
        for name, item in _plainly_held(module):
            if isinstance(item, nn.Parameter):
                yield path + name, item
            elif isinstance(item, nn.Module) and id(item) in held and id(item) not in seen:
                seen.add(id(item))
                waiting.append((f"{path}{name}.", item))
                yield from ((f"{path}{name}.{inner}", p) for inner, p in nn.Module.named_parameters(item))


def _plainly_held(top: nn.Module) -> Iterator[tuple[str, Any]]:
    """What containers among the attributes of a module, and of those in it, hold: `blocks[0]`, `gain['a']`."""
    for path, module in nn.Module.named_modules(top):
        prefix = f"{path}." if path else ""
        for name, value in vars(module).items():
            if name not in _TORCHS:
                yield from _items(prefix + name, value, _DEEPEST)


def _items(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if type(value) in (dict, OrderedDict, defaultdict):
        entries = list(value.items()) if len(value) <= _LONGEST else []
    elif type(value) in (list, tuple, deque):
        entries = list(enumerate(value)) if len(value) <= _LONGEST else []
    else:
        return
    for key, item in entries:
        where = f"{path}[{key!r}]" if isinstance(key, (str, int)) else f"{path}[{type(key).__name__}]"
        if issubclass(type(item), (nn.Module, torch.Tensor)):
            yield where, item
        elif depth > 1:
            yield from _items(where, item, depth - 1)


def _variables() -> dict[int, str]:
    """What the program that runs calls its models and tensors, by id: first of all in its outermost code.

    Attributes of an object whose method runs are named like variables.
    """
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames += [frame] if is_users(frame.f_code.co_filename) else []
        frame = frame.f_back
    names: dict[int, str] = {}
    for each in reversed(frames):
        found = variables_of(each)
        own = getattr(found.pop("self", None), "__dict__", {})
        for name, value in [*found.items(), *own.items()]:
            if issubclass(type(value), (nn.Module, torch.Tensor)) and not name.startswith("_"):
                names.setdefault(id(value), name)
    return names


def variables_of(frame: FrameType) -> dict[str, Any]:
    """Those of a function are copied by Python before 3.13, and the copy would live as long as the call: it is emptied,
    unless the program holds it, too."""
    found: Any = frame.f_locals
    copied: dict[str, Any] = dict(found)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(found) is dict and sys.getrefcount(found) <= 3:
        found.clear()
    return copied
