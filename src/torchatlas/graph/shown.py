"""Reports and their parts that show themselves: as text when printed, as HTML in a notebook, as one line in a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import islice
from typing import Any

from torchatlas.escapes import clean
from torchatlas.graph import formats
from torchatlas.sections import Facts, Lines, Section, headline, text_of
from torchatlas.units import format_bytes, format_count, format_flops, format_ns, format_seconds

_MOST_PARTS = 8  # of a list within a fact
_UNITS = {  # names end with their unit; a longer ending goes before a shorter one
    "bytes": format_bytes,
    "flops": format_flops,
    "macs": format_count,
    "parameters": format_count,
    "seconds": format_seconds,
    "_ns": format_ns,
    "_s": format_seconds,
}
_NOT_SAID = ("_bytes", "_ns", "_s")  # endings that the number with its unit says already


class Shown:
    """A report. A class says what it shows in `_sections`; its text, its HTML and its line are made of that."""

    __slots__ = ()

    def _sections(self) -> Iterable[Section]:
        """What to show, its headline first."""
        raise NotImplementedError

    def _headline(self) -> str:
        """The report in one line."""
        return headline(self._sections())

    def __str__(self) -> str:
        return text_of(self._sections())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._headline()}>"

    def _repr_html_(self) -> str:
        return str(formats.view("sections", self._sections()))


class ShownPart(Shown):
    """A dataclass within a report: it shows its fields, but for those that its repr leaves out."""

    __slots__ = ()

    def _sections(self) -> Iterator[Section]:
        yield Lines([self._headline()])
        yield Facts(list(facts(self)))

    def _headline(self) -> str:
        """Its text or its first line, if the class defines them; else the names of the class and of the part."""
        if type(self).__str__ is not Shown.__str__:
            return clean(str(self))  # one line
        if type(self)._sections is not ShownPart._sections:
            return super()._headline()
        names = (getattr(self, one.name) for one in fields(self) if one.repr)  # type: ignore[arg-type]
        first = next(names, None)
        return clean(f"{type(self).__name__} {first}" if isinstance(first, str) else type(self).__name__)


def facts(part: Any) -> Iterator[tuple[str, str]]:
    """The fields of a dataclass for people: names in words, numbers with their units."""
    for one in fields(part):
        if one.repr and not one.name.startswith("_"):
            yield in_words(one.name), fact(getattr(part, one.name), one.name)


def in_words(name: str) -> str:
    """The name of a field as words, without its unit.

    >>> in_words("saved_for_backward_bytes"), in_words("time_ns")
    ('saved for backward', 'time')
    """
    ending = next((one for one in _NOT_SAID if name.endswith(one)), "")
    return name.removesuffix(ending).replace("_", " ")


def fact(item: Any, name: str = "") -> str:
    """Something that a field holds, in one line; `name` tells the unit of a number.

    >>> fact(46_827_520, "peak_bytes"), fact(True), fact(None), fact(("a", "b"))
    ('44.7 MiB (46,827,520)', 'yes', '-', 'a, b')
    """
    if item is None:
        return "-"
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, (int, float)):
        return _number(item, name)
    if isinstance(item, str):
        return clean(item)
    if isinstance(item, Shown):
        return item._headline()
    if isinstance(item, Mapping):
        return _listed((f"{clean(str(key))} {fact(part, name)}" for key, part in item.items()), len(item))
    if isinstance(item, (list, tuple)):
        return _listed((fact(part, name) for part in item), len(item))
    return clean(str(item))


def _number(number: float, name: str) -> str:
    unit = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), None)
    if name.startswith("bytes_"):
        unit = format_bytes
    exact = f"{number:,}" if isinstance(number, int) else f"{number:.4g}"
    if unit is None:
        return exact
    short = unit(number)
    rounded = isinstance(number, int) and number >= 1000 and not name.endswith("_ns")
    return f"{short} ({exact})" if rounded else short


def _listed(parts: Iterable[str], count: int) -> str:
    more = f" and {count - _MOST_PARTS:,} more" if count > _MOST_PARTS else ""
    return ", ".join(islice(parts, _MOST_PARTS)) + more if count else "none"
