"""What a random program has made so far, and the registry of the rules that choose its next statement."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch


class Scene:
    """What a program has made so far, and the random choices of the next statement."""

    def __init__(self, names: dict[str, Any], chance: random.Random, fresh: int) -> None:
        self.names, self.chance, self._fresh = names, chance, fresh

    def new(self) -> str:
        """A name that stands for nothing yet, or now and then one that stands for a tensor."""
        self._fresh += 1
        return f"t{self._fresh}"

    def all(self, kind: type, where: Callable[[Any], bool] = lambda item: True) -> list[str]:
        return [name for name, item in self.names.items() if isinstance(item, kind) and _holds(where, item)]

    def one(self, kind: type, where: Callable[[Any], bool] = lambda item: True) -> str | None:
        """Mostly one of the last: so that programs get long chains."""
        found = self.all(kind, where)
        if not found:
            return None
        return self.chance.choice(found[-4:] if self.chance.random() < 0.6 else found)

    def tensor(self, where: Callable[[torch.Tensor], bool] = lambda item: True) -> str | None:
        return self.one(torch.Tensor, where)

    def __getitem__(self, name: str) -> Any:
        return self.names[name]

    def pick(self, *items: str) -> str:
        return self.chance.choice(items)

    def shape(self, least: int = 0, most: int = 3) -> str:
        sizes = [self.chance.randint(1, 4) for _ in range(self.chance.randint(least, most))]
        return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"

    def number(self) -> str:
        return (
            self.pick("0.5", "2", "-1.5", "3", "0.0", "float('inf')", "-float('nan')")
            if (self.chance.random() < 0.3)
            else f"{self.chance.uniform(-2, 2):.2f}"
        )


def _holds(where: Callable[[Any], bool], item: Any) -> bool:
    try:
        return where(item)
    except RuntimeError:  # a view that torch has made unusable, as another view of its base was written
        return False


Rule = Callable[[Scene], str | None]
RULES: list[Rule] = []
WEIGHTS: list[float] = []
TRAINING: list[float] = []  # weights for a program that trains a module
BEFORE: list[Rule] = []  # also before the recording begins


def rule(weight: float, before: bool = False, trains: bool = False) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        assert function.__name__ not in [known.__name__ for known in RULES]  # the same rules, so the same programs
        RULES.append(function)
        WEIGHTS.append(weight)
        TRAINING.append(weight * (5 if trains else 1))
        if before:
            BEFORE.append(function)
        return function

    return add


def is_real(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.float32, torch.float64)


def is_written_freely(tensor: torch.Tensor) -> bool:
    """Whether an in-place op may write a tensor with gradients on: no leaf, no view of one, no expanded memory."""
    base = tensor if tensor._base is None else tensor._base
    own = all(step or size < 2 for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return own and not tensor.is_inference() and not (base.is_leaf and base.requires_grad)


def takes(tensor: torch.Tensor, width: int) -> bool:
    return tensor.dtype is torch.float32 and tensor.dim() == 2 and tensor.shape[1] == width
