"""A plan -> torch's pipeline: the model's exported graph, split before the nodes that stages begin with.

torch.distributed.pipelining exports the model and hands its graph to a policy. The parent and every worker do that with
the same exported program, so the nodes have the same names everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx, nn

from torchatlas.capturing.fx import from_fx
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph
from torchatlas.graph.columns import KINDS, Layout
from torchatlas.graph.nouns import NodeKind
from torchatlas.partition.stages import PipelinePlan, pipeline_stages

if TYPE_CHECKING:
    from torch.distributed.pipelining import Pipe

Call = tuple[tuple[Any, ...], dict[str, Any]]  # of a microbatch


def split(module: nn.Module, call: Call, policy: Callable[[fx.GraphModule], Sequence[str]]) -> Pipe:
    """Cut a module before the nodes that a policy names, given its exported graph."""
    from torch.distributed.pipelining import pipeline

    def cut(graph_module: Any) -> Any:
        names = set(policy(graph_module))
        for node in list(graph_module.graph.nodes):
            if node.name in names:
                with graph_module.graph.inserting_before(node):
                    graph_module.graph.call_function(torch.ops.pippy._pipe_split.default, ())
        graph_module.recompile()
        return graph_module

    return pipeline(module, mb_args=call[0], mb_kwargs=call[1], split_policy=cut)


def planned(module: nn.Module, call: Call, stages: int, **options: Any) -> tuple[Pipe, PipelinePlan, list[str]]:
    """Plan the cuts of a module, and make them. Returns the names of the nodes that stages begin with, too."""
    planned_cuts: dict[str, Any] = {}

    def policy(graph_module: fx.GraphModule) -> Sequence[str]:
        graph = from_fx(graph_module, *call[0], **call[1])
        begins = beginnings(graph)
        first = min(ops[0] for ops in graph.metadata["fx_nodes"].values())
        if len(begins.keys() | {first}) < stages:
            raise InvalidInputError(
                f"stages={stages}, but this model can be cut into {len(begins.keys() | {first})}: what is written to "
                "in place or has gaps in memory cannot be handed on, and inputs are for the first stage."
            )
        plan = planned_cuts["plan"] = pipeline_stages(graph, stages, begins=sorted(begins), **options)
        planned_cuts["names"] = [begins[stage.ops[0]] for stage in plan.stages[1:]]
        return list(planned_cuts["names"])

    return split(module, call, policy), planned_cuts["plan"], planned_cuts["names"]


def beginnings(graph: Graph) -> dict[int, str]:
    """The ops that a stage may begin with, and the torch.fx nodes that run them.

    Not in the middle of a node's ops. And not where a value would cross the cut that
    - is written to afterwards: autograd refuses that for what arrives from elsewhere;
    - has gaps, or another order, in memory: messages have none;
    - is an input, which only the first stage gets, or an output, which only the last one returns.
    """
    columns, layouts = graph.columns, graph.tables.layouts
    taken, storage, producer = columns["input_value"], columns["value_storage"], columns["value_producer"]
    reader = graph.index.node_of_input
    sendable = np.array([_sendable(layout) for layout in layouts] or [True])[columns["value_layout"]]
    begin = producer[taken]
    inputs, outputs = (columns["node_kind"] == KINDS.index(kind) for kind in (NodeKind.INPUT, NodeKind.OUTPUT))
    refused = np.flatnonzero((begin >= 0) & (~sendable[taken] | inputs[begin] | outputs[reader])).tolist()
    forbidden = np.zeros(len(columns["node_kind"]) + 1, np.int64)  # rises after a maker and falls after a reader
    for at in refused:
        forbidden[begin[at] + 1] += 1
        forbidden[reader[at] + 1] -= 1
    born: dict[int, int] = {}
    for value in np.flatnonzero(producer >= 0).tolist():
        born.setdefault(int(storage[value]), int(producer[value]))
    for at in np.flatnonzero(columns["input_written"]).tolist():
        first = born.get(int(storage[taken[at]]), int(reader[at]))
        if first < reader[at]:
            forbidden[first + 1] += 1
            forbidden[reader[at] + 1] -= 1
    free = np.cumsum(forbidden) == 0
    ran: dict[str, list[int]] = graph.metadata["fx_nodes"]
    return {ops[0]: name for name, ops in ran.items() if free[ops[0]]}


def _sendable(layout: Layout) -> bool:
    if layout.stride is None:
        return False
    expected = 1
    for size, step in zip(reversed(layout.shape), reversed(layout.stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= int(size)
    return True
