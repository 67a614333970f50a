"""Fitting: as much open as the page allows, readable, and more page never shows much less."""

from __future__ import annotations

import pytest
from render import graphs
from render.layout.pages import drawn, labelled
from zoo import sequences

import torchatlas as atlas
from torchatlas import demo
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph
from torchatlas.render.layout.boxes import SMALL
from torchatlas.render.layout.fit import _HEIGHTS, Fitter
from torchatlas.render.layout.labels import Labels

MODELS = {
    "demo": demo.training_step,
    "lstm": lambda: _captured(sequences.lstm_cell_loop),
    "tiny_gpt": lambda: _captured(sequences.tiny_gpt),
    "tower": lambda: graphs.tower(12, width=lambda number: 8 + number),
    "two steps": lambda: graphs.written(
        [("repeat", 6, [("linear", 8), ("chain", 2, False)], True)], training="two steps"
    ),
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
    assert fit.score == max(fitter._scaled(fit.opened, (part,)).score for part in _HEIGHTS)


def test_room_is_not_filled_with_a_thicket_of_lines() -> None:
    picture = drawn(graphs.written([("dense", 7), ("dense", 7), ("dense", 9)]), 1600, 1200)
    outline = picture.outline
    fitter = Fitter(outline, Labels(outline), 1540, 1080, 9.0)
    closed = fitter._scaled(frozenset({id(outline.root)}), _HEIGHTS)
    assert fitter._worth(picture.fit) >= fitter._worth(closed)


def test_boxes_are_no_lower_than_asked() -> None:
    outline, labels = labelled(graphs.chain(6))
    fit = Fitter(outline, labels, 1200, 900, 8.0, 60.0).fit()
    assert all(inner.height * fit.scale >= 60 - 1e-6 for inner in fit.box.inner)
