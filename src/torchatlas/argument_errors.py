"""A call of a public function with arguments that do not fit -> an error that says which argument was meant.

Python's own message names the wrong argument, and only from 3.13 on the near one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from torchatlas.errors import InvalidInputError
from torchatlas.registry import did_you_mean

Function = TypeVar("Function", bound=Callable[..., Any])


def explains_arguments(function: Function) -> Function:
    """A decorator for public functions and methods: wrong arguments are an InvalidInputError with a suggestion.

    >>> @explains_arguments
    ... def draw(graph, *, legend=True): ...
    >>> draw(1, legends=False)
    Traceback (most recent call last):
        ...
    torchatlas.errors.InvalidInputError: draw() has no argument 'legends'; did you mean 'legend'?
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            problem = misfit(function, args, kwargs)
            if problem is None:  # the call was right: it is the function's own error
                raise
        raise InvalidInputError(problem)

    return call  # type: ignore[return-value]


def misfit(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """What is wrong with the arguments of a call, in a sentence; None if they fit."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = function.__qualname__.removesuffix(".__init__").rpartition("<locals>.")[2]
        own = own_names(function)
        unknown = next((key for key in kwargs if key not in signature.parameters), None)
        if unknown is not None:
            return f"{name}() has no argument {unknown!r}{did_you_mean(unknown, own) or f'. It has {_listed(own)}.'}"
        owner, _, method = name.rpartition(".")
        if owner and args and type(args[0]).__name__ != owner:
            return f"{method} is called on an object: {owner}().{method}{_short(signature)}, with parentheses."
        return f"{name}(): {error}. Call it as {name}{_short(signature)}."
    return None


def own_names(function: Callable[..., Any]) -> list[str]:
    """The names of the arguments that can be passed by keyword."""
    parameters = inspect.signature(function).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in parameters if each.kind in named and each.name != "self"]


def _listed(names: list[str]) -> str:
    return ", ".join(names) if names else "none"


def _short(signature: inspect.Signature) -> str:
    """The arguments without their types, the optional ones as dots: (x, stages, ...)."""
    needed, optional = [], False
    for each in signature.parameters.values():
        if each.kind is each.VAR_POSITIONAL:
            needed.append(f"*{each.name}")
        elif each.default is not each.empty or each.kind is each.VAR_KEYWORD:
            optional = True
        elif each.name != "self":
            needed.append(f"{each.name}=" if each.kind is each.KEYWORD_ONLY else each.name)
    return f"({', '.join([*needed, *(['...'] if optional else [])])})"
