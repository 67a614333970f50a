"""Names -> things that plug in: cost formulas, file formats, pictures, diagnoses. One class serves them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from typing import Generic, TypeVar

from torchatlas.errors import UnknownNameError

T = TypeVar("T")


def near_names(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Those of `known` that look most like `name`, best first; case does not matter.

    >>> near_names("Convv", ["conv", "linear", "cond"])
    ['conv', 'cond']
    """
    by_lower = {one.lower(): one for one in known}
    return [by_lower[one] for one in get_close_matches(str(name).lower(), by_lower, n=limit)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: "; did you mean 'conv' or 'cond'?", or "" if none is near.

    >>> did_you_mean("Convv", ["conv", "linear"])
    "; did you mean 'conv'?"
    """
    near = " or ".join(repr(one) for one in near_names(name, known))
    return f"; did you mean {near}?" if near else ""


class Registry(Generic[T]):
    """Things of one kind, found by name.

    >>> pictures: Registry[Callable[[], str]] = Registry("picture format")
    >>> @pictures.add(".svg", ".dot")
    ... def vector() -> str:
    ...     return "vector"
    >>> pictures.names()
    ['.dot', '.svg']
    >>> pictures[".svg"]()
    'vector'
    >>> pictures[".svgz"]
    Traceback (most recent call last):
        ...
    torchatlas.errors.UnknownNameError: unknown picture format '.svgz'; did you mean '.svg'? Known: .dot, .svg
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind  # what the entries are, in the singular, for messages
        self._entries: dict[str, T] = {}

    def add(self, *names: str) -> Callable[[T], T]:
        """A decorator that files what it decorates under each of `names`. A name that is taken is refused."""
        if not names:
            raise ValueError(f"a {self.kind} needs at least one name")

        def file(entry: T) -> T:
            taken = [name for name in names if name in self._entries]
            if taken or len(set(names)) < len(names):
                what = ", ".join(repr(name) for name in taken or names)
                raise ValueError(f"{self.kind} {what} is registered twice; rename or remove one of the two")
            self._entries.update(dict.fromkeys(names, entry))
            return entry

        return file

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._entries)

    def get(self, name: str) -> T | None:
        """The entry, or None when there is none: for callers to whom a missing entry is no error."""
        return self._entries.get(name)

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownNameError(self._unknown(name)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Registry of {len(self)} entries: {self.kind}>"

    def _unknown(self, name: str) -> str:
        message = f"unknown {self.kind} {name!r}"
        message += did_you_mean(name, self._entries) or ("." if self._entries else "")
        if len(self) <= 20:  # a formula registry has hundreds of names: too many for a message
            message += f" Known: {', '.join(self.names())}" if self._entries else "; none is registered"
        return message
