"""torchatlas: any PyTorch computation as one graph you can see, question, execute, step through, cut up and share."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torchatlas import errors, export, render  # noqa: F401  # the last two add formats and views to the graph
from torchatlas.errors import AtlasError
from torchatlas.graph import EdgeKind, Graph, GraphEdge, GraphNode, NodeKind, OperationType, Phase, Role

if TYPE_CHECKING:
    from torchatlas.analysis.batch_peak import peak_for_batch
    from torchatlas.analysis.cost import cost
    from torchatlas.analysis.diff import compare
    from torchatlas.analysis.memory import memory
    from torchatlas.autograd.debugger import debug_backward
    from torchatlas.autograd.graph import autograd_graph
    from torchatlas.autograd.lifecycle import lifecycle
    from torchatlas.autograd.record import record_backward, recording_backward
    from torchatlas.autograd.text import print_graph
    from torchatlas.capturing import capture, recording
    from torchatlas.capturing.fx import from_fx
    from torchatlas.checkpointing import checkpoint_plan
    from torchatlas.diagnosis import doctor
    from torchatlas.execute.compare import compare_runs
    from torchatlas.execute.compatibility import check_compatibility
    from torchatlas.execute.traced import TracedModel, trace
    from torchatlas.execute.verify import verify
    from torchatlas.operations.table import formula, register_operator
    from torchatlas.operations.work import OpCall, Work
    from torchatlas.partition.concurrency import ConcurrencyAnalyzer
    from torchatlas.partition.partitioner import GraphPartitioner
    from torchatlas.partition.stages import pipeline_stages
    from torchatlas.pipeline.run import run_pipeline
    from torchatlas.render.picture import draw
    from torchatlas.render.plots import plot
    from torchatlas.render.table import module_bars, module_table
    from torchatlas.torchviz import make_dot
    from torchatlas.tracker import (
        ComputationalGraphTracker,
        analyze_computational_graph,
        track_computational_graph,
    )

__version__ = "0.1.0"

# What needs torch, or is large, is imported when first used: looking at a saved graph should not wait for it.
_LAZY = {
    "ComputationalGraphTracker": "torchatlas.tracker",
    "ConcurrencyAnalyzer": "torchatlas.partition.concurrency",
    "GraphPartitioner": "torchatlas.partition.partitioner",
    "OpCall": "torchatlas.operations.work",
    "TracedModel": "torchatlas.execute.traced",
    "Work": "torchatlas.operations.work",
    "analyze_computational_graph": "torchatlas.tracker",
    "autograd_graph": "torchatlas.autograd.graph",
    "capture": "torchatlas.capturing",
    "check_compatibility": "torchatlas.execute.compatibility",
    "checkpoint_plan": "torchatlas.checkpointing",
    "compare": "torchatlas.analysis.diff",
    "compare_runs": "torchatlas.execute.compare",
    "cost": "torchatlas.analysis.cost",
    "debug_backward": "torchatlas.autograd.debugger",
    "doctor": "torchatlas.diagnosis",
    "draw": "torchatlas.render.picture",
    "formula": "torchatlas.operations.table",
    "from_fx": "torchatlas.capturing.fx",
    "lifecycle": "torchatlas.autograd.lifecycle",
    "make_dot": "torchatlas.torchviz",
    "memory": "torchatlas.analysis.memory",
    "module_bars": "torchatlas.render.table",
    "module_table": "torchatlas.render.table",
    "peak_for_batch": "torchatlas.analysis.batch_peak",
    "pipeline_stages": "torchatlas.partition.stages",
    "plot": "torchatlas.render.plots",
    "print_graph": "torchatlas.autograd.text",
    "record_backward": "torchatlas.autograd.record",
    "recording": "torchatlas.capturing",
    "recording_backward": "torchatlas.autograd.record",
    "register_operator": "torchatlas.operations.table",
    "run_pipeline": "torchatlas.pipeline.run",
    "trace": "torchatlas.execute.traced",
    "track_computational_graph": "torchatlas.tracker",
    "verify": "torchatlas.execute.verify",
}

__all__ = [
    "AtlasError",
    "ComputationalGraphTracker",
    "ConcurrencyAnalyzer",
    "EdgeKind",
    "Graph",
    "GraphEdge",
    "GraphNode",
    "GraphPartitioner",
    "NodeKind",
    "OpCall",
    "OperationType",
    "Phase",
    "Role",
    "TracedModel",
    "Work",
    "analyze_computational_graph",
    "autograd_graph",
    "capture",
    "check_compatibility",
    "checkpoint_plan",
    "compare",
    "compare_runs",
    "cost",
    "debug_backward",
    "doctor",
    "draw",
    "errors",
    "formula",
    "from_fx",
    "lifecycle",
    "load",
    "make_dot",
    "memory",
    "module_bars",
    "module_table",
    "peak_for_batch",
    "pipeline_stages",
    "plot",
    "print_graph",
    "record_backward",
    "recording",
    "recording_backward",
    "register_operator",
    "run_pipeline",
    "trace",
    "track_computational_graph",
    "verify",
]


def load(path: str | os.PathLike[str], *, model: Any = None, allow: Iterable[str] = ()) -> Any:
    """Read what a file holds: a Graph, or a TracedModel that was saved. Nothing in a file is ever executed.

    `model` and `allow` are for traced models; see `TracedModel.load`. `Graph.load` reads the graph of either.
    """
    graph = Graph.load(path)
    if "program" not in graph.metadata:
        return graph
    from torchatlas.execute.traced import TracedModel

    return TracedModel.of_graph(graph, path, model=model, allow=allow)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
