"""Graph -> node data of Model Explorer: one number per node, by which it colours them and sums them over layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from torchatlas.errors import AnalysisError
from torchatlas.escapes import encodable
from torchatlas.export.model_explorer import GRAPH_ID
from torchatlas.export.node_fields import work_of
from torchatlas.files import replacing
from torchatlas.graph import Graph
from torchatlas.graph.columns import Array
from torchatlas.graph.formats import WRITERS
from torchatlas.registry import check_choice

_GRADIENT = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#e0561f"}]


@WRITERS.add(".node-data.json")
def save_node_data(graph: Graph, path: Path, *, by: str = "time") -> None:
    """Write what `model-explorer step.model-explorer.json --node_data_paths=step.node-data.json` lays over the graph.

    `by` is "time", "memory" (alive after the node), "flops" or "bytes" (read and written). What is unknown of a node is
    left out.
    """
    with replacing(path) as file:
        file.write(msgspec.json.encode({GRAPH_ID: node_data(graph, by)}))


def node_data(graph: Graph, by: str) -> dict[str, Any]:
    """The members of a GraphNodeData."""
    check_choice("by", by, QUANTITIES)
    name, numbers = QUANTITIES[by]
    column = numbers(graph)
    names = graph.index.names()
    known = np.flatnonzero(column >= 0)
    if not len(known) and len(graph):
        raise AnalysisError(f"by={by!r}: this is not known of any node of this graph. {_others(graph, by)}")
    results = {
        encodable(names[node]): {"value": value} for node, value in zip(known, column[known].tolist(), strict=True)
    }
    # Memory after a node is a state: a sum over the nodes of a layer means nothing.
    hidden = {"hideAggregatedStats": ["sum", "avg"]} if by == "memory" else {}
    return {"name": name, "results": results, "gradient": _GRADIENT, **hidden}


def _others(graph: Graph, by: str) -> str:
    usable = [name for name, (_, numbers) in QUANTITIES.items() if name != by and (numbers(graph) >= 0).any()]
    return f"Choose one of {', '.join(usable)}." if usable else "Nor is any other quantity: nothing was measured."


def _time(graph: Graph) -> Array:
    time: Array = graph.columns["node_time_ns"]
    return np.where(time >= 0, time / 1000, -1)


def _memory(graph: Graph) -> Array:
    return graph.columns["node_memory_bytes"]


def _flops(graph: Graph) -> Array:
    work, _ = work_of(graph)
    if work is None:
        return np.full(len(graph), -1)
    return np.where(work.is_op & (work.macs >= 0), work.flops + work.elementwise_flops, -1)


def _bytes(graph: Graph) -> Array:
    work, _ = work_of(graph)
    return np.full(len(graph), -1) if work is None else np.where(work.is_op, work.bytes, -1)


QUANTITIES: dict[str, tuple[str, Callable[[Graph], Array]]] = {
    "time": ("time (µs)", _time),
    "memory": ("memory after it (bytes)", _memory),
    "flops": ("FLOPs", _flops),
    "bytes": ("bytes moved", _bytes),
}
