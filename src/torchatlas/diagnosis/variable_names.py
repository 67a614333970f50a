"""What a program calls its objects: the variables and attributes that hold them, or containers with them.

Classes of the program are asked nothing: they may answer with anything, or change something.
"""

from __future__ import annotations

import gc
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import CellType, FrameType, FunctionType, MappingProxyType, ModuleType
from typing import Any, TypeVar

import torch
from torch import nn

from torchatlas.capturing.frames import is_users, variables_of

_Kind = TypeVar("_Kind")
_DEEPEST = 6  # containers in containers
_WIDEST = 1_000  # objects that are asked for who holds them at a time
_DICTS, _LISTS = (dict, OrderedDict, defaultdict), (list, tuple, deque)  # these alone: others may do anything
_LONGEST = 1_000  # items of a container that is looked into: layers are few, a memory of samples is long
_MOST_ITEMS = 10_000  # items of all containers of a module: a table of numbers may be many short lists


# -- who holds an object -----------------------------------------------------------------------------------------------


def names_of(items: list[Any]) -> Iterator[str]:
    """What holds some objects, the closest first: variables of functions that run, attributes, as Class.attribute,
    variables that functions close over, and those of modules."""
    variables = _names_by_id()
    inner, seen = items[:_WIDEST], {id(items)}
    for _ in range(_DEEPEST + 1):
        for each in inner:
            yield from variables.get(id(each), ())
        holders = [holder for holder in gc.get_referrers(*inner) if holder is not inner and id(holder) not in seen]
        ids = {id(each) for each in inner}
        yield from _attributes(holders, ids)
        yield from _cells(holders, variables)
        inner = []
        for holder in holders[:_WIDEST]:
            if isinstance(holder, dict) and "__builtins__" in holder:  # a module, which everything leads to
                yield from _globals(holder, ids)
            elif isinstance(holder, (list, tuple, set, deque, dict)):
                inner.append(holder)
        seen |= {id(each) for each in inner}
        if not inner:
            break


def name_of(item: Any) -> str | None:
    """The variable of the program's running code that holds an object; the innermost if there are several."""
    return next(iter(_names_by_id().get(id(item), ())), None)


def running_instances(kind: type[_Kind]) -> list[_Kind]:
    """The objects of a class that running variables hold, or the attributes of an object whose method runs."""
    groups = [
        [*variables.values(), *attributes_of(variables.get("self")).values()] for variables in running_variables()
    ]
    held = {id(value): value for values in groups for value in values if issubclass(type(value), kind)}
    return list(held.values())


def running_tensors() -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that running variables hold, also in plain containers, the innermost variables first."""
    for variables in running_variables():
        named = [(name, value) for name, value in variables.items() if type(name) is str and not name.startswith("_")]
        yield from ((name, value) for name, value in named if type(value) is torch.Tensor)
        yield from ((name, item) for name, item in items_in_containers(named, 1) if type(item) is torch.Tensor)


def _names_by_id() -> dict[int, list[str]]:
    """The running variables by the ids of their values: to hold the values would keep them alive."""
    names: dict[int, list[str]] = {}
    for variables in running_variables():
        for name, value in variables.items():
            names.setdefault(id(value), []).append(name)
    return names


def _attributes(holders: list[Any], inner: set[int]) -> Iterator[str]:
    """The attributes whose values are among `inner`. Python keeps those of many objects without a dictionary."""
    dictionaries = [each for each in holders if isinstance(each, dict)]
    # Asked before `holders` is put into another list, which would be found as well.
    owners = gc.get_referrers(*dictionaries) if dictionaries else []
    for owner in (*holders, *owners):
        if not isinstance(owner, (ModuleType, FunctionType)):
            called = owner.__name__ if isinstance(owner, type) else type(owner).__name__
            own = list(attributes_of(owner).items())
            yield from (f"{called}.{name}" for name, value in own if id(value) in inner)


def _cells(holders: list[Any], running: Collection[int]) -> Iterator[str]:
    """The variables of functions that have returned, which inner functions still hold."""
    cells = [each for each in holders if isinstance(each, CellType) and id(each.cell_contents) not in running]
    closures = [each for each in gc.get_referrers(*cells) if isinstance(each, tuple)] if cells else []
    for owner in gc.get_referrers(*closures) if closures else ():
        if isinstance(owner, FunctionType):
            held = zip(owner.__code__.co_freevars, owner.__closure__ or (), strict=True)
            yield from (f"{name} of {owner.__qualname__}" for name, cell in held if any(cell is each for each in cells))


def _globals(variables: dict[str, Any], inner: set[int]) -> Iterator[str]:
    """The variables of a module, unless it is the program: its variables are found among the running ones."""
    module = variables.get("__name__")
    if module != "__main__":
        yield from (f"{module}.{name}" for name, value in variables.items() if id(value) in inner)


# -- names of models and tensors ---------------------------------------------------------------------------------------


def names_of_models_and_tensors() -> dict[int, str]:
    """The variables that hold models and tensors, by the ids of these; the outermost variable wins.

    Attributes of an object whose method runs are named like variables; tensors in plain containers come after these.
    """
    names: dict[int, str] = {}
    for variables in reversed(list(running_variables())):
        own = attributes_of(variables.pop("self", None))
        both = [*variables.items(), *own.items()]
        named = [(name, value) for name, value in both if type(name) is str and not name.startswith("_")]
        for name, value in named:
            if issubclass(type(value), (nn.Module, torch.Tensor)):
                names.setdefault(id(value), name)
        for name, item in items_in_containers(named, deepest=1):
            if issubclass(type(item), torch.Tensor):
                names.setdefault(id(item), name)
    return names


def items_in_containers(variables: Iterable[tuple[str, Any]], deepest: int) -> Iterator[tuple[str, Any]]:
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
    """The keys and items of a plain container, copied at once: another thread may change it."""
    if type(value) in _DICTS and len(value) <= _LONGEST:
        return list(value.items())
    return list(enumerate(value)) if type(value) in _LISTS and len(value) <= _LONGEST else []


def _path(name: str, *keys: Any) -> str:
    """A name with its keys, `blocks[0]`. A key of another class is shown as its class: its repr may run code."""
    return name + "".join(f"[{key!r}]" if type(key) in (str, int) else f"[{type(key).__name__}]" for key in keys)


# -- variables and attributes ------------------------------------------------------------------------------------------


def attributes_of(item: Any) -> Mapping[Any, Any]:
    """The attributes in the dictionary of an object."""
    try:
        attributes = object.__getattribute__(item, "__dict__")
    except AttributeError:
        return {}
    return attributes if isinstance(attributes, (dict, MappingProxyType)) else {}


def running_variables() -> Iterator[dict[str, Any]]:
    """The variables of each piece of the program's code that runs, the innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            yield variables_of(frame)
        frame = frame.f_back
