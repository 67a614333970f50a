"""BackwardRun -> its steps as JSON holds them: which node was ready when, and what each gradient was.

A step is a node in the order in which the engine ran them. An edge carries a gradient from the step that makes it to
the step that takes it: in between it waits, or is added to, in a buffer of that step.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from torchatlas.autograd.autograd_graph import accumulated, makers
from torchatlas.autograd.record_backward import BackwardRun, edge_bytes, edge_figures
from torchatlas.graph import Graph, Phase
from torchatlas.graph.columns import PHASES, ROLES, Array
from torchatlas.graph.nouns import OperationType, Role


def steps_of(run: BackwardRun, page: Graph) -> dict[str, Any]:
    """The steps of a run, and which node of the graph `page` each of them stands for (-1: of none)."""
    graph = run.graph
    source, target = (graph.columns[f"edge_{end}"].astype(np.int64) for end in ("source", "target"))
    ready = np.full(len(graph), -1, np.int64)  # -1: from the beginning
    np.maximum.at(ready, target, source)
    figures = edge_figures(run)
    parameters = dict(accumulated(graph))
    bad = [edge for edge, row in enumerate(figures) if row is not None and row[3]]
    return {
        "names": graph.index.names(),
        "operations": [graph.tables.operations[row].name for row in graph.columns["node_operation"].tolist()],
        "modules": [graph.index.paths[row] for row in graph.index.path_of_call[graph.columns["node_call"]].tolist()],
        "parameters": {str(step): name for step, name in parameters.items()},
        "nodes": _nodes(graph, page, parameters).tolist(),
        "ready_after": ready.tolist(),
        "time_ns": graph.columns["node_time_ns"].tolist(),
        "waiting_bytes": graph.columns["node_memory_bytes"].tolist(),
        "edges": {
            "source": source.tolist(),
            "target": target.tolist(),
            "input": graph.recorded["input_nr"].tolist(),
            "bytes": [None if size < 0 else size for size in edge_bytes(graph).tolist()],
            "norm": [_finite(row, 0) for row in figures],
            "smallest": [_finite(row, 1) for row in figures],
            "largest": [_finite(row, 2) for row in figures],
            "not_finite": [None if row is None else row[3] for row in figures],
        },
        "first_not_finite": bad[0] if bad else None,
        "statistics": any(row is not None for row in figures),
        "peak_bytes": run.peak_gradient_bytes,
        "total_ns": run.time_ns,
        "error": None if run.error is None else f"{type(run.error).__name__}: {run.error}",
        "notes": graph.notes,
    }


def _finite(row: tuple[float, float, float, int] | None, column: int) -> float | None:
    return None if row is None or not math.isfinite(row[column]) else float(f"{row[column]:.6g}")


def _nodes(graph: Graph, page: Graph, parameters: dict[int, str]) -> Array:
    """Steps -> nodes of another graph of the same run: the op of backward that a step ran, or the forward op."""
    if page is graph or page.identical(graph):
        return np.arange(len(graph))
    if not page.own:  # its numbers are of another process
        return np.full(len(graph), -1, np.int64)
    forward = makers(graph, page)
    columns = page.columns
    of_backward = columns["node_phase"] == PHASES.index(Phase.BACKWARD)
    views = np.array([row.type is OperationType.VIEW for row in page.tables.operations] or [False])
    ran = np.flatnonzero(of_backward & (columns["node_forward"] >= 0))
    ran = ran[np.lexsort((-ran, ~views[columns["node_operation"][ran]]))]  # the last of equal ones is taken
    backward = np.full(len(page) + 1, -1, np.int64)  # forward op -> the first op of backward, no view if there is one
    backward[columns["node_forward"][ran]] = ran
    nodes = np.where(backward[forward] >= 0, backward[forward], forward)
    nodes[forward < 0] = -1
    values = np.flatnonzero((columns["value_role"] == ROLES.index(Role.GRADIENT)) & (columns["value_parameter"] >= 0))
    made = {
        page.tables.names[int(columns["value_parameter"][value])]: int(columns["value_producer"][value])
        for value in values.tolist()
    }
    for step, name in parameters.items():
        nodes[step] = made.get(name, -1)
    return nodes
