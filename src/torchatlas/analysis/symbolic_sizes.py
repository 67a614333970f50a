"""Symbolic sizes -> numbers: what "s0" and "2*s0 + 1" are, from the example a graph was traced with or as asked for."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.escapes import quoted
from torchatlas.graph import Graph
from torchatlas.registry import did_you_mean

_LARGEST = 2**128  # a product of two sizes that are then divided is still a size
RAGGED = "*"  # a size that differs inside a nested tensor: no number stands for it
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {  # as torch's shape expressions write them
    "Max": max,
    "Min": min,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda a, b: -(-a // b),
    "floor": math.floor,
    "ceiling": math.ceil,
}


def sizes_of(graph: Graph, requested: Mapping[str, int]) -> dict[str, int]:
    """What every symbolic size of a graph is: as given, else as in the example it was traced with."""
    symbols = {
        size
        for layout in graph.tables.layouts
        for size in (*layout.shape, *(layout.stride or ()))
        if isinstance(size, str) and size != RAGGED
    }
    names = {name for symbol in symbols for name in _names(symbol)}
    for name, size in requested.items():
        if name not in names:
            hint = did_you_mean(name, names) or f". It has: {', '.join(sorted(names)) or 'none'}."
            raise InvalidInputError(f"This graph has no symbolic size {name!r}{hint}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise InvalidInputError(f"sizes[{name!r}] is {size!r}, not a size.")
    example: dict[str, int] = graph.metadata.get("sizes", {})
    if missing := sorted(names - requested.keys() - example.keys()):
        wanted = ", ".join(f"{name!r}: ..." for name in missing)
        raise InvalidInputError(f"This graph does not say how large its example was; pass sizes={{{wanted}}}.")
    chosen = {name: requested[name] if name in requested else example[name] for name in sorted(names)}
    return chosen | {symbol: evaluate(symbol, chosen) for symbol in sorted(symbols - names)}


def evaluate(expression: str, sizes: Mapping[str, int]) -> int:
    """The number an expression over sizes stands for. It is read, never run.

    >>> evaluate("2*s0 + Max(1, s1//2)", {"s0": 3, "s1": 8})
    10
    """
    try:
        return int(_value(_parsed(expression).body, sizes))
    except (KeyError, TypeError, ArithmeticError, ValueError, RecursionError) as error:
        raise AnalysisError(f"The size {quoted(expression)} cannot be worked out: {error}") from error


def _parsed(expression: str) -> ast.Expression:
    try:
        return ast.parse(expression, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise AnalysisError(f"{quoted(expression)} is not a size: {error}") from error


def _names(expression: str) -> set[str]:
    nodes = ast.walk(_parsed(expression))
    return {node.id for node in nodes if isinstance(node, ast.Name) and node.id not in _FUNCTIONS}


def _value(node: ast.AST, sizes: Mapping[str, int]) -> Any:
    number = _worked_out(node, sizes)
    if abs(number) >= _LARGEST:  # on the way as well: powers of powers would take for ever
        raise ValueError("it is larger than any size")
    return number


def _worked_out(node: ast.AST, sizes: Mapping[str, int]) -> Any:
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.Name(id=name):
            return sizes[name]
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)) if 0 <= power <= 8:
            return _value(left, sizes) ** power
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, sizes)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(one, sizes) for one in args))
        case _:
            raise ValueError(f"{quoted(ast.unparse(node))} is not arithmetic of sizes")
