"""Opening groups: one order for all pages, the longest beginning of it that fits, and nothing that cannot be read."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from render import graphs
from render.layout.pages import drawn, labelled
from torch import nn
from zoo import sequences

import torchatlas as atlas
from torchatlas import demo
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph
from torchatlas.render.layout import page_columns
from torchatlas.render.layout.box_words import BoxWords
from torchatlas.render.layout.boxes import BoxMaker
from torchatlas.render.layout.importance import Importance
from torchatlas.render.layout.open_groups import Fit, Opener, opening_order
from torchatlas.render.layout.outline import Item, Outline
from torchatlas.render.layout.style import STYLE
from torchatlas.render.layout.tree import LANES, build

MODELS = {
    "demo": demo.training_step,
    "lstm": lambda: _captured(sequences.lstm_cell_loop),
    "tiny_gpt": lambda: _captured(sequences.tiny_gpt),
    "tower": lambda: graphs.tower(12, width=lambda number: 8 + number),
    "two steps": lambda: graphs.written(
        [("repeat", 6, [("linear", 8), ("chain", 2, False)], True)], training="two steps"
    ),
}


class _Mix(nn.Module):
    def __init__(self, width: int, wider: int) -> None:
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(width), nn.Linear(width, width * wider), nn.GELU()
        self.down = nn.Linear(width * wider, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(self.act(self.up(self.norm(x))))
        return result


def _stages(count: int, *, optimizer: type[torch.optim.Optimizer] | None = None) -> Graph:
    """Stages of two blocks each, the later ones larger."""
    widths = [8 + 4 * number for number in range(count)]
    stages = [
        nn.Sequential(_Mix(width, 2 + number), _Mix(width, 3 + number), nn.Linear(width, width + 4))
        for number, width in enumerate(widths)
    ]
    model = nn.Sequential(*stages, nn.Linear(8 + 4 * count, 5))
    return atlas.capture(model, torch.randn(2, 8), **({"optimizer": optimizer} if optimizer else {}))


class _Nested(nn.Module):
    """A chain of layers in as many modules around each other."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        layers = [layer for number in range(7) for layer in (nn.Linear(8 + number, 9 + number), nn.ReLU())]
        self.inner = _Nested(depth - 1) if depth else nn.Sequential(*layers)
        self.out = nn.Linear(8 if depth else 15, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(x)).tanh()


class _Encoder(nn.Module):
    """Blocks that are alike, with something before and after them, and so twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(_Mix(8, 2), _Mix(8, 4)) for _ in range(6)))
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(self.blocks(x * 2))
        return result


MORE = {
    **MODELS,
    "encoder": lambda: atlas.capture(
        nn.Sequential(nn.Linear(8, 8), nn.Tanh(), _Encoder(), nn.Linear(8, 10)), torch.randn(2, 8)
    ),
    "stages": lambda: _stages(4),
    "many stages": lambda: _stages(6),
    "step": lambda: _stages(2, optimizer=torch.optim.AdamW),
    "long step": lambda: _stages(3, optimizer=torch.optim.AdamW),
    "nested": lambda: atlas.capture(_Nested(2), torch.randn(2, 8)),
}


def _captured(specimen: sequences.Specimen) -> Graph:
    model, args, kwargs = specimen.build()
    return atlas.capture(model, *args, kwargs=kwargs)


PAGES = (400, 480, 530, 590, 650, 720, 800, 880, 970, 1070, 1180, 1300, 1430, 1600, 1900, 2300)


def _opener(graph: Graph, width: float, height: float, font: float = 9.0) -> Opener:
    outline, labels = labelled(graph)
    return Opener(outline, labels, width, height, font)


def _place(item: Item) -> tuple[object, ...]:
    """The same for the same group of two outlines of one graph."""
    return item.depth, item.kind, item.start, item.stop


@pytest.mark.parametrize("name", MORE)
def test_a_larger_page_opens_all_that_a_smaller_one_does(name: str) -> None:
    graph, before = MORE[name](), set[tuple[object, ...]]()
    for width in PAGES:
        opener = _opener(graph, width, width * 3 / 4)
        fit = opener.fit()
        opened = set(map(_place, fit.opened)) if fit.scale >= opener.least else set()
        assert before <= opened, (width, before - opened)
        before = opened
    assert len(before) > 1


@pytest.mark.parametrize("name", MODELS)
def test_a_larger_page_never_shows_less(name: str) -> None:
    """Also where groups are cut into segments on the small ones."""
    graph, most = MODELS[name](), 0
    for width in PAGES:
        try:
            boxes = drawn(graph, width, width * 3 // 4).boxes
        except InvalidInputError:
            assert not most, "a smaller page could be drawn"
            continue
        assert boxes >= most, (width, boxes, most)
        most = boxes
    assert most >= 15


@pytest.mark.parametrize("name", MORE)
def test_the_order_is_from_the_outside_in_and_opens_equal_groups_together(name: str) -> None:
    outline, labels = labelled(MORE[name]())
    importance = Importance(outline, labels)
    steps = list(opening_order(outline, importance))
    assert steps[0] == [outline.root]
    opened, kinds = set[Item](), set[object]()
    for step in steps:
        for group in step:
            assert group is outline.root or group.parent in opened
            opened.add(group)
        kinds |= {importance.kind(group) for group in step}
        left = [child for group in opened for child in outline.children(group) if child not in opened]
        assert all(child.is_leaf or importance.kind(child) not in kinds for child in left), "equal, and still closed"
    assert not [
        child for group in opened for child in outline.children(group) if not (child.is_leaf or child in opened)
    ]


@pytest.mark.parametrize("name", ["step", "long step", "demo"])
def test_the_model_comes_before_its_gradients_and_these_before_the_optimizer(name: str) -> None:
    outline, labels = labelled(MORE[name]())
    importance = Importance(outline, labels)
    deepest = dict.fromkeys(LANES, 0)
    for group, *_ in itertools.islice(opening_order(outline, importance), 1, None):
        if not outline.can_open(group):
            break
        phase = importance.phase(group)
        deepest[phase] = max(deepest[phase], group.depth)
        if any(importance.phase(one) == "forward" for one in _closed(outline, deepest)):
            assert deepest["optimizer"] <= deepest["backward"] <= deepest["forward"]


def _closed(outline: Outline, deepest: dict[str, int]) -> list[Item]:
    """Groups of forward that are deeper than what is open there."""
    found, stack = [], [item for item in outline.children(outline.root) if item.name == "forward"]
    while stack:
        item = stack.pop()
        if item.depth > deepest["forward"] and outline.can_open(item):
            found.append(item)
        stack += [] if item.is_leaf else outline.children(item)
    return found


def test_a_group_that_is_too_large_is_cut_so_that_others_are_opened() -> None:
    sketch = graphs.Sketch()
    x = sketch.input("x", (2, 8))
    with sketch.module("thicket", "Thicket"):
        x = _thicket(sketch, x, 90)
    for name in ("first", "second"):
        with sketch.module(name, "Chain"):
            for work in ("tanh", "sin", "exp"):
                x = sketch.op(work, x)
    sketch.output(x)
    opener = _opener(sketch.graph(), 900, 675)
    assert opener.fit().opened == {opener.outline.root}
    assert opener.refused is not None
    assert opener.refused.type == "Thicket"
    opened = {frame.title for frame in drawn(sketch.graph(), 900, 675).scene.frames if frame.open}
    assert {"Thicket", "Chain"} <= opened


def test_a_small_graph_fills_its_page() -> None:
    picture = drawn(graphs.chain(3))
    assert picture.smallest_text >= 20
    assert picture.boxes == 5


def test_everything_is_open_where_there_is_room() -> None:
    graph = graphs.tower(2, width=lambda number: 8 + number)
    picture = drawn(graph, 3000, 2400)
    assert picture.open_groups == 2
    assert picture.boxes == 2 * 4 + 2


def test_little_room_closes_modules_instead_of_shrinking_text() -> None:
    graph = graphs.tower(8, width=lambda number: 8 + number)
    small, large = drawn(graph, 600, 450), drawn(graph, 2400, 1800)
    assert small.open_groups < large.open_groups
    assert small.smallest_text >= 9
    assert small.boxes < large.boxes


@pytest.mark.parametrize("font", [6.0, 9.0, 14.0])
def test_the_font_limit_is_kept_and_a_larger_font_shows_less(font: float) -> None:
    graph = MODELS["tower"]()
    picture = drawn(graph, 900, 700, font)
    assert picture.smallest_text >= font
    assert picture.boxes <= drawn(graph, 900, 700, 6.0).boxes


def test_the_scene_fits_the_room_it_was_given() -> None:
    fit = _opener(MODELS["demo"](), 900, 500, 8.0).fit()
    assert fit.box.width * fit.scale <= 900 + 1e-6
    assert fit.box.height * fit.scale <= 500 + 1e-6
    assert fit.scale >= 8.0 / STYLE.small_text
    assert fit.smallest_text == pytest.approx(fit.scale * STYLE.small_text)


def test_boxes_are_no_lower_than_asked() -> None:
    outline, labels = labelled(graphs.chain(6))
    fit = Opener(outline, labels, 1200, 900, 8.0, 60.0).fit()
    assert all(inner.height * fit.scale >= 60 - 1e-6 for inner in fit.box.inner)


class _Trivia(nn.Module):
    """Many ops, few of the parameters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for work in (torch.sin, torch.cos, torch.tanh, torch.exp, torch.sigmoid, torch.neg, torch.abs, torch.square):
            x = work(x)
        return x


class _Parts(nn.Module):
    """Small parts around a large one of as many boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = _Trivia(), _Trivia()
        layers = [layer for n in range(64, 68) for layer in (nn.Linear(n, n + 1), nn.LayerNorm(n + 1))]
        self.body = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.after(self.body(self.before(x)))
        return result


@pytest.mark.parametrize("page", [(400, 500), (420, 500), (440, 480), (520, 480)])
def test_the_largest_part_is_opened_first(page: tuple[int, int]) -> None:
    scene = drawn(atlas.capture(_Parts(), torch.randn(2, 64)), *page).scene
    opened = [found.title for found in scene.frames if found.open]
    assert not opened or "Sequential" in opened, "small parts only beside it"


def test_a_picture_tells_as_much_as_so_many_boxes_of_equal_share() -> None:
    outline, labels = labelled(graphs.chain(5))
    told = Importance(outline, labels).told(frozenset({outline.root}))
    assert told == pytest.approx(5)  # inputs and outputs count for nothing


def test_a_picture_of_which_one_box_is_most_tells_little() -> None:
    outline, labels = labelled(atlas.capture(_Parts(), torch.randn(2, 64)))
    importance = Importance(outline, labels)
    before, body, after = (item for item in outline.children(outline.root) if not item.is_leaf)
    trivia, main = frozenset((outline.root, before, after)), frozenset((outline.root, body))
    assert importance.told(main) > 1.5 * importance.told(trivia)


class _Gated(nn.Module):
    """Layers with four small ops after each: too few to be one box where there is room."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = (self.a(x) * 2 + 1).sin().exp()
        h = (self.b(h) / 3 - 1).cos().abs()
        h = (self.c(h) * 3).sigmoid().sqrt().log()
        return x + (self.d(h) + 2).tanh().neg()


def test_small_ops_are_gathered_where_a_page_tells_little_without() -> None:
    graph = atlas.capture(nn.Sequential(*(_Gated() for _ in range(5))), torch.randn(2, 8))

    def titles(width: int) -> list[str]:
        return [frame.title for frame in drawn(graph, width, width * 3 // 4).scene.frames]

    assert titles(550).count("functional ops") == 4
    assert titles(550).count("Linear") == 4
    assert "functional ops" not in titles(1200)


def test_equal_groups_are_looked_into_once() -> None:
    model = nn.Sequential(_Mix(8, 2), nn.ReLU(), _Mix(8, 2), nn.Tanh(), _Mix(8, 3))
    outline, labels = labelled(atlas.capture(model, torch.randn(2, 8)))
    groups = first, second, other = [item for item in outline.children(outline.root) if item.type == "_Mix"]
    importance = Importance(outline, labels)
    assert importance.share(first) == importance.share(second) < importance.share(other)
    assert {importance.count(item) for item in groups} == {len(outline.children(first))}
    assert [item.parts is None for item in groups] == [False, True, False]


def _thicket(sketch: graphs.Sketch, start: int, count: int) -> int:
    """Ops of which each reads any two before it."""
    rng, made = random.Random(0), [start]
    for _ in range(count):
        made.append(sketch.op(rng.choice(("add", "mul", "mm", "cat")), *rng.sample(made, min(2, len(made)))))
    return made[-1]


def test_no_way_out_of_a_thicket_is_searched_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> int:
        sketch = graphs.Sketch()
        sketch.output(_thicket(sketch, sketch.input(), 400))
        outline = Outline(build(sketch.graph()), most_children=30)
        opener = Opener(outline, BoxWords(outline), 1500, 1100, 9.0)
        opener.fit()
        return opener.work

    limited = work()
    monkeypatch.setattr(page_columns, "_MOST_WORK", 1e9)
    assert work() > 2 * limited


def test_text_that_cannot_be_read_is_no_price_for_fewer_columns() -> None:
    opener = _opener(graphs.chain(40), 900, 300)
    fit = opener.fit()
    assert fit.box.wraps
    assert fit.scale >= opener.least
    whole = Fit(
        BoxMaker(opener.outline, BoxWords(opener.outline)).box(opener.outline.root, fit.opened, 1e9), 0.1, fit.opened
    )
    assert not whole.box.wraps
    assert opener._quality(whole) < opener._quality(fit)
