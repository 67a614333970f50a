"""Programs and recordings that the tests of replays share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph


def recorded(program: Callable[[], Any], model: nn.Module | None = None) -> Graph:
    with atlas.recording(model, values="replay") as rec:
        program()
    graph: Graph = rec.graph
    return graph


def small() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Dropout(), nn.ReLU(), nn.Linear(6, 2)), torch.randn(3, 4)


def step() -> Graph:
    model, x = small()
    return atlas.capture(model, x, optimizer=torch.optim.AdamW, values="replay")
