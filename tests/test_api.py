"""What is promised: the public names with their signatures, in api.txt. A change to that file is a change of the API.

TORCHATLAS_OVERWRITE_GOLDEN=1 rewrites it; say in CHANGELOG.md what changed.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, get_overloads

import pytest

PROMISED = ("torchatlas", "torchatlas.types", "torchatlas.compat", "torchatlas.autograd.engine")
# Members of sessions that users may ask for; the others serve our own rooms.
OF_SESSIONS = {
    "Recording": {"graph", "paused", "running", "start", "stop"},
    "Visit": {"__getitem__", "__iter__", "__len__", "findings", "keys", "not_judged", "to_dict", "worst"},
    "TracedModel": {
        *("__call__", "graph", "input_shapes", "input_sizes", "load", "predict", "run", "run_between", "save"),
        "topological_order",
    },
}
FILE = Path(__file__).parent / "api.txt"
OVERWRITE = "TORCHATLAS_OVERWRITE_GOLDEN" in os.environ


def api_text() -> str:
    lines = [
        "The public names of torchatlas with their signatures, written by tests/test_api.py.",
        "A change to this file is a change of the API: CHANGELOG.md says so, and old spellings keep working for one",
        "minor version.",
    ]
    written: dict[Any, str] = {}
    for module in PROMISED:
        lines += ["", "", f"# {module}"]
        for name in importlib.import_module(module).__all__:
            item = getattr(importlib.import_module(module), name)
            lines += [""] if inspect.isclass(item) else []
            if id(item) in written:
                lines.append(f"{name}: see {written[id(item)]}")
                continue
            written[id(item)] = f"{module}.{name}"
            lines += described(name, item, made_by_us=module.endswith(".types"))
    return "\n".join(lines) + "\n"


def described(name: str, item: Any, made_by_us: bool) -> Iterator[str]:
    """The lines of one name. Who calls a constructor of torchatlas.types is torchatlas, so they are not promised."""
    if inspect.ismodule(item):
        yield f"module {name}"
        classes = [one for one in vars(item).values() if inspect.isclass(one) and one.__module__ == item.__name__]
        yield from (f"    {one.__name__}{bases(one)}" for one in classes)
    elif inspect.isclass(item):
        yield f"class {name}{bases(item)}"
        if issubclass(item, Enum):
            yield from (f"    {member.name} = {member.value!r}" for member in item)
        if hasattr(item, "_fields"):  # a named tuple
            yield f"    __new__({', '.join(item._fields)})"
        elif not made_by_us and not issubclass(item, (Enum, Exception)):
            yield f"    __init__{signature(item.__init__)}"
        yield from (f"    {line}" for line in members(item))
    else:
        for function in get_overloads(item) or [item]:
            yield f"{name}{signature(function)}"


def bases(item: type) -> str:
    names = [base.__name__ for base in item.__bases__ if base is not object and not base.__name__.startswith("_")]
    return f"({', '.join(names)})" if names else ""


def members(item: type) -> Iterator[str]:
    """The fields, properties and methods that torchatlas gives a class, by name."""
    ours = [base for base in item.__mro__ if base.__module__.startswith("torchatlas")]
    known = {name: member for base in reversed(ours) for name, member in vars(base).items()}
    if is_dataclass(item):
        known |= {field.name: f"{field.name}: {field.type}" for field in fields(item)}
    for name, member in sorted(known.items()):
        if name not in OF_SESSIONS.get(item.__name__, {name}):
            continue
        if name.startswith("_") and name not in ("__call__", "__getitem__", "__iter__", "__len__", "__contains__"):
            continue
        if isinstance(member, str) and is_dataclass(item):
            yield member
        elif isinstance(member, (property, cached_property)):
            getter = member.fget if isinstance(member, property) else member.func
            yield f"{name}: {inspect.signature(getter).return_annotation}"  # type: ignore[arg-type]
        elif isinstance(member, (classmethod, staticmethod)):
            yield f"{type(member).__name__} {name}{signature(member.__func__)}"
        elif inspect.isfunction(member):
            yield f"{name}{signature(member)}"


class Annotation(str):
    """Text of an annotation, shown without quotation marks."""

    __slots__ = ()
    __repr__ = str.__str__


def signature(function: Any) -> str:
    found = inspect.signature(function)
    returned = Annotation(found.return_annotation)
    parameters = [
        one.replace(annotation=Annotation(one.annotation)) if isinstance(one.annotation, str) else one
        for one in found.parameters.values()
        if one.name not in ("self", "cls")
    ]
    return str(found.replace(parameters=parameters, return_annotation=returned)).removesuffix(" -> None")


def test_the_api_is_what_was_promised() -> None:
    found = api_text()
    if OVERWRITE:
        FILE.write_text(found)
    promised = FILE.read_text()
    changes = "\n".join(difflib.unified_diff(promised.splitlines(), found.splitlines(), "api.txt", "now", lineterm=""))
    assert found == promised, f"the API changed; if that is meant, rewrite tests/api.txt:\n{changes}"


@pytest.mark.parametrize("module", PROMISED)
def test_every_public_function_says_what_it_returns(module: str) -> None:
    for name in importlib.import_module(module).__all__:
        item = getattr(importlib.import_module(module), name)
        if inspect.isfunction(item):
            assert inspect.signature(item).return_annotation not in ("Any", inspect.Signature.empty), name


def test_the_test_sees_a_change() -> None:
    assert signature(lambda limit=1: None) != signature(lambda rows=1: None)
    assert "rows: int | None = 200" in api_text()
