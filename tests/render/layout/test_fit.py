"""Fitting: as much open as the page allows, readable, and more page never shows much less."""

from __future__ import annotations

import math
import random
from dataclasses import replace

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
from torchatlas.render import picture
from torchatlas.render.layout import fit
from torchatlas.render.layout.boxes import Share
from torchatlas.render.layout.fit import _HEIGHTS, _QUICK, Fit, Fitter
from torchatlas.render.layout.labels import Labels
from torchatlas.render.layout.outline import Outline
from torchatlas.render.layout.shares import Shares
from torchatlas.render.layout.tree import LANES, build
from torchatlas.render.layout.words import SMALL

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


@pytest.mark.parametrize("name", MODELS)
def test_a_larger_page_never_shows_much_less(name: str) -> None:
    graph, most = MODELS[name](), 0
    for width in (400, 560, 720, 880, 1040, 1200, 1360, 1600):
        try:
            boxes = drawn(graph, width, width * 3 // 4).boxes
        except InvalidInputError:
            assert not most, "a smaller page could be drawn"
            continue
        assert boxes >= 0.85 * most, (width, boxes, most)
        most = max(most, boxes)
    assert most >= 15


@pytest.mark.parametrize("name", ["demo", "many stages", "long step", "nested"])
def test_no_page_loses_more_than_a_third_of_the_boxes_of_a_smaller_one(name: str) -> None:
    graph, most = MORE[name](), 0
    for width in (480, 530, 590, 650, 720, 800, 880, 970, 1070, 1180, 1300, 1430, 1600, 1900, 2300):
        outline, labels = labelled(graph)
        boxes = Fitter(outline, labels, width, width * 3 / 4, 9.0).fit().box.boxes
        assert boxes >= most * 2 / 3, (width, boxes, most)
        most = max(most, boxes)


# What a stage of the search does on pages where it matters; without it the picture is worth less than this.
STAGES = [
    ("_filled", "tower", (560, 420), 0.98),
    ("_filled", "many stages", (1000, 750), 0.98),
    ("_swapped", "stages", (510, 382), 0.95),
    ("_may_spare", "nested", (800, 600), 0.3),
    ("_may_spare", "encoder", (640, 480), 0.6),
]


@pytest.mark.parametrize(("stage", "name", "page", "less"), STAGES)
def test_every_stage_of_the_search_is_of_use(
    stage: str, name: str, page: tuple[int, int], less: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = MORE[name]()

    def worth() -> float:
        outline, labels = labelled(graph)
        fitter = Fitter(outline, labels, *page, 9.0)
        fit = fitter.fit()
        assert fit.scale >= fitter.least
        return fitter.worth(fit)

    found = worth()
    nothing = (
        (lambda self, cost: False) if stage == "_may_spare" else (lambda self, worth, opened, *more: (worth, opened))
    )
    monkeypatch.setattr(Fitter, stage, nothing)
    assert worth() < less * found


def test_what_is_too_wide_with_all_height_may_be_narrow_enough_with_less() -> None:
    """Filled to the rim there is no height left over, so what is nested in it is not given any."""
    outline, labels = labelled(MORE["encoder"]())
    fitter = Fitter(outline, labels, 665, 532, 9.0)
    opened = fitter.fit().opened
    alone = [fitter._scaled(opened, (part,), share=Share.MEASURED).scale >= fitter.least for part in _QUICK]
    assert alone == [False, True, False]
    assert fitter._fits(fitter._scaled(opened, _QUICK, fitter.least, share=Share.MEASURED))


@pytest.mark.parametrize("name", ["tower", "stages", "step"])
def test_the_search_itself_opens_more_than_it_begins_with(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in ("_filled", "_swapped", "_without_lanes"):
        monkeypatch.setattr(Fitter, stage, lambda self, worth, opened, *more: (worth, opened))
    outline, labels = labelled(MORE[name]())
    fitter = Fitter(outline, labels, 1500, 1100, 9.0)
    start = frozenset({id(outline.root)})
    begun = [start, *fitter._spreads(start)]
    assert len(fitter.fit().opened) > max(map(len, begun))


def test_a_search_begins_with_fewer_phases_where_not_all_fit() -> None:
    outline, labels = labelled(MORE["step"]())
    fitter = Fitter(outline, labels, 1500, 1100, 9.0)
    found = list(fitter._spreads(frozenset({id(outline.root)})))
    lanes = [[fitter._items[number].name for number in some if fitter._items[number].kind == "lane"] for some in found]
    assert [sorted(some) for some in lanes] == [
        ["backward", "forward", "optimizer"],
        ["backward", "forward"],
        ["forward"],
    ]


def test_a_phase_that_takes_the_room_of_forward_is_closed_again() -> None:
    outline, labels = labelled(MORE["long step"]())
    fitter = Fitter(outline, labels, 560, 420, 9.0)
    root = outline.root
    (optimizer,) = (item for item in fitter._closed(frozenset({id(root)})) if item.name == "optimizer")
    opened = frozenset({id(root)}) | fitter._through([optimizer], 9)
    worth = fitter.worth(fitter._scaled(opened, _HEIGHTS))
    more, better = fitter._without_lanes(worth, opened)
    assert more > worth
    assert id(optimizer) not in better
    assert any(fitter._items[number].name == "forward" for number in better)


def test_of_two_alike_the_larger_is_opened() -> None:
    """Also where the other was opened first, and there is no room for both."""
    outline, labels = labelled(MORE["many stages"]())
    fitter = Fitter(outline, labels, 480, 420, 9.0)
    root = outline.root
    first, *_, last = (item for item in fitter._closed(frozenset({id(root)})) if item.type == "Sequential")
    fitter.shares.spread(first)
    fitter.shares.spread(last)
    small = frozenset({id(root), id(first), id(outline.children(first)[0])})
    large = frozenset({id(last), id(outline.children(last)[0])})
    assert fitter._like(first, last, small) == large, "as far as the other was"
    assert large | {id(root)} in fitter._swaps(0.0, small)


def test_text_that_cannot_be_read_is_no_price_for_fewer_cuts() -> None:
    outline, labels = labelled(graphs.chain(40))
    fitter = Fitter(outline, labels, 900, 300, 9.0)
    cut = fitter._scaled(frozenset({id(outline.root)}), (1.0,))
    assert cut.box.wraps
    small = Fit(replace(cut.box, wraps=0), fitter.least * 0.99, cut.opened)
    assert small.score > replace(cut, scale=fitter.least).score
    assert fitter._rank(small) < fitter._rank(replace(cut, scale=fitter.least))


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
    outline, labels = labelled(MODELS["demo"]())
    fit = Fitter(outline, labels, 900, 500, 8.0).fit()
    assert fit.box.width * fit.scale <= 900 + 1e-6
    assert fit.box.height * fit.scale <= 500 + 1e-6
    assert fit.scale >= 8.0 / SMALL
    assert fit.smallest_text == pytest.approx(fit.scale * SMALL)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("page", [(1500, 1000), (900, 500), (700, 1100)])
def test_heights_that_are_not_tried_would_not_have_been_better(name: str, page: tuple[int, int]) -> None:
    outline, labels = labelled(MODELS[name]())
    fitter = Fitter(outline, labels, *page, 8.0)
    fit = fitter.fit()
    tried = [fitter._scaled(fit.opened, (part,)) for part in _HEIGHTS]
    # What fits at none of these fits with the height that nested groups leave.
    assert fit.score >= max((found.score for found in tried if found.scale >= fitter.least), default=0.0)
    assert fit.scale >= fitter.least


def test_room_is_not_filled_with_a_thicket_of_lines() -> None:
    picture = drawn(graphs.written([("dense", 7), ("dense", 7), ("dense", 9)]), 1600, 1200)
    outline = picture.outline
    fitter = Fitter(outline, Labels(outline), 1540, 1080, 9.0)
    closed = fitter._scaled(frozenset({id(outline.root)}), _HEIGHTS)
    assert fitter.worth(picture.fit) >= fitter.worth(closed)


def test_boxes_are_no_lower_than_asked() -> None:
    outline, labels = labelled(graphs.chain(6))
    fit = Fitter(outline, labels, 1200, 900, 8.0, 60.0).fit()
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


@pytest.mark.parametrize("name", ["demo", "two steps"])
@pytest.mark.parametrize("page", [(500, 400), (700, 500), (800, 600), (1000, 700), (1200, 900)])
def test_what_follows_forward_is_not_opened_deeper(name: str, page: tuple[int, int]) -> None:
    outline, labels = labelled(MODELS[name]())
    fitter = Fitter(outline, labels, *page, 9.0)
    opened = [fitter._items[number] for number in fitter.fit().opened]
    deepest = {
        lane: max((item.depth for item in opened if fitter._lane(item).name == lane), default=0) for lane in LANES
    }
    left = [item for item in fitter._closed(frozenset(map(id, opened))) if fitter._lane(item).name == "forward"]
    assert not left or max(deepest.values()) <= max(deepest["forward"], 1)


def test_a_picture_is_worth_as_many_boxes_as_stand_for_equally_much() -> None:
    outline, labels = labelled(graphs.chain(5))
    fitter = Fitter(outline, labels, 800, 600, 9.0)
    fit = fitter.fit()
    hard = 0.1 * fit.box.wraps / fit.box.boxes
    assert fitter.worth(fit) == pytest.approx(5 * (1 - hard))  # what is given and returned counts for nothing


def test_a_picture_of_which_one_box_is_most_is_worth_little() -> None:
    outline, labels = labelled(atlas.capture(_Parts(), torch.randn(2, 64)))
    fitter = Fitter(outline, labels, 1600, 1200, 9.0)
    root = outline.root
    before, body, after = (item for item in outline.children(root) if not item.is_leaf)
    trivia = fitter._scaled(frozenset(map(id, (root, before, after))), _HEIGHTS)
    main = fitter._scaled(frozenset(map(id, (root, body))), _HEIGHTS)
    assert fitter.worth(main) > 2 * fitter.worth(trivia)


def test_phases_stand_for_less_the_less_they_tell_of_a_model() -> None:
    outline, labels = labelled(demo.training_step())
    fitter = Fitter(outline, labels, 1600, 1200, 9.0)
    fitter.fit()
    lanes = [item for item in outline.children(outline.root) if item.kind == "lane"]
    shares = {item.name: fitter._share[id(item)] for item in lanes}
    assert shares["forward"] > 3 * shares["backward"] > 9 * shares["optimizer"] > 0


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


def test_small_ops_are_gathered_where_a_page_tells_little_without(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = atlas.capture(nn.Sequential(*(_Gated() for _ in range(5))), torch.randn(2, 8))

    def titles(width: int) -> list[str]:
        return [frame.title for frame in drawn(graph, width, width * 3 // 4).scene.frames]

    assert titles(548).count("functional ops") == 4
    assert titles(548).count("Linear") == 4
    assert "functional ops" not in titles(1200)
    monkeypatch.setattr(picture, "_BETTER", math.inf)
    assert titles(548) == ["input", "_Gated", "output"]


def test_equal_groups_are_looked_into_once() -> None:
    model = nn.Sequential(_Mix(8, 2), nn.ReLU(), _Mix(8, 2), nn.Tanh(), _Mix(8, 3))
    outline, labels = labelled(atlas.capture(model, torch.randn(2, 8)))
    first, second, other = (item for item in outline.children(outline.root) if item.type == "_Mix")
    shares = Shares(outline, labels)
    shares.spread(outline.root)
    for item in (first, second, other):
        assert shares.news(item) > 0
    assert [item.parts is None for item in (first, second, other)] == [False, True, False]
    found, alone = shares.inside(second), Shares(outline, labels)
    alone.spread(outline.root)
    assert alone.inside(second) == found != alone.inside(other)


def thicket(count: int) -> Graph:
    """Ops of which each reads any two before it."""
    rng, sketch = random.Random(0), graphs.Sketch()
    made = [sketch.input()]
    for _ in range(count):
        made.append(sketch.op(rng.choice(("add", "mul", "mm", "cat")), *rng.sample(made, min(2, len(made)))))
    sketch.output(made[-1])
    return sketch.graph()


def test_no_way_out_of_a_thicket_is_searched_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> int:
        outline = Outline(build(thicket(400)), most_children=30)
        fitter = Fitter(outline, Labels(outline), 1500, 1100, 9.0)
        fitter.fit()
        return fitter.maker.work

    limited = work()
    monkeypatch.setattr(fit, "_THICKET", 1e9)
    assert work() > 2 * limited


def test_what_would_crowd_the_page_is_not_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = MODELS["two steps"]()

    def searched() -> tuple[int, float]:
        outline, labels = labelled(graph)
        fitter = Fitter(outline, labels, 800, 600, 9.0)
        worth = fitter.worth(fitter.fit())
        return fitter.trials, worth

    trials, worth = searched()
    monkeypatch.setattr(fit, "_CROWDED", math.inf)
    assert searched()[0] > trials
    assert searched()[1] == pytest.approx(worth)
