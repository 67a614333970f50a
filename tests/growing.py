"""Programs of any size, each of another shape: what tests and benchmarks of growth record."""

import random

import torch
from torch import nn


def chain(size: int) -> None:
    """A deep MLP."""
    x, weight = torch.ones(2, 4), torch.ones(4, 4)
    for _ in range(size // 2):
        x = torch.relu(x @ weight)


def branches(size: int) -> None:
    x, ends = torch.ones(4), []
    for _ in range(size // 10):
        y = x
        for _ in range(3):
            y = y.cumsum(0).sin().cos()
        ends.append(y)
    torch.stack(ends)


def residual(size: int) -> None:
    x, weight = torch.ones(2, 4), torch.ones(4, 4)
    for _ in range(size // 4):
        x = x + torch.relu(x @ weight).sin()


def dense(size: int) -> None:
    """Each step reads the eight before it."""
    values = [torch.ones(4)]
    for _ in range(size // 3):
        values = [*values[-7:], torch.cat(values).sum(0, keepdim=True) + values[-1]]


def wired(size: int) -> None:
    """Each op reads one of the last 50 values and one of all."""
    chance, values = random.Random(0), [torch.ones(4)]
    for step in range(size):
        one, other = chance.choice(values), chance.choice(values[-50:])
        values.append(one + other if step % 3 else one.cumsum(0))


def writes(size: int) -> None:
    """Four reads, then two writes of the same memory: mostly order edges."""
    x = torch.ones(4)
    for _ in range(size // 7):
        for _ in range(4):
            x.sin()
        x.add_(1.0)
        x[1:].mul_(2.0)


def readers(size: int) -> None:
    x = torch.ones(4).exp()
    for _ in range(size):
        x.sin()


def independent(size: int) -> None:
    x = torch.ones(4)
    for _ in range(size):
        x.sin()


def two_sizes(size: int) -> None:
    """Two long loops over different numbers of elements that cannot be one kernel, though one reads the other."""
    large, small = torch.ones(8, 4), torch.ones(8, 1)
    for _ in range(size // 2):
        small = small.sin()
        large = large + small


def views(size: int) -> None:
    x = torch.ones(4).exp()
    for _ in range(size // 2):
        x = x.view(4)
    for _ in range(size // 2):
        x.view(2, 2)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.act, self.narrow = nn.Linear(4, width), nn.GELU(), nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(self.act(self.wide(x)))


PROGRAMS = (chain, branches, residual, dense, wired, writes, readers, independent, two_sizes, views)
