"""What a program calls some objects: the variables and attributes that hold them, or containers with them."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any

_OURS = Path(__file__).parents[1]
_DEEPEST = 6  # containers in containers
_WIDEST = 1_000  # objects that are asked for who holds them at a time


def names_of(items: list[Any]) -> Iterator[str]:
    """Of what holds them most closely first: variables of functions that run, attributes, as Class.attribute, variables
    that functions close over, and those of modules."""
    variables: dict[int, list[str]] = {}
    for name, value in _variables():
        variables.setdefault(id(value), []).append(name)
    inner, seen = items[:_WIDEST], {id(items)}
    for _ in range(_DEEPEST + 1):
        for each in inner:
            yield from variables.get(id(each), ())
        holders = [holder for holder in gc.get_referrers(*inner) if holder is not inner and id(holder) not in seen]
        found = {id(each) for each in inner}
        yield from _attributes(holders, found)
        yield from _cells(holders)
        inner = []
        for holder in holders[:_WIDEST]:
            if isinstance(holder, dict) and "__builtins__" in holder:  # a module, which everything leads to
                yield from _globals(holder, found)
            elif isinstance(holder, (list, tuple, set, deque, dict)):
                inner.append(holder)
        seen |= {id(each) for each in inner}
        if not inner:
            break


def _variables() -> Iterator[tuple[str, Any]]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith("<frozen") and _OURS not in Path(file).parents:
            yield from frame.f_locals.items()
        frame = frame.f_back


def _attributes(holders: list[Any], inner: set[int]) -> Iterator[str]:
    """The attributes of objects that are one of some. Python keeps those of many objects without a dictionary."""
    dictionaries = [each for each in holders if isinstance(each, dict)]
    for owner in [*holders, *(gc.get_referrers(*dictionaries) if dictionaries else ())]:
        own: dict[str, Any] | None = getattr(owner, "__dict__", None)
        if own is not None and not isinstance(owner, (ModuleType, FunctionType)):
            yield from (f"{type(owner).__name__}.{name}" for name, value in own.items() if id(value) in inner)


def _cells(holders: list[Any]) -> Iterator[str]:
    """The variables of functions that are over and that other functions, made in them, still hold."""
    cells = [each for each in holders if isinstance(each, CellType)]
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
