"""Graph -> whether autograd took part in it, and which of its values only backward needs.

While autograd is on, torch does more than the program says: it copies what an operator in place will overwrite, and it
keeps what backward reads. So a graph costs more bytes when it was recorded with autograd on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from torchatlas.errors import InvalidModelError
from torchatlas.graph import Graph, OperationType, Phase
from torchatlas.graph.columns import PHASES, Array
from torchatlas.operations.formulas import results_for_backward

_LATER = [PHASES.index(phase) for phase in (Phase.BACKWARD, Phase.RECOMPUTE)]


def recorded_with_autograd(graph: Graph) -> bool:
    """Whether some operation was recorded with autograd on and something that requires a gradient.

    Autograd gives a number to every operation that backward will come back to. Graphs of torch.export have none.
    """
    return bool((graph.columns["node_sequence_nr"] >= 0).any())


def autograd_text(with_autograd: bool) -> str:
    """One line for a report: whether its bytes include the copies that autograd makes."""
    if with_autograd:
        return "recorded with autograd: bytes include the copies that it makes for backward"
    return "as inference: bytes are without the copies that autograd makes for backward"


def captured_for_cost(model: Any, inputs: Any, gradients: bool | None) -> Graph:
    """The graph of one run of a model; in eval mode as inference, unless `gradients` asks for autograd."""
    import torch

    from torchatlas.capturing import capture
    from torchatlas.capturing.gradient_mode import running, wants_gradients
    from torchatlas.inputs import as_call

    if not isinstance(model, torch.nn.Module):
        raise InvalidModelError(f"cost takes a Graph, or a torch.nn.Module with inputs=, not {type(model).__name__}.")
    args, kwargs = as_call(model, inputs)
    with running(wants_gradients(model, gradients)):
        return capture(model, *args, kwargs=kwargs)


def only_for_backward(graph: Graph) -> Array:
    """Per value, whether it is a result that only backward needs: its formula says so, and nothing else reads it."""
    columns = graph.columns
    backward_only = np.zeros(len(columns["value_storage"]), bool)
    results = [results_for_backward(operation.name) for operation in graph.tables.operations]
    has_some = np.array([bool(one) for one in results] or [False])[columns["node_operation"]]
    for node in np.flatnonzero(has_some).tolist():
        made = graph.index.outputs(node)
        for position in results[int(columns["node_operation"][node])]:
            if position < len(made) and made[position] >= 0:
                backward_only[made[position]] = True
    if backward_only.any():
        backward_only &= ~_read_now(graph)
    return backward_only


def _read_now(graph: Graph) -> Array:
    """Per value, whether an op outside backward reads it, directly or through a view.

    Making a view does not count as reading: autograd detaches what it saves, and the recording has that op.
    """
    columns = graph.columns
    looks_only = np.array([one.type is OperationType.VIEW for one in graph.tables.operations] or [False])
    now = ~np.isin(columns["node_phase"], _LATER) & ~looks_only[columns["node_operation"]]
    is_read = np.zeros(len(columns["value_storage"]), bool)
    is_read[columns["input_value"][now[graph.index.node_of_input]]] = True
    read, base = is_read.tolist(), columns["value_view_of"].tolist()  # single items of an array take ten times as long
    for value in range(len(base) - 1, -1, -1):  # a view comes after what it looks at
        if base[value] >= 0 and read[value]:
            read[base[value]] = True
    return np.array(read, bool)
