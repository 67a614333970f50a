"""Shapes beside lines: what a box gets, after views that have no box."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from render.graphs import Sketch
from render.layout.pages import every_item, labelled
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph
from torchatlas.render.layout.wiring import OUTPUTS


class Layers(nn.Module):
    """A Linear of three dimensions is views around a product of two."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 10), nn.Linear(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(self.up(x).relu())
        return y


def shapes_into(graph: Graph) -> dict[str, list[str]]:
    """For every item by title, the shapes in which tensors enter it."""
    outline, labels = labelled(graph)
    found: dict[str, list[str]] = {}
    for group in every_item(outline):
        if group.is_leaf:
            continue
        items = outline.children(group)
        for _, to, tensor in outline.wiring(group).edges:
            shape = labels.shapes.arriving(group, items[to], tensor)
            found.setdefault(labels.title(items[to]), []).append(shape)
    return found


def test_a_tensor_has_the_shape_in_which_a_box_gets_it() -> None:
    graph = atlas.capture(Layers(), torch.randn(2, 16, 8))
    found = shapes_into(graph)
    assert found == {"Linear": ["2×16×8", "2×16×10"], "relu": ["2×16×10"], "output": ["2×16×4"]}
    outline, labels = labelled(graph)
    made = [labels.shapes.made(item.start * OUTPUTS) for item in every_item(outline) if labels.title(item) == "Linear"]
    assert made == ["32×10", "32×4"]  # what the products make: nobody gets it so


def test_views_on_the_way_count_and_those_inside_do_not() -> None:
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.inner(x.exp().view(4, 6))
            return y

    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(24).sin().cos()

    found = shapes_into(atlas.capture(Folded(), torch.randn(2, 12)))
    assert found == {"exp": ["2×12"], "Inner": ["4×6"], "sin": ["24"], "cos": ["24"], "output": ["24"]}


def test_readers_of_different_shapes_each_have_theirs() -> None:
    def split(x: torch.Tensor) -> torch.Tensor:
        one = x.exp()
        return one.view(24).sin().sum() + one[0].cos().sum() + one.tan().sum()

    graph = atlas.capture(split, torch.randn(2, 12))
    found = shapes_into(graph)
    assert (found["sin"], found["cos"], found["tan"]) == (["24"], ["12"], ["2×12"])


class Joined(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum() + y.sum()


class Parts(nn.Module):
    """Gives two different parts of what a module made to another one."""

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first, self.joined = first, Joined()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.first(x).transpose(0, 1)
        y: torch.Tensor = self.joined(one[:1], one[1:])
        return y.sin()


class Heads(nn.Module):
    """Ends in a view."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x.exp())
        return y.unflatten(-1, (2, 3))


@pytest.mark.parametrize(
    ("first", "whole"),
    [
        (nn.ReLU(), "4×3×8"),
        (nn.Linear(8, 6), "4×3×6"),  # 12×6 is what the product in it makes, and nobody sees
        (nn.Sequential(nn.Tanh(), nn.Linear(8, 6)), "4×3×6"),
        (Heads(), "4×3×2×3"),
        (nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), "4×3×8"),  # drawn as one: the last makes it
    ],
)
def test_parts_that_differ_enter_a_box_as_the_whole_was_returned(first: nn.Module, whole: str) -> None:
    graph = atlas.capture(Parts(first), torch.randn(4, 3, 8))
    assert shapes_into(graph)["Joined"] == [whole]


@pytest.mark.parametrize(
    ("op", "whole"), [(torch.exp, "4×3×3"), (lambda x: (x[:, None] @ x.mT[:, None])[:, 0], "4×1×3×3")]
)
def test_parts_of_what_an_op_made_enter_a_box_as_it_made_the_whole(op: Any, whole: str) -> None:
    """But not in the fewer dimensions in which torch computes a product."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.joined = Joined()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            one = op(x).transpose(0, 1)
            y: torch.Tensor = self.joined(one[:1], one[1:])
            return y.sin()

    assert shapes_into(atlas.capture(Whole(), torch.randn(4, 3, 3)))["Joined"] == [whole]


def test_shapes_are_of_the_output_asked_for() -> None:
    sketch = Sketch()
    one, two = sketch.ops("topk", sketch.input(), shapes=[(2, 7), ()])
    sketch.output(one, two)
    outline, labels = labelled(sketch.graph())
    leaf = next(item for item in every_item(outline) if labels.title(item) == "topk")
    first = leaf.start * OUTPUTS
    assert [labels.shapes.made(first + output) for output in range(3)] == ["2×7", "scalar", ""]
