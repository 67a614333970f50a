"""The lossless call of a node as JSON text, and back.

What JSON has is itself; everything else is a one-key object: {"tensor": 2} is the node's third input,
{"dtype": "float32"}, {"device": "cpu"}, {"float": "nan"}, {"opaque": "..."} and so on. Equal calls share one text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from torchatlas.errors import FileFormatError
from torchatlas.escapes import clean

# What reading a text as a call can come to.
_NOT_WRITTEN_HERE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_SHOWN = 80  # characters of such a text


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Stands for the node's input number `index`."""

    index: int

    def __repr__(self) -> str:
        return f"%{self.index}"


@dataclass(frozen=True, slots=True)
class Constant:
    """A torch constant by kind and name: Constant("dtype", "float32"); "opaque" is what has no text of its own."""

    kind: str
    name: str

    def __repr__(self) -> str:
        return clean(self.name)


@dataclass(frozen=True, slots=True)
class Call:
    """Positional and keyword arguments of one call, tensors as references."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None

    def __repr__(self) -> str:
        parts = [repr(item) for item in self.args] + [f"{key}={item!r}" for key, item in (self.kwargs or {}).items()]
        return clean(f"({', '.join(parts)})")


def encode(call: Call) -> str:
    """The call as canonical JSON text: equal calls give equal text."""
    kwargs = {key: _plain(item) for key, item in (call.kwargs or {}).items()}
    return json.dumps([[_plain(item) for item in call.args], kwargs], separators=(",", ":"), allow_nan=False)


def decode(text: str) -> Call:
    """The call that `encode` wrote. Only data comes out, whatever the text holds; another raises FileFormatError."""
    try:
        args, kwargs = json.loads(text)
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise TypeError("not a list of arguments and an object of named ones")
        return Call(tuple(_rich(item) for item in args), {key: _rich(item) for key, item in kwargs.items()} or None)
    except _NOT_WRITTEN_HERE as error:
        raise _fault(text, error) from error


def encode_value(item: Any) -> str:
    """One argument as JSON text, for schema defaults."""
    return json.dumps(_plain(item), separators=(",", ":"), allow_nan=False)


def decode_value(text: str) -> Any:
    """The argument that `encode_value` wrote; another text raises FileFormatError."""
    try:
        return _rich(json.loads(text))
    except _NOT_WRITTEN_HERE as error:
        raise _fault(text, error) from error


def _fault(text: str, error: Exception) -> FileFormatError:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return FileFormatError(f"not a call as graph/arguments.py writes it ({error}): {shown!r}")


def _plain(item: Any) -> Any:
    if item is None or isinstance(item, (bool, str)):
        return item
    if isinstance(item, int):
        return int(item) if abs(item) < 2**53 else {"int": str(int(item))}
    if isinstance(item, float):
        return item if item - item == 0 else {"float": repr(float(item))}
    if isinstance(item, complex):
        return {"complex": [_plain(item.real), _plain(item.imag)]}
    if isinstance(item, TensorRef):
        return {"tensor": item.index}
    if isinstance(item, Constant):
        return {item.kind: item.name}
    if isinstance(item, tuple):
        return {"tuple": [_plain(part) for part in item]}
    if isinstance(item, list):
        return [_plain(part) for part in item]
    if isinstance(item, dict):
        return {"dict": [[_plain(key), _plain(part)] for key, part in item.items()]}
    return {"opaque": f"{type(item).__module__}.{type(item).__qualname__}"}


def _rich(item: Any) -> Any:
    if isinstance(item, list):
        return [_rich(part) for part in item]
    if not isinstance(item, dict):
        return item
    ((kind, content),) = item.items()
    match kind:
        case "tensor":
            return TensorRef(int(content))
        case "int":
            return int(content)
        case "float":
            return float(content)
        case "complex":
            return complex(_rich(content[0]), _rich(content[1]))
        case "tuple":
            return tuple(_rich(part) for part in content)
        case "dict":
            return {_rich(key): _rich(part) for key, part in content}
        case _:
            return Constant(str(kind), str(content))
