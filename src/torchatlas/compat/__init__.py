"""What serves people who come from other packages; docs/coming-from.md lists every name.

    pytorch_graph/  pytorch-graph's OperationType, its tracker, and its functions that track or analyze one run
    torchviz.py     torchviz' make_dot

Other names of members stand beside the classes that have them, since these must not import from here:
graph/foreign_names.py (torch.fx and pytorch-graph) and partition/branes_names.py (branes-ai/graphs).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchatlas.lazy import lazy_names

__all__ = [
    "ComputationalGraphTracker",
    "Dot",
    "analyze_computational_graph",
    "make_dot",
    "track_computational_graph",
]

if TYPE_CHECKING:
    from torchatlas.compat.pytorch_graph.functions import analyze_computational_graph, track_computational_graph
    from torchatlas.compat.pytorch_graph.tracker import ComputationalGraphTracker
    from torchatlas.compat.torchviz import Dot, make_dot
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "compat.torchviz": "Dot make_dot",
            "compat.pytorch_graph.tracker": "ComputationalGraphTracker",
            "compat.pytorch_graph.functions": "analyze_computational_graph track_computational_graph",
        },
    )
