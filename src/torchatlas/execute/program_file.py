"""How a traced model lies in an `.atlas` file: beside its graph, as data.

The metadata of the graph holds the program (`Saved`), its recorded values the weights. A program calls operators of
torch by name (those that the operation table calls loadable), functions of sizes (size_arithmetic.py), and begins and
ends blocks. Types in the structure of inputs and outputs are found among those that are loaded already: nothing is
imported because a file names it.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, namedtuple
from typing import Any

from msgspec import Struct

from torchatlas.errors import FileFormatError, NotAvailableError
from torchatlas.torch_private import pytree

VERSION = 1
KEY = "program"  # of the graph's metadata, and the folder of its recorded values
BEGIN, END = "begin", "end"  # of a block: without gradients, or under autocast


class Step(Struct, array_like=True):
    """An instruction. `call` are its arguments, with registers in the place of tensors."""

    name: str
    result: int
    function: str
    call: str


class Leaf(Struct):
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
    calls: list[Step]
    outputs: str
    names: dict[str, str]
    in_spec: Any
    out_spec: Any
    leaves: list[Leaf]
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
        found = _named_tuple(str(context))
        if len(found._fields) != len(parts):
            raise FileFormatError(f"its program is damaged: a {found.__name__} has {len(found._fields)} fields.")
        return pytree.TreeSpec(namedtuple, found, parts)
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
    found: Any = vars(sys.modules[module]).get(first) if module in sys.modules else None
    for part in inner:  # a class in a class
        found = vars(found).get(part) if isinstance(found, type) else None
    if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")):
        raise NotAvailableError(f"its inputs or outputs hold a {path}; import {module} first.")
    return found


def _registered(name: str) -> Any:
    for kind in pytree.SUPPORTED_NODES:
        if isinstance(kind, type) and _name(kind) == name:
            return kind
    module, _, path = name.partition(":")
    raise NotAvailableError(f"its inputs or outputs hold a {path}; import {module} first.")
