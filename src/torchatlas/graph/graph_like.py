"""What callers pass as a graph -> the graph: itself, the one that a file holds, or the one that a recording made."""

from __future__ import annotations

import os
from typing import Any, Protocol

from torchatlas.errors import InvalidInputError
from torchatlas.graph.graph import Graph


class HasGraph(Protocol):
    """A recording, a traced model, a report: whatever of ours keeps the graph it is about."""

    @property
    def graph(self) -> Graph: ...


GraphLike = Graph | HasGraph | str | os.PathLike[str]


def as_graph(item: Any, function: str) -> Graph:
    """The graph that was passed to a public function of this name, in any of the forms of GraphLike."""
    if isinstance(item, Graph):
        return item
    if isinstance(item, (str, os.PathLike)):
        return Graph.load(item)
    ours = type(item).__module__.partition(".")[0] == "torchatlas"
    graph = getattr(item, "graph", None) if ours and not isinstance(item, type) else None
    if isinstance(graph, Graph):
        return graph
    runs = hasattr(item, "forward") or (callable(item) and not ours)
    hint = "Record what it does first" if runs else "Make one first"
    raise InvalidInputError(
        f"{function} takes a graph, or a file, recording or traced model that holds one, not {_described(item)}. "
        f"{hint}: {function}(atlas.capture(model, x))."
    )


def _described(item: Any) -> str:
    return f"the class {item.__name__}" if isinstance(item, type) else f"{type(item).__name__}"
