"""What one process makes of the same microbatches, and how far a pipeline is from that."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchatlas.inputs import default_loss
from torchatlas.interrupts import bracketed
from torchatlas.torch_private import pytree

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Difference:
    """How far something is from what one process makes of it; all are equal to the bit when `largest` is 0."""

    what: str
    compared: int  # tensors
    differ: list[str]
    largest: float
    only_rounded: bool = True  # what differs does so in its last digits

    @property
    def equal(self) -> bool:
        return not self.differ

    def __str__(self) -> str:
        if self.equal:
            return f"{self.what}: {self.compared:,} equal to the bit"
        return f"{self.what}: {len(self.differ):,} of {self.compared:,} differ, by {self.largest:.2g} at most"


def alone(
    model: nn.Module, parts: list[Any], targets: list[Any], loss: Any, threads: int, warm_up: int
) -> dict[str, Any]:
    """What one process makes of the same microbatches, with as many threads as each rank has."""
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
        "outputs": [
            torch.cat(list(same)) if same[0].dim() else torch.stack(list(same)) for same in zip(*outputs, strict=True)
        ],
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


def compared(made: list[dict[str, Any]], one: dict[str, Any]) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
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
        "outputs": (
            {str(n): t for n, t in enumerate(last["outputs"])},
            {str(n): t for n, t in enumerate(one["outputs"])},
        ),
        "losses": (
            {str(n): t for n, t in enumerate(last["losses"])},
            {str(n): t for n, t in enumerate(one["losses"])},
        ),
        "gradients": (gradients, expected),
        "buffers": ({name: buffers[name] for name in known}, known),
    }
    return tuple(_difference(what, *pair) for what, pair in pairs.items()), tuple(dict.fromkeys(shared))


def _numbered(tensors: Iterable[torch.Tensor]) -> Tensors:
    return {str(number): tensor for number, tensor in enumerate(tensors)}


def _difference(what: str, found: Tensors, expected: Tensors) -> Difference:
    differ, largest = list(expected.keys() ^ found.keys()), 0.0
    only_rounded = not differ
    for name in expected.keys() & found.keys():
        one, other = found[name].detach().cpu(), expected[name].detach().cpu()
        if one.shape != other.shape:
            differ.append(name)
            only_rounded = False
        elif not torch.equal(one, other):
            differ.append(name)
            largest = max(largest, float((one.double() - other.double()).abs().max()))
            only_rounded &= torch.allclose(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))
    return Difference(what, len(expected.keys() | found.keys()), sorted(differ), largest, only_rounded)
