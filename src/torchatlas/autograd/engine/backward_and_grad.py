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
    """Add the gradients of tensors to the .grad of the leaves, as torch.autograd.backward does.

    Args:
        tensors: The tensors to begin at.
        grad_tensors: The gradient of each; None for those that are single numbers.
        inputs: The leaves whose .grad is filled; None fills all.
        retain_graph: Keep what nodes saved; None does so with `create_graph`.
        create_graph: Make a graph of the gradients themselves.
    Returns:
        The task that did it, with `order` and `timeline`.
    Example:
        >>> import torch
        >>> from torchatlas.autograd import engine
        >>> x = torch.ones(3, requires_grad=True)
        >>> [node.name() for node in engine.backward((x * 2).sum()).order], x.grad
        (['SumBackward0', 'MulBackward0', 'torch::autograd::AccumulateGrad'], tensor([2., 2., 2.]))
    """
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
    """The gradients of outputs for inputs, as torch.autograd.grad returns them. No .grad is touched.

    Args:
        outputs: The tensors to begin at.
        inputs: The tensors whose gradients are wanted.
        grad_outputs: The gradient of each output; None for those that are single numbers.
        retain_graph: Keep what nodes saved; None does so with `create_graph`.
        create_graph: Make a graph of the gradients themselves.
        allow_unused: Give None for an input that no gradient reaches.
        materialize_grads: Give zeros for it.
    Returns:
        One gradient for each input.
    Raises:
        AnalysisError: No gradient reaches an input, and neither of the last two allows it.
    Example:
        >>> import torch
        >>> from torchatlas.autograd import engine
        >>> x = torch.ones(3, requires_grad=True)
        >>> engine.grad((x * x).sum(), x)
        (tensor([2., 2., 2.]),)
    """
    asked = several(inputs, "inputs")
    task = GraphTask(
        outputs, grad_outputs, asked, retain_graph=retain_graph, create_graph=create_graph, accumulate_grad=False
    )
    task.run()
    gradients = list(task.captured)
    for index, gradient in enumerate(gradients):
        if gradient is not None:
            continue
        tensor = asked[index]
        if materialize_grads and isinstance(tensor, torch.Tensor):
            gradients[index] = torch.zeros_like(tensor, requires_grad=create_graph)
        elif not (allow_unused or materialize_grads):
            raise AnalysisError(
                f"Input {index} is not used in the graph of the outputs, or no gradient reaches it. Leave it out, or "
                "pass allow_unused=True to get None for it."
            )
    return tuple(gradients)
