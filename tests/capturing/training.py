"""Training steps that the tests of residues and lifetimes run, alone and under a recording."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import Specimen, leaves_of, loss_of

import torchatlas as atlas


class Watching(TorchDispatchMode):
    """Notes what runs; raises `error` in place of the op of number `at`."""

    supports_higher_order_operators = True

    def __init__(self, at: int = -1, error: BaseException | None = None) -> None:
        super().__init__()
        self.at, self.error = at, error
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not str(func).startswith("profiler."):
            if self.error is not None and len(self.names) == self.at:
                raise self.error
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def build(specimen: Specimen) -> tuple[Any, Any, Any, Any]:
    model, args, kwargs = specimen.build()
    leaves = [leaf for leaf in leaves_of(model, args, kwargs).values() if leaf.is_leaf] if specimen.trains else []
    return model, args, kwargs, torch.optim.SGD(leaves, lr=0.01, momentum=0.9) if leaves else None


def train(specimen: Specimen, record: Callable[[Any], Any]) -> tuple[Any, ...]:
    model, args, kwargs, optimizer = build(specimen)
    torch.manual_seed(7)
    with record(model if isinstance(model, nn.Module) else None):
        result = model(*args, **kwargs)
        if specimen.trains:
            loss_of(result).backward()
            if optimizer is not None:
                optimizer.step()
    return model, args, kwargs, optimizer


def squared(y: Tensor) -> Tensor:
    return y.pow(2).mean()


def step(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    squared(model(x)).backward()
    optimizer.step()


@contextlib.contextmanager
def decoded(model: Any, **options: Any) -> Iterator[None]:
    with atlas.recording(model, **options) as rec:
        yield
    rec.graph


@contextlib.contextmanager
def nested(model: Any) -> Iterator[None]:
    with decoded(model), decoded(None), decoded(model, track_tensor_ops=False), decoded(None, values="stats"):
        yield
