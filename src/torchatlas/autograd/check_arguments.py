"""Check and convert the arguments of functions that record, debug or show a backward pass, before anything runs."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge

from torchatlas.autograd.graph_walk import starting_nodes
from torchatlas.capturing.recording import Recording
from torchatlas.errors import InputMismatchError, InvalidInputError, StateError
from torchatlas.graph import Graph
from torchatlas.inputs import described

Params = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]] | nn.Module | None


def check_backward(outputs: Any, gradients: Any, called: str) -> tuple[Any, list[Any]]:
    """The outputs as backward takes them, and the nodes that it begins with, each once.

    Refuses before anything runs what torch would not explain; torch itself refuses the rest.
    """
    outputs = [outputs] if isinstance(outputs, GradientEdge) else outputs  # which is a tuple itself, but one output
    if isinstance(gradients, nn.Module):
        raise InvalidInputError(
            f"the second argument is the gradient to begin with, not {type(gradients).__name__}: the model is named, "
            f"{called}(loss, model=model)."
        )
    roots = starting_nodes(outputs, called)
    for output in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
        if gradients is None and isinstance(output, torch.Tensor) and output.requires_grad and output.numel() != 1:
            raise InputMismatchError(
                f"{called}: backward begins at one number, and this tensor is {described(output)}: "
                f"pass {called}(out.sum()), or the gradient to begin with, {called}(out, torch.ones_like(out))."
            )
    return outputs, roots


def check_model(model: Any) -> Any:
    """Refuse a tensor in the place of the model."""
    if isinstance(model, torch.Tensor):
        raise InvalidInputError(
            "recording_backward takes the model, not a tensor, and records what runs in its block: with "
            "atlas.recording_backward(model) as rec: loss.backward(). To run backward as well: record_backward(loss)."
        )
    return model


def names_by_id(params: Params, model: nn.Module | None) -> dict[int, str]:
    """The names of tensors, by id. A model may stand in the place of parameters, as in torchviz's make_dot."""
    if isinstance(params, nn.Module):
        params, model = None, params
    if model is not None and not isinstance(model, nn.Module):
        raise InvalidInputError(
            f"`model` is a torch.nn.Module, whose parameters have names, not {type(model).__name__}."
        )
    named = [*model.named_parameters(), *model.named_buffers()] if model is not None else []
    return {id(tensor): name for name, tensor in [*check_params(params).items(), *named]}


def check_params(params: Mapping[str, torch.Tensor] | Iterable[Any] | None) -> dict[str, torch.Tensor]:
    """Names and tensors: a dict, or pairs such as those of `named_parameters()`."""
    if params is None:
        return {}
    pairs = list(params.items() if isinstance(params, Mapping) else params) if isinstance(params, Iterable) else None
    if pairs is None or not all(isinstance(p, tuple) and len(p) == 2 and isinstance(p[1], torch.Tensor) for p in pairs):
        raise InvalidInputError(
            f"`params` are names and tensors, a dict or model.named_parameters(); this {type(params).__name__} holds "
            "something else. A model may be passed in their place."
        )
    return dict(pairs)


def forward_graph(forward: Any) -> Graph | None:
    """The graph of a recording of the forward pass, or of one that is over."""
    if isinstance(forward, Recording):
        if forward.running:
            raise StateError(
                "the recording of the forward pass is still running: leave its block first, then pass its .graph."
            )
        return forward.graph
    if forward is not None and not isinstance(forward, Graph):
        raise InvalidInputError(
            f"`forward` is the graph of a recording, not {type(forward).__name__}: with atlas.recording(model) as "
            "rec: loss = ...; then forward=rec.graph."
        )
    return forward


def whole_number(number: Any, what: str) -> int:
    """Refuse counts that are not whole: 1.5 would never be counted down to zero."""
    try:
        return operator.index(number)
    except TypeError:
        raise InvalidInputError(f"{what} is a whole number, not {number!r}.") from None


def counted(count: int, noun: str) -> str:
    """A number of things in words.

    >>> counted(1, "node"), counted(1_000, "node")
    ('1 node', '1,000 nodes')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
