"""Graphs of every source and of every trouble, for files that other tools read: name -> a function that makes one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from hostile import NO_UNICODE, hostile_graph
from synthetic import random_graph
from torch import nn

import torchatlas as atlas
from torchatlas.capturing.fx import from_fx
from torchatlas.graph import Graph


class Odd(nn.Module):
    """Slashes, quotes and markup in the names of modules; one module called twice; a write to a part of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"a/b": nn.Linear(4, 4), 'q"<&>': nn.Linear(4, 4), "ü\x00": nn.ReLU()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            for part in self.parts.values():
                x = part(x)
        x[:, 0] = x[:, 1] * 2
        x[:, 2].add_(1)
        return x


@cache
def step() -> Graph:
    """A training step of a convolutional net."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 5))
    return atlas.capture(model, torch.randn(2, 3, 8, 8), optimizer=torch.optim.AdamW)


def traced() -> Graph:
    """Sizes are symbols."""
    return atlas.trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.ones(3, 4)).graph


def of_autograd() -> Graph:
    x = torch.ones(2, 2, requires_grad=True)
    return atlas.autograd_graph((x * x + x.exp()).sum())


def of_fx() -> Graph:
    return from_fx(torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU())), torch.ones(2, 4))


SOURCES: dict[str, Callable[[], Graph]] = {
    "a training step": step,
    "export": traced,
    "autograd": of_autograd,
    "fx": of_fx,
    "odd names": lambda: atlas.capture(Odd(), torch.ones(2, 4)),
    "several iterations": lambda: _iterations(),
    "anything": lambda: random_graph(1200, 3000),
    "one piece and a node": lambda: random_graph(2001, 3000),
    "hostile": lambda: hostile_graph(NO_UNICODE),
    "two nodes": lambda: random_graph(2, 1),
    "one node": lambda: random_graph(1, 0),
    "empty": Graph,
}


def _iterations() -> Graph:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with atlas.recording(model) as rec:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
    return rec.graph
