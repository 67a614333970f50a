"""Pictures of real programs, as what is in them: boxes with their words and depth, lines from where to where.

Not pixels and not coordinates: a better placement is no change here. Rewritten by TORCHATLAS_OVERWRITE_GOLDEN=1.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from render.layout.pages import drawn
from zoo import images, sequences, specimen

import torchatlas as atlas
from torchatlas import demo
from torchatlas.graph import Graph
from torchatlas.render.layout.scene import Frame, Scene
from torchatlas.render.layout.style import STYLE
from torchatlas.render.picture import Picture

GOLDEN = Path(__file__).parent / "golden"
OVERWRITE = "TORCHATLAS_OVERWRITE_GOLDEN" in os.environ


def captured(entry: specimen.Specimen, backward: bool = False) -> Graph:
    model, args, kwargs = entry.build()
    return atlas.capture(model, *args, kwargs=kwargs, backward=backward)


MODELS: dict[str, Callable[[], Graph]] = {
    "demo": demo.training_step,
    "lstm_cell_loop": lambda: captured(sequences.lstm_cell_loop),
    "residual_inplace_relu": lambda: captured(images.residual_inplace_relu, backward=True),
    "squeeze_excite": lambda: captured(images.squeeze_excite),
    "tiny_gpt": lambda: captured(sequences.tiny_gpt),
    "unet_long_skip": lambda: captured(images.unet_long_skip),
}


def structure(picture: Picture) -> dict[str, Any]:
    scene = picture.scene
    frames = [
        {
            "title": frame.title,
            "subtitle": frame.subtitle,
            "depth": frame.depth,
            "open": frame.open,
            **({"repeat": frame.item.repeat} if frame.item.repeat > 1 else {}),
        }
        for frame in scene.frames
    ]
    lines = sorted(f"{end(scene, line.points[0])} -> {end(scene, line.points[-1])}" for line in scene.lines)
    return {"frames": frames, "lines": lines}  # labels stand where there is room: placement, not structure


def end(scene: Scene, point: tuple[float, float]) -> str:
    """The innermost frame at whose border a line begins or ends, by number and title."""

    def touches(frame: Frame) -> bool:
        behind = STYLE.stack if frame.item.repeat > 1 else 0.0
        borders = (frame.y, frame.y + frame.height, frame.y + frame.height + behind, frame.y + STYLE.heading)
        beside = frame.x - 1.5 <= point[0] <= frame.x + frame.width + 1.5
        inside = frame.open and frame.y <= point[1] <= frame.y + frame.height
        return beside and (inside or any(abs(point[1] - border) < 1.5 for border in borders))

    number, frame = max(
        ((number, frame) for number, frame in enumerate(scene.frames) if touches(frame)), key=lambda one: one[1].depth
    )
    return f"{number} {frame.title}"


@pytest.mark.parametrize("name", MODELS)
def test_a_picture_holds_what_was_agreed(name: str) -> None:
    picture = drawn(MODELS[name]())
    found = json.dumps(structure(picture), indent=1, ensure_ascii=False) + "\n"
    golden = GOLDEN / f"{name}.json"
    if OVERWRITE:
        golden.write_text(found, encoding="utf-8")
    agreed = golden.read_text(encoding="utf-8")
    assert json.loads(found) == json.loads(agreed), "set TORCHATLAS_OVERWRITE_GOLDEN=1 if this is meant to be"


@pytest.mark.parametrize("name", MODELS)
def test_the_svg_says_what_the_scene_holds(name: str) -> None:
    picture = drawn(MODELS[name]())
    texts = ["".join(one.itertext()) for one in ElementTree.fromstring(picture.svg).iter() if one.tag.endswith("text")]
    for frame in picture.scene.frames:
        assert frame.title in texts
        assert not frame.subtitle or frame.subtitle in texts
    for label in picture.scene.labels:
        assert label.text in texts


def test_golden_files_are_all_in_use() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(MODELS)
