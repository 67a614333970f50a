"""The lossless call of a node as JSON text, and back.

What JSON has is itself; everything else is a one-key object: {"tensor": 2} is the node's third input,
{"dtype": "float32"}, {"device": "cpu"}, {"float": "nan"}, {"opaque": "..."} and so on. Equal calls share one text.
A NaN keeps all of its bits: {"float": "nan"}, {"float": "-nan"}, or {"float": "nan:7ff8000000000001"}.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchatlas.errors import FileFormatError
from torchatlas.escapes import clean, quoted

_USUAL_NANS = {"7ff8000000000000": "nan", "fff8000000000000": "-nan"}
MOST_NESTED = 200  # lists and objects in each other: readers go down one call of Python for each


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
    """The call that `encode` wrote. Only data comes out, whatever a text holds; another one raises FileFormatError."""
    call: Call = _read(text, lambda: _call(json.loads(text)))
    return call


def encode_value(item: Any) -> str:
    """One argument as JSON text, for schema defaults."""
    return json.dumps(_plain(item), separators=(",", ":"), allow_nan=False)


def decode_value(text: str) -> Any:
    """The argument that `encode_value` wrote; another text raises FileFormatError."""
    return _read(text, lambda: _rich(json.loads(text)))


def highest_reference(text: str) -> int:
    """The highest input that a call names, -1 for none. FileFormatError unless the text is sound in every respect."""

    def read() -> int:
        call = _call(_strictly(text))
        return _highest((call.args, call.kwargs))

    return int(_read(text, read))


def highest_reference_of_value(text: str) -> int:
    """`highest_reference` of what `encode_value` wrote."""
    return int(_read(text, lambda: _highest(_rich(_strictly(text)))))


def _read(text: str, read: Callable[[], Any]) -> Any:
    """What `read` makes of a text; FileFormatError if it was not written here."""
    try:
        return read()
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise FileFormatError(f"not a call as graph/arguments.py writes it ({why}): {quoted(text, 80)}") from error


def _strictly(text: str) -> Any:
    """The JSON in a text that stands on one line, with numbers that JSON has and no key twice."""
    if "\n" in text or "\r" in text:
        raise ValueError("a line break in the text of a call")
    if text != text.strip():
        raise ValueError("space around it")  # a .json file would not keep it
    content = json.loads(text, object_pairs_hook=different_keys, parse_constant=_no_number, parse_float=_finite)
    if "\\u" in text:
        json.dumps(content, ensure_ascii=False).encode()  # raises for half a surrogate pair: no .json file may hold it
    return content


def different_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Readers disagree on which of two equal keys counts: refuse to guess."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {quoted(twice)} stands twice in one object")
    return mapping


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise ValueError("a number that is not finite")
    return number


def _highest(item: Any) -> int:
    """The highest input that an argument names, level by level."""
    highest, level, depth = -1, [item], 0
    while level:
        if depth > MOST_NESTED:
            raise ValueError(f"nested more than {MOST_NESTED} deep")
        below: list[Any] = []
        for part in level:
            if isinstance(part, TensorRef):
                highest = max(highest, part.index)
            elif isinstance(part, (list, tuple)):
                below += part
            elif isinstance(part, dict):
                below += [*part.keys(), *part.values()]
        level, depth = below, depth + 1
    return highest


def _plain(item: Any) -> Any:
    if item is None or isinstance(item, (bool, str)):
        return item
    if isinstance(item, int):
        return int(item) if abs(item) < 2**53 else {"int": str(int(item))}
    if isinstance(item, float):
        return item if item - item == 0 else {"float": _float_text(float(item))}
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


def _float_text(number: float) -> str:
    """An infinity, or a NaN with its sign and, where it is not the usual one, its payload."""
    if number == number:
        return repr(number)
    bits = struct.pack(">d", number).hex()
    return _USUAL_NANS.get(bits, f"nan:{bits}")


def _float(text: str) -> float:
    kind, _, bits = text.partition(":")
    if kind != "nan" or not bits:
        return float(text)
    number = struct.unpack(">d", bytes.fromhex(bits))[0] if len(bits) == 16 else 0.0
    if number == number or _float_text(number) != text:
        raise ValueError(f"{quoted(text)} is no NaN as it is written")
    return float(number)


def exact_text(item: Any) -> str:
    """`repr` of an argument, followed by the bits of the NaNs in it: `repr` shows all NaNs alike."""
    text = repr(item)
    return f"{text} {_nans(item)}" if "nan" in text else text


def _nans(item: Any) -> Any:
    if isinstance(item, (list, tuple)):
        return [_nans(part) for part in item]
    if isinstance(item, dict):
        return [_nans(part) for part in item.values()]
    if isinstance(item, complex):
        return _nans(item.real), _nans(item.imag)
    return _float_text(item) if isinstance(item, float) and item != item else None


def _call(data: Any) -> Call:
    args, kwargs = data
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise TypeError("not a list of arguments and an object of named ones")
    return Call(tuple(_rich(item) for item in args), {key: _rich(item) for key, item in kwargs.items()} or None)


def _rich(item: Any) -> Any:
    if isinstance(item, list):
        return [_rich(part) for part in item]
    if not isinstance(item, dict):
        return item
    ((kind, content),) = item.items()
    match kind:
        case "tensor":
            return TensorRef(_index(content))
        case "int":
            return int(_text(content))
        case "float":
            return _float(_text(content))
        case "complex":
            real, imaginary = content
            return complex(_rich(real), _rich(imaginary))
        case "tuple":
            return tuple(_rich(part) for part in _list(content))
        case "dict":
            return {_rich(key): _rich(part) for key, part in _list(content)}
        case _:
            return Constant(kind, _text(content))


def _index(content: Any) -> int:
    if type(content) is not int or not 0 <= content < 2**31:
        raise ValueError("a reference to a tensor is a number from 0 on")
    return content


def _text(content: Any) -> str:
    if not isinstance(content, str):
        raise TypeError(f"expected text, got {type(content).__name__}")
    return content


def _list(content: Any) -> list[Any]:
    if not isinstance(content, list):
        raise TypeError(f"expected a list, got {type(content).__name__}")
    return content
