"""Small graphs and programs of every kind we write -> the bytes of their files, the same in every process."""

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

import torchatlas as atlas
from torchatlas.graph import Graph
from torchatlas.graph.timing import Timing


@dataclass(frozen=True)
class Seed:
    """One file. `inputs` are what the program in it takes, if it holds one."""

    name: str
    suffix: str
    data: bytes
    inputs: tuple[tuple[Any, ...], ...] = ()
    replays: bool = False


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, groups=1), nn.BatchNorm2d(4)
        self.body = nn.Sequential(nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 5))

    def forward(self, x: Tensor, scale: float = 2.0) -> dict[str, Any]:
        made = self.body(self.norm(self.conv(x)))
        made[:, 1:] *= scale  # a view, and a write through it
        return {"out": made, "more": [made.mean(), x.shape[0]]}


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 4, bias=False)
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x: Tensor, *, scale: float = 2.0) -> dict[str, Any]:
        hidden = self.first(x).relu_()
        with torch.no_grad():
            mean = hidden.mean()
        out = self.last(hidden) * scale + self.shift
        return {"out": out.reshape(x.shape[0] * 4), "mean": [mean], "size": x.shape[0] // 1}


class Straight(nn.Module):
    """What torch.fx can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x))) + x


def make_seeds() -> list[Seed]:
    """Every seed."""
    torch.manual_seed(0)
    x, small = torch.randn(2, 3, 4, 4), torch.randn(2, 4)
    net, model, straight = Net(), Small().eval(), Straight()
    forward = atlas.capture(net.eval(), x)
    forward.metadata["groups"] = {"0": {"description": "d", "backend": "gloo", "size": 2, "ranks": [0, 1]}}
    forward.metadata["resized"] = [[0, 1, 4, 8]]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    step = atlas.capture(net.train(), x, backward=True, loss=_loss, optimizer=optimizer, values="replay")
    stats = atlas.capture(model, small, backward=True, loss=_loss, values="stats")
    autograd = atlas.autograd_graph(_loss(model(small)))
    of_fx = atlas.from_fx(fx.symbolic_trace(straight), small)
    traced, twice = atlas.trace(model, small), atlas.trace(model, small)
    twice(small[:1])  # a size of 1 needs a trace of its own
    calls = ((small,), (torch.ones(3, 4),))
    return [
        _seed("forward", ".atlas", forward),
        _seed("forward", ".json", forward),
        _seed("step", ".atlas", step, replays=True),
        _seed("stats", ".atlas", stats),
        _seed("autograd", ".atlas", autograd),
        _seed("autograd", ".json", autograd),
        _seed("fx", ".atlas", of_fx),
        _seed("fx", ".json", of_fx),
        _seed("export", ".json", traced.graph),
        _seed("page", ".html", atlas.capture(net.eval(), x)),
        Seed("traced", ".atlas", _written(traced, ".atlas"), calls),
        Seed("traced twice", ".atlas", _written(twice, ".atlas"), (*calls, (small[:1],))),
    ]


def _loss(made: dict[str, Any]) -> Tensor:
    loss: Tensor = made["out"].square().sum()
    return loss


def _seed(name: str, suffix: str, graph: Graph, *, replays: bool = False) -> Seed:
    """A graph whose file does not depend on the clock or on where this file lies."""
    columns = graph.columns
    columns["node_time_ns"] = np.where(columns["node_time_ns"] < 0, -1, np.arange(len(graph)) * 10 + 100)
    columns["node_start_ns"] = np.where(columns["node_start_ns"] < 0, -1, np.arange(len(graph)) * 1000)
    graph.timing = Timing(runs=1, recorded_ns=(1_000_000,))
    graph.tables.sources = [dataclasses.replace(line, file="model.py") for line in graph.tables.sources]
    return Seed(name, suffix, _written(graph, suffix), replays=replays)


def _written(item: Any, suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"seed{suffix}"
        item.save(path)
        return path.read_bytes()
