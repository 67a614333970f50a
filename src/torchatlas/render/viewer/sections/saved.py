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
    """Id of a saved value -> the nodes that read it in backward."""
    graph = subject.graph
    value, node = _of_autograd(graph) if graph.source == "autograd" else _of_run(graph)
    readers_by_value: dict[str, list[int]] = {}
    for number, reader in zip(value.tolist(), node.tolist(), strict=True):
        readers = readers_by_value.setdefault(str(number), [])
        if not readers or readers[-1] != reader:
            readers.append(reader)
    return {"saved.json": readers_by_value} if readers_by_value else {}


def _of_run(graph: Graph) -> tuple[Array, Array]:
    """Values that forward made or was given and an op of backward reads, with these ops. Parameters need not be kept:
    they are there anyway."""
    columns, reader = graph.columns, graph.index.node_of_input
    value = columns["input_value"]
    before = [PHASES.index(Phase.FORWARD), PHASES.index(Phase.RECOMPUTE)]
    producer = columns["value_producer"][value]
    chosen = (columns["node_phase"][reader] == PHASES.index(Phase.BACKWARD)) & (producer >= 0)
    chosen[chosen] = np.isin(columns["node_phase"][producer[chosen]], before)
    chosen[chosen] = columns["value_role"][value[chosen]] != ROLES.index(Role.PARAMETER)
    return value[chosen], reader[chosen]


def _of_autograd(graph: Graph) -> tuple[Array, Array]:
    """Values that no node of backward makes, with the node that reads and so saved each; the leaves that gradients
    accumulate in are left out."""
    columns, reader = graph.columns, graph.index.node_of_input
    value = columns["input_value"]
    leaves = np.array([row.type is OperationType.ACCUMULATE for row in graph.tables.operations] or [False])
    chosen = (columns["value_producer"][value] < 0) & ~leaves[columns["node_operation"][reader]]
    return value[chosen], reader[chosen]
