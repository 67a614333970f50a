"""What a program calls some objects: the variables and attributes that hold them, or containers with them."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Collection, Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

from torchatlas.diagnosis.leaves import attributes_of, running_variables

_DEEPEST = 6  # containers in containers
_WIDEST = 1_000  # objects that are asked for who holds them at a time


def names_of(items: list[Any]) -> Iterator[str]:
    """Of what holds them most closely first: variables of functions that run, attributes, as Class.attribute, variables
    that functions close over, and those of modules."""
    variables = _variables()
    inner, seen = items[:_WIDEST], {id(items)}
    for _ in range(_DEEPEST + 1):
        for each in inner:
            yield from variables.get(id(each), ())
        holders = [holder for holder in gc.get_referrers(*inner) if holder is not inner and id(holder) not in seen]
        found = {id(each) for each in inner}
        yield from _attributes(holders, found)
        yield from _cells(holders, variables)
        inner = []
        for holder in holders[:_WIDEST]:
            if isinstance(holder, dict) and "__builtins__" in holder:  # a module, which everything leads to
                yield from _globals(holder, found)
            elif isinstance(holder, (list, tuple, set, deque, dict)):
                inner.append(holder)
        seen |= {id(each) for each in inner}
        if not inner:
            break


def _variables() -> dict[int, list[str]]:
    """Names by id: to hold the variables themselves would be to hold what is asked for."""
    names: dict[int, list[str]] = {}
    for variables in running_variables():
        for name, value in variables.items():
            names.setdefault(id(value), []).append(name)
    return names


def _attributes(holders: list[Any], inner: set[int]) -> Iterator[str]:
    """The attributes of objects that are one of some. Python keeps those of many objects without a dictionary."""
    dictionaries = [each for each in holders if isinstance(each, dict)]
    owners = (
        gc.get_referrers(*dictionaries) if dictionaries else []
    )  # before a list refers to them that would have itself
    for owner in (*holders, *owners):
        if not isinstance(owner, (ModuleType, FunctionType)):
            called = owner.__name__ if isinstance(owner, type) else type(owner).__name__
            own = list(attributes_of(owner).items())
            yield from (f"{called}.{name}" for name, value in own if id(value) in inner)


def _cells(holders: list[Any], running: Collection[int]) -> Iterator[str]:
    """The variables of functions that are over and that other functions, made in them, still hold."""
    cells = [each for each in holders if isinstance(each, CellType) and id(each.cell_contents) not in running]
    closures = [each for each in gc.get_referrers(*cells) if isinstance(each, tuple)] if cells else []
    for owner in gc.get_referrers(*closures) if closures else ():
        if isinstance(owner, FunctionType):
            held = zip(owner.__code__.co_freevars, owner.__closure__ or (), strict=True)
            yield from (f"{name} of {owner.__qualname__}" for name, cell in held if any(cell is each for each in cells))


def _globals(variables: dict[str, Any], inner: set[int]) -> Iterator[str]:
    """Those of a module that is not the program, whose variables are those of a function that runs."""
    module = variables.get("__name__")
    if module != "__main__":
        yield from (f"{module}.{name}" for name, value in variables.items() if id(value) in inner)
