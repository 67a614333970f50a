"""What is known of the tensors that a program trains: name, model, gradients. It outlives the tensors themselves."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchatlas.capturing.tensors import shape_of
from torchatlas.diagnosis.events import is_power_of_two
from torchatlas.diagnosis.variable_names import items_in_containers, names_of_models_and_tensors, running_instances
from torchatlas.garbage_collection import instances_of

_TORCHS = frozenset(vars(nn.Module()))  # attributes that every module has
_DEEPEST = 3  # containers in containers
_FEW = 1_000  # leaves, before those that are gone are forgotten
_Owner = tuple[nn.Module, str]  # the module that has a parameter, and its name there
_Named = tuple[str, torch.Tensor, _Owner | None]


@dataclass(eq=False)
class NamedModel:
    """A whole model, also after it is gone."""

    name: str  # the variable that holds it, or its class, with a number if another has that name
    alone: bool = False  # no other model that has parameters was called


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
    owner: tuple[weakref.ref[nn.Module], str] | None = None  # the module that had it first, and its name there
    reached: bool = False  # a gradient has come to it
    zero: bool = False  # one was seen that was zero
    moved: bool = False  # one that was not zero
    since: int = 0  # steps that were taken before the first came
    model: NamedModel | None = None
    listed: bool = False  # in a plain list or dict of the model
    replaced: bool = False  # an optimizer has it, and its module another in its place

    @property
    def name(self) -> str:
        """The path, after the name of the model if there are several models."""
        return self.path if self.model is None or self.model.alone else f"{self.model.name}.{self.path}"

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def registered(self) -> torch.Tensor | None:
        """The parameter that its module has under its name now."""
        if self.owner is None or (module := self.owner[0]()) is None:
            return None
        return next((each for name, each in module._parameters.items() if name == self.owner[1]), None)


class Leaves:
    """All leaves, held weakly: no model of the program is kept alive."""

    def __init__(self) -> None:
        self._known: dict[int, Leaf] = {}  # by id, which another tensor may get after this one
        self._models: weakref.WeakKeyDictionary[nn.Module, NamedModel] = weakref.WeakKeyDictionary()
        self._count = 0
        self._most = _FEW
        self._in_vain = 0  # searches of all objects since a model was called for the first time

    def of(self, tensor: torch.Tensor, roots: Collection[nn.Module]) -> Leaf:
        leaf = self._find(tensor)
        if leaf is None:
            variables = names_of_models_and_tensors()
            if isinstance(tensor, nn.Parameter):  # no other is found in modules
                leaf = self._search(tensor, roots, variables)
            if leaf is None:
                name = variables.get(id(tensor), f"a leaf {list(shape_of(tensor))}")
                leaf = self._add(tensor, name, of_module=False)
        leaf.requires_grad = tensor.requires_grad
        return leaf

    def forget_storages(self) -> None:
        """Forget the numbers of storages: the next recording numbers them anew."""
        for leaf in self._known.values():
            leaf.storage = None

    def _find(self, tensor: torch.Tensor) -> Leaf | None:
        leaf = self._known.get(id(tensor))
        return leaf if leaf is not None and leaf.reference() is tensor else None

    def model_called(self, roots: Collection[nn.Module]) -> None:
        """A model was called for the first time. Parameters are named without their model while only one was."""
        self._in_vain = 0
        first = [next(nn.Module.parameters(root), None) for root in roots]
        known = [leaf for each in first if each is not None and (leaf := self._find(each)) is not None]
        if len({leaf.model for leaf in known}) > 1:
            for model in self._models.values():
                model.alone = False

    def _add(self, tensor: torch.Tensor, name: str, of_module: bool, owner: _Owner | None = None) -> Leaf:
        self._count += 1
        if len(self._known) >= self._most:  # an id may come again, a tensor does not
            self._known = {key: leaf for key, leaf in self._known.items() if leaf.reference() is not None}
            self._most = 2 * len(self._known) + _FEW
        held = None if owner is None else (weakref.ref(owner[0]), owner[1])
        shape = tuple(shape_of(tensor))
        new = Leaf(name, of_module, weakref.ref(tensor), tensor.requires_grad, self._count, shape, owner=held)
        self._known[id(tensor)] = new
        return new

    def _search(self, tensor: torch.Tensor, roots: Collection[nn.Module], variables: dict[int, str]) -> Leaf | None:
        """Look for a parameter in the models that running variables hold, if those have all that was called; else in
        all objects of Python, which takes long: a module that is never called has parameters, too."""
        held = _modules_of(running_instances(nn.Module))
        if held.keys() >= set(map(id, roots)):
            self._learn(list(held.values()), roots, variables)
        if (leaf := self._find(tensor)) is None and is_power_of_two(self._in_vain + 1):
            self._learn(instances_of(nn.Module), roots, variables)
            leaf = self._find(tensor)
        self._in_vain += leaf is None  # a program of many parameters without modules is not searched for each
        return leaf

    def _learn(self, modules: list[nn.Module], roots: Collection[nn.Module], variables: dict[int, str]) -> None:
        """Find the parameters of some modules."""
        modules = [item for item in modules if "_modules" in vars(item)]
        # torch.export wraps a model that is traced in a module of its own (`_export_root`), which no program knows of.
        modules = [module for module in modules if not type(module).__module__.startswith("torch.export")]
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
        for name, parameter, owner in named:
            if self._find(parameter) is None:
                leaf = self._add(parameter, name, of_module=True, owner=owner)
                leaf.model, leaf.listed = self._model(top, variables), listed

    def _model(self, top: nn.Module, variables: dict[int, str]) -> NamedModel:
        """A model with the name that it keeps from now on."""
        if top not in self._models:
            name = variables.get(id(top), type(top).__name__)
            taken = {model.name for model in self._models.values()}
            numbered = (name if number == 0 else f"{name}_{number}" for number in range(len(taken) + 1))
            self._models[top] = NamedModel(next(each for each in numbered if each not in taken))
        return self._models[top]


def _modules_of(tops: list[nn.Module]) -> dict[int, nn.Module]:
    """Some modules, their submodules, and what plain lists and dicts among the attributes of all these hold, by id."""
    modules, waiting = dict[int, nn.Module](), [top for top in tops if "_modules" in vars(top)]  # not one being made
    while waiting:
        top = waiting.pop()
        if id(top) not in modules:
            modules |= {id(module): module for module in nn.Module.modules(top)}
            waiting += [item for _, item in _plainly_held(top) if isinstance(item, nn.Module)]
    return modules


def _held_by(tops: list[nn.Module], nameless: set[int]) -> set[int]:
    """Those of `tops` that another has in a plain list or dict: parts of it that torch does not know of."""
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
    """The parameters of a model. `named_parameters` itself is not called: a subclass may override it."""
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
                for inner, parameter, owner in _registered(item):
                    yield f"{path}{name}.{inner}", parameter, owner


def _plainly_held(top: nn.Module) -> Iterator[tuple[str, Any]]:
    """The items of plain containers among the attributes of a module and its submodules: `blocks[0]`, `gain['a']`."""
    for path, module in nn.Module.named_modules(top):
        prefix = f"{path}." if path else ""
        own = [(name, value) for name, value in vars(module).items() if type(name) is str and name not in _TORCHS]
        yield from ((prefix + name, item) for name, item in items_in_containers(own, _DEEPEST))
