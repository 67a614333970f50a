"""Rows of a graph's tables from torch's own objects: operations, calls, layouts, source lines."""

from __future__ import annotations

import functools
import linecache
import types
from typing import Any

import torch

from torchatlas.capturing.row_schema import OMITTED, PLACE, Plan
from torchatlas.graph.arguments import Call, Constant, TensorRef, encode, encode_value
from torchatlas.graph.columns import Layout, Operation, Parameter
from torchatlas.graph.nouns import SourceLine
from torchatlas.operations import operation_type


@functools.lru_cache(maxsize=4096)
def operation_row(plan: Plan) -> Operation:
    """The operator of a plan."""
    return operation_of(plan.name, plan.operator)


def operation_of(name: str, operator: Any) -> Operation:
    """An operator with its formal arguments and their defaults."""
    schema = getattr(operator, "_schema", None)
    parameters = [] if schema is None else [_parameter(argument) for argument in schema.arguments]
    return Operation(name, operation_type(name), tuple(parameters))


def _parameter(argument: Any) -> Parameter:
    default = encode_value(portable(argument.default_value)) if argument.has_default_value() else None
    return Parameter(argument.name, argument.kwarg_only, default)


def portable(item: Any) -> Any:
    """A Python or torch object as something that can be written down and read back without torch."""
    if item is None or isinstance(item, (bool, int, float, complex, str, Constant)):
        return item
    if isinstance(item, torch.dtype):
        return Constant("dtype", dtype_name(item))
    if isinstance(item, torch.device):
        return Constant("device", str(item))
    if isinstance(item, torch.layout):
        return Constant("layout", str(item).removeprefix("torch."))
    if isinstance(item, torch.memory_format):
        return Constant("memory_format", str(item).removeprefix("torch."))
    if isinstance(item, torch.Generator):
        return Constant("generator", str(item.device))
    if isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return Constant("symbol", str(item))
    if isinstance(item, tuple) and not isinstance(item, torch.Size):
        return tuple(portable(part) for part in item)
    if isinstance(item, (list, torch.Size)):
        return [portable(part) for part in item]
    if isinstance(item, dict):
        return {portable(key): portable(part) for key, part in item.items()}
    return Constant("opaque", f"{type(item).__module__}.{type(item).__qualname__}")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_TEXTS: dict[Any, str] = {}  # the same few calls are made over and over
_MOST_TEXTS = 100_000


def call_text(plan: Plan, key: Any, entries: list[Any], others: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """The call of a row as JSON text. `key` is equal for rows of one plan that have the same text."""
    known = _TEXTS.get((plan.name, key[1:] if isinstance(key, tuple) else None))
    if known is None:
        if len(_TEXTS) >= _MOST_TEXTS:
            _TEXTS.clear()
        known = _call_text(plan, entries, others, keywords)
        _TEXTS[plan.name, key[1:] if isinstance(key, tuple) else None] = known
    return known


def _call_text(plan: Plan, entries: list[Any], others: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """The text, in which entries are references, numbered in order."""
    counter = 0

    def reference(entry: Any) -> Any:
        nonlocal counter
        if entry is None:
            return None
        if isinstance(entry, list):
            return [reference(part) for part in entry]
        if isinstance(entry, tuple):
            return portable(entry[0])
        counter += 1
        return TensorRef(counter - 1)

    placed: dict[int, Any] = {}
    named: dict[str, Any] = {}
    for slot, entry in zip(plan.slots, entries, strict=True):
        if slot.position is not None:
            placed[slot.position] = reference(entry)
        elif entry is not None:
            named[slot.name] = reference(entry)
    for position, item in zip(plan.others, others, strict=False):
        if item is not OMITTED:
            placed[position] = portable(item)
    for name, item in keywords.items():
        named[name] = portable(item)
    passed = [p for p, item in placed.items() if item is not None or p in plan.others or p < plan.required]
    last = max(passed, default=-1)
    return encode(Call(tuple(placed.get(p) for p in range(last + 1)), named))


def generic_call_text(shape: Any) -> str:
    """The call of an operator without a schema."""
    counter = 0

    def reference(item: Any) -> Any:
        nonlocal counter
        if item is PLACE:
            counter += 1
            return TensorRef(counter - 1)
        if isinstance(item, (list, tuple)):
            return type(item)(reference(part) for part in item) if type(item) in (list, tuple) else portable(item)
        if isinstance(item, dict):
            return {str(key): reference(part) for key, part in item.items()}
        return portable(item)

    args, kwargs = shape
    return encode(Call(tuple(reference(item) for item in args), {key: reference(v) for key, v in kwargs.items()}))


@functools.lru_cache(maxsize=65_536)
def layout_row(shape: Any, stride: Any, dtype: torch.dtype, device: Any) -> Layout:
    """The layout of a tensor in plain Python. `stride` is the name of the layout where there are no strides."""
    strided = type(stride) is not str
    return Layout(
        tuple(_size(size) for size in shape),
        tuple(_size(step) for step in stride) if strided else None,
        dtype_name(dtype),
        str(device),
        "strided" if strided else stride,
    )


def _size(size: Any) -> int | str:
    return size if type(size) is int else (str(size) if isinstance(size, (str, torch.SymInt)) else int(size))


def source_row(code: types.CodeType, instruction: int) -> SourceLine:
    """The line of a code object that an instruction belongs to."""
    return _source_row(code, instruction, code.co_filename)


@functools.lru_cache(maxsize=4096)  # it keeps the code objects
def _source_row(code: types.CodeType, instruction: int, file: str) -> SourceLine:
    """Equal code of two files compares equal: the file is part of the key."""
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            line = number
    return SourceLine(file, line, code.co_qualname, linecache.getline(file, line).strip())
