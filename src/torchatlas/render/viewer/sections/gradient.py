"""Graph with recorded gradients -> for each node the norm of the gradients of the parameters that it works on."""

from __future__ import annotations

import math

import numpy as np

from torchatlas.analysis.gradients import gradient_norms
from torchatlas.errors import AnalysisError
from torchatlas.render.color_by import worked_on
from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject


@section("gradient")
def gradient(subject: Subject) -> Members:
    """As the picture coloured by gradient has it. NaN: works on no parameter; infinity: a gradient is not finite."""
    graph = subject.graph
    try:
        norms = gradient_norms(graph)
    except AnalysisError:  # no gradient was made, or none was kept: the page has no such pane
        return {}
    rows = [row for row, name in enumerate(graph.tables.names) if name in norms]
    leaves, names = worked_on(subject.outline, rows)
    squares = np.array([norms.get(name, 0.0) ** 2 for name in graph.tables.names])
    squares[np.isnan(squares)] = math.inf
    pairs = np.unique(np.stack([leaves, names]), axis=1)  # an op may take one parameter twice
    node_norms = np.full(len(graph), np.nan)
    reached = np.unique(pairs[0])
    node_norms[subject.tree.node[reached]] = np.sqrt(np.bincount(pairs[0], squares[pairs[1]])[reached])
    return {"node_gradient.npy": node_norms}
