"""What a tracker is called in pytorch-graph 0.2.5: members that are another word for what `tracker.graph` holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph, GraphEdge, GraphNode

if TYPE_CHECKING:
    from torchatlas.render.picture import Picture

RENDERERS = ("plotly", "matplotlib")
_NODE = (
    "id",
    "name",
    "operation_type",
    "module_name",
    "input_shapes",
    "output_shapes",
    "parameters",
    "execution_time",
    "memory_usage",
    "metadata",
    "parent_ids",
    "child_ids",
    "timestamp",
)
_EDGE = ("source_id", "target_id", "edge_type", "tensor_shape", "metadata")


class TrackerNames:
    """Members of pytorch-graph's ComputationalGraphTracker."""

    if TYPE_CHECKING:  # of ComputationalGraphTracker

        @property
        def tracking(self) -> bool: ...
        @property
        def graph(self) -> Graph: ...
        def get_graph_summary(self) -> dict[str, Any]: ...

    @property
    def is_tracking(self) -> bool:
        """Whether it records at this moment."""
        return self.tracking

    @property
    def nodes(self) -> dict[int, GraphNode]:
        """The nodes by id, in the order in which they ran."""
        return {node.id: node for node in self.graph.nodes}

    @property
    def edges(self) -> list[GraphEdge]:
        return list(self.graph.edges)

    def get_graph_data(self) -> dict[str, Any]:
        """Nodes and edges as dictionaries with pytorch-graph's keys, and the summary."""
        return {
            "nodes": [{key: getattr(node, key) for key in _NODE} for node in self.graph.nodes],
            "edges": [{key: getattr(edge, key) for key in _EDGE} for edge in self.graph.edges],
            "summary": self.get_graph_summary(),
        }

    def visualize_graph(self, renderer: str = "plotly") -> Picture:
        """The drawn graph. It shows itself in a notebook, and `save(path)` writes an SVG or PNG.

        Both of pytorch-graph's renderers are accepted and give the same picture: neither library is used here.
        """
        from torchatlas.render.picture import draw

        if renderer not in RENDERERS:
            raise InvalidInputError(f"renderer={renderer!r} is not one of {', '.join(map(repr, RENDERERS))}.")
        return draw(self.graph)
