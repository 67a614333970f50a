"""Run the microbatches in one process, and compare its results with those of the pipeline."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchatlas.analysis.reports import Report, fields_as_json
from torchatlas.inputs import default_loss
from torchatlas.interrupts import bracketed
from torchatlas.torch_private import pytree

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class PipelineDifference(Report):
    """How far tensors of one kind are from those of one process."""

    what: str
    compared: int  # tensors
    differ: list[str]
    largest: float
    only_rounded: bool = True  # what differs does so in its last digits

    @property
    def equal(self) -> bool:
        return not self.differ

    def to_dict(self) -> dict[str, Any]:
        return {**fields_as_json(self), "equal": self.equal}

    def __str__(self) -> str:
        if self.equal:
            return f"{self.what}: {self.compared:,} equal to the bit"
        return f"{self.what}: {len(self.differ):,} of {self.compared:,} differ, by {self.largest:.2g} at most"


def alone(
    model: nn.Module, parts: list[Any], targets: list[Any], loss: Any, threads: int, warm_up: int
) -> dict[str, Any]:
    """Train in one process on the same microbatches, with as many threads as each rank has."""
    model = copy.deepcopy(model)
    with _threads(threads):
        for _ in range(warm_up + 1):
            model.zero_grad()
            outputs, losses = [], []
            for (args, kwargs), target in zip(parts, targets, strict=True):
                output = model(*args, **kwargs)
                value = default_loss(output) if loss is None else loss(output, target)
                value.backward()
                outputs.append([part.detach() for part in pytree.tree_leaves(output) if isinstance(part, torch.Tensor)])
                losses.append(value.detach())
    named = dict(model.named_parameters(remove_duplicate=False))
    return {
        "outputs": [_joined(same) for same in zip(*outputs, strict=True)],
        "losses": losses,
        "gradients": {name: p.grad / len(parts) for name, p in named.items() if p.grad is not None},
        "buffers": dict(model.named_buffers()),
        "same": _same(named),
    }


@bracketed
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _joined(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat(parts) if parts[0].dim() else torch.stack(parts)


def _same(named: dict[str, nn.Parameter]) -> dict[str, str]:
    """One name for each parameter that has several."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(parameter), name) for name, parameter in named.items()}


def compared(made: list[dict[str, Any]], one: dict[str, Any]) -> tuple[tuple[PipelineDifference, ...], tuple[str, ...]]:
    """What the ranks made against what one process did: the differences, and the parameters that stages share."""
    last = next(each for each in made if "outputs" in each)
    gradients: Tensors = {}
    shared: list[str] = []
    for each in made:
        for stage in sorted(each["gradients"]):
            for name, gradient in each["gradients"][stage].items():
                name = one["same"].get(name, name)
                if name in gradients:
                    shared.append(name)
                gradients[name] = gradients[name] + gradient if name in gradients else gradient
    buffers = {name: b for each in made for stage in each["buffers"].values() for name, b in stage.items()}
    expected = {one["same"].get(name, name): gradient for name, gradient in one["gradients"].items()}
    known = {name: buffer for name, buffer in one["buffers"].items() if name in buffers}
    pairs = {
        "outputs": (_numbered(last["outputs"]), _numbered(one["outputs"])),
        "losses": (_numbered(last["losses"]), _numbered(one["losses"])),
        "gradients": (gradients, expected),
        "buffers": ({name: buffers[name] for name in known}, known),
    }
    return tuple(_difference(what, *pair) for what, pair in pairs.items()), tuple(dict.fromkeys(shared))


def _numbered(tensors: Iterable[torch.Tensor]) -> Tensors:
    return {str(number): tensor for number, tensor in enumerate(tensors)}


def _difference(what: str, made: Tensors, expected: Tensors) -> PipelineDifference:
    differ, largest = list(expected.keys() ^ made.keys()), 0.0
    only_rounded = not differ
    for name in expected.keys() & made.keys():
        one, other = made[name].detach().cpu(), expected[name].detach().cpu()
        if one.shape != other.shape:
            differ.append(name)
            only_rounded = False
        elif not torch.equal(one, other):
            differ.append(name)
            largest = max(largest, float((one.double() - other.double()).abs().max()))
            only_rounded &= torch.allclose(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))
    return PipelineDifference(what, len(expected.keys() | made.keys()), sorted(differ), largest, only_rounded)
