"""Graph -> which nodes lie on its critical path, and by what it was weighed."""

from __future__ import annotations

import numpy as np

from torchatlas.analysis.critical_path import critical_path
from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject


@section("critical")
def critical(subject: Subject) -> Members:
    """The path by time where it was measured, else by arithmetic, as in the still picture; else by number of nodes."""
    graph, arithmetic = subject.graph, subject.arithmetic
    if not len(graph):
        return {}
    by = "time" if (graph.columns["node_time_ns"] >= 0).any() else "flops"
    by = by if by == "time" or arithmetic is not None else "count"
    path = critical_path(graph, by if by != "flops" or arithmetic is None else np.maximum(arithmetic, 0))
    marked = np.zeros(len(graph), np.uint8)
    marked[path.ids] = 1
    missing = by == "flops" and arithmetic is not None and bool((arithmetic < 0).any())
    about = {"by": by, "length": path.length, "work": path.work, "at_least": path.at_least or missing}
    return {"node_critical.npy": marked, "critical.json": about}
