"""Law 15: the still picture and the viewer show the same tree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from render.graphs import Sketch, nested_graphs
from render.pictures import tower
from render.viewer.documents import Document, read
from synthetic import random_graph
from torch import nn
from zoo import ZOO, Specimen

import torchatlas as atlas
from torchatlas.graph import Graph
from torchatlas.render.layout.folding import hands_on
from torchatlas.render.layout.outline import Item, Outline
from torchatlas.render.viewer.sections.outline import DIFFERENT_ROUNDS, HANDS_ON, MARKER


def items(outline: Outline, group: Item) -> Iterator[Item]:
    for item in outline.children(group):
        yield item
        yield from items(outline, item)


def call_at(graph: Graph, node: int, level: int) -> int:
    """The module call at a depth that a node ran in, as the viewer finds it."""
    calls = [int(graph.columns["node_call"][node])]
    while calls[0] >= 0:
        calls.insert(0, int(graph.columns["call_parent"][calls[0]]))
    return calls[1:][level]


def check(graph: Graph) -> Document:
    """The document has the items of the still picture, each where it is, and opens what it opens."""
    page, picture = read(graph), atlas.draw(graph)
    boxes, outline = list(page.boxes()), picture.outline
    mine = [(box.kind, box.start, box.stop, box.repeat, box.type, box.name, box.depth) for box in boxes]
    theirs = [
        (item.kind, item.start, item.stop, item.repeat, item.type, item.name, item.depth)
        for item in items(outline, outline.root)
    ]
    assert mine == theirs
    for box, item in zip(boxes, items(outline, outline.root), strict=True):
        assert bool(box.flags & DIFFERENT_ROUNDS) == item.alike_only
        assert bool(box.flags & HANDS_ON) == (item.repeat > 1 and hands_on(outline.tree, item))
        assert bool(box.flags & MARKER) == outline.is_marker(item)
        node = int(page.array("leaf_node")[box.start])
        assert (call_at(graph, node, box.level) if box.level >= 0 else -1) == item.call
    drawn = [(box.title, box.start, box.open, box.depth - 1) for box in page.boxes(only_open=True)]
    frames = [(frame.title, frame.item.start, frame.open, frame.depth) for frame in picture.scene.frames]
    assert drawn == frames
    return page


@pytest.mark.parametrize("specimen", ZOO, ids=str)
def test_every_specimen_of_the_zoo(specimen: Specimen) -> None:
    function, args, kwargs = specimen.build()
    check(atlas.capture(function, *args, kwargs=kwargs, backward=specimen.trains))


@settings(deadline=None, max_examples=25)
@given(nested_graphs(most_ops=120))
def test_any_program(graph: Graph) -> None:
    check(graph)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(nested_graphs())
def test_any_larger_program(graph: Graph) -> None:
    check(graph)


@pytest.mark.parametrize("seed", range(3))
def test_noise_with_sizes_that_nobody_knows(seed: int) -> None:
    page = check(random_graph(400, 900, seed))
    assert "node_flops.npy" not in page
    assert any("FLOPs and bytes moved are unknown" in note for note in page["info.json"]["notes"])


def test_equal_groups_share_a_template() -> None:
    class Uneven(nn.Module):
        """Twice a tower of its own: what lies between keeps the two from being folded into one box."""

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
            self.second = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.second(self.first(x).sin().cos().softmax(-1))
            return y

    page = check(atlas.capture(Uneven(), torch.ones(2, 4)))
    towers = [box for box in page.boxes() if box.type == "Sequential"]
    assert [box.name for box in towers] == ["first", "second"]
    assert towers[0].template == towers[1].template > 0
    assert towers[0].start != towers[1].start


def test_groups_that_only_hash_alike_do_not() -> None:
    """The hash of a group knows nothing of the names in it: two equal blocks may call their parts by other names."""
    sketch = Sketch()
    x = sketch.input()
    for block, parts, between in (("one", ("a", "b"), ("sin",)), ("two", ("c", "d"), ("cos", "tanh"))):
        for name in between:
            x = sketch.op(name, x)
        with sketch.module(block, "Block"):
            for part in parts:
                with sketch.module(part, "Part"):
                    x = sketch.op("relu", sketch.op("addmm", x))
                x = sketch.op("softmax", x)
    sketch.output(x)
    graph = sketch.graph()
    outline = atlas.draw(graph).outline
    blocks = [item for item in items(outline, outline.root) if item.type == "Block"]
    assert blocks[0].hash == blocks[1].hash
    page = check(graph)
    names = [box.name for box in page.boxes() if box.type == "Part"]
    assert names == ["a", "b", "c", "d"]


def test_rounds_of_a_repeat() -> None:
    page = check(tower(12))
    block = next(box for box in page.boxes() if box.type == "Block")
    assert block.repeat == 12
    assert block.flags == HANDS_ON
    assert block.name == "1 … 12"
    assert page["outline.json"]["root"] == 0


def test_leaves_and_lines_are_those_of_the_tree() -> None:
    graph = atlas.capture(nn.Sequential(nn.Linear(3, 3), nn.Flatten(), nn.ReLU()), torch.ones(2, 3), backward=True)
    page, tree = read(graph), atlas.draw(graph).outline.tree
    assert (page.array("leaf_node") == tree.node).all()
    assert (page.array("node_leaf") == tree.leaf_of_node).all()
    for name in ("source", "output", "target", "value"):
        assert (page.array(f"edge_{name}") == getattr(tree, name)).all()
    for name in ("source", "output", "target"):
        assert (page.array(f"kept_{name}") == getattr(tree, f"kept_{name}")).all()
    assert len(page.array("kept_source"))  # backward takes what forward made
