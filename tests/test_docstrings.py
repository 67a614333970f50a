"""The promised names explain themselves: every parameter, what is returned, what is raised, with an example."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cached_property
from typing import Any

import pytest

from sitegen.api import own_names
from sitegen.docstrings import parsed
from sitegen.promised import Name, field_comments
from torchatlas import errors

NAMES = [name for name in own_names() if not inspect.ismodule(name.item)]
BY_NAME = pytest.mark.parametrize("name", NAMES, ids=lambda name: name.full_name)


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = list(inspect.signature(function).parameters.values())
    return {stars.get(one.kind, "") + one.name: one for one in found if one.name not in ("self", "cls")}


def raised(function: Callable[..., Any]) -> set[str]:
    """The exceptions that a function raises in its own lines, by class. A dataclass writes its constructor itself."""
    if function.__qualname__.startswith("__create_fn__") or inspect.unwrap(function).__code__.co_filename == "<string>":
        return set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    thrown = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    named = [ast.unparse(exc.func) for exc in thrown if isinstance(exc, ast.Call)]
    return {name for name in named if name.endswith(("Error", "Exception"))}


def missing(
    function: Callable[..., Any], text: str | None, *, returns: bool, fields: dict[str, str] | None = None
) -> Iterator[str]:
    """What a docstring does not say of a function. A comment in the line of a dataclass' field explains it as well."""
    doc = parsed(text)
    if not doc.summary:
        yield "says nothing"
    expected = list(parameters(function))
    yield from (f"does not explain {name}" for name in expected if name not in {*doc.args, *(fields or {})})
    yield from (f"explains {name}, which is no parameter" for name in doc.args if name not in expected)
    if returns and not doc.returns and inspect.signature(function).return_annotation not in (None, "None"):
        yield "does not say what it returns"
    yield from (f"does not say when it raises {name}" for name in sorted(raised(function)) if name not in doc.raises)
    known = vars(errors).keys() | {"ValueError", "RuntimeError", "KeyError", "TypeError", "AssertionError"}
    yield from (f"raises {name}, which is no error of ours" for name in doc.raises if name not in known)


def made_by_users(name: Name) -> bool:
    """Constructors of torchatlas.types are called by torchatlas alone."""
    return name.module != "torchatlas.types" and not issubclass(name.item, (Enum, Exception, tuple))


@BY_NAME
def test_a_name_explains_itself(name: Name) -> None:
    if inspect.isclass(name.item):
        found = []
        if made_by_users(name):
            fields = field_comments(name.item)
            found = list(missing(name.item.__init__, name.item.__doc__, returns=False, fields=fields))
        assert parsed(name.item.__doc__).summary
    else:
        found = list(missing(name.item, name.item.__doc__, returns=True))
    assert found == []


@BY_NAME
def test_its_members_explain_themselves(name: Name) -> None:
    found = []
    for member in name.members:
        if inspect.isfunction(member.item) and member.name != "__init__":
            dunder = member.name.startswith("__") and member.name != "__call__"  # a sentence is enough
            with_values = bool(parameters(member.item))
            lacks = [] if dunder else list(missing(member.item, member.doc, returns=with_values))
            found += [f"{member.name} {one}" for one in lacks] + ([] if member.doc else [f"{member.name} says nothing"])
        elif isinstance(member.item, (property, cached_property)) and not member.doc:
            found.append(f"{member.name} says nothing")
    assert found == []


@BY_NAME
def test_what_users_call_has_an_example(name: Name) -> None:
    if inspect.isclass(name.item) and (name.module != "torchatlas" or issubclass(name.item, (Enum, Exception))):
        return
    doc = parsed(name.item.__doc__)
    assert doc.example.startswith(">>> ") or doc.text.startswith("Deprecated:")


@pytest.mark.parametrize(
    "error", [one for one in vars(errors).values() if inspect.isclass(one)], ids=lambda e: e.__name__
)
def test_an_error_says_what_it_means_and_what_to_do(error: type[BaseException]) -> None:
    if error.__module__ == errors.__name__:
        doc = parsed(error.__doc__)
        assert len(doc.text.split("\n\n")) >= 2, "what it means, then what to do"
        assert doc.example.strip(), "an example of its message"


def test_the_test_sees_what_is_missing() -> None:
    def function(one: int, two: int) -> int:
        """Add.

        Args:
            one: A number.
            three: Another.
        """
        if two < 0:
            raise ValueError("negative")
        return one + two

    assert list(missing(function, function.__doc__, returns=True)) == [
        "does not explain two",
        "explains three, which is no parameter",
        "does not say what it returns",
        "does not say when it raises ValueError",
    ]


def test_the_sections_of_a_docstring_are_found() -> None:
    doc = parsed("Add.\n\nTwice.\n\nArgs:\n    a, b: Numbers,\n        whole ones.\nReturns:\n    Their\n    sum.\n")
    assert (doc.text, doc.returns) == ("Add.\n\nTwice.", "Their sum.")
    assert doc.args == {"a": "Numbers, whole ones.", "b": "Numbers, whole ones."}
    with pytest.raises(ValueError, match="sections end a docstring"):
        parsed("Add.\n\nArgs:\n    a: One.\nAnd more.")
