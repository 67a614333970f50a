"""The structure of a model's inputs and outputs <-> plain data that a file holds.

Types are found among those that are loaded already; nothing is imported because a file names it.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, namedtuple
from typing import Any

from torchatlas.errors import FileFormatError, NotAvailableError
from torchatlas.torch_private import pytree

_LEAF = "*"
_PLAIN = {tuple: "tuple", list: "list", dict: "dict", OrderedDict: "OrderedDict"}
_TYPES = {name: kind for kind, name in _PLAIN.items()}


def written(spec: Any) -> Any:
    """A structure as lists, strings and numbers."""
    if spec.is_leaf():
        return _LEAF
    children = [written(child) for child in spec.children()]
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


def read(data: Any, depth: int = 0) -> Any:
    """The structure that `written` wrote."""
    if data == _LEAF:
        return pytree.treespec_leaf()
    if depth > 100 or not isinstance(data, list) or len(data) != 3 or not isinstance(data[0], str):
        raise FileFormatError("its program is damaged: the structure of its inputs or outputs is none.")
    kind, context, children = data
    if not isinstance(children, list):
        raise FileFormatError("its program is damaged: a structure has no parts.")
    parts = [read(child, depth + 1) for child in children]
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
