"""Graphs that the viewer's tests open."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph


class Block(nn.Module):
    """A residual block: a group with a line around what is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.narrow(self.wide(self.norm(x)).relu())
        return y


class Network(nn.Module):
    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.blocks = nn.Sequential(*(Block() for _ in range(blocks)))
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.blocks(self.stem(x)))
        return y


def training_step() -> Graph:
    """Forward, backward and optimizer, with equal blocks, times and statistics of values."""
    return atlas.capture(Network(), torch.randn(2, 4), backward=True, optimizer=torch.optim.SGD, values="stats")


def named(module: str, class_: str) -> Graph:
    """Two layers in a model whose modules and classes have these names."""
    layer = type(class_, (nn.Linear,), {})
    model = type(class_ + "Model", (nn.Sequential,), {})()
    model.add_module("a" + module, layer(4, 4))
    model.add_module("b" + module, nn.Sequential(layer(4, 4), nn.ReLU()))
    return atlas.capture(model, torch.randn(2, 4), backward=True)


def partial() -> Graph:
    """What ran before an op failed."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(RuntimeError, match="cannot be multiplied"), atlas.recording(model) as recording:
        model(torch.randn(2, 4))
    return recording.graph


def empty_page(folder: Path) -> Path:
    """A viewer without a graph, onto which files can be dropped."""
    from torchatlas.render.viewer.html_page import page

    path = folder / "empty.html"
    path.write_bytes(page([], title="torchatlas"))
    return path
