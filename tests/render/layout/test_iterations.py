"""Recordings of whole training scripts: iterations in one frame each, equal ones folded, the model before the loop."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from render.graphs import Sketch
from render.layout import verify
from render.layout.pages import drawn, labelled, outlined
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph, Phase
from torchatlas.render.layout.outline import Item, Outline

Optimizing = Callable[[object], torch.optim.Optimizer]


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)  # type: ignore[arg-type]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(self.up(x).relu())
        return result


def script(
    steps: int,
    *,
    optimizing: Optimizing = sgd,
    log_every: int = 0,
    batch: Callable[[int], int] = lambda step: 4,
    clip: bool = False,
    batches: int = 1,
) -> Graph:
    """A training script that also builds its model."""
    with atlas.recording() as recording:
        model = nn.Sequential(nn.Linear(8, 8), *(Block(8) for _ in range(4)), nn.Linear(8, 3))
        optimizer = optimizing(model.parameters())
        for step in range(steps):
            for _ in range(batches):
                loss = nn.functional.cross_entropy(model(torch.ones(batch(step), 8)), torch.arange(batch(step)) % 3)
                loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if log_every and step % log_every == 0:
                loss.item()
    return recording.graph


def iterations(outline: Outline) -> list[tuple[str, str, int, bool]]:
    return [(item.kind, item.name, item.repeat, item.alike_only) for item in outline.children(outline.root)]


def titles(outline: Outline, item: Item) -> list[str]:
    return [child.type or child.name for child in outline.children(item) if not child.is_leaf]


def test_equal_iterations_are_one_after_the_first_that_builds_the_model() -> None:
    graph = script(10)
    outline, labels = labelled(graph)
    first, others = outline.children(outline.root)
    assert (first.name, first.repeat, others.repeat, others.alike_only) == ("iteration 0", 1, 9, False)
    assert (labels.title(first), labels.title(others)) == ("iteration 0", "iterations 1 … 9")
    assert labels.subtitle(others).endswith("ops each")
    assert titles(outline, others) == ["forward", "backward", "optimizer"]


def test_room_does_not_grow_with_the_numbers_of_iterations() -> None:
    graph = script(3)
    wanted = [row[0] for row in iterations(outlined(graph))]
    graph.columns["node_iteration"] = graph.columns["node_iteration"] + np.int32(10**7)
    tracemalloc.start()
    found = iterations(outlined(graph))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [row[0] for row in found] == wanted
    assert peak_bytes < 8 * 10**7  # a number for each iteration since the beginning


def test_one_iteration_has_no_frame_of_its_own() -> None:
    outline = outlined(script(1, log_every=1))
    assert [item.kind for item in outline.children(outline.root)] == ["lane"] * 3


def test_iterations_whose_batches_differ_in_size_say_so() -> None:
    outline, labels = labelled(script(6, batch=lambda step: 4 + step))
    assert iterations(outline)[1:] == [("iteration", "iterations 1 … 5", 5, True)]
    assert "sizes or numbers differ" in labels.subtitle(outline.children(outline.root)[1])


def test_an_iteration_that_logs_is_part_of_a_round() -> None:
    outline, labels = labelled(script(13, log_every=3))
    _, rounds, *rest = outline.children(outline.root)
    assert (rounds.kind, rounds.repeat, labels.title(rounds)) == ("loop", 4, "3 iterations")
    assert [(part.name, part.repeat) for part in outline.children(rounds)] == [
        ("iterations 1 … 2", 2),
        ("iteration 3", 1),
    ]
    assert rest == []


def test_looking_at_the_loss_after_the_step_belongs_to_the_iteration_of_the_loss() -> None:
    tree = outlined(script(3, log_every=1)).tree
    operations = tree.graph.columns["node_operation"]
    names = [tree.graph.tables.operations[row].name for row in operations[tree.node].tolist()]
    frames = [
        (int(start), int(stop))
        for start, stop, lane in zip(tree.start, tree.stop, tree.lane, strict=True)
        if lane % 4 == 0
    ]
    looked = [leaf for leaf, name in enumerate(names) if name == "aten._local_scalar_dense.default"]
    assert [next(k for k, (start, stop) in enumerate(frames) if start <= leaf < stop) for leaf in looked] == [0, 1, 2]


def test_what_the_next_iteration_reads_stays_in_it() -> None:
    sketch = Sketch()
    made = sketch.input("x", (2, 8))
    for step in range(2):
        sketch.iteration = step
        carried = sketch.op("mul", made)
        with sketch.module("net", "Net"):
            made = sketch.op("relu", sketch.op("add", carried))
        sketch.phase = Phase.OPTIMIZER
        with sketch.module("SGD", "SGD", "optimizer"):
            sketch.op("sub", made)
        sketch.phase = Phase.FORWARD
    tree = outlined(sketch.graph()).tree
    first = next(int(tree.stop[group]) for group in range(len(tree.start)) if tree.iteration[group] == 0)
    rows = tree.graph.columns["node_operation"][tree.node[first:]].tolist()
    assert [name for row in rows if "mul" in (name := tree.graph.tables.operations[row].name)]


@pytest.mark.parametrize("log_every", [0, 1])
def test_batches_before_a_step_are_one_though_the_loss_of_the_last_is_looked_at(log_every: int) -> None:
    outline, labels = labelled(script(4, batches=4, log_every=log_every))
    iteration = outline.children(outline.root)[-1]
    (forward,) = (item for item in outline.children(iteration) if item.name == "forward")
    rounds, *looked = outline.children(forward)
    assert len(looked) == log_every
    assert (rounds.kind, rounds.repeat, rounds.alike_only, iteration.repeat) == ("loop", 4, False, 3)
    assert "Sequential" in [part.type for part in outline.children(rounds)]
    assert labels.title(rounds) in ("batch", "Sequential")


def test_two_calls_of_one_module_in_a_model_are_drawn() -> None:
    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = Block(8)

        def forward(self, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = (self.tower(one) - self.tower(two)).square().sum()
            return result

    outline = outlined(atlas.capture(Siamese(), torch.ones(2, 8), torch.ones(2, 8), backward=True))
    (forward,) = (item for item in outline.children(outline.root) if item.name == "forward")
    (model,) = (item for item in outline.children(forward) if item.kind == "module")
    assert [part.repeat for part in outline.children(model) if part.type == "Block"] == [1, 1]


def test_setting_parameters_is_one_box_and_has_no_lines() -> None:
    outline, labels = labelled(script(1))
    (forward,) = (item for item in outline.children(outline.root) if item.name == "forward")
    set_, *others = outline.children(forward)
    assert labels.title(set_) == "initialization"
    (model,) = (item for item in others if item.kind == "module")
    assert [part.repeat for part in outline.children(model)] == [1, 4, 1], "blocks are equal, whoever set their weights"
    tree = outline.tree
    assert tree.first_read[set_.start] == tree.first_read[set_.stop]


@pytest.mark.parametrize("size", [(1600, 1200), (1050, 640), (800, 600)])
def test_a_page_of_a_script_shows_the_model(size: tuple[int, int]) -> None:
    picture = drawn(script(10, log_every=1, clip=True), *size)
    opened = {frame.title for frame in picture.scene.frames if frame.open}
    assert {"iterations 1 … 9", "forward", "Sequential"} <= opened
    assert verify.defects(picture.scene) == []
    account = verify.account(picture.outline, picture.scene)
    assert not account.missing
    assert not account.invented
    assert not [words for words in verify.hidden(picture.outline, picture.scene) if "wired" in words]
