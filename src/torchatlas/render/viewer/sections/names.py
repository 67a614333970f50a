"""Graph -> the names of its nodes."""

from __future__ import annotations

from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import MOST_NODES, Subject


@section("names")
def names(subject: Subject) -> Members:
    """What GraphNode.name says of every node."""
    if len(subject.graph) > MOST_NODES:
        subject.left_out.append(
            f"The names of nodes are not in this page, as it has more than {MOST_NODES:,} nodes: they are shown by "
            "module, operation and number. graph.subgraph(scope=...) makes a smaller page."
        )
        return {}
    return {"names.json": subject.graph.index.names()}
