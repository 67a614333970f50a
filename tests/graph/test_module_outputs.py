"""The path of a module stands for the node that makes what the module returns, in every kind of graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.errors import NodeNotFoundError
from torchatlas.graph.module_outputs import output_nodes

X = torch.randn(2, 4)


class Twice(nn.Module):
    """Calls one module twice, and one that returns two values."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.pair = nn.Linear(4, 4), Pair()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = self.pair(self.shared(self.shared(x)))
        return one * other


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp(), x.relu()


def nested() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 8)), nn.Tanh())


@pytest.mark.parametrize("backward", [False, True])
def test_a_path_is_the_node_that_makes_the_modules_output(backward: bool) -> None:
    graph = atlas.capture(nested(), X, backward=backward)
    found = [graph[path].name for path in ("0", "1", "1.0", "1.1", "2")]
    assert found == ["0.addmm", "1.1.addmm", "1.0.relu", "1.1.addmm", "2.tanh"]


def test_traced_graphs_are_asked_alike() -> None:
    graph = atlas.trace(nested(), X).graph
    assert [graph[path].name for path in ("0", "1", "2")] == ["0.linear", "1.1.linear", "2.tanh"]


def test_what_several_nodes_make_is_refused_with_their_names() -> None:
    graph = atlas.capture(Twice(), X, backward=True)
    with pytest.raises(
        NodeNotFoundError, match=r"module 'pair' returns what 2 nodes make; name one: pair.exp, pair.re"
    ):
        graph["pair"]
    assert [[graph.nodes[node].name for node in call] for call in output_nodes(graph, "shared")] == [
        ["shared.addmm"],
        ["shared.addmm_1"],
    ]


class Silent(nn.Module):
    """Modules without a value: one that passes its input on, a list, one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.none = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]), nn.Identity()
        self.unused = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.none(layer(x))
        return x


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("none", r"module 'none' \(Identity\) runs no operator, so it has no value of its own"),
        ("unused", r"module 'unused' \(Linear\) runs no operator"),
        ("layers", r"module 'layers' is not called itself.*: name a module in it, such as layers\.0\.$"),
    ],
)
def test_a_module_without_a_value_is_known(path: str, says: str, traced: bool) -> None:
    if not traced:
        with pytest.raises(NodeNotFoundError, match=says):
            atlas.capture(Silent(), X)[path]
        return
    model = atlas.trace(Silent(), X)
    with pytest.raises(NodeNotFoundError, match=says if path == "layers" else r"not in a traced graph|did you mean"):
        model.graph[path]
    for look in (
        lambda: model.run(X, edit={path: torch.zeros_like}),
        lambda: model.predict(X)[path],
        lambda: model.predict(X, nodes=[path]),
        lambda: model.run_between({path: X}, "layers.1"),
        lambda: model.run_between({"layers.0": X}, path),
    ):
        with pytest.raises(NodeNotFoundError, match=says):
            look()


def test_a_name_that_is_neither_is_told_near_ones() -> None:
    with pytest.raises(NodeNotFoundError, match="no node or module is named 'pear'; did you mean 'pair'"):
        atlas.capture(Twice(), X)["pear"]
