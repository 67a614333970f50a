"""Graph -> how many parameters each module has."""

from __future__ import annotations

import numpy as np

from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject


@section("parameters")
def parameters(subject: Subject) -> Members:
    """Elements of the parameters of a module and those in it, tied ones once; per row of the table of modules."""
    graph = subject.graph
    counts = [graph.scopes[module.path].parameters for module in graph.tables.modules]
    return {"module_parameters.npy": np.array(counts, np.int64)}
