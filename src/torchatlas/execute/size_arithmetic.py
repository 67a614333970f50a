"""What a file may compute with sizes: conditions, and arithmetic on numbers of bounded size.

Python's own operators do more than that: they format strings, index any object, and compute powers without end.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from torchatlas.errors import FileFormatError

# -- conditions, as text in a file -> code that can do nothing but compare sizes ---------------------------------------

_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult,
    ast.FloorDiv, ast.Div, ast.Mod, ast.Pow, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
)  # fmt: skip
_OF_TENSORS = ("size", "stride", "storage_offset")
_FUNCTIONS = ("max", "min", "abs")
_OF_MODULES = {"math": ("ceil", "floor", "sqrt", "trunc"), "torch": ("sym_max", "sym_min", "sym_float", "sym_not")}
# Numbers stay as long as their text: no power of a power, and none that is large.
_LARGEST_POWER, _LARGEST_NUMBER = 8, 2**64
_LONGEST = 10_000  # letters


def condition(text: str) -> Any:
    """The code of a condition such as "L['x'].size()[0] == 2*L['y'].size()[0]"; anything else is refused.

    >>> eval(condition("L['n'] % 2 == 0"), {"L": {"n": 6}})
    True
    """
    try:
        if len(text) > _LONGEST:
            raise ValueError(f"more than {_LONGEST} letters")
        tree = ast.parse(text, mode="eval")
        _check(tree)
        return compile(tree, "<what export assumed>", "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FileFormatError(f"its program is refused: {text[:80]!r} is no condition on sizes.") from error


def _check(node: ast.AST) -> None:
    match node:
        case ast.Name(id="L") | ast.Constant(value=bool() | float()):
            return
        case ast.Constant(value=int(value)) if abs(value) <= _LARGEST_NUMBER:
            return
        case ast.Subscript(value=value, slice=ast.Constant(value=str() | int())):
            _check(value)
        case ast.Call(func=function, args=args, keywords=[]):
            _check_all([*_owner(function), *args])
        case ast.BinOp(left=left, op=ast.Pow(), right=right) if not (
            isinstance(right, ast.Constant)
            and isinstance(right.value, int)
            and abs(right.value) <= _LARGEST_POWER
            and not any(isinstance(inner, ast.Pow) for inner in ast.walk(left))
        ):
            raise ValueError("a power that may take forever")
        case _ if isinstance(node, _ALLOWED):
            _check_all(ast.iter_child_nodes(node))
        case _:
            raise ValueError(type(node).__name__)


def _owner(function: ast.expr) -> list[ast.expr]:
    """The tensor whose method is called, if it is one of those allowed; nothing for an allowed function."""
    match function:
        case ast.Name(id=name) if name in _FUNCTIONS:
            return []
        case ast.Attribute(value=ast.Name(id=module), attr=name) if name in _OF_MODULES.get(module, ()):
            return []
        case ast.Attribute(value=ast.Subscript() as owner, attr=name) if name in _OF_TENSORS:
            return [owner]
    raise ValueError("a call")


def _check_all(nodes: Any) -> None:
    for node in nodes:
        _check(node)


# -- arithmetic --------------------------------------------------------------------------------------------------------

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
