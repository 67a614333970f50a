"""Old spellings that keep working for one minor version, each with a DeprecationWarning that names the new one."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def _warn(old: str, new: str) -> None:
    """Point at the line that used the old name: two frames above this one."""
    message = f"{old} is now called {new}; the old name goes with the next minor version."
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def old_arguments(**new_names: str) -> Callable[[Function], Function]:
    """Let a function also take keyword arguments by their old names: `@old_arguments(memory_limit="limit")`."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for old in new_names.keys() & kwargs.keys():
                new = new_names[old]
                if new in kwargs:
                    raise TypeError(f"{function.__name__}() got both {new}= and {old}=, its old name.")
                _warn(f"{old}= of {function.__name__}", f"{new}=")
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def old_attribute(new: str) -> Any:
    """A property with the old name of an attribute: `sizes = old_attribute("batches")`."""
    return _OldAttribute(new)


class _OldAttribute:
    def __init__(self, new: str) -> None:
        self.new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self.old, self.__doc__ = name, f"The old name of `{self.new}`."

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        _warn(f"{owner.__name__}.{self.old}", self.new)
        return getattr(instance, self.new)
