"""A partition, or the stages of a pipeline -> the group of every node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph
from torchatlas.graph.columns import Array
from torchatlas.partition.report import PartitionReport
from torchatlas.partition.stages import PipelinePlan
from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject


@section("partition", "partition")
def partition(subject: Subject) -> Members:
    """`partition` is a report of atlas.GraphPartitioner."""
    report = subject.extras.get("partition")
    if report is None:
        return {}
    _check(subject.graph, "partition", report, PartitionReport)
    names = [f"{subgraph.node_id} {subgraph.pattern}" for subgraph in report.subgraphs]
    about = {
        "title": "subgraphs",
        "names": names,
        "reasons": [str(subgraph.partition_reason) for subgraph in report.subgraphs],
        "bounds": [str(subgraph.recommended_bottleneck) for subgraph in report.subgraphs],
    }
    ops = (subgraph.ops for subgraph in report.subgraphs)
    return {"groups/partition.json": about, "node_partition.npy": _groups(len(subject.graph), ops)}


@section("stages", "stages")
def stages(subject: Subject) -> Members:
    """`stages` is a plan of atlas.pipeline_stages."""
    plan = subject.extras.get("stages")
    if plan is None:
        return {}
    _check(subject.graph, "stages", plan, PipelinePlan)
    about = {
        "title": f"pipeline stages by {plan.by} on {plan.device}",
        "names": [f"stage {stage.number}" for stage in plan.stages],
        "seconds": [stage.seconds for stage in plan.stages],
        "memory_bytes": [stage.memory_bytes for stage in plan.stages],
        "sent_bytes": [stage.sent_bytes for stage in plan.stages],
    }
    ops = (stage.ops for stage in plan.stages)
    return {"groups/stages.json": about, "node_stage.npy": _groups(len(subject.graph), ops)}


def _groups(count: int, groups: Iterable[tuple[int, ...]]) -> Array:
    """For every node the number of its group; -1 for none."""
    group_of_node = np.full(count, -1, np.int32)
    for number, ops in enumerate(groups):
        group_of_node[list(ops)] = number
    return group_of_node


def _check(graph: Graph, name: str, report: Any, kind: type[PartitionReport] | type[PipelinePlan]) -> None:
    if not isinstance(report, kind):
        raise InvalidInputError(f"{name}= takes a {kind.__name__}, not {type(report).__name__}.")
    if report.graph is not graph and report.graph != graph:
        raise InvalidInputError(
            f"{name}= is of another graph: this page shows {len(graph):,} nodes, that has {len(report.graph):,}. "
            "Pages show the graph that was divided: its report.graph."
        )
