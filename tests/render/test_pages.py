"""What a page tells of programs that once left it nearly empty: loops that count, groups too large to be opened whole,
small ops that are what the model is about."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from render.layout.pages import every_item
from render.layout.verify import account, defects, hidden
from torch import nn
from torch.nn import functional as F

import torchatlas as atlas
from torchatlas.render.picture import Picture


def problems(picture: Picture) -> list[str]:
    found = account(picture.outline, picture.scene)
    return [*defects(picture.scene), *found.missing, *found.invented, *hidden(picture.outline, picture.scene)]


def loops(picture: Picture) -> Iterator[tuple[str, int]]:
    return ((item.kind, item.repeat) for item in every_item(picture.outline) if item.repeat > 1)


# -- loops with a time -------------------------------------------------------------------------------------------------


class Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, t: float, y: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(torch.cat([y, self.time(t, y)], -1))
        return result

    def time(self, t: float, y: torch.Tensor) -> torch.Tensor:
        return torch.full((len(y), 1), t)


class FieldLike(Field):
    def time(self, t: float, y: torch.Tensor) -> torch.Tensor:
        return torch.full_like(y[:, :1], t)


class FieldFilled(Field):
    def time(self, t: float, y: torch.Tensor) -> torch.Tensor:
        return torch.empty(len(y), 1).fill_(t)


class Solver(nn.Module):
    """Steps of a differential equation, each at another time."""

    def __init__(self, field: Field, order: int) -> None:
        super().__init__()
        self.enter, self.field, self.order = nn.Linear(8, 2), field, order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.enter(x)
        for step in range(10):
            y = y + 0.1 * self.slope(0.1 * step, y)
        return y

    def slope(self, t: float, y: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.field(t, y)
        if self.order == 1:
            return first
        second = self.field(t + 0.05, y + 0.05 * first)
        third = self.field(t + 0.05, y + 0.05 * second)
        fourth = self.field(t + 0.1, y + 0.1 * third)
        result: torch.Tensor = (first + 2 * second + 2 * third + fourth) / 6
        return result


@pytest.mark.parametrize("order", [1, 4])
@pytest.mark.parametrize("field", [Field, FieldLike, FieldFilled])
def test_steps_at_other_times_are_one_loop_of_all_of_them(field: type[Field], order: int) -> None:
    picture = atlas.draw(atlas.capture(Solver(field(), order), torch.randn(4, 8), fake=True))
    assert ("loop", 10) in loops(picture)
    assert problems(picture) == []


def test_tensors_of_other_sizes_are_not_one_loop() -> None:
    def grow(x: torch.Tensor) -> torch.Tensor:
        for step in range(5):
            x = torch.cat([head(x), torch.full((4, step + 1), 1.0)], -1)[:, :8]
        return x

    head = nn.Linear(8, 4 + 4)
    assert all(repeat < 5 for _, repeat in loops(atlas.draw(atlas.capture(grow, torch.randn(4, 8)))))


# -- groups that are too large to be opened whole ----------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, kind: int) -> None:
        super().__init__()
        self.norm, self.layer, self.kind = nn.LayerNorm(8), nn.Linear(8, 8), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(self.norm(x))
        for bit in range(4):
            y = torch.tanh(y) if self.kind >> bit & 1 else torch.sin(y) * y
        return x + y


class Blocks(nn.Module):
    """Residual blocks in no order, some of which are read at the end."""

    def __init__(self, count: int) -> None:
        super().__init__()
        kinds = random.Random(0)
        self.blocks = nn.ModuleList(Block(kinds.randrange(16)) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for number, block in enumerate(self.blocks):
            x = block(x)
            kept += [x] if number % 7 == 0 else []
        return torch.stack(kept).sum(0)


@pytest.mark.parametrize("count", [20, 60, 150, 400])
def test_a_large_model_is_cut_where_it_cannot_be_opened_whole(count: int) -> None:
    graph = atlas.capture(Blocks(count), torch.randn(2, 8), backward=True, fake=True)
    for options in ({"phases": ["forward"]}, {}):
        picture = atlas.draw(graph, **options)
        assert picture.boxes > 20
        assert problems(picture) == []


class Backbone(nn.Module):
    """Nearly all of it is in one group of unlike blocks, as in networks for images."""

    def __init__(self) -> None:
        super().__init__()
        kinds = random.Random(1)
        self.features = nn.Sequential(*(Block(kinds.randrange(16)) for _ in range(19)))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.classifier(self.features(x))
        return result


def weighted(output: torch.Tensor) -> torch.Tensor:
    return (output * torch.linspace(0, 1, output.numel()).view_as(output)).sum()


@pytest.mark.parametrize(("width", "backward"), [(500, False), (700, True)])
def test_what_nearly_all_is_in_is_cut_into_few_rather_than_closed(width: int, backward: bool) -> None:
    loss = weighted if backward else None
    graph = atlas.capture(Backbone(), torch.randn(2, 8), backward=backward, loss=loss, fake=True)
    picture = atlas.draw(graph, width=width, height=width * 3 // 4)
    assert any(frame.open for frame in picture.scene.frames if frame.subtitle.startswith("features"))
    assert problems(picture) == []


# -- small ops that are what a model is about --------------------------------------------------------------------------


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread, self.decoder = nn.Linear(16, 4), nn.Linear(16, 4), nn.Linear(4, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, spread = self.mean(x), self.spread(x)
        code = mean + (0.5 * spread).exp() * torch.randn_like(mean)
        divergence = -0.5 * (1 + spread - mean**2 - spread.exp()).sum()
        result: torch.Tensor = F.mse_loss(self.decoder(code), x) + divergence
        return result


def test_small_ops_between_modules_are_opened_where_there_is_room_for_all() -> None:
    graph = atlas.capture(VAE(), torch.randn(2, 16), fake=True)
    large, small = atlas.draw(graph), atlas.draw(graph, width=700, height=525)
    assert not any(frame.item.kind == "functional" for frame in large.scene.closed)
    assert any(frame.item.kind == "functional" for frame in large.scene.frames)
    assert any(frame.item.kind == "functional" for frame in small.scene.closed)
    assert large.smallest_text >= 11.0
    assert problems(large) == problems(small) == []


def test_an_architecture_keeps_them_closed() -> None:
    picture = atlas.draw(atlas.capture(VAE(), torch.randn(2, 16), fake=True), view="modules")
    assert any(frame.item.kind == "functional" for frame in picture.scene.closed)


# -- gradients that accumulate -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [[nn.Linear(4, 4)], [nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1)]])
@pytest.mark.parametrize("page", [(500, 400), (800, 600), (1600, 1200)])
def test_several_backward_passes(layers: list[nn.Module], page: tuple[int, int]) -> None:
    """A pass adds to what the one before has made: leaves of one module read leaves that stand behind them."""
    model = nn.Sequential(*layers)
    with atlas.recording(model) as rec:
        for _ in range(4):
            model(torch.ones(8, 4)).square().mean().backward()
    assert problems(atlas.draw(rec.graph, width=page[0], height=page[1])) == []


@pytest.mark.parametrize("page", [(500, 400), (800, 600), (1600, 1200)])
@pytest.mark.parametrize("rounds", [3, 16])
def test_two_optimizers_that_take_turns_and_never_step(rounds: int, page: tuple[int, int], tmp_path: Path) -> None:
    """Each clears its own gradients before every other backward pass. So what one pass makes is added to what the one
    before has made, in turns for one model and the other: rounds that read the next round."""
    maker, judge = (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, made)) for made in (4, 1))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (maker, judge)]
    with atlas.recording(nn.ModuleDict({"maker": maker, "judge": judge})) as rec:
        for _ in range(rounds):
            for optimizer in optimizers:
                loss = judge(maker(torch.ones(2, 4))).square().mean()
                optimizer.zero_grad()
                loss.backward()
    picture = atlas.draw(rec.graph, width=page[0], height=page[1])
    assert problems(picture) == []
    assert ("loop", 2 * rounds) in loops(picture), "forward passes are alike"
    assert rec.graph.save(tmp_path / "gan.html").stat().st_size > 0
