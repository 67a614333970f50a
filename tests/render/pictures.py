"""Models that pictures are drawn of, and what is written on a picture."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import torch
from render.reading import SVG
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph
from torchatlas.render.picture import Picture


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.down(self.up(self.norm(x)).relu())
        return y


def tower(blocks: int = 4) -> Graph:
    model = nn.Sequential(nn.Linear(4, 8), *(Block(8) for _ in range(blocks)), nn.Linear(8, 2))
    return atlas.capture(model, torch.ones(3, 4))


def texts(picture: Picture) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(picture.svg).iter(f"{SVG}text")]


def words(graph: Graph, **options: Any) -> list[str]:
    return re.findall(r">([^<>\n]+)</text>", atlas.draw(graph, **options).svg)
