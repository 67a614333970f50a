"""A module's path -> the nodes that make what the module returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchatlas.graph.columns import EDGE_KINDS
from torchatlas.graph.nouns import EdgeKind

if TYPE_CHECKING:
    from torchatlas.graph.graph import Graph


def output_nodes(graph: Graph, path: str) -> list[list[int]]:
    """For each call of a module, the nodes whose results are used outside it; its last node where none is.

    Only the phase counts in which the call began: gradients that leave a module are not what it returns.
    """
    columns = graph.columns
    paths = [module.path for module in graph.tables.modules]
    outermost: list[int] = []  # for each call, the call of the module that it is a part of, or -1
    for call, (parent, module) in enumerate(
        zip(columns["call_parent"].tolist(), columns["call_module"].tolist(), strict=True)
    ):
        outer = outermost[parent] if parent >= 0 else -1
        outermost.append(outer if outer >= 0 or paths[module] != path else call)
    call_of = np.array([*outermost, -1])[columns["node_call"]]  # no call, -1, is the last entry
    source, target = columns["edge_source"], columns["edge_target"]
    data = columns["edge_kind"] == EDGE_KINDS.index(EdgeKind.DATA)
    outputs = []
    for call in dict.fromkeys(call_of[call_of >= 0].tolist()):
        nodes = np.flatnonzero(call_of == call)
        phase = columns["node_phase"] == columns["node_phase"][nodes[0]]
        leaving = data & phase[source] & phase[target] & (call_of[source] == call) & (call_of[target] != call)
        outputs.append(np.unique(source[leaving]).tolist() or [int(nodes[phase[nodes]][-1])])
    return outputs


def without_output(graph: Graph, path: str) -> str:
    """Why no node makes what a module of the graph returns, for an error."""
    scope = graph.scopes[path]
    if not scope.operations:
        return runs_nothing(path, scope.type)
    below = f", such as {scope.children[0].path}" if scope.children else ""
    return f"module {path!r} is not called itself, so it has no value of its own: name a module in it{below}."


def runs_nothing(path: str, kind: str) -> str:
    """The same of a module that no op runs in."""
    named = f"module {path!r}{f' ({kind})' if kind else ''}"
    return f"{named} runs no operator, so it has no value of its own: what it passes on is that of the node before it."
