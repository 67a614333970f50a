"""Graph -> the place of each node in a tree of names: iteration, phase and module calls, for tools that group by them.

A module that is called twice is two groups: its second call reads what other modules made after the first, so that one
group for both would be part of a cycle.
"""

from __future__ import annotations

import numpy as np

from torchatlas.graph import Graph, NodeKind
from torchatlas.graph.columns import KINDS, PHASES, Array

Place = tuple[str, ...]


def places(graph: Graph) -> tuple[list[Place], Array]:
    """The distinct places, and for each node the position of its place. Inputs and outputs have the place ()."""
    columns = graph.columns
    calls = call_places(graph)
    is_op = columns["node_kind"] == KINDS.index(NodeKind.OP)
    several_phases = len(np.unique(columns["node_phase"][is_op])) > 1
    several_iterations = len(np.unique(columns["node_iteration"][is_op])) > 1
    rows = np.stack([columns["node_iteration"], columns["node_phase"], columns["node_call"], is_op], axis=1)
    distinct, of_node = np.unique(rows.astype(np.int64), axis=0, return_inverse=True)
    distinct_places: list[Place] = []
    for iteration, phase, call, op in distinct.tolist():
        before: Place = (f"iteration {iteration}",) if several_iterations else ()
        before += (str(PHASES[phase]),) if several_phases else ()
        distinct_places.append((*before, *calls[call]) if op else ())
    return distinct_places, of_node.reshape(-1)


def call_places(graph: Graph) -> list[Place]:
    """Per call (and, last, for no call) the modules around it, outermost first, itself last."""
    columns, modules = graph.columns, graph.tables.modules
    paths = [module.path for module in modules]
    module_calls: list[Place] = []
    rows = zip(*(columns[f"call_{name}"].tolist() for name in ("module", "parent", "index")), strict=True)
    for call, (module, parent, index) in enumerate(rows):
        path, outer, rest = paths[module], (), paths[module]
        if 0 <= parent < call:  # a call comes after its parent; a foreign file may say otherwise, then it has none
            above = paths[int(columns["call_module"][parent])]
            if not above or path.startswith(f"{above}."):
                outer, rest = module_calls[parent], path[len(above) :].removeprefix(".")
        parts = rest.split(".") if rest else []
        if parts and index > 0:
            parts[-1] = f"{parts[-1]} (call {index + 1})"
        module_calls.append((*outer, *parts))
    return [*module_calls, ()]
