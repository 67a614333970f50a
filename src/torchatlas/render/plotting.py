"""Graph -> what all its plots share: whether there is anything to plot, a title, and the colours of types of ops."""

from __future__ import annotations

from torchatlas.analysis.summary import operations_mask
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.escapes import clean
from torchatlas.graph import Graph, OperationType
from torchatlas.render.theme import Theme


def plottable(graph: Graph) -> Graph:
    """The graph, if anything ran in it."""
    if not isinstance(graph, Graph):
        raise InvalidInputError(f"a plot takes a Graph, not {type(graph).__name__}; make one with atlas.capture(...).")
    if not operations_mask(graph).any():
        raise AnalysisError(
            "Nothing ran in this graph, so there is nothing to plot. Capture a model: atlas.capture(...)."
        )
    return graph


def title_of(what: str, graph: Graph, how: str = "") -> str:
    """With the class of the model, where there is one."""
    name = clean(graph.scopes[""].type)
    return (f"{what} of {name}" if name else what) + how


def strong(theme: Theme, kind: OperationType) -> str:
    """The colour of a type of op, for strokes and dots."""
    return theme.fills[kind][1]
