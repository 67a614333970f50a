"""What several tests of this folder show: a text that tries to get out of its place, and layers that are alike."""

from __future__ import annotations

import torch
from torch import nn

HOSTILE = "[bold red]Evil[/] <script>alert(1)</script>\x1b[31m\n& \N{RIGHT-TO-LEFT OVERRIDE}"


class Layers(nn.Module):
    """Layers that are alike, except that `twice` is called a second time."""

    def __init__(self, count: int, twice: int | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(count))
        self.twice = twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(layer(x)) if number == self.twice else layer(x)
        return x
