"""tests/api.txt -> the promised names, each with its object, its signature and its members."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import re
import tokenize
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tests" / "api.txt"


@dataclass
class Member:
    name: str
    text: str  # as api.txt writes it: `walk() -> Iterator[Scope]`, `depth: int`, `DATA = 'data'`
    item: Any  # the function or property; None for a field
    doc: str  # docstring, or the comment in a field's line

    @property
    def is_method(self) -> bool:
        return "(" in self.text.split(":")[0]


@dataclass
class Name:
    module: str
    name: str
    item: Any
    signatures: list[str] = field(default_factory=list)  # of a function; several if it is overloaded
    bases: str = ""
    members: list[Member] = field(default_factory=list)
    same_as: str = ""  # the promised name, with its module, that this is another name of

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def constructor(self) -> Member | None:
        return next((member for member in self.members if member.name in ("__init__", "__new__")), None)


@cache
def promised_names() -> list[Name]:
    """All entries of api.txt, in its order."""
    names: list[Name] = []
    module = ""
    for line in FILE.read_text().splitlines():
        if line.startswith("# "):
            module = line[2:]
        elif not line or not module:
            continue
        elif line.startswith("    "):
            names[-1].members.append(_member(names[-1], line.strip()))
        else:
            _add(names, module, line)
    return names


def _add(names: list[Name], module: str, line: str) -> None:
    name = re.sub(r"^(class|module) ", "", line)
    name = re.match(r"\w+", name)[0]  # type: ignore[index]
    if names and (names[-1].module, names[-1].name) == (module, name):
        names[-1].signatures.append(line)  # another overload
        return
    entry = Name(module, name, getattr(importlib.import_module(module), name))
    if ": see " in line:
        entry.same_as = line.split(": see ")[1]
    elif line.startswith("class "):
        entry.bases = line.removeprefix(f"class {name}").strip("()")
    elif not line.startswith("module "):
        entry.signatures.append(line)
    names.append(entry)


def _member(owner: Name, text: str) -> Member:
    name = re.match(r"(?:classmethod |staticmethod )?(\w+)", text)[1]  # type: ignore[index]
    if inspect.ismodule(owner.item):
        item = getattr(owner.item, name)
        return Member(name, text, item, inspect.getdoc(item) or "")
    item = inspect.getattr_static(owner.item, name, None)
    if isinstance(item, (classmethod, staticmethod)):
        item = item.__func__
    if isinstance(item, (property, cached_property)):
        getter = item.fget if isinstance(item, property) else item.func
        return Member(name, text, item, inspect.cleandoc(getter.__doc__ or ""))
    if inspect.isfunction(item):
        return Member(name, text, item, inspect.cleandoc(item.__doc__ or ""))
    return Member(name, text, None, field_comments(owner.item).get(name, ""))


@cache
def field_comments(cls: type) -> dict[str, str]:
    """What a class says of its fields: the comment that ends the line of each, or the comment lines above it."""
    comments: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("torchatlas"):
            comments |= _comments_of(inspect.getsource(base))
    return comments


def _comments_of(source: str) -> dict[str, str]:
    source = inspect.cleandoc("\n" + source)
    lines = source.splitlines()
    text = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found: dict[str, str] = {}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    for statement in definition.body:
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else getattr(statement, "targets", [])
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        end = statement.end_lineno or statement.lineno
        comment = text.get(end, "") if not text.get(end, "").startswith(("type:", "noqa")) else ""
        above = statement.lineno - 1
        if not comment and lines[above - 1].lstrip().startswith("#"):
            comment = text[above]
        found |= {name: comment for name in names if comment}
    return found
