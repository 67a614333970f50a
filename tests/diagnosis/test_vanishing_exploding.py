"""Which gradients are compared with which: only those of layers that lie behind one another."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import torchatlas as atlas
from torchatlas.autograd.graph_walk import leaf_of
from torchatlas.diagnosis.faults.vanishing_exploding import Paths, _ends
from torchatlas.diagnosis.findings import Severity
from torchatlas.diagnosis.history import Recorded
from torchatlas.diagnosis.loss_graph import LossGraph


def test_the_longest_path_has_one_of_two_branches() -> None:
    trunk, left, right, head = (nn.Linear(3, 3) for _ in range(4))
    x = trunk(torch.ones(1, 3))
    graph = LossGraph([head(left(left(x)).tanh() + right(x)).sum()], Recorded())
    paths = Paths(graph)
    leaves = {place: leaf for place, node in enumerate(graph.nodes) if (leaf := leaf_of(node)) is not None}
    weights = {place: leaf for place, leaf in leaves.items() if leaf.dim() == 2}
    layers = paths.layers(weights)
    assert id(left.weight) not in {id(weights[leaf]) for leaf in layers.values()}  # used twice: it has no place
    chain = [id(weights[layers[layer]]) for layer in paths.longest(layers)]
    assert chain == [id(layer.weight) for layer in (head, right, trunk)]


def test_one_jump_is_no_slope() -> None:
    assert _ends([1.0] + [1e-8] * 9) is None
    assert _ends([10.0**-n for n in range(10)]) is not None


class Deep(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(10)])
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.scale * layer(x)
        return x


def test_gradients_that_vanish_are_a_warning() -> None:
    model = Deep(0.05)
    with atlas.doctor() as visit:
        model(torch.ones(4, 8)).sum().backward()
    (finding,) = visit.findings
    assert (finding.key, finding.severity) == ("vanishing", Severity.WARNING)


def test_the_last_of_three_passes_in_turn_is_looked_at() -> None:
    model, small = Deep(1.0), nn.Linear(8, 1)
    with atlas.doctor() as visit:
        for turn in range(4):
            small(torch.ones(4, 8)).mean().backward()
            small(torch.ones(4, 8)).square().mean().backward()
            model.scale = 0.05 if turn == 3 else 1.0  # the 4th pass of its line, and the 12th of all
            model(torch.ones(4, 8)).sum().backward()
    (finding,) = visit.findings
    assert finding.key == "vanishing"


def test_two_nets_of_one_loss_are_not_compared() -> None:
    small, large = Deep(1.0), Deep(1.0)
    with atlas.doctor() as visit:
        (1e-8 * small(torch.ones(4, 8)) + 1e2 * large(torch.ones(4, 8))).sum().backward()
    assert not visit.findings


def test_lazy_parameters_do_not_end_a_diagnosis() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    with atlas.doctor() as visit, torch.no_grad():
        model(torch.ones(8, 3))
    assert not visit.failures
