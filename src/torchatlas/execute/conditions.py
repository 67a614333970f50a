"""Conditions on sizes, as text in a file -> code that can do nothing but compare sizes."""

from __future__ import annotations

import ast
from typing import Any

from torchatlas.errors import FileFormatError

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
