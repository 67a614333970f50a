"""How a traced model lies in an `.atlas` file: beside its graph, as data.

The metadata of the graph holds the program (`Saved`), its recorded values the weights. A program calls operators of
torch by name (those that the operation table calls loadable), functions of sizes, and begins and ends blocks. Types in
the structure of inputs and outputs are found among those that are loaded already: nothing is imported because a file
names it.
"""

from __future__ import annotations

import ast
import math
import operator
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import torch
from msgspec import Struct

from torchatlas.errors import FileFormatError, NotAvailableError
from torchatlas.torch_private import pytree

VERSION = 1
KEY = "program"  # of the graph's metadata, and the folder of its recorded values
BEGIN, END = "begin", "end"  # of a block: without gradients, or under autocast


class SavedCall(Struct, array_like=True):
    """An instruction. `call` are its arguments, with registers in the place of tensors."""

    name: str
    result: int
    function: str
    call: str


class SavedLeaf(Struct):
    """What is expected of an input."""

    name: str
    kind: str  # tensor | number | constant
    dtype: str = ""
    device: str = ""
    shape: list[str] = []
    value: str = "null"


class Held(Struct):
    """A parameter, a buffer or a constant: which tensor it is."""

    tensor: int
    kind: str
    requires_grad: bool


class SavedVariant(Struct):
    """One trace."""

    registers: list[str]  # their names
    inputs: list[int]
    constants: dict[str, str]  # register -> parameter, buffer or constant
    attached: dict[str, int]  # register -> tensor
    calls: list[SavedCall]
    outputs: str
    names: dict[str, str]  # of registers and calls that are nodes -> of the graph's nodes
    in_spec: Any
    out_spec: Any
    leaves: list[SavedLeaf]
    guards: list[str]


class Saved(Struct):
    """What the metadata of a graph says of its program."""

    version: int
    model: str
    signature: list[tuple[str, int, bool, str]]  # name, kind, whether there is a default, which
    weights: bool
    tensors: list[tuple[str, list[int]]]  # dtype and shape; their bytes lie among the recorded values
    held: dict[str, Held]  # by name
    variant: SavedVariant
    variants: int  # further ones, each a file in the file


# -- the structure of inputs and outputs -------------------------------------------------------------------------------

_LEAF = "*"
_PLAIN = {tuple: "tuple", list: "list", dict: "dict", OrderedDict: "OrderedDict"}
_TYPES = {name: kind for kind, name in _PLAIN.items()}


def structure_to_data(spec: Any) -> Any:
    """A structure as lists, strings and numbers."""
    if spec.is_leaf():
        return _LEAF
    children = [structure_to_data(child) for child in spec.children()]
    if spec.type in _PLAIN:
        return [_PLAIN[spec.type], _keys(spec.context, spec.type), children]
    if spec.type is namedtuple:
        return ["namedtuple", _name(spec.context), children]
    return [_name(spec.type), _keys(spec.context, spec.type), children]


def _keys(context: Any, kind: Any) -> Any:
    if context is None:
        return None
    keys = list(context) if isinstance(context, (list, tuple)) else [context]
    if not _are_keys(keys):
        raise NotAvailableError(f"a {getattr(kind, '__name__', kind)} with keys like {keys[0]!r} cannot be saved.")
    return keys


def _are_keys(keys: Any) -> bool:
    return isinstance(keys, list) and all(type(key) in (str, int) for key in keys)


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def structure_of_data(data: Any, depth: int = 0) -> Any:
    """The structure that `structure_to_data` wrote."""
    if data == _LEAF:
        return pytree.treespec_leaf()
    if depth > 100 or not isinstance(data, list) or len(data) != 3 or not isinstance(data[0], str):
        raise FileFormatError("its program is damaged: the structure of its inputs or outputs is none.")
    kind, context, children = data
    if not isinstance(children, list):
        raise FileFormatError("its program is damaged: a structure has no parts.")
    parts = [structure_of_data(child, depth + 1) for child in children]
    if kind == "namedtuple":
        tuple_type = _named_tuple(str(context))
        if len(tuple_type._fields) != len(parts):
            raise FileFormatError(
                f"its program is damaged: a {tuple_type.__name__} has {len(tuple_type._fields)} fields."
            )
        return pytree.TreeSpec(namedtuple, tuple_type, parts)
    if kind in ("dict", "OrderedDict"):
        if not _are_keys(context) or len(context) != len(parts) or len({*context}) < len(context):
            raise FileFormatError("its program is damaged: a dictionary has not as many keys as parts.")
        return pytree.TreeSpec(_TYPES[kind], context, parts)
    if kind in _TYPES:
        return pytree.TreeSpec(_TYPES[kind], None, parts)
    if context is not None and not _are_keys(context):
        raise FileFormatError(f"its program is damaged: the keys of a {kind} are none.")
    return pytree.TreeSpec(_registered(kind), context, parts)


def _named_tuple(name: str) -> Any:
    module, _, path = name.partition(":")
    first, *inner = path.split(".")
    tuple_type: Any = vars(sys.modules[module]).get(first) if module in sys.modules else None
    for part in inner:  # a class in a class
        tuple_type = vars(tuple_type).get(part) if isinstance(tuple_type, type) else None
    if not (isinstance(tuple_type, type) and issubclass(tuple_type, tuple) and hasattr(tuple_type, "_fields")):
        raise NotAvailableError(f"its inputs or outputs hold a {path}; import {module} first.")
    return tuple_type


def _registered(name: str) -> Any:
    for kind in pytree.SUPPORTED_NODES:
        if isinstance(kind, type) and _name(kind) == name:
            return kind
    module, _, path = name.partition(":")
    raise NotAvailableError(f"its inputs or outputs hold a {path}; import {module} first.")


# -- what a file may compute with sizes --------------------------------------------------------------------------------
# Conditions, and arithmetic on numbers of bounded size. Python's own operators do more than that: they format strings,
# index any object, and compute powers without end.
#
# Conditions: text in a file -> code that can do nothing but compare sizes.

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

    >>> eval(condition("L['n'] % 2 == 0"), {"L": {"n": 6}, **NUMBERS_ONLY})
    True
    """
    try:
        if len(text) > _LONGEST:
            raise ValueError(f"more than {_LONGEST} letters")
        tree = ast.parse(text, mode="eval")
        _check(tree)
        return compile(ast.fix_missing_locations(_OnNumbers().visit(tree)), "<what export assumed>", "eval")
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


class _OnNumbers(ast.NodeTransformer):
    """Lets arithmetic see numbers alone: Python repeats lists and formats strings with the same signs."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.BinOp:
        self.generic_visit(node)
        for side in ("left", "right"):
            name = ast.Name("number", ast.Load())
            setattr(node, side, ast.Call(name, [getattr(node, side)], []))
        return node


def _no_sequence(item: Any) -> Any:
    if hasattr(item, "__len__"):
        raise TypeError(f"sizes are computed from numbers, not from a {type(item).__name__}")
    return item


NUMBERS_ONLY = {"number": _no_sequence}  # a name that the code of a condition needs


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
    """A function that takes numbers of bounded size only; anything else raises."""

    def run(*numbers: Any) -> Any:
        operands = [_number(item) for item in numbers]
        if function is operator.pow and type(operands[1]) is int and operands[1] > 64 and abs(operands[0]) > 1:
            raise OverflowError("a power beyond 2**64, which is no size")
        return _number(function(*operands))

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
