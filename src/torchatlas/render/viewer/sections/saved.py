"""Graph -> the tensors that autograd keeps for backward, and who reads them there."""

from __future__ import annotations

import numpy as np

from torchatlas.graph import Graph, Phase
from torchatlas.graph.columns import PHASES, ROLES, Array
from torchatlas.graph.nouns import OperationType, Role
from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject


@section("saved")
def saved(subject: Subject) -> Members:
    """By the id of the value, the nodes that read it."""
    graph = subject.graph
    value, node = _of_autograd(graph) if graph.source == "autograd" else _of_run(graph)
    found: dict[str, list[int]] = {}
    for one, reader in zip(value.tolist(), node.tolist(), strict=True):
        readers = found.setdefault(str(one), [])
        if not readers or readers[-1] != reader:
            readers.append(reader)
    return {"saved.json": found} if found else {}


def _of_run(graph: Graph) -> tuple[Array, Array]:
    """What forward made, or was given, and an op of backward takes. Parameters are there anyway: nobody keeps them."""
    columns, reader = graph.columns, graph.index.node_of_input
    value = columns["input_value"]
    before = [PHASES.index(Phase.FORWARD), PHASES.index(Phase.RECOMPUTE)]
    producer = columns["value_producer"][value]
    chosen = (columns["node_phase"][reader] == PHASES.index(Phase.BACKWARD)) & (producer >= 0)
    chosen[chosen] = np.isin(columns["node_phase"][producer[chosen]], before)
    chosen[chosen] = columns["value_role"][value[chosen]] != ROLES.index(Role.PARAMETER)
    return value[chosen], reader[chosen]


def _of_autograd(graph: Graph) -> tuple[Array, Array]:
    """What no node of backward makes was saved by the node that takes it, unless it is the leaf of an accumulation."""
    columns, reader = graph.columns, graph.index.node_of_input
    value = columns["input_value"]
    leaves = np.array([row.type is OperationType.ACCUMULATE for row in graph.tables.operations] or [False])
    chosen = (columns["value_producer"][value] < 0) & ~leaves[columns["node_operation"][reader]]
    return value[chosen], reader[chosen]
