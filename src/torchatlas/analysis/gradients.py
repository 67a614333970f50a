"""Graph with recorded values -> the norm of each parameter's gradient."""

from __future__ import annotations

import math

import numpy as np

from torchatlas.argument_errors import explains_arguments
from torchatlas.errors import AnalysisError
from torchatlas.graph import Graph, Phase, Role
from torchatlas.graph.columns import PHASES, ROLES, Array
from torchatlas.graph.graph_like import GraphLike, as_graph


@explains_arguments
def gradient_norms(graph: GraphLike) -> dict[str, float]:
    """The L2 norm of each parameter's gradient as backward left it, in the order in which the run uses the parameters.

    NaN stands for a gradient that is not finite. Gradients that were not kept, such as sparse ones, are left out.

    Args:
        graph: A graph captured with `backward=True` and `values="stats"` or "all"; or a file, recording or traced model
            that holds one.
    Returns:
        The norms, by name of parameter.
    Raises:
        AnalysisError: The graph has no gradients, or their values were not kept.
    Example:
        >>> import torch, torchatlas as atlas
        >>> graph = atlas.capture(torch.nn.Linear(4, 2, bias=False), torch.ones(1, 4), backward=True, values="stats")
        >>> {name: round(norm, 2) for name, norm in atlas.gradient_norms(graph).items()}
        {'weight': 2.83}
    """
    graph = as_graph(graph, "gradient_norms")
    gradients, shapes = gradient_values(graph), parameter_shapes(graph)
    if not gradients:
        raise AnalysisError("No gradient of a parameter was made in this graph. Capture it with backward=True.")
    producer, output = graph.columns["value_producer"], graph.columns["value_output_index"]
    statistics = all(array.shape == (5,) and array.dtype == np.float64 for array in graph.recorded.values())
    norms: dict[str, float] = {}
    for name, shape in shapes.items():
        elements = math.prod(size for size in shape if isinstance(size, int))
        for value in gradients.get(name, []):  # a later state of the gradient takes the place of an earlier one
            recorded = graph.recorded.get(f"{producer[value]}:{output[value]}")
            of_all = math.prod(size for size in graph.values[value].shape if isinstance(size, int)) == elements
            if recorded is not None and of_all:  # and not of a slice of it, while it was being put together
                norms[name] = _length(recorded, elements, statistics)
    if not norms and graph.recorded:
        raise AnalysisError(
            "None of the gradients of this graph is of a kind whose numbers are kept: sparse and nested ones are not. "
            "Use dense gradients, such as nn.Embedding(..., sparse=False)."
        )
    if not norms:
        raise AnalysisError(
            "What backward made was not kept in this graph, so its gradients have no norms. "
            'Capture it again with values="stats": atlas.capture(model, *args, backward=True, values="stats"). '
            "Of files only .atlas keeps values, not .json."
        )
    return norms


def gradient_values(graph: Graph) -> dict[str, list[int]]:
    """The states of each parameter's gradient that backward made, as value ids in order."""
    columns, states = graph.columns, dict[str, list[int]]()
    made = (columns["value_role"] == ROLES.index(Role.GRADIENT)) & (columns["value_parameter"] >= 0)
    made &= columns["value_producer"] >= 0
    made[made] = columns["node_phase"][columns["value_producer"][made]] == PHASES.index(Phase.BACKWARD)
    for value in np.flatnonzero(made).tolist():
        states.setdefault(graph.tables.names[int(columns["value_parameter"][value])], []).append(value)
    return states


def parameter_shapes(graph: Graph) -> dict[str, tuple[int | str, ...]]:
    """The shape of each parameter, in the order in which the run first takes them."""
    columns = graph.columns
    first = np.full(len(graph.values) + 1, len(graph), np.int64)
    np.minimum.at(first, columns["input_value"], graph.index.node_of_input)
    is_parameter = (columns["value_role"] == ROLES.index(Role.PARAMETER)) & (columns["value_producer"] < 0)
    rows = np.flatnonzero(is_parameter & (columns["value_parameter"] >= 0))
    shapes: dict[str, tuple[int | str, ...]] = {}
    for row in rows[np.argsort(first[rows], kind="stable")].tolist():
        shapes.setdefault(graph.tables.names[int(columns["value_parameter"][row])], graph.values[row].shape)
    return shapes


def _length(recorded: Array, elements: int, statistics: bool) -> float:
    """The L2 norm, from the tensor itself or from its statistics (minimum, maximum, mean, deviation, missing)."""
    if statistics:
        _, _, mean, deviation, missing = recorded.tolist()
        return math.nan if missing else math.sqrt(elements * (mean * mean + deviation * deviation))
    norm = float(np.linalg.norm(recorded.astype(np.complex128 if recorded.dtype.kind == "c" else np.float64).ravel()))
    return norm if norm < math.inf else math.nan
