"""Colours: readable text on every ground, categories that stay apart for colour-blind readers, an even scale."""

from __future__ import annotations

import re
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from torchatlas.analysis.storages import CATEGORIES
from torchatlas.errors import UnknownNameError
from torchatlas.graph.nouns import OperationType
from torchatlas.render.theme import DARK, LIGHT, Theme, contrast, mixed, theme

both = pytest.mark.parametrize("paint", [LIGHT, DARK], ids=lambda paint: paint.name)
OFTEN_MEET = [
    OperationType(name)
    for name in [
        "convolution",
        "matmul",
        "attention",
        "norm",
        "activation",
        "pooling",
        "pointwise",
        "embedding",
        "recurrent",
        "reduction",
        "loss",
        "optimizer",
        "communication",
        "view",
        "movement",
    ]
]
# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
VISION = {
    "full": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def lab(colour: str, vision: str = "full") -> np.ndarray:
    channels = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    seen = np.clip(VISION[vision] @ linear, 0, 1)
    x, y, z = (TO_XYZ @ seen) / (TO_XYZ @ np.ones(3))
    fx, fy, fz = (np.cbrt(t) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


def distance(first: str, second: str, vision: str = "full") -> float:
    return float(np.linalg.norm(lab(first, vision) - lab(second, vision)))


@both
def test_every_category_has_its_colours(paint: Theme) -> None:
    assert set(paint.fills) == set(OperationType)
    colours = [*paint.tints, *paint.ramp, *paint.terminal, *(one for pair in paint.fills.values() for one in pair)]
    colours += [paint.background, paint.ink, paint.soft, paint.line, paint.edge, paint.accent]
    assert all(re.fullmatch("#[0-9A-F]{6}", colour) for colour in colours)
    assert len({stroke for _, stroke in paint.fills.values()}) == len(OperationType)


@both
def test_text_is_readable_on_every_ground(paint: Theme) -> None:
    for ground in [paint.background, *paint.tints, *(fill for fill, _ in paint.fills.values())]:
        assert contrast(paint.ink, ground) >= 7, ground
        assert contrast(paint.soft, ground) >= 4.5, ground
    assert contrast(*paint.terminal) >= 7
    assert contrast(paint.accent, paint.background) >= 4.5
    assert contrast(paint.edge, paint.background) >= 3


def seen_apart(first: tuple[str, str], second: tuple[str, str], vision: str) -> float:
    """How far two boxes are from each other: by their fills and, as there is little of them, a third of their strokes.

    A difference of 2 in lightness is seen where two areas touch; boxes do not.
    """
    fills, strokes = (distance(a, b, vision) for a, b in zip(first, second, strict=True))
    return float(np.hypot(fills, 0.35 * strokes))


@both
@pytest.mark.parametrize("vision", list(VISION))
def test_categories_that_meet_stay_apart(paint: Theme, vision: str) -> None:
    for first, second in combinations(OperationType, 2):
        far = distance(paint.fills[first][1], paint.fills[second][1], vision)
        assert far >= (11 if {first, second} <= set(OFTEN_MEET) else 8), (str(first), str(second), far)
        both_far = seen_apart(paint.fills[first], paint.fills[second], vision)
        assert both_far >= (4.2 if {first, second} <= set(OFTEN_MEET) else 3), (str(first), str(second), both_far)


@both
def test_the_common_categories_are_told_apart_in_grey(paint: Theme) -> None:
    """By the lightness of fill and stroke together: neither has room for thirteen steps that can be seen."""
    light = {kind: (lab(fill)[0], lab(stroke)[0]) for kind, (fill, stroke) in paint.fills.items()}
    common = {*OFTEN_MEET, OperationType.RANDOM} - {
        OperationType(name) for name in ("recurrent", "optimizer", "communication")
    }
    for first, second in combinations(OperationType, 2):
        fills, strokes = (a - b for a, b in zip(light[first], light[second], strict=True))
        far = float(np.hypot(fills, 0.35 * strokes))
        least = 4.7 if {first, second} <= common else 4 if {first, second} <= {*OFTEN_MEET, *common} else 2.2
        assert far >= least, (str(first), str(second), far)


@both
def test_the_heavier_an_op_the_more_its_box_stands_out(paint: Theme) -> None:
    ground = lab(paint.background)[0]
    weight = {kind: abs(lab(fill)[0] - ground) for kind, (fill, _) in paint.fills.items()}
    heavy = [weight[OperationType(name)] for name in ("convolution", "matmul", "attention", "recurrent")]
    light = [weight[OperationType(name)] for name in ("activation", "pointwise", "view", "movement", "random")]
    assert min(heavy) > 1.3 * max(light)
    assert max(weight.values()) - min(weight.values()) > 17


@both
def test_a_box_has_an_outline(paint: Theme) -> None:
    assert all(abs(lab(fill)[0] - lab(stroke)[0]) >= 20 for fill, stroke in paint.fills.values())


def test_the_fills_are_pale_on_light_pages_and_dark_on_dark_ones() -> None:
    assert all(lab(fill)[0] > 77 for fill, _ in LIGHT.fills.values())
    assert all(lab(fill)[0] < 35 for fill, _ in DARK.fills.values())


MOST_BYTES = ["parameters", "optimizer_state", "gradients", "saved_activations", "activations", "temporaries"]


@both
@pytest.mark.parametrize("vision", [*VISION, "grey"])
def test_areas_of_memory_stay_apart(paint: Theme, vision: str) -> None:
    assert set(paint.memory) == set(CATEGORIES)
    for first, second in combinations(paint.memory, 2):
        colours = paint.memory[first], paint.memory[second]
        far = abs(lab(colours[0])[0] - lab(colours[1])[0]) if vision == "grey" else distance(*colours, vision)
        least = (7, 3.5) if vision == "grey" else (11.5, 9)
        assert far >= least[not {first, second} <= set(MOST_BYTES)], (first, second, far)


@both
def test_areas_of_memory_are_seen_on_every_ground(paint: Theme) -> None:
    for colour, ground in product(paint.memory.values(), [paint.background, *paint.tints[:4]]):
        assert distance(colour, ground) >= 10, (colour, ground)


@both
def test_heat_is_even_and_readable(paint: Theme) -> None:
    steps = [distance(a, b) for a, b in pairwise(paint.ramp)]
    assert len(paint.ramp) == 16
    assert max(steps) / min(steps) < 1.1
    for vision in VISION:
        light = [lab(colour, vision)[0] for colour in paint.ramp]
        falls = paint is LIGHT
        assert all((b < a) == falls for a, b in pairwise(light)), vision
    for at in range(101):
        fill, ink = paint.heat(at / 100)
        assert contrast(fill, ink) >= 4.5


@both
def test_heat_at_its_ends_and_beyond(paint: Theme) -> None:
    assert paint.heat(0)[0] == paint.heat(-3)[0] == paint.ramp[0]
    assert paint.heat(1)[0] == paint.heat(7)[0] == paint.ramp[-1]
    assert paint.heat(5 / 15)[0] == paint.ramp[5]
    assert paint.heat(float("nan")) == (paint.fills[OperationType.UNKNOWN][0], paint.ink)


def test_themes_by_name() -> None:
    assert theme("light") is LIGHT
    assert theme("dark") is DARK
    with pytest.raises(UnknownNameError, match=r"did you mean 'light'\? Known: dark, light"):
        theme("lihgt")


def test_contrast_and_mixing() -> None:
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)  # the textbook's almost readable grey
    assert mixed("#102030", "#102030", 0.3) == "#102030"
    assert mixed("#000000", "#FF8000", 1) == "#FF8000"
