"""Numbers of the reader's own, by name -> numbers of nodes and modules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torchatlas.errors import InvalidInputError, UnknownNameError
from torchatlas.graph import Graph
from torchatlas.registry import did_you_mean
from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject


@section("overlay", "overlay")
def overlay(subject: Subject) -> Members:
    """`overlay` is {name: number}, with names of nodes or paths of modules, or several by title: {title: {...}}."""
    mapping = subject.extras.get("overlay")
    if mapping is None:
        return {}
    if not isinstance(mapping, Mapping):
        raise InvalidInputError(f"overlay= takes names and numbers, {{name: number}}, not {type(mapping).__name__}.")
    if not mapping:
        return {}
    several = [isinstance(item, Mapping) for item in mapping.values()]
    if any(several) and not all(several):
        raise InvalidInputError("overlay= takes either {name: number} or {title: {name: number}}, not both at once.")
    titled = mapping if several[0] else {"overlay": mapping}
    return {"overlay.json": [_overlay_of(subject.graph, title, numbers) for title, numbers in titled.items()]}


def _overlay_of(graph: Graph, title: Any, numbers: Mapping[Any, Any]) -> dict[str, Any]:
    if not isinstance(title, str):
        raise InvalidInputError(f"overlay: a title is text, not {title!r}.")
    nodes: list[tuple[int, float | None]] = []
    modules: list[tuple[str, float | None]] = []
    for name, number in numbers.items():
        known = _number(name, number)
        if name in graph.index.by_name:
            nodes.append((graph.index.by_name[name], known))
        elif isinstance(name, str) and name in graph.scopes:
            modules.append((name, known))
        else:
            hint = did_you_mean(name, [*graph.index.by_name, *graph.scopes]) or "."
            raise UnknownNameError(f"overlay: no node or module is named {name!r}{hint}")
    return {"title": title, "nodes": nodes, "modules": modules}


def _number(name: Any, number: Any) -> float | None:
    """A number; None for one that is not finite: unknown is not zero."""
    try:
        value = float(number)
    except (TypeError, ValueError, OverflowError):
        value = None
    if value is None or isinstance(number, (str, bytes)):
        raise InvalidInputError(f"overlay: {name!r} has {number!r}, which is no number.")
    return value if math.isfinite(value) else None
