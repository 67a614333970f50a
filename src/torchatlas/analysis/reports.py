"""What reports share: their fields as JSON holds them and as people read them, and sums of their parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from torchatlas.graph import GraphNode
from torchatlas.graph.shown import ShownPart

T = TypeVar("T")


class Report(ShownPart):
    """A dataclass with `to_dict`. It shows its fields unless it has `_sections` of its own."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON holds them: tuples as lists, nodes by name, parts of the report as dictionaries."""
        return fields_as_json(self)


def fields_as_json(report: Any, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a dataclass by name, as JSON holds them."""
    return {one.name: as_json(getattr(report, one.name)) for one in fields(report) if one.name not in leave_out}


def as_json(item: Any) -> Any:
    """A part of a report as JSON holds it."""
    if isinstance(item, GraphNode):
        return item.name
    if isinstance(item, str):
        return str(item)  # members of an enum, too
    if isinstance(item, (list, tuple)):
        return [as_json(part) for part in item]
    if type(item) is dict:
        return {key: as_json(part) for key, part in item.items()}
    if hasattr(item, "to_dict"):
        return item.to_dict()
    return fields_as_json(item) if is_dataclass(item) else item


def sum_of(parts: Iterable[T]) -> T:
    """Dataclasses of one kind added up field by field; a sum is None only where every part is."""
    listed = list(parts)
    if len(listed) == 1:
        return listed[0]
    sums: dict[str, Any] = {}
    for one in fields(listed[0]):  # type: ignore[arg-type]
        known = [number for part in listed if (number := getattr(part, one.name)) is not None]
        sums[one.name] = sum(known) if known else (None if one.default is None else 0)
    return type(listed[0])(**sums)
