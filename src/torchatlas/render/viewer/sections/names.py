"""Graph -> the names of its nodes."""

from __future__ import annotations

from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject


@section("names")
def names(subject: Subject) -> Members:
    """What GraphNode.name says of every node."""
    return {"names.json": subject.graph.index.names()}
