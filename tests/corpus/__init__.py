"""Models that other people wrote, and one way to watch a training step of each.

A catalogue (`torchvision_models`, `transformers_models`) says how a model is built and what it is fed. `watch` runs
forward and backward three times from the same state: alone, in a dispatch mode that does nothing but write down what
passes, and recorded. `differences` says where the three disagree.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import tensors_in

import torchatlas as atlas
from torchatlas.graph.consistency import faults

Call = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

PERIOD = 65_537  # a prime: no two rows of a weight are the same
LEFT_OUT = ("profiler.", "prim.device.")  # docs/capture.md: what a recording does not show


@dataclass(frozen=True)
class Entry:
    """One model of a catalogue: `build` makes it and its input, `full` the size its authors gave it if that is more."""

    name: str
    build: Callable[[], Call]
    full: Callable[[], Call] | None = None
    trains: bool = True
    world: Callable[[], AbstractContextManager[Any]] = nullcontext  # what must hold while it runs

    def __str__(self) -> str:
        return self.name


class Witness(TorchDispatchMode):
    """Lists the ops that pass, each with the module it ran in: by torch's own hooks, without torchatlas."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.operations: list[str] = []
        self.places: list[str | None] = []  # the path of the innermost running module; None outside the model
        self.forward = 0  # how many of them ran before backward
        self._open: list[str | None] = []
        self._paths = {module: path for path, module in model.named_modules()}
        self._hooks: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not str(func).startswith(LEFT_OUT):
            self.operations.append(str(func))
            self.places.append(self._open[-1] if self._open else None)
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Witness:
        def entered(module: nn.Module, args: Any) -> None:
            self._open.append(self._paths.get(module))

        def left(module: nn.Module, args: Any, output: Any) -> None:
            self._open.pop()

        self._hooks = [
            register_module_forward_pre_hook(entered),
            register_module_forward_hook(left, always_call=True),
        ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()


@dataclass
class Watched:
    """What `watch` found."""

    witness: Witness
    graph: atlas.Graph
    losses: list[float]  # alone, witnessed, recorded
    other_gradients: list[str]  # parameters whose gradient is not the same to the bit
    reached: bool  # whether backward came to a parameter with more than zeros, if there is one


def loss_of(outputs: Any) -> Tensor:
    """Every floating output along a ramp. Its plain sum is constant for what ends in a softmax or a normalisation."""
    found = [out for out in tensors_in(outputs) if out.is_floating_point()]
    terms = [out for out in found if out.requires_grad] or found
    return torch.stack(
        [(out.float() * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum() for out in terms]
    ).sum()


def watch(entry: Entry, full: bool = False) -> Watched:
    with entry.world():
        seed()
        with quick_numbers():
            model, args, kwargs = (entry.full if full and entry.full is not None else entry.build)()
        wake(model)
        buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]

        def step(forward_done: Callable[[], None] = lambda: None) -> float:
            for buffer, contents in buffers:
                buffer.copy_(contents)
            seed()
            with watched_by, torch.set_grad_enabled(entry.trains):
                loss = loss_of(model(*args, **kwargs))
                forward_done()
                if entry.trains:
                    loss.backward()
            return loss.item()

        watched_by: Any = nullcontext()
        losses = [step()]
        expected = taken_gradients(model)
        watched_by = witness = Witness(model)
        losses.append(step(lambda: setattr(witness, "forward", len(witness.operations))))
        model.zero_grad(set_to_none=True)
        watched_by = recording = atlas.recording(model)
        losses.append(step())
        found = taken_gradients(model)
        other = [name for name, gradient in expected.items() if not same_bits(gradient, found[name])]
        reached = any(bool(gradient.any()) for gradient in expected.values() if gradient is not None)
        return Watched(witness, recording.graph, losses, other, reached or not entry.trains)


def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # what the models themselves draw from


@torch.no_grad()
def wake(model: nn.Module) -> None:
    """Give values to parameters that start as zeros: a head of zeros sends back gradients of zeros."""
    for parameter in model.parameters():
        if parameter.is_floating_point() and not parameter.view(-1)[:PERIOD].any():
            parameter.normal_(std=0.02)


@contextmanager
def quick_numbers() -> Iterator[None]:
    """Let random numbers repeat after PERIOD of them: drawing a large model's weights takes longer than running it."""

    def repeating(fill: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def filled(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if tensor.numel() <= PERIOD or not tensor.is_contiguous():
                return fill(tensor, *args, **kwargs)
            with torch.no_grad():
                flat, rows = tensor.view(-1), tensor.numel() // PERIOD
                first = fill(flat[:PERIOD], *args, **kwargs)
                flat[PERIOD : rows * PERIOD].view(rows - 1, PERIOD).copy_(first)
                flat[rows * PERIOD :].copy_(first[: tensor.numel() - rows * PERIOD])
            return tensor

        return filled

    names = ("normal_", "uniform_")
    with patch.multiple(torch.Tensor, **{name: repeating(getattr(torch.Tensor, name)) for name in names}):
        yield


def taken_gradients(model: nn.Module) -> dict[str, Tensor | None]:
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return found


def same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.itemsize]
    return one.dtype == other.dtype and torch.equal(one.contiguous().view(whole), other.contiguous().view(whole))


def differences(watched: Watched) -> list[str]:
    """In words, where the recording is not what ran; empty when it is."""
    witness, graph = watched.witness, watched.graph
    ops = graph.where(kind="op")
    found = list(first_difference("operation", witness.operations, [node.operation for node in ops]))
    if found:
        return found
    phases = ["forward"] * witness.forward + ["backward"] * (len(ops) - witness.forward)
    found += first_difference("phase", phases, [node.phase for node in ops])
    inside = [number for number, place in enumerate(witness.places[: witness.forward]) if place is not None]
    found += first_difference(
        "module", [witness.places[number] for number in inside], [ops[number].scope.path for number in inside]
    )
    for node in ops[witness.forward :]:
        forward = node.forward_node
        if forward is not None and (node.scope, node.call_index) != (forward.scope, forward.call_index):
            found.append(f"{node.name} is in {node.scope.path!r}, its forward node in {forward.scope.path!r}")
    alone, witnessed, recorded = (np.float64(loss).tobytes() for loss in watched.losses)
    if not alone == witnessed == recorded:
        found.append(f"losses alone, witnessed and recorded: {watched.losses}")
    if watched.other_gradients:
        found.append(f"other gradients: {watched.other_gradients}")
    if not watched.reached:
        found.append("no gradient but zero: nothing was compared")
    broken = faults(graph.columns, graph.tables)
    if broken is not None:
        found.append(f"the graph is not sound: {broken}")
    return found


def first_difference(what: str, ran: list[Any], recorded: list[Any]) -> Iterator[str]:
    for number, (one, other) in enumerate(zip(ran, recorded, strict=False)):
        if one != other:
            yield f"{what} {number}: {one!r} ran, {other!r} was recorded"
            return
    if len(ran) != len(recorded):
        yield f"{what}: {len(ran)} ran, {len(recorded)} were recorded"
