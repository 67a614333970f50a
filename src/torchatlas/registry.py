"""Names -> things that plug in: cost formulas, file formats, pictures, diagnoses. One class serves them all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from difflib import SequenceMatcher, get_close_matches
from enum import StrEnum
from typing import Any, Generic, TypeVar

from torchatlas.errors import AnalysisError, InvalidInputError, UnknownNameError

T = TypeVar("T")
Member = TypeVar("Member", bound=StrEnum)
_MOST_COMPARED = 100_000
_MOST_NEAR = 3
_MUCH_LESS_LIKE = 0.2  # of names so far behind the best one, none was meant


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Those of `known` that begin with `name`, else that look most like it, else that hold it. Case does not matter.

    >>> near_names("Convv", ["conv", "linear", "cond"]), near_names("a100", ["v100", "a10", "a100-80gb"])
    (['conv'], ['a100-80gb'])
    >>> near_names("addmm", ["blocks.0.mlp.fc1.addmm", "blocks.0.norm.native_layer_norm"])
    ['blocks.0.mlp.fc1.addmm']
    """
    wanted, by_lower = str(name).lower(), {one.lower(): one for one in known}
    holding = sorted((one for one in by_lower if len(wanted) > 1 and wanted in one), key=len)
    beginning = [one for one in holding if one.startswith(wanted)]
    near = beginning or _alike(wanted, by_lower) or holding
    return [by_lower[one] for one in near[:_MOST_NEAR]]


def _alike(wanted: str, known: Collection[str]) -> list[str]:
    """By their letters. Comparing takes some 5 µs per name: a million of them would be searched for seconds."""
    near = get_close_matches(wanted, known, n=_MOST_NEAR) if len(known) <= _MOST_COMPARED else []
    likeness = [SequenceMatcher(None, wanted, one).ratio() for one in near]
    return [one for one, ratio in zip(near, likeness, strict=True) if ratio > likeness[0] - _MUCH_LESS_LIKE]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: "; did you mean 'conv' or 'cond'?", or "" if none is near.

    >>> did_you_mean("Convv", ["conv", "linear"])
    "; did you mean 'conv'?"
    """
    near = " or ".join(repr(one) for one in near_names(name, known))
    return f"; did you mean {near}?" if near else ""


def member(kind: type[Member], name: Any) -> Member:
    """The member of an enumeration with this value; the error for another value suggests the near ones.

    >>> from enum import StrEnum
    >>> Phase = StrEnum("Phase", ["FORWARD", "BACKWARD"])
    >>> member(Phase, "bakward")
    Traceback (most recent call last):
        ...
    torchatlas.errors.AnalysisError: unknown phase 'bakward'; did you mean 'backward'? Known: forward, backward
    """
    try:
        return kind(name)
    except ValueError:
        known = [each.value for each in kind]
        noun = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in kind.__name__).strip()
        raise AnalysisError(
            f"unknown {noun} {name!r}{did_you_mean(str(name), known) or '.'} Known: {', '.join(known)}"
        ) from None


def check_choice(argument: str, value: Any, known: Iterable[str]) -> None:
    """Refuse a value that an argument does not take; the error lists what it takes, and the near one.

    >>> check_choice("by", "flop", ["time", "flops"])
    Traceback (most recent call last):
        ...
    torchatlas.errors.InvalidInputError: by='flop' is not one of time, flops; did you mean 'flops'?
    """
    known = list(known)
    if value not in known:
        hint = did_you_mean(value, known) if isinstance(value, str) else ""
        raise InvalidInputError(f"{argument}={value!r} is not one of {', '.join(known)}{hint or '.'}")


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
