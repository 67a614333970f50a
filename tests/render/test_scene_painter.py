"""What a page says beside and above its boxes: types in the legend, headings in the room that there is."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from render.graphs import Sketch
from render.layout.pages import outlined
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph, OperationType
from torchatlas.operations.categories import REGISTERED, operation_type
from torchatlas.render import margins, scene_painter
from torchatlas.render.fonts import text_width
from torchatlas.render.layout.style import STYLE
from torchatlas.render.picture import Picture, draw
from torchatlas.render.sheet import sheet
from torchatlas.render.theme import theme


def legend(graph: Graph, **options: Any) -> set[str]:
    texts = re.findall(r">([^<>]+)</text>", draw(graph, **options).svg)
    return {kind.value for kind in OperationType} & set(texts)


# -- types -----------------------------------------------------------------------------------------------------------


def classes(count: int) -> Graph:
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    for number in range(count):
        with sketch.module(f"m{number}", f"C{number}"):
            x = sketch.op(f"op{number}", x)
    sketch.output(x)
    return sketch.graph()


def test_types_of_many_ops_in_many_classes_take_no_table_of_all_pairs() -> None:
    """For 12,000 of each such a table takes more than a gigabyte, though there are 12,000 pairs."""
    outline = outlined(classes(2_000))
    tracemalloc.start()
    try:
        margins.types_in(outline)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000  # of all pairs: 32 MB


def test_types_are_found_once_for_all_tries_to_fit_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = [], []
    once, always = margins.find_types, margins.types_in
    monkeypatch.setattr(margins, "find_types", lambda tree: found.append(tree) or once(tree))
    monkeypatch.setattr(margins, "types_in", lambda outline: asked.append(outline) or always(outline))
    draw(classes(300), width=330, height=260)  # too small for all: cut again and again
    assert len(asked) > 1
    assert len(found) == 1


class Dropout(nn.Module):
    """A stranger's: it drops nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5


class Softmax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1, keepdim=True)


class Pool(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(-1)


def test_a_class_that_only_has_the_name_of_one_of_torchs_is_not_believed() -> None:
    graph = atlas.capture(nn.Sequential(nn.Linear(4, 4), Dropout(), Softmax()), torch.randn(2, 4), backward=True)
    assert legend(graph) & {"random", "activation"} == set()
    assert {"matmul", "pointwise", "reduction"} <= legend(graph, phases=["forward"])


@pytest.mark.parametrize("phases", [("forward", "backward"), ("backward",)])
def test_torchs_own_are_believed_in_backward_too(phases: tuple[str, ...]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    graph = atlas.capture(model, torch.randn(2, 4), backward=True)
    assert "random" in legend(graph, phases=phases)  # in backward it only multiplies
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.AdaptiveAvgPool2d(1))
    assert "pooling" in legend(atlas.capture(model, torch.randn(2, 3, 4, 4), backward=True), phases=phases)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(REGISTERED, "_entries", {})
    yield
    operation_type.cache_clear()


@pytest.mark.usefixtures("registry")
def test_a_class_that_was_registered_comes_first() -> None:
    def graph() -> Graph:
        return atlas.capture(nn.Sequential(nn.Linear(4, 4), Pool()), torch.randn(2, 4))

    assert legend(graph()) == {"matmul", "reduction"}
    atlas.register_operator("mine.Pool", category=OperationType.POOLING)
    assert legend(graph()) == {"matmul", "pooling"}
    atlas.register_operator("theirs.Pool", category=OperationType.NORM)  # whose is it?
    assert legend(graph()) == {"matmul", "reduction"}


def test_the_legend_has_room_for_every_type_that_is_drawn() -> None:
    graph = atlas.capture(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), Pool()), torch.randn(2, 4), backward=True)
    assert legend(graph) <= {kind.value for kind in margins.types_in(outlined(graph))}


# -- headings --------------------------------------------------------------------------------------------------------


def headings(picture: Picture) -> set[str]:
    return set(re.findall(r">([^<>]+)</text>", picture.svg))


def test_a_heading_uses_the_room_of_its_frame() -> None:
    """Boxes in a row make the frame wide: its name need not be cut as on a box."""
    names = [f"a_block_with_a_long_name_{number}" for number in (1, 2, 3)]
    sketch = Sketch()
    x = sketch.input("x", (2, 8))
    for name in names:
        with sketch.module(name, "Block"):
            parts = []
            for number in range(6):
                with sketch.module(f"branch{number}", f"Branch{number}") as path:
                    weight = sketch.parameter(f"{path}.weight", (80, 80))
                    parts.append(sketch.op(f"op{number}", x, weight))
            x = sketch.op("cat", *parts)
    sketch.output(x)
    picture = draw(sketch.graph())
    (frame,) = (frame for frame in picture.scene.frames if frame.title == "Block" and frame.open)
    whole = f"{names[0]} … 3 · 38.4K"
    assert whole in headings(picture)
    assert frame.subtitle != whole
    assert text_width("Block", STYLE.title_text, True) + text_width(whole, STYLE.small_text) + 32 < frame.width


def test_headings_stay_in_their_frames() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8 + n), nn.ReLU(), nn.Linear(8 + n, 8)) for n in range(5)))
    graph = atlas.capture(model, torch.randn(2, 8))
    for width, height in ((1600, 1200), (800, 600), (500, 400)):
        picture = draw(graph, width=width, height=height)
        drawn = scene_painter.ScenePainter(
            margins.Look(theme("light"), "", True, True, "type", False, sheet(width, height), None),
            None,  # type: ignore[arg-type]
            picture.outline,
            scene_painter.BoxWords(picture.outline),
            picture.scene,
            picture.fit.scale,
        )
        for frame in picture.scene.frames:
            if frame.open:
                badge = (
                    text_width(f"×{frame.item.repeat:,}", STYLE.small_text, True) + 18 if frame.item.repeat > 1 else 0.0
                )
                used = text_width(frame.title, STYLE.title_text, True) + text_width(
                    drawn._heading(frame), STYLE.small_text
                )
                assert 17 + used + badge <= frame.width
