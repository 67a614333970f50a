"""A module -> the modules in it with their paths, and the tensors that they hold.

Walking a tree takes as long as recording many small ops, and most trees are as they were in the step before. So a run
hands its trees on from step to step. Whoever uses one asks each time if it is still the same: modules and tensors may
come, go and be replaced at any moment. That is compared for all modules at once, in loops that run in C. What only a
graph or a run asks for, names and owners, is made when it is asked for: most recordings of one step come before both.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from functools import cached_property
from itertools import chain, compress, repeat
from operator import attrgetter, call, itemgetter
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_STANDARD = frozenset(vars(nn.Module()))  # attributes every module has
_NO_TENSORS = frozenset({type(None), bool, int, float, str, tuple, list, dict})
_MODULES, _PARAMETERS, _BUFFERS = map(itemgetter, ("_modules", "_parameters", "_buffers"))
_ATTRIBUTES = attrgetter("__dict__")
_COUNTS, _KEYS = 3, 4  # of what `_look` sees: how many parameters, then buffers, each module holds, and their names


class Owner(NamedTuple):  # of which a recording makes one per module: quicker to make than a frozen dataclass
    """A module or optimizer that was called. `path` is relative to `root`, the owner whose tree it belongs to."""

    reference: Callable[[], Any]  # weak
    type: str
    path: str
    root: int
    kind: str = "module"  # module | optimizer | thread
    thread: str = ""  # the name of a thread
    first_sequence_nr: int = 0  # autograd counts in every thread anew


class ModuleTree:
    """All modules below one, each once, under its first path; and what was seen in them."""

    def __init__(self, modules: list[tuple[str, nn.Module]]) -> None:
        self.paths = [path for path, _ in modules]
        self.references: list[Callable[[], Any]] = [weakref.ref(module) for _, module in modules]
        self.kinds: list[type] = [type(module) for _, module in modules]
        self.positions = {id(module): position for position, (_, module) in enumerate(modules)}
        replicas = {kind for kind in {*self.kinds} if issubclass(kind, DistributedDataParallel)}
        self.replicas = [weakref.ref(module) for _, module in modules if type(module) in replicas]
        scripted = any(issubclass(kind, torch.jit.ScriptModule) for kind in {*self.kinds})
        self._attributes: Callable[[nn.Module], dict[str, Any]] = _attributes_of if scripted else _ATTRIBUTES
        attributes = [self._attributes(module) for _, module in modules]
        self._seen, tensors = _look(attributes)
        self._is_there = [tensor is not None for tensor in tensors]  # a layer without a bias has None in its place
        self._all_there = all(self._is_there)
        own = [(at, key) for at, held in enumerate(attributes) for key in held if key not in _STANDARD]
        self._own = [at for at, _ in own], [key for _, key in own]  # attributes that not every module has: module, key

    @cached_property
    def signature(self) -> int:
        """Equal for trees of modules of the same classes under the same paths."""
        return hash(tuple((path, kind.__name__) for path, kind in zip(self.paths, self.kinds, strict=True)))

    @cached_property
    def roles(self) -> list[str]:
        """Of what `held` returns: parameter or buffer."""
        counts = self._seen[_COUNTS]
        middle = sum(counts[: len(self.paths)])
        roles = ["parameter"] * middle + ["buffer"] * (len(self._is_there) - middle)
        return [*compress(roles, self._is_there)]

    @cached_property
    def names(self) -> list[str]:
        """Of what `held` returns: the path of the module and the name in it."""
        paths = chain.from_iterable(map(repeat, [*self.paths, *self.paths], self._seen[_COUNTS]))
        found = zip(paths, self._seen[_KEYS], strict=True)
        return [*compress([f"{path}.{name}" if path else name for path, name in found], self._is_there)]

    def owners(self, root: int) -> list[Owner]:
        """The modules as owners; `root` is the number of the first."""
        return self._first_owners if root == 0 else self._make_owners(root)

    @cached_property
    def _first_owners(self) -> list[Owner]:
        return self._make_owners(0)

    def _make_owners(self, root: int) -> list[Owner]:
        found = zip(self.references, self.kinds, self.paths, strict=True)
        return [Owner(reference, kind.__name__, path, root) for reference, kind, path in found]

    def held(self) -> list[Any] | None:
        """The parameters and buffers in the order of `names`; None if the tree has changed."""
        modules: list[Any] = [*map(call, self.references)]
        if [*map(type, modules)] != self.kinds:
            return None
        seen, tensors = _look([*map(self._attributes, modules)])
        if seen != self._seen:
            return None
        return tensors if self._all_there else [*compress(tensors, self._is_there)]

    def constants(self) -> list[tuple[str, torch.Tensor]]:
        """Tensors that are attributes of modules and neither parameters nor buffers. Asked just after `held`."""
        attributes: list[dict[str, Any]] = [*map(self._attributes, map(call, self.references))]
        positions, keys = self._own
        items: list[Any] = [*map(dict.get, map(attributes.__getitem__, positions), keys)]
        found: list[tuple[str, torch.Tensor]] = []
        if _NO_TENSORS.issuperset(map(type, items)):
            return found
        for position, key, item in zip(positions, keys, items, strict=True):
            if isinstance(item, torch.Tensor):
                path = self.paths[position]
                found.append((f"{path}.{key}" if path else key, item))
        return found

    def without(self, modules: Collection[int]) -> ModuleTree:
        """The same tree but for some modules, by id."""
        return ModuleTree([(path, module) for path, module in self._there() if id(module) not in modules])

    def renewed(self) -> ModuleTree:
        """The modules that are still there, at the same paths, with what they hold now."""
        return ModuleTree(self._there())

    def _there(self) -> list[tuple[str, nn.Module]]:
        found = zip(self.paths, map(call, self.references), strict=True)
        return [(path, module) for path, module in found if module is not None]


def _attributes_of(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module. What modules of TorchScript hold lies in C++, behind what looks like a dictionary."""
    if not isinstance(module, torch.jit.ScriptModule):
        return vars(module)
    held = {name: dict(getattr(module, name).items()) for name in ("_modules", "_parameters", "_buffers")}
    return {**vars(module), **held}


def _look(attributes: list[dict[str, Any]]) -> tuple[list[list[Any]], list[Any]]:
    """What must be equal for a tree to be the same, given the attributes of its modules; and their tensors."""
    children = [*map(_MODULES, attributes)]
    holders = [*map(_PARAMETERS, attributes), *map(_BUFFERS, attributes)]
    tensors = [*chain.from_iterable(map(dict.values, holders))]
    seen = [
        [*map(len, children)],
        [*chain.from_iterable(children)],
        [*map(id, chain.from_iterable(map(dict.values, children)))],
        [*map(len, holders)],
        [*chain.from_iterable(holders)],
        [*map(type, tensors)],
        [*map(len, attributes)],
        [*chain.from_iterable(attributes)],
    ]
    return seen, tensors


def tree_of(root: nn.Module, remembered: ModuleTree | None) -> tuple[ModuleTree, list[Any]]:
    """The tree below a module as it is now, and the tensors that it holds; the one that is remembered if it is that."""
    if remembered is not None and remembered.references[0]() is root:
        tensors = remembered.held()
        if tensors is not None:
            return remembered, tensors
    found: dict[int, tuple[str, nn.Module]] = {}
    stack = [("", root)]
    while stack:
        path, module = stack.pop()
        if id(module) in found:
            continue  # the same module under a second name: the first one counts
        found[id(module)] = path, module
        prefix = f"{path}." if path else ""
        children = [(prefix + name, child) for name, child in module._modules.items() if child is not None]
        stack.extend(reversed(children))
    tree = ModuleTree([*found.values()])
    return tree, tree.held() or []
