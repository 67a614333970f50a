"""backward and grad of torch.autograd, run by the engine in Python."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torchatlas.autograd.engine.buffer import Gradient
from torchatlas.autograd.engine.task import GraphTask, Tensors, several
from torchatlas.errors import AnalysisError


def backward(
    tensors: Tensors,
    grad_tensors: torch.Tensor | Iterable[Gradient] | None = None,
    inputs: Tensors | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> GraphTask:
    """Add the gradients of `tensors` to the .grad of the leaves, as torch.autograd.backward does; the task that did."""
    task = GraphTask(tensors, grad_tensors, inputs, retain_graph=retain_graph, create_graph=create_graph)
    task.run()
    return task


def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: torch.Tensor | Iterable[Gradient] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    *,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Gradient, ...]:
    """The gradients of `outputs` for `inputs`, as torch.autograd.grad returns them. No .grad is touched."""
    asked = several(inputs, "inputs")
    task = GraphTask(
        outputs, grad_outputs, asked, retain_graph=retain_graph, create_graph=create_graph, accumulate_grad=False
    )
    task.run()
    found = list(task.captured)
    for place, gradient in enumerate(found):
        if gradient is not None:
            continue
        tensor = asked[place]
        if materialize_grads and isinstance(tensor, torch.Tensor):
            found[place] = torch.zeros_like(tensor, requires_grad=create_graph)
        elif not (allow_unused or materialize_grads):
            raise AnalysisError(
                f"Input {place} is not used in the graph of the outputs, or no gradient reaches it. Leave it out, or "
                "pass allow_unused=True to get None for it."
            )
    return tuple(found)
