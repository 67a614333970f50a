"""Steps of optimizers: by parameter group, with the update of one parameter as often as there are parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from render.layout import verify
from render.layout.pages import drawn, every_item, labelled
from torch import nn

import torchatlas as atlas
from torchatlas.errors import AtlasError
from torchatlas.graph import Graph
from torchatlas.render.layout.box_words import BoxWords
from torchatlas.render.layout.outline import Item, Outline

Optimizing = Callable[[Iterable[Any]], torch.optim.Optimizer]


class Lion(torch.optim.Optimizer):
    """One of the user's own."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter)
                update = state["mean"].mul(0.9).add(parameter.grad, alpha=0.1).sign_()
                parameter.add_(update, alpha=-group["lr"])
                state["mean"].mul_(0.99).add_(parameter.grad, alpha=0.01)


def model() -> nn.Module:
    layers = (layer for width in (8, 9, 10) for layer in (nn.Linear(width, width + 1), nn.LayerNorm(width + 1)))
    return nn.Sequential(*layers)  # 12 parameters, of which three are matrices


def step(optimizing: Optimizing, groups: int = 1) -> Graph:
    net = model()
    matrices = [one for one in net.parameters() if one.dim() > 1]
    vectors = [one for one in net.parameters() if one.dim() < 2]
    chosen: list[Any] = list(net.parameters())
    if groups == 2:
        chosen = [{"params": matrices, "lr": 0.1}, {"params": vectors, "lr": 0.2}]
    return atlas.capture(net, torch.ones(2, 8), optimizer=optimizing(chosen))


def inside(graph: Graph) -> tuple[Outline, BoxWords, Item]:
    outline, labels = labelled(graph)
    (item,) = (item for item in every_item(outline) if labels.subtitle(item).startswith("12 parameters") and item.type)
    return outline, labels, item


def words(outline: Outline, labels: BoxWords, item: Item) -> list[tuple[str, str, int]]:
    return [(labels.title(one), labels.subtitle(one), one.repeat) for one in outline.children(item)]


ALL: dict[str, Optimizing] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, foreach=False),
    "SGD foreach": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, foreach=True),
    "Adam": lambda params: torch.optim.Adam(params, foreach=False),
    "AdamW foreach": lambda params: torch.optim.AdamW(params, foreach=True),
    "AdamW fused": lambda params: torch.optim.AdamW(params, fused=True),
    "Lion": Lion,
}


@pytest.mark.parametrize("name", ALL)
def test_the_parts_of_a_step_say_what_they_are(name: str) -> None:
    outline, labels, item = inside(step(ALL[name]))
    assert item.type == name.partition(" ")[0]
    parts = [one for one in every_item(outline, item) if not one.is_leaf]
    assert not [one for one in parts if "differ" in labels.subtitle(one) + labels.heading(one)]
    assert not [one for one in parts if labels.title(one) in ("branch", "loop body", "ops")]
    assert len(outline.children(item)) <= 12


def test_the_update_of_one_parameter_is_a_repeat() -> None:
    outline, labels, item = inside(step(ALL["Adam"]))
    assert words(outline, labels, item) == [
        ("new state", "12 parameters · 2 ops each", 12),
        ("update", "12 parameters · 9 ops each", 12),
    ]
    assert labels.heading(outline.children(item)[1]) == "12 parameters"


@pytest.mark.parametrize("name", ["SGD", "AdamW foreach", "AdamW fused", "Lion"])
def test_several_groups_are_boxes(name: str) -> None:
    outline, labels, item = inside(step(ALL[name], groups=2))
    groups = [one for one in outline.children(item) if one.kind == "group"]
    assert [labels.title(one) for one in groups] == ["group 0", "group 1"]
    assert [labels.subtitle(one).partition(" · ")[0] for one in groups] == ["3 parameters", "9 parameters"]


def test_groups_are_known_after_the_graph_was_saved(tmp_path: Path) -> None:
    graph = step(Lion, groups=2)
    graph.save(tmp_path / "step.atlas")
    outline, labels, item = inside(atlas.load(tmp_path / "step.atlas"))
    assert words(outline, labels, item) == words(*inside(graph))
    assert [len(names) for names in graph.metadata["parameter_groups"]["Lion"]] == [3, 9]


def test_a_file_with_odd_groups_is_refused(tmp_path: Path) -> None:
    graph = step(Lion, groups=2)
    graph.metadata["parameter_groups"] = {"Lion": [["0.weight", 3]]}
    with pytest.raises(AtlasError, match="parameter_groups"):
        graph.save(tmp_path / "step.atlas")


def test_groups_of_parameters_that_are_not_there_change_nothing() -> None:
    graph = step(Lion)
    graph.metadata["parameter_groups"] = {"Lion": [["no such"], ["nor this"]], "Adam": []}
    assert words(*inside(graph)) == words(*inside(step(Lion)))


@pytest.mark.parametrize(("name", "ops"), [("SGD", (2, 3)), ("Adam", (9, 9))])
def test_state_that_has_no_name_as_its_optimizer_is_gone(name: str, ops: tuple[int, int]) -> None:
    def train() -> None:
        net = model()
        optimizer = ALL[name](net.parameters())
        for _ in range(2):
            net(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    with atlas.recording() as recording:
        train()
    outline, labels = labelled(recording.graph)
    steps = [item for item in every_item(outline) if item.type == name]
    assert [words(outline, labels, item)[-1] for item in steps] == [
        ("update", f"12 parameters · {count} ops each", 12) for count in ops
    ]
    assert len(outline.children(steps[1])) == 1


def test_updates_of_two_kinds_in_turn_are_one_repeat() -> None:
    class TwoKinds(Lion):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                if parameter.dim() > 1:
                    parameter.sub_((parameter.grad @ parameter.grad.t()).sum())
                else:
                    parameter.sub_(parameter.grad.sign())

    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5)))
    outline, labels = labelled(atlas.capture(net, torch.ones(2, 8), optimizer=TwoKinds(net.parameters())))
    (item,) = (item for item in every_item(outline) if item.type == "TwoKinds")
    assert words(outline, labels, item) == [("updates", "10 parameters · 5 ops each", 5)]


def test_what_different_updates_read_is_not_folded() -> None:
    class Differs(Lion):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            parameters = self.param_groups[0]["params"]
            means = [torch.ones_like(parameter).add_(parameter.grad) for parameter in parameters]
            for parameter, mean, change in zip(parameters, means, (torch.sin, torch.cos, torch.tanh), strict=False):
                parameter.sub_(change(mean))

    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, bias=False))
    picture = drawn(atlas.capture(net, torch.ones(2, 8), optimizer=Differs(net.parameters())))
    (item,) = (item for item in every_item(picture.outline) if item.type == "Differs")
    assert [one.repeat for one in picture.outline.children(item)] == [1] * 6
    assert verify.hidden(picture.outline, picture.scene) == []


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW fused", "Lion"])
@pytest.mark.parametrize("groups", [1, 2])
def test_pictures_of_steps_are_true(name: str, groups: int) -> None:
    picture = drawn(step(ALL[name], groups))
    assert verify.defects(picture.scene) == []
    account = verify.account(picture.outline, picture.scene)
    assert not account.missing
    assert not account.invented
    assert verify.hidden(picture.outline, picture.scene) == []


def test_a_small_page_opens_blocks_before_arithmetic_of_the_optimizer() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = x + self.down(self.up(self.norm(x)).relu())
            return result

    net = nn.Sequential(nn.Linear(8, 8), nn.Sequential(*(Block() for _ in range(6)), nn.LayerNorm(8)), nn.Linear(8, 3))
    graph = atlas.capture(net, torch.ones(2, 8), optimizer=torch.optim.AdamW(net.parameters()))
    blocks = []
    for width, height in ((600, 400), (800, 500), (1050, 640), (1600, 1200)):
        picture = drawn(graph, width, height)
        opened = {frame.title for frame in picture.scene.frames if frame.open}
        blocks.append("Block" in opened)
        assert "Block" in opened or not {"update", "new state", "AdamW"} & opened
    assert blocks[-1]
