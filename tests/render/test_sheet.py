"""Pictures for papers: sizes in inches, type that can be read in print, what is left out."""

from __future__ import annotations

import re
import struct
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from render.pdf_reading import Pdf
from render.pictures import texts, tower
from render.reading import parsed
from torch import nn

import torchatlas as atlas
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph
from torchatlas.render.picture import Picture
from torchatlas.render.sheet import sheet


class Net(nn.Module):
    """Stages of blocks of layers: three levels of modules."""

    def __init__(self, stages: int = 3) -> None:
        super().__init__()
        sizes = [8 + stage for stage in range(stages + 1)]
        self.stem = nn.Linear(4, sizes[0])
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Sequential(nn.Linear(a, a), nn.ReLU()), nn.Sequential(nn.Linear(a, b), nn.Tanh()))
            for a, b in pairwise(sizes)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return x


def net(stages: int = 3, **options: Any) -> Graph:
    return atlas.capture(Net(stages), torch.ones(2, 4), **options)


def smallest_points(picture: Picture) -> float:
    """The smallest type on paper, measured on the SVG: sizes of texts, within the scale of their group."""
    root = parsed(picture.svg)
    width = float(root.attrib["width"].removesuffix("in"))
    points = 72 * width / float(root.attrib["viewBox"].split()[2])
    found = []
    for parent in root.iter():
        scale = re.search(r"scale\(([0-9.]+)\)", parent.get("transform", ""))
        factor = float(scale[1]) if scale else 1.0
        found += [float(one.attrib["font-size"]) * factor for one in parent if one.tag.endswith("}text")]
    return min(found) * points


@pytest.mark.parametrize(
    ("size", "graph", "options"),
    [
        *product(["column", "full", 5.5, (3.4, 2.5), (6, 8)], ["tower", "net", "training"], [{}]),
        ("column", "training", {"color_by": "flops"}),
        ("full", "training", {"critical_path": True, "theme": "dark"}),
    ],
)
def test_no_type_is_smaller_than_six_points(size: Any, graph: str, options: dict[str, Any]) -> None:
    graphs = {"tower": tower, "net": lambda: net(9), "training": lambda: net(4, optimizer=torch.optim.SGD)}
    picture = atlas.draw(graphs[graph](), size=size, **options)
    assert smallest_points(picture) >= 5.999
    assert smallest_points(picture) <= 10
    assert picture.inches is not None
    width, height = picture.inches
    assert width == {"column": 3.4, "full": 7.0, 5.5: 5.5}.get(size, size[0] if isinstance(size, tuple) else 0)
    assert height == pytest.approx(size[1]) if isinstance(size, tuple) else 0 < height <= 9


def test_the_formats_agree_on_the_size() -> None:
    picture = atlas.draw(tower(), size="column")
    assert picture.inches is not None
    root = parsed(picture.svg)
    for side, key in zip(picture.inches, ("width", "height"), strict=True):
        assert root.attrib[key].endswith("in")
        assert float(root.attrib[key][:-2]) == pytest.approx(side, rel=1e-4)
    assert Pdf(picture.pdf()).size == pytest.approx([72 * side for side in picture.inches], abs=0.01)
    png = picture.png()
    assert struct.unpack(">II", png[16:24]) == tuple(round(300 * side) for side in picture.inches)
    assert struct.unpack(">II", picture.png(dpi=150)[16:24]) == tuple(round(150 * side) for side in picture.inches)
    at = png.index(b"pHYs")
    assert round(struct.unpack(">I", png[at + 4 : at + 8])[0] * 0.0254) == 300


def test_a_picture_is_as_high_as_what_is_drawn() -> None:
    small, large = (atlas.draw(net(stages), size="full", depth=1) for stages in (1, 12))
    assert small.height < large.height
    for picture in (small, large):
        low = max(frame.y + frame.height for frame in picture.scene.frames) * picture.fit.scale
        assert picture.height - low < 120  # a title, a legend and a footer
    exact = atlas.draw(net(1), size=(3.4, 5))
    assert exact.inches == (3.4, 5)


def test_a_sheet_that_is_cut_saves_height() -> None:
    graph = net(6)
    cut, tall = atlas.draw(graph, size="full", depth=1), atlas.draw(graph, size=(7, 9), depth=1)
    assert cut.fit.box.wraps > tall.fit.box.wraps == 0
    assert cut.height < 0.6 * tall.height


def open_modules(picture: Picture) -> set[str]:
    graph = picture.outline.tree.graph
    calls = [frame.item.call for frame in picture.scene.frames if frame.open and frame.item.call >= 0]
    return {graph.tables.modules[graph.columns["call_module"][call]].path for call in calls}


@pytest.mark.parametrize("phases", [None, ["forward"]])
def test_depth_is_how_many_levels_of_modules_are_shown(phases: list[str] | None) -> None:
    graph = net(optimizer=torch.optim.SGD)
    size = {"width": 4000, "height": 3000, "phases": phases}
    seen = {depth: atlas.draw(graph, depth=depth, **size) for depth in (1, 2, 3, None)}  # type: ignore[arg-type]
    opened = {depth: open_modules(picture) for depth, picture in seen.items()}
    assert not any("." in path for path in opened[1])
    assert {"stages.0", "stages.1"} <= opened[2]
    assert not any(path.count(".") > 1 for path in opened[2])
    assert {"stages.0.0", "stages.1.0"} <= opened[3]
    assert {path for path in opened[None] if path.count(".") < 3} == opened[3]  # in backward a Linear has several ops
    assert seen[1].boxes < seen[2].boxes < seen[3].boxes <= seen[None].boxes


def test_what_stands_around_a_picture_can_be_left_out() -> None:
    graph = tower()
    both = texts(atlas.draw(graph))
    title, legend, footer = "Sequential", "matmul", next(text for text in both if "parameters" in text)
    assert {title, legend, footer} <= set(both)
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"footer": False}, {title, legend}),
        ({"legend": False}, {title, footer}),
        ({"title": None}, {legend, footer}),
        ({"title": None, "legend": False, "footer": False}, set()),
    ]
    for size in ({}, {"size": "column"}):
        whole = atlas.draw(graph, **size)  # type: ignore[arg-type]
        for options, kept in cases:
            picture = atlas.draw(graph, **size, **options)
            found = texts(picture)
            said = {name for name in (title, legend) if name in found}
            said |= {footer} if any(text.startswith(footer.partition(" (")[0]) for text in found) else set()
            assert said == kept
            assert not size or picture.height < whole.height
    bare = atlas.draw(graph, size="column", title=None, legend=False, footer=False)
    assert bare.height - bare.scene.height * bare.fit.scale <= 7  # margins of three pixels


def test_font_size_is_in_points_on_paper() -> None:
    picture = atlas.draw(net(6), size="full", font_size=8)
    assert smallest_points(picture) >= 7.999


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "colum"}, "did you mean 'column'"),
        ({"size": "huge"}, r'Pass "column" \(3.4 inches wide\) or "full"'),
        ({"size": (3, 4, 5)}, "is no size of a picture"),
        ({"size": (3, float("nan"))}, "is no size of a picture"),
        ({"size": 0.1}, "from 0.25 to 200"),
        ({"size": True}, "is no size of a picture"),
        ({"size": "column", "width": 500}, "are two sizes"),
        ({"size": "column", "height": 500}, "are two sizes"),
        ({"size": "column", "font_size": 0}, "pass points, from 1"),
        ({"size": (0.3, 0.3)}, r"0.3 x 0.3 inches are too few to show anything at font_size=6: use at least"),
        ({"depth": 0}, "depth=0 is no number of levels"),
        ({"depth": 1.5}, "depth=1.5"),
        ({"depth": True}, "depth=True"),
        ({"title": 3}, "or None for no heading"),
    ],
)
def test_sizes_that_are_none(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        atlas.draw(tower(), **options)


def test_the_least_sheet_that_is_named_does() -> None:
    with pytest.raises(InvalidInputError, match="use at least") as error:
        atlas.draw(tower(), size=(0.5, 0.5))
    wide, tall = re.findall(r"[0-9.]+", str(error.value).split("at least")[1])[:2]
    assert atlas.draw(tower(), size=(float(wide), float(tall))).boxes


def test_nothing_recorded_makes_a_picture_too() -> None:
    with atlas.recording() as recorder:
        pass
    picture = atlas.draw(recorder.graph, size="column")
    assert "nothing was recorded" in texts(picture)
    assert picture.height < 120


def test_pixels_are_rounded_so_that_type_never_shrinks() -> None:
    for width in (3.4, 3.333, 2.999, 7.0, 5.51):
        page = sheet(size=width)
        assert page.inches is not None
        assert page.width <= width * 96
        assert page.height * width / page.width <= 9
