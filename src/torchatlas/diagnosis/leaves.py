"""What is known of the tensors that a program trains, also after it has let go of them."""

from __future__ import annotations

import gc
import math
import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, MappingProxyType
from typing import Any

import torch
from torch import nn

from torchatlas.capturing.frames import is_users, variables_of
from torchatlas.capturing.tensors import shape_of

_TORCHS = frozenset(vars(nn.Module()))  # attributes that every module has
_DICTS, _LISTS = (dict, OrderedDict, defaultdict), (list, tuple, deque)  # these alone: others may do anything
_DEEPEST = 3  # containers in containers
_LONGEST = 1_000  # items of a container that is looked into: layers are few, a memory of samples is long
_MOST_ITEMS = 10_000  # items of all containers of a module: a table of numbers may be many short lists
_FEW = 1_000  # leaves, before those that are gone are forgotten
_Place = tuple[nn.Module, str]  # which module has a parameter, and as what
_Named = tuple[str, torch.Tensor, _Place | None]


@dataclass(eq=False)
class Model:
    """A whole model, also after it is gone."""

    name: str  # among the others: the variable that holds it, or its class
    alone: bool = False  # no other that has parameters was called


@dataclass(eq=False)
class Leaf:
    """A tensor that gets gradients, or could."""

    path: str  # in its model, or the variable that holds it
    of_module: bool  # a parameter, and not a tensor of its own
    reference: weakref.ref[torch.Tensor]
    requires_grad: bool
    number: int  # in the order of the models and their parameters
    shape: tuple[int, ...] = ()
    storage: int | None = None  # in the recording that ran when it was last looked at
    place: tuple[weakref.ref[nn.Module], str] | None = None  # the module that had it when it was found, and as what
    reached: bool = False  # a gradient has come to it
    zero: bool = False  # one was seen that was zero
    moved: bool = False  # one that was not zero
    since: int = 0  # steps that were taken before the first came
    model: Model | None = None  # the whole one
    listed: bool = False  # in a plain list or dict of the model
    replaced: bool = False  # an optimizer has it, and its module another in its place

    @property
    def name(self) -> str:
        """With the model's, if there are several."""
        return self.path if self.model is None or self.model.alone else f"{self.model.name}.{self.path}"

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def registered(self) -> torch.Tensor | None:
        """What the module has in its place now."""
        if self.place is None or (module := self.place[0]()) is None:
            return None
        return next((each for name, each in module._parameters.items() if name == self.place[1]), None)


class Leaves:
    """Knows them by themselves, weakly: the program's models live and die as they do alone."""

    def __init__(self) -> None:
        self._known: dict[int, Leaf] = {}  # by id, which another tensor may get after this one
        self._models: weakref.WeakKeyDictionary[nn.Module, Model] = weakref.WeakKeyDictionary()
        self._roots = 0  # that were called when it was last looked
        self._count = 0
        self._most = _FEW

    def of(self, tensor: torch.Tensor, roots: Collection[nn.Module]) -> Leaf:
        found = self._find(tensor)
        if len(roots) != self._roots:
            self._count_models(roots)
        if found is None:
            variables = _variables()
            if isinstance(tensor, nn.Parameter):  # no other is found in modules, and to look at all objects takes long
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

    def _count_models(self, roots: Collection[nn.Module]) -> None:
        """The names of parameters need no model as long as one alone was called."""
        self._roots = len(roots)
        first = [next(nn.Module.parameters(root), None) for root in roots]
        known = [leaf for each in first if each is not None and (leaf := self._find(each)) is not None]
        if len({leaf.model for leaf in known}) > 1:
            for model in self._models.values():
                model.alone = False

    def _add(self, tensor: torch.Tensor, name: str, of_module: bool, place: _Place | None = None) -> Leaf:
        self._count += 1
        if len(self._known) >= self._most:  # an id may come again, a tensor does not
            self._known = {key: leaf for key, leaf in self._known.items() if leaf.reference() is not None}
            self._most = 2 * len(self._known) + _FEW
        held = None if place is None else (weakref.ref(place[0]), place[1])
        shape = tuple(shape_of(tensor))
        found = Leaf(name, of_module, weakref.ref(tensor), tensor.requires_grad, self._count, shape, place=held)
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
        for model in self._models.values():
            model.alone = False
        for top in trained[:1] if len(trained) == 1 else ():
            self._model(top, variables).alone = True
        for top in tops:
            self._add_all(top, variables, _registered(top), listed=False)
        for top in tops:
            self._add_all(top, variables, _in_containers(top, held), listed=True)

    def _add_all(self, top: nn.Module, variables: dict[int, str], named: Iterator[_Named], listed: bool) -> None:
        for name, parameter, place in named:
            if self._find(parameter) is None:
                leaf = self._add(parameter, name, of_module=True, place=place)
                leaf.model, leaf.listed = self._model(top, variables), listed

    def _model(self, top: nn.Module, variables: dict[int, str]) -> Model:
        """What a model is called among the others: once and for all."""
        if top not in self._models:
            name = variables.get(id(top), type(top).__name__)
            taken = {model.name for model in self._models.values()}
            numbered = (name if number == 0 else f"{name}_{number}" for number in range(len(taken) + 1))
            self._models[top] = Model(next(each for each in numbered if each not in taken))
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
                for _, item in _plainly_held(waiting.pop()):
                    if id(item) in nameless and id(item) not in held and id(item) not in holders:
                        held.add(id(item))
                        waiting.append(item)
    return held


def _registered(top: nn.Module) -> Iterator[_Named]:
    """The parameters of a model as `named_parameters` finds them, of which a subclass may have its own: that may do
    anything."""
    for path, module in nn.Module.named_modules(top):
        prefix = f"{path}." if path else ""
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield prefix + name, parameter, (module, name)


def _in_containers(top: nn.Module, held: set[int]) -> Iterator[_Named]:
    """The parameters that plain lists and dicts of a model hold, by themselves or in modules."""
    waiting, seen = deque([("", top)]), {id(top)}
    while waiting:
        path, module = waiting.popleft()
        for name, item in _plainly_held(module):
            if isinstance(item, nn.Parameter):
                yield path + name, item, None
            elif id(item) in held and id(item) not in seen:
                seen.add(id(item))
                waiting.append((f"{path}{name}.", item))
                for inner, parameter, place in _registered(item):
                    yield f"{path}{name}.{inner}", parameter, place


def _plainly_held(top: nn.Module) -> Iterator[tuple[str, Any]]:
    """What containers among the attributes of a module, and of those in it, hold: `blocks[0]`, `gain['a']`."""
    for path, module in nn.Module.named_modules(top):
        prefix = f"{path}." if path else ""
        own = [(name, value) for name, value in vars(module).items() if type(name) is str and name not in _TORCHS]
        yield from ((prefix + name, item) for name, item in _items(own, _DEEPEST))


def _items(variables: Iterable[tuple[str, Any]], deepest: int) -> Iterator[tuple[str, Any]]:
    """The modules and tensors that plain containers among some variables hold, the least deep first."""
    level: list[tuple[tuple[Any, ...], Any]] = [((name,), value) for name, value in variables]
    left = _MOST_ITEMS
    for _ in range(deepest):
        containers, level = level, []
        for keys, value in containers:
            if left <= 0:
                return
            entries = _entries(value)[:left]
            left -= len(entries)
            for key, item in entries:
                if issubclass(type(item), (nn.Module, torch.Tensor)):
                    yield _path(*keys, key), item
                elif type(item) in _DICTS or type(item) in _LISTS:
                    level.append(((*keys, key), item))


def _entries(value: Any) -> list[tuple[Any, Any]]:
    """A copy, made at once: another thread may change what is copied."""
    if type(value) in _DICTS and len(value) <= _LONGEST:
        return list(value.items())
    return list(enumerate(value)) if type(value) in _LISTS and len(value) <= _LONGEST else []


def _path(name: str, *keys: Any) -> str:
    """Keys of the program's own classes are not asked how they are written."""
    return name + "".join(f"[{key!r}]" if type(key) in (str, int) else f"[{type(key).__name__}]" for key in keys)


def _variables() -> dict[int, str]:
    """What the program that runs calls its models and tensors, by id: first of all in its outermost code.

    Attributes of an object whose method runs are named like variables; tensors in plain containers after these.
    """
    names: dict[int, str] = {}
    for found in reversed(list(running_variables())):
        own = attributes_of(found.pop("self", None))
        both = [*found.items(), *own.items()]
        named = [(name, value) for name, value in both if type(name) is str and not name.startswith("_")]
        for name, value in named:
            if issubclass(type(value), (nn.Module, torch.Tensor)):
                names.setdefault(id(value), name)
        for name, item in _items(named, deepest=1):
            if issubclass(type(item), torch.Tensor):
                names.setdefault(id(item), name)
    return names


def attributes_of(item: Any) -> Mapping[Any, Any]:
    """Those in its dictionary. Its class is not asked: it may answer with anything."""
    try:
        found = object.__getattribute__(item, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, (dict, MappingProxyType)) else {}


def running_variables() -> Iterator[dict[str, Any]]:
    """The variables of each piece of the program's code that runs, the innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            yield variables_of(frame)
        frame = frame.f_back
