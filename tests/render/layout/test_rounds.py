"""Rounds that programs write without a module around each: steps of a CRF, layers of a graph network, experts."""

from __future__ import annotations

import pytest
import torch
from render.graphs import Sketch, linear
from render.layout import verify
from render.layout.pages import drawn, every_item, outlined
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph


def repeats(graph: Graph) -> list[tuple[str, str, int]]:
    """Kind, class and count of everything that is folded."""
    return [(item.kind, item.type, item.repeat) for item in every_item(outlined(graph)) if item.repeat > 1]


def is_true(graph: Graph) -> bool:
    """Whether a picture tells of every round what is so."""
    picture = drawn(graph)
    account = verify.account(picture.outline, picture.scene)
    wrong = [*verify.defects(picture.scene), *account.missing, *account.invented]
    return not wrong and not verify.hidden(picture.outline, picture.scene)


class Tagger(nn.Module):
    """A linear-chain CRF over what a layer says of each step: all that a round reads of it are views."""

    def __init__(self) -> None:
        super().__init__()
        self.emit = nn.Linear(8, 5)
        self.moves, self.last = nn.Parameter(torch.zeros(5, 5)), nn.Parameter(torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        emitted = self.emit(x).transpose(0, 1)
        mask = (x[..., 0] < 9).t()
        score = emitted[0]
        for step in range(1, len(emitted)):
            following = torch.logsumexp(score.unsqueeze(2) + self.moves + emitted[step].unsqueeze(1), 1)
            score = torch.where(mask[step].unsqueeze(1), following, score)
        return torch.logsumexp(score + self.last, 1)


class GraphNet(nn.Module):
    """Layers of a graph network, written in one forward: a weight for each and attention between nodes."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))

    def forward(self, x: torch.Tensor, adjacent: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            heads = weight(x).view(len(x), 4, -1).transpose(0, 1)
            scores = (heads @ heads.transpose(1, 2)).masked_fill(adjacent == 0, -1e9).softmax(-1)
            x = (scores @ heads).transpose(0, 1).reshape(len(x), -1)
        return x


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(self.up(x).relu())
        return result


class Mixture(nn.Module):
    """Each expert gets the tokens that chose it: as many as there happen to be."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, experts), nn.ModuleList(Expert() for _ in range(experts))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(-1)
        weights = weights / weights.sum(-1, keepdim=True)
        found = torch.zeros_like(x)
        mask = nn.functional.one_hot(chosen, len(self.experts)).t()
        for number, expert in enumerate(self.experts):
            (mine,) = torch.where(mask[number])
            part = expert(x[None, mine].reshape(-1, 8)) * weights[mine, number, None]
            found.index_add_(0, mine, part)
        return found


def test_rounds_that_differ_only_in_views_fold_though_they_are_small_ops_beside_a_module() -> None:
    graph = atlas.capture(Tagger(), torch.ones(3, 12, 8))
    assert repeats(graph) == [("loop", "", 11)]
    assert is_true(graph)


@pytest.mark.parametrize(("layers", "folded"), [(1, []), (2, [("loop", "", 2)]), (3, [("loop", "", 3)])])
def test_two_layers_of_several_ops_are_enough(layers: int, folded: list[tuple[str, str, int]]) -> None:
    graph = atlas.capture(GraphNet(layers), torch.ones(6, 16), torch.ones(6, 6))
    assert repeats(graph) == folded
    assert is_true(graph)


def test_two_layers_of_two_ops_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    assert repeats(atlas.capture(model, torch.ones(2, 8))) == []


@pytest.mark.parametrize("tokens", [(5, 3, 2, 4), (3, 3, 4, 5), (4, 2, 3, 3)])
def test_experts_that_get_any_number_of_tokens_are_one_repeat(tokens: tuple[int, ...]) -> None:
    """The first too, though what chooses its tokens follows the ops of the gate; and though two may get as many."""
    chosen = torch.repeat_interleave(torch.arange(4), torch.tensor(tokens))
    graph = atlas.capture(Mixture(4), torch.ones(len(chosen), 8), chosen)
    assert repeats(graph) == [("loop", "", 4)]
    assert is_true(graph)


def test_a_repeat_may_be_part_of_a_round() -> None:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    with sketch.module("", "Net"):
        for number in range(4):
            x = linear(sketch, x, f"layers.{number}", 8)
            for _ in range(3):
                x = sketch.op("sin", sketch.op("exp", x))
    sketch.output(x)
    graph = sketch.graph()
    assert sorted(repeats(graph)) == [("loop", "", 3), ("loop", "", 4)]
    assert is_true(graph)
