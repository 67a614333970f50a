"""torchatlas: any PyTorch computation as one graph you can see, question, execute, step through, cut up and share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchatlas import errors, export, render  # noqa: F401  # the last two add formats and views to the graph
from torchatlas.errors import AtlasError
from torchatlas.graph import EdgeKind, Graph, GraphEdge, GraphNode, NodeKind, OperationType, Phase, Role
from torchatlas.lazy import lazy_names

__version__ = "0.2.0"

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
    "gradient_norms",
    "join_profile",
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
    "save_ranks",
    "trace",
    "track_computational_graph",
    "verify",
    "view",
    "watch",
]

if TYPE_CHECKING:
    from torch import nn

    from torchatlas.analysis.batch_peak import peak_for_batch
    from torchatlas.analysis.cost import cost
    from torchatlas.analysis.diff import compare
    from torchatlas.analysis.gradients import gradient_norms
    from torchatlas.analysis.memory import memory
    from torchatlas.autograd.autograd_graph import autograd_graph
    from torchatlas.autograd.debugger import debug_backward
    from torchatlas.autograd.lifecycle import lifecycle
    from torchatlas.autograd.print_graph import print_graph
    from torchatlas.autograd.record_backward import record_backward, recording_backward
    from torchatlas.capturing import capture
    from torchatlas.capturing.fx import from_fx
    from torchatlas.checkpoint_plans import checkpoint_plan
    from torchatlas.compat import (
        ComputationalGraphTracker,
        analyze_computational_graph,
        make_dot,
        track_computational_graph,
    )
    from torchatlas.diagnosis import doctor
    from torchatlas.execute.check_compatibility import check_compatibility
    from torchatlas.execute.compare_runs import compare_runs
    from torchatlas.execute.traced import TracedModel, trace
    from torchatlas.execute.verify_replay import verify
    from torchatlas.export.profile_join import join_profile
    from torchatlas.export.ranks import save_ranks
    from torchatlas.integrations.watch import watch
    from torchatlas.operations.operator_table import formula, register_operator
    from torchatlas.operations.work import OpCall, Work
    from torchatlas.partition.concurrency import ConcurrencyAnalyzer
    from torchatlas.partition.partitioner import GraphPartitioner
    from torchatlas.partition.stages import pipeline_stages
    from torchatlas.pipeline.pipeline_run import run_pipeline
    from torchatlas.render.module_table import module_bars, module_table
    from torchatlas.render.picture import draw
    from torchatlas.render.plots import plot
    from torchatlas.render.viewer.browser import view
    from torchatlas.runs.recording import recording
    from torchatlas.runs.run import Run
else:
    # Whatever needs torch, or is large: looking at a saved graph should not wait for it.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "analysis.batch_peak": "peak_for_batch",
            "analysis.cost": "cost",
            "analysis.diff": "compare",
            "analysis.gradients": "gradient_norms",
            "analysis.memory": "memory",
            "autograd.debugger": "debug_backward",
            "autograd.autograd_graph": "autograd_graph",
            "autograd.lifecycle": "lifecycle",
            "autograd.record_backward": "record_backward recording_backward",
            "autograd.print_graph": "print_graph",
            "capturing": "capture",
            "capturing.fx": "from_fx",
            "checkpoint_plans": "checkpoint_plan",
            "compat": "ComputationalGraphTracker analyze_computational_graph make_dot track_computational_graph",
            "diagnosis": "doctor",
            "execute.compare_runs": "compare_runs",
            "execute.check_compatibility": "check_compatibility",
            "execute.traced": "TracedModel trace",
            "execute.verify_replay": "verify",
            "export.profile_join": "join_profile",
            "export.ranks": "save_ranks",
            "integrations.watch": "watch",
            "operations.operator_table": "formula register_operator",
            "operations.work": "OpCall Work",
            "partition.concurrency": "ConcurrencyAnalyzer",
            "partition.partitioner": "GraphPartitioner",
            "partition.stages": "pipeline_stages",
            "pipeline.pipeline_run": "run_pipeline",
            "render.picture": "draw",
            "render.plots": "plot",
            "render.module_table": "module_bars module_table",
            "render.viewer.browser": "view",
            "runs.recording": "recording",
        },
    )


def load(
    path: str | os.PathLike[str], *, model: nn.Module | None = None, allow: Iterable[str] = ()
) -> Graph | TracedModel | Run:
    """Read what a file holds: a graph, or a traced model that was saved; of a folder, the run that was recorded there.

    Nothing in a file is ever executed.

    `Graph.load` reads the graph of either.

    Args:
        path: A file that `Graph.save` or `TracedModel.save` wrote: .atlas, .json, or a page of the viewer (.html); or
            the folder of a recorded run.
        model: The model whose weights a traced model takes, if it was saved without them.
        allow: Operators that a traced model may run although nobody reviewed them: names ("my_ops.scale.default") or
            namespaces ("my_ops"). For files that you trust; see SECURITY.md.
    Returns:
        A Graph, a TracedModel if the file holds one, or the Run of a folder.
    Raises:
        FileSystemError: The file cannot be read.
        FileFormatError: The file is damaged, or not of the format that its suffix says.
        NewerVersionError: A newer torchatlas wrote it.
    Example:
        >>> import tempfile, torch, torchatlas as atlas
        >>> graph = atlas.capture(torch.nn.Linear(4, 2), torch.ones(1, 4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = atlas.load(graph.save(f"{folder}/linear.atlas"))
        >>> again.identical(graph)
        True
    """
    if isinstance(path, (str, os.PathLike)) and os.path.isfile(os.path.join(path, "run.jsonl")):
        from torchatlas.runs.run import Run

        return Run.load(path)
    graph = Graph.load(path)
    if "program" not in graph.metadata:
        return graph
    from torchatlas.execute.traced import TracedModel

    return TracedModel.of_graph(graph, path, model=model, allow=allow)
