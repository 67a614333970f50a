"""torchatlas: any PyTorch computation as one graph you can see, question, execute, step through, cut up and share."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torchatlas import errors, export, render  # noqa: F401  # the last two add formats and views to the graph
from torchatlas.errors import AtlasError
from torchatlas.graph import EdgeKind, Graph, GraphEdge, GraphNode, NodeKind, OperationType, Phase, Role

if TYPE_CHECKING:
    from torchatlas.capturing import capture, recording
    from torchatlas.tracker import (
        ComputationalGraphTracker,
        analyze_computational_graph,
        track_computational_graph,
    )

__version__ = "0.1.0"

# What needs torch is imported when first used: looking at a saved graph should not wait for torch.
_LAZY = {
    "ComputationalGraphTracker": "torchatlas.tracker",
    "analyze_computational_graph": "torchatlas.tracker",
    "capture": "torchatlas.capturing",
    "recording": "torchatlas.capturing",
    "track_computational_graph": "torchatlas.tracker",
}

load = Graph.load

__all__ = [
    "AtlasError",
    "ComputationalGraphTracker",
    "EdgeKind",
    "Graph",
    "GraphEdge",
    "GraphNode",
    "NodeKind",
    "OperationType",
    "Phase",
    "Role",
    "analyze_computational_graph",
    "capture",
    "errors",
    "load",
    "recording",
    "track_computational_graph",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
