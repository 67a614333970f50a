"""What is too long for a box loses whole parts: no number in a picture is cut, for what is left of one is another."""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from render.graphs import Sketch, chain, dense_block, nested_graphs, tower
from render.layout.pages import drawn, every_item, labelled
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph
from torchatlas.render.fonts import clipped, shortened, text_width
from torchatlas.render.layout import text_fitting
from torchatlas.render.layout.box_words import BoxWords
from torchatlas.render.layout.style import STYLE
from torchatlas.render.layout.text_fitting import joined, listed, some, within

NUMBER = re.compile(r"[0-9]+\.[0-9]+[KMBT]|[0-9]+(?:,[0-9]{3})*[KMBT]?")
ENDLESS = 1e9


def numbers(text: str) -> Counter[str]:
    return Counter(NUMBER.findall(re.sub(r"saved [0-9]+ tensors?", "", text)))  # instead of what they are


class Squeeze(nn.Module):
    """As in mobile nets: many sizes of three digits, on boxes of which each keeps two or three tensors."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.deep = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = nn.BatchNorm2d(channels)
        self.less, self.more = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.hardswish(self.norm(self.deep(x)))
        scale = self.more(self.less(x.mean((2, 3), keepdim=True)).relu())
        return x * nn.functional.hardsigmoid(scale)


def squeezes() -> nn.Module:
    parts = [nn.Sequential(Squeeze(width), nn.Conv2d(width, after, 1)) for width, after in ((136, 240), (240, 576))]
    return nn.Sequential(nn.Conv2d(3, 136, 3), *parts)


def autograd_graphs() -> dict[str, Graph]:
    torch.manual_seed(0)
    mobile = squeezes()
    layer = nn.TransformerEncoderLayer(144, 4, 1024, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    lstm = nn.LSTM(136, 272, 2)
    return {
        "mobile": atlas.autograd_graph(mobile(torch.randn(2, 3, 12, 12)).sum(), model=mobile),
        "encoder": atlas.autograd_graph(encoder(torch.randn(2, 1000, 144)).sum(), model=encoder),
        "lstm": atlas.autograd_graph(lstm(torch.randn(12, 111, 136))[0].sum(), model=lstm),
    }


def graphs() -> dict[str, Graph]:
    mobile = squeezes()
    sketch = Sketch()
    x = sketch.input("x", tuple(range(10, 22)))  # a shape that no box has room for
    with sketch.module("m" * 60, "Many"):
        for number in range(1100):
            x = sketch.op(f"op{number % 7}", sketch.op(f"other{number}", x, shape=(1234, 5678)))
    sketch.output(x)
    return {
        **autograd_graphs(),
        "run": atlas.capture(mobile, torch.randn(2, 3, 12, 12), backward=True),
        "dense": dense_block(24),
        "tower": tower(130, width=lambda number: 1000 + number),
        "chain": chain(1500, lambda number: f"op{number}"),
        "many": sketch.graph(),
    }


@pytest.fixture(scope="module")
def every_graph() -> dict[str, Graph]:
    return graphs()


def check(graph: Graph, room: float) -> None:
    """What is said of each item fits, and has no number that is not said of it when there is room for all."""
    outline, labels = labelled(graph)
    for item in every_item(outline):
        for say in (labels.subtitle, labels.heading):
            text, full = say(item, room), say(item, ENDLESS)
            assert text_width(text, STYLE.small_text) <= room
            assert not numbers(text) - numbers(full), (text, full)
        title, full = labels.title(item), labels._title(item)
        assert not numbers(title) - numbers(full), (title, full)


@pytest.mark.parametrize("room", [140.0, 163.0, STYLE.widest_text, 300.0])
def test_no_number_is_cut(every_graph: dict[str, Graph], room: float) -> None:
    for graph in every_graph.values():
        check(graph, room)


@given(nested_graphs(60), st.floats(140, 400))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_number_is_cut_in_any_program(graph: Graph, room: float) -> None:
    check(graph, room)


@pytest.mark.parametrize("page", [(1600, 1200), (800, 600)])
def test_no_number_is_cut_in_a_picture(every_graph: dict[str, Graph], page: tuple[int, int]) -> None:
    for graph in every_graph.values():
        picture = drawn(graph, *page)
        _, labels = picture.outline, BoxWords(picture.outline)
        for frame in picture.scene.frames:
            full = labels.heading(frame.item, ENDLESS) if frame.open else labels.subtitle(frame.item, ENDLESS)
            assert not numbers(frame.subtitle) - numbers(full), (frame.subtitle, full)
            assert not numbers(frame.title) - numbers(labels._title(frame.item)), frame.title
        for element in ElementTree.fromstring(picture.svg).iter("{http://www.w3.org/2000/svg}text"):
            text = "".join(element.itertext())
            assert not re.search(r"[0-9][.,]…", text), text


def test_what_was_saved_loses_whole_tensors(every_graph: dict[str, Graph]) -> None:
    found = []
    for name in ("mobile", "encoder", "lstm"):
        outline, labels = labelled(every_graph[name])
        for item in every_item(outline):
            text, full = labels.subtitle(item), labels.subtitle(item, ENDLESS)
            if text.startswith("saved ") and text != full:
                found.append(text)
                every = full.removeprefix("saved ").split(", ")
                *kept, dots = text.removeprefix("saved ").split(", ")
                count = re.fullmatch("([0-9]+) tensors", dots)
                assert (kept == every[: len(kept)] and dots == "…") or (count and int(count[1]) == len(every)), text
    assert any(text.endswith(", …") for text in found)


def test_stretches_of_autograd_name_whole_modules() -> None:
    turns = "thhtttthtthhhthtthhthtttthhhhthhtththttthh"  # no loop
    names = {f"longerpart{number}": turn for number, turn in enumerate(turns)}
    model = nn.Sequential()
    for name, turn in names.items():
        model.add_module(name, nn.Sequential(nn.Linear(4, 4), nn.Tanh() if turn == "t" else nn.GELU()))
    outline, labels = labelled(atlas.autograd_graph(model(torch.randn(2, 4)).sum(), model=model))
    segments = [item for item in every_item(outline) if item.kind == "segment"]
    assert segments
    for item in segments:
        assert re.match("[0-9]+ ops? · longerpart", labels.subtitle(item))
        for text in (labels.subtitle(item).partition(" · ")[2], labels.heading(item), labels.heading(item, 90)):
            assert set(re.findall(r"longerpart[0-9]+", text)) <= names.keys()
            assert set(re.findall(r"[a-z]+[0-9]*", text)) <= {*names, "0"}, text  # longerpart1… could be any of ten
            assert not re.search(r"[0-9a-z]…", text), text


@pytest.mark.parametrize(
    ("room", "said"),
    [
        (400, "features.11.block.1.0, 11.block.1.1 … 10.block.3.1"),
        (210, "features.11.block.1.0 … 10.block.3.1"),
        (160, "…11.block.1.0 … 10.block.3.1"),
        (139, "features.11.block.1.0, …"),  # never the first alone: there are others
        (90, "…11.block.1.0, …"),
        (130, "…10.block.3.0 … 2.fc1"),  # what both begin with loses no more parts than it must
        (90, "…3.0 … 2.fc1"),
    ],
)
def test_a_stretch_with_many_modules_never_seems_to_have_one(room: float, said: str) -> None:
    names = ["features.11.block.1.0", "features.11.block.1.1", "features.10.block.3.0", "features.10.block.3.1"]
    if "fc1" in said:
        names = ["features.10.block.3.0", "features.10.block.3.1", "features.10.block.2.fc2", "features.10.block.2.fc1"]
    model = nn.Module()
    for name in names:
        above = model
        *path, last = name.split(".")
        for part in path:
            if part not in dict(above.named_children()):
                above.add_module(part, nn.Module())
            above = getattr(above, part)
        above.add_module(last, nn.Linear(4, 4))
    x = torch.randn(2, 4)
    for name in reversed(names):
        x = model.get_submodule(name)(x)
    outline, labels = labelled(atlas.autograd_graph(x.sum(), model=model))
    assert labels._main_leaves(outline.root, room) == said


def test_a_long_name_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module may be called anything; to try each number of its parts took five seconds for 10,000 characters."""
    characters = 0

    def counted(text: str, size: float, bold: bool = False) -> float:
        nonlocal characters
        characters += len(text)
        return text_width(text, size, bold)

    monkeypatch.setattr(text_fitting, "text_width", counted)
    for name in ("a, " * 3333, "a " * 5000 + ", b", "a, … " * 2000, "a.b, " * 2000):
        characters = 0
        assert text_width(within(name, 150), STYLE.small_text) <= 150
        assert characters <= 4 * len(name) + 1000
    characters = 0
    sketch = Sketch()
    x = sketch.input("x")
    for number in range(3):
        with sketch.module("a, " * 3333 + str(number), "Part"):
            x = sketch.op("cos", sketch.op("sin", x))
    sketch.output(x)
    outline, labels = labelled(sketch.graph())
    for item in every_item(outline):
        labels.subtitle(item)
    assert characters <= 1_000_000


@pytest.mark.parametrize(
    ("figures", "room", "said"),
    [
        (("128 ops", "1.77M"), 190, "encoder · 128 ops · 1.77M"),
        (("1,234,567 ops each", "123M"), 140, "encoder · 123M"),
        (("sizes or numbers differ",), 100, "sizes or numbers…"),
    ],
)
def test_the_name_gives_way_then_what_is_said_first(figures: tuple[str, ...], room: float, said: str) -> None:
    assert joined("encoder", *figures, room=room) == said


def test_names_that_count_up_lose_what_they_repeat() -> None:
    name = listed([f"denselayer{number}" for number in range(1, 25)])
    assert within(name, 150) == "denselayer1 … denselayer24"
    assert within(name, 100) == "denselayer1 … 24"
    assert within(name, 60) == "de…1 … 24"
    assert within(name, 40) == "1 … 24"
    assert within(name, 30) == "den…"
    assert within("a1b … c2d" * 9, 60) == "a1b…c2d"
    assert within("1.layers … 4.layers", 80) == "1 … 4.layers"
    assert within("1.layers … 4.layers", 40) == "1 … 4"
    name = listed([f"model.features.6.{number}" for number in range(12)])
    assert within(name, 140) == "model.features.6.0 … 6.11"
    assert within(name, 120) == "…features.6.0 … 6.11"
    assert within(name, 80) == "…6.0 … 6.11"
    assert within(name, 50) == "…0 … 11"


def test_some_of_several() -> None:
    parts = ["input 2×144×1×1", "weight 576×144×1×1", "bias 576"]
    assert some(parts, 400) == ", ".join(parts)
    assert some(parts, 230) == "input 2×144×1×1, weight 576×144×1×1, …"
    assert some(parts, 60) == ""
    assert some(["2", "144", "1000"], 30, "×") == "2×…"


# -- where texts are cut -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [clipped, shortened])
@given(st.text("ab_ .,×→0123456789", max_size=40), st.floats(6, 200))
@settings(max_examples=300, deadline=None)
def test_a_cut_text_has_no_part_of_a_number(cut: type[str], text: str, room: float) -> None:
    found = cut(text, 11, room)  # type: ignore[call-arg, arg-type]
    assert text_width(found, 11) <= room
    if found != text:
        assert not numbers(found) - numbers(text), (text, found)


def test_known_cuts() -> None:
    assert clipped("saved weight 576", 11, 86) == "saved weight…"
    assert clipped("12 ops · 1,024 tensors", 11, 75) == "12 ops ·…"
    assert clipped("x · 11.77M", 11, 48) == "x ·…"
    assert clipped("ResNet50Backbone", 11, 65) == "ResNet50…"
    assert clipped("9" * 10_000, 11, 65) == "…"
