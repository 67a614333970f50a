"""Arithmetic on sizes as a program from a file may do it: on numbers alone, and on numbers of bounded size.

Python's own operators do more than that: they format strings, index any object, and compute powers without end.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

LARGEST = 2**64  # no size of a tensor, and no product of two that torch can use, goes beyond it
_NUMBERS = (bool, int, float, torch.SymBool, torch.SymInt, torch.SymFloat)  # symbols: while a loaded model is exported
_ARITHMETIC = "add sub mul floordiv truediv mod pow neg pos eq ne lt le gt ge and_ or_ not_"


def _number(item: Any) -> Any:
    if type(item) not in _NUMBERS:
        raise TypeError(f"sizes are computed from numbers, not from a {type(item).__name__}")
    if type(item) is int and abs(item) > LARGEST:
        raise OverflowError("a number beyond 2**64, which is no size")
    return item


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function for numbers; anything else raises."""

    def run(*numbers: Any) -> Any:
        given = [_number(item) for item in numbers]
        if function is operator.pow and type(given[1]) is int and given[1] > 64 and abs(given[0]) > 1:
            raise OverflowError("a power beyond 2**64, which is no size")
        return _number(function(*given))

    # Not the name of the function: torch.fx would write Python's own operator into its code.
    run.__name__ = run.__qualname__ = f"bounded_{function.__name__}"
    return run


def _item(items: Any, index: Any) -> Any:
    """One of several results of an operator."""
    if not isinstance(items, (list, tuple)) or type(index) is not int:
        raise TypeError(f"{type(items).__name__}[{type(index).__name__}]: only one of several results can be taken")
    return items[index]


# By the name in a file: what the traced program calls, and what is called in its place when it comes from a file.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    name: (function, _bounded(function))
    for name, function in {
        **{f"operator.{name}": getattr(operator, name) for name in _ARITHMETIC.split()},
        **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "sqrt", "trunc")},
        **{f"torch.sym_{name}": getattr(torch, f"sym_{name}") for name in ("float", "int", "ite", "max", "min", "not")},
    }.items()
} | {"operator.getitem": (operator.getitem, _item)}
