"""Graph -> the place of each node in a tree of names: iteration, phase and module calls, for tools that group by them.

A module that is called twice is two groups: its second call takes what other modules made after the first, so that one
group for both would stand in a circle.
"""

from __future__ import annotations

import numpy as np

from torchatlas.graph import Graph, NodeKind
from torchatlas.graph.columns import KINDS, PHASES, Array

Place = tuple[str, ...]


def places(graph: Graph) -> tuple[list[Place], Array]:
    """The distinct places, and which one each node has. Inputs and outputs stand outside, in the place ()."""
    columns = graph.columns
    calls = call_places(graph)
    is_op = columns["node_kind"] == KINDS.index(NodeKind.OP)
    several_phases = len(np.unique(columns["node_phase"][is_op])) > 1
    several_iterations = len(np.unique(columns["node_iteration"][is_op])) > 1
    rows = np.stack([columns["node_iteration"], columns["node_phase"], columns["node_call"], is_op], axis=1)
    distinct, of_node = np.unique(rows.astype(np.int64), axis=0, return_inverse=True)
    found: list[Place] = []
    for iteration, phase, call, op in distinct.tolist():
        before: Place = (f"iteration {iteration}",) if several_iterations else ()
        before += (str(PHASES[phase]),) if several_phases else ()
        found.append((*before, *calls[call]) if op else ())
    return found, of_node.reshape(-1)


def call_places(graph: Graph) -> list[Place]:
    """Per call (and, last, for no call) the modules around it, outermost first, itself last."""
    columns, modules = graph.columns, graph.tables.modules
    paths = [module.path for module in modules]
    found: list[Place] = []
    rows = zip(*(columns[f"call_{name}"].tolist() for name in ("module", "parent", "index")), strict=True)
    for call, (module, parent, index) in enumerate(rows):
        path, outer, rest = paths[module], (), paths[module]
        if 0 <= parent < call:  # a call begins after the one around it; what says otherwise stands for itself
            above = paths[int(columns["call_module"][parent])]
            if not above or path.startswith(f"{above}."):
                outer, rest = found[parent], path[len(above) :].removeprefix(".")
        parts = rest.split(".") if rest else []
        if parts and index > 0:
            parts[-1] = f"{parts[-1]} (call {index + 1})"
        found.append((*outer, *parts))
    return [*found, ()]
