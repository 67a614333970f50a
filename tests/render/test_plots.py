"""Plots: what can be read back from the SVG is what the reports say, and no text is lost, cut off or covered."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache, partial
from itertools import combinations, pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from render.reading import SVG, parsed, shapes, texts
from torch import nn

import torchatlas as atlas
from torchatlas import demo
from torchatlas.analysis import gradients
from torchatlas.analysis.memory import memory
from torchatlas.analysis.storages import CATEGORIES
from torchatlas.errors import AnalysisError, InvalidInputError, UnknownNameError
from torchatlas.graph import Graph
from torchatlas.render import plots
from torchatlas.render.theme import LIGHT
from torchatlas.units import format_bytes

KINDS: dict[str, Callable[..., str]] = {
    "memory": plots.memory_timeline,
    "roofline": plots.roofline,
    "time": plots.time_by_type,
    "gradients": plots.gradient_norms,
}
every_kind = pytest.mark.parametrize("kind", KINDS)


class Injected(nn.Module):
    """A class and attributes whose names are markup."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("<script>alert(1)</script>&\x07", nn.Linear(4, 4))
        self.add_module("名" * 300, nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.children():
            x = layer(x)
        return x


Injected.__name__ = "<img src=x onerror=alert(1)>"


@cache
def graph_of(name: str, values: str = "stats") -> Graph:
    """A training step, with times that are the same in every run."""
    torch.manual_seed(0)
    step: dict[str, Any] = {"backward": True, "optimizer": partial(torch.optim.AdamW, lr=1e-3), "values": values}
    model: nn.Module
    if name == "transformer":
        model, x = demo.TinyGPT(layers=2), torch.randint(0, 256, (2, 16))
    elif name == "convolutions":
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 5)]
        model, x = nn.Sequential(*layers), torch.randn(4, 3, 16, 16)
    elif name == "one layer":
        model, x = nn.Linear(3, 2), torch.randn(5, 3)
    else:
        model, x = Injected(), torch.randn(2, 4)
    graph = atlas.capture(model, x, **step)
    times = graph.columns["node_time_ns"]
    times[times >= 0] = np.random.default_rng(0).integers(1_000, 100_000, int((times >= 0).sum()))
    return graph


@every_kind
@pytest.mark.parametrize("name", ["transformer", "convolutions", "one layer", "injected"])
@pytest.mark.parametrize("size", [(1200, 700), (480, 320), (900, 1400)])
def test_no_text_leaves_the_page_or_covers_another(kind: str, name: str, size: tuple[int, int]) -> None:
    found = texts(KINDS[kind](graph_of(name), width=size[0], height=size[1]))
    assert len(found) > 5
    for words, (left, top, right, bottom) in found:
        assert left >= 0, words
        assert top >= 0, words
        assert right <= size[0], words
        assert bottom <= size[1], words
    for (first, a), (second, b) in combinations(found, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, (first, second)


@every_kind
def test_no_text_is_smaller_than_twelve_pixels(kind: str) -> None:
    for size in ((1200, 700), (480, 320)):
        root = parsed(KINDS[kind](graph_of("transformer"), width=size[0], height=size[1]))
        assert min(float(one.attrib["font-size"]) for one in root.iter(SVG + "text")) >= 12


@every_kind
def test_names_cannot_inject_markup(kind: str) -> None:
    svg = KINDS[kind](graph_of("injected"))
    assert "<script" not in svg
    assert "<img" not in svg
    allowed = {"svg", "rect", "text", "title", "line", "polyline", "circle", "path", "g", "style"}
    assert {one.tag.removeprefix(SVG) for one in parsed(svg).iter()} <= allowed
    assert any("<img src=x" in words for words, _ in texts(svg))  # the model's name is in the title, as text


@every_kind
def test_light_and_dark_say_the_same(kind: str) -> None:
    graph = graph_of("transformer")
    light, dark = KINDS[kind](graph), KINDS[kind](graph, theme="dark")
    assert texts(light) == texts(dark)
    assert light != dark
    with pytest.raises(UnknownNameError, match="did you mean 'dark'"):
        KINDS[kind](graph, theme="drak")


@every_kind
def test_the_size_is_the_one_asked_for(kind: str) -> None:
    root = parsed(KINDS[kind](graph_of("one layer"), width=811, height=457))
    assert (root.attrib["width"], root.attrib["height"]) == ("811", "457")
    for size in ({"width": 0}, {"height": -3}, {"width": 10**6}, {"width": 800.5}, {"height": None}):
        with pytest.raises(InvalidInputError, match="is no size for a plot"):
            KINDS[kind](graph_of("one layer"), **size)


@every_kind
def test_an_empty_graph_is_refused(kind: str) -> None:
    with pytest.raises(AnalysisError, match="Nothing ran"):
        KINDS[kind](Graph())
    with pytest.raises(InvalidInputError, match=r"takes a graph.*not int"):
        KINDS[kind](3)


def test_a_plot_that_is_none_and_a_device_without_a_roofline() -> None:
    with pytest.raises(
        InvalidInputError, match=r"kind='memry' is no plot; did you mean 'memory'\? Known: memory, roofl"
    ):
        atlas.plot(graph_of("one layer"), "memry")
    with pytest.raises(InvalidInputError, match=r"kind='xyzw' is no plot\. Known: memory"):
        atlas.plot(graph_of("one layer"), "xyzw")
    for kind in ("memory", "time", "gradients"):
        with pytest.raises(InvalidInputError, match=f"device='cpu' is for the roofline; the plot of {kind}"):
            atlas.plot(graph_of("one layer"), kind, device="cpu")


def test_one_operation_is_no_operations() -> None:
    graph = atlas.capture(lambda x: x.relu(), torch.randn(4))
    assert [words for words, _ in texts(plots.time_by_type(graph)) if words.endswith(" in 1 operation")]


# -- memory ------------------------------------------------------------------------------------------------------------


def outline(shape: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in shape.attrib["points"].split())]


def heights_at(points: list[tuple[float, float]], x: float) -> float:
    """How tall a filled outline of level and upright pieces is at x."""
    levels = [a[1] for a, b in pairwise(points) if min(a[0], b[0]) < x < max(a[0], b[0])]
    assert len(levels) == 2
    return abs(levels[0] - levels[1])


@pytest.mark.parametrize("name", ["convolutions", "one layer"])
def test_the_layers_are_the_timeline(name: str) -> None:
    graph, report = graph_of(name), memory(graph_of(name))
    svg = plots.memory_timeline(graph, width=4000, height=2000)  # large, so that rounding to 0.01 px is small
    layers = {words: outline(found[0]) for words, found in shapes(svg, "polyline").items()}
    assert set(layers) == {CATEGORIES[key] for key, sizes in report.timeline.items() if sizes.max() > 0}
    left = min(x for points in layers.values() for x, _ in points)
    right = max(x for points in layers.values() for x, _ in points)
    bottom = max(y for points in layers.values() for _, y in points)
    top = min(y for points in layers.values() for _, y in points)
    unit = report.peak_bytes / (bottom - top)
    for node in range(len(graph)):
        x = left + (right - left) * (node + 0.5) / len(graph)
        found = {words: heights_at(points, x) * unit for words, points in layers.items()}
        for key, words in CATEGORIES.items():
            assert found.get(words, 0) == pytest.approx(report.timeline[key][node], abs=0.03 * unit), (node, key)
        assert sum(found.values()) == pytest.approx(report.live_bytes[node], abs=0.1 * unit)


@pytest.mark.parametrize("name", ["convolutions", "one layer"])
def test_thin_lines_separate_areas_and_leave_the_upper_edge_alone(name: str) -> None:
    graph, timeline = graph_of(name), memory(graph_of(name)).timeline
    every = list(parsed(plots.memory_timeline(graph, width=4000, height=2000)).iter(SVG + "polyline"))
    areas = [outline(one) for one in every if one.attrib["fill"] != "none"]
    lines = [one for one in every if one.attrib["fill"] == "none"]
    assert {one.attrib["stroke"] for one in lines} == {LIGHT.background}
    left, right = min(x for points in areas for x, _ in points), max(x for points in areas for x, _ in points)
    bottom, pieces = (
        max(y for points in areas for _, y in points),
        [pair for one in lines for pair in pairwise(outline(one))],
    )
    for node in range(len(graph)):
        x = left + (right - left) * (node + 0.5) / len(graph)
        tops = [bottom - height for height in np.cumsum([heights_at(points, x) for points in areas])]
        found = [a[1] for a, b in pieces if a[0] < x < b[0]]
        assert len(found) == sum(sizes[node] > 0 for sizes in timeline.values()) - 1
        assert all(min(abs(top - y) for top in tops) < 0.1 for y in found)


def test_no_node_stands_out_of_the_stack_where_there_are_more_nodes_than_pixels() -> None:
    graph, report = graph_of("transformer"), memory(graph_of("transformer"))
    assert len(graph) > 450
    svg = plots.memory_timeline(graph, width=480, height=4000)
    layers = [outline(found[0]) for found in shapes(svg, "polyline").values()]
    every = [point for points in layers for point in points]
    left, right = min(x for x, _ in every), max(x for x, _ in every)
    top, bottom = min(y for _, y in every), max(y for _, y in every)
    circle = next(parsed(svg).iter(SVG + "circle"))
    assert top == pytest.approx(float(circle.attrib["cy"]), abs=0.02)
    unit = report.peak_bytes / (bottom - top)
    for node in range(len(graph)):
        x = left + (right - left) * (node + 0.5) / len(graph)
        assert sum(heights_at(points, x) for points in layers) * unit >= report.live_bytes[node] - unit, node


def test_the_peak_and_its_parts_are_written() -> None:
    report = memory(graph_of("convolutions"))
    words = [text for text, _ in texts(plots.memory_timeline(report.graph))]
    assert f"peak {format_bytes(report.peak_bytes)}, {report.node.name}" in words
    for key, size in report.by_category.items():
        if size:
            assert CATEGORIES[key] in words
            assert format_bytes(size) in words
    assert {"forward", "backward", "optimizer"} <= set(words)


def test_the_axis_says_what_it_counts() -> None:
    """One op between an input and an output ends at 3, which are not operations."""
    graph = atlas.capture(lambda x: x.relu(), torch.randn(4))
    words = [text for text, _ in texts(plots.memory_timeline(graph))]
    assert len(graph) == 3
    assert "inputs, operations and outputs, in the order they ran" in words
    with atlas.recording() as rec:
        torch.ones(4).relu()
    words = [text for text, _ in texts(plots.memory_timeline(rec.graph))]
    assert "operations, in the order they ran" in words


def test_a_graph_without_memory_is_refused() -> None:
    graph = Graph(dict(graph_of("one layer").columns), graph_of("one layer").tables)
    graph.columns["node_memory_bytes"] = np.full(len(graph), -1)
    with pytest.raises(AnalysisError, match="track_memory=True"):
        plots.memory_timeline(graph)


# -- the roofline ------------------------------------------------------------------------------------------------------


def test_circles_are_where_work_bytes_and_time_put_them() -> None:
    graph = graph_of("convolutions")
    report = atlas.cost(graph, "a100-80gb")
    svg = plots.roofline(graph, "a100-80gb", width=4000, height=3000)
    counts, names = report.counts, graph.index.names()
    places = []
    for said, found in shapes(svg, "circle").items():
        node = graph[re.search(r", first (.*?): ", said)[1]]  # type: ignore[index]
        alike = [
            other
            for other in np.flatnonzero(counts.is_op).tolist()
            if graph.nodes[other].operation == node.operation
            and counts.bytes[other] == counts.bytes[node.id]
            and counts.flops[other] + counts.elementwise_flops[other]
            == counts.flops[node.id] + counts.elementwise_flops[node.id]
        ]
        assert node.name == names[alike[0]]
        work = float(counts.flops[node.id] + counts.elementwise_flops[node.id])
        seconds = sum(graph.nodes[other].time_ns or 0 for other in alike) / 1e9
        where = (float(found[0].attrib["cx"]), float(found[0].attrib["cy"]))
        places.append((math.log10(work / counts.bytes[node.id]), math.log10(work * len(alike) / seconds), *where))
    table = np.array(places)
    assert len(table) > 10
    for data, page in ((table[:, 0], table[:, 2]), (table[:, 1], table[:, 3])):  # log scales: a straight line each
        slope, shift = np.polyfit(data, page, 1)
        assert np.abs(slope * data + shift - page).max() < 0.02


def test_plot_hands_its_device_to_the_roofline() -> None:
    graph = graph_of("convolutions")
    drawing = plots.plot(graph, "roofline", device="a100-80gb")
    assert drawing.svg == plots.roofline(graph, "a100-80gb") != plots.roofline(graph)


def test_the_ridge_is_where_the_device_has_it() -> None:
    device = atlas.cost(graph_of("convolutions"), "a100-80gb").device
    words = [text for text, _ in texts(plots.roofline(graph_of("convolutions"), "a100-80gb"))]
    ridge = device.flops_for("float32") / device.bandwidth
    assert f"ridge: {ridge:,.3g} FLOPs per byte" in words
    assert "multiply-adds in float32: 19.5 TFLOP/s" in words


def test_what_is_not_drawn_is_counted() -> None:
    graph = graph_of("convolutions")
    counts = atlas.cost(graph).counts
    idle = int((counts.is_op & (counts.macs == 0) & ((counts.elementwise_flops == 0) | (counts.bytes == 0))).sum())
    assert any(f"not shown: {idle:,} without arithmetic" in words for words, _ in texts(plots.roofline(graph)))


def test_without_times_the_best_times_are_used_and_that_is_said() -> None:
    graph = Graph(dict(graph_of("convolutions").columns), graph_of("convolutions").tables)
    graph.columns["node_time_ns"] = np.full(len(graph), -1)
    said = "below the roofs: too little work for the 5 µs that any call takes"
    untimed = texts(plots.roofline(graph))
    assert any("at best on 'generic', as nothing was timed" in words for words, _ in untimed)
    assert any(said in words for words, _ in untimed)  # these layers are small
    assert not any(said in words for words, _ in texts(plots.roofline(graph_of("convolutions"))))
    large = atlas.capture(lambda x: x @ x, torch.empty(4096, 4096, device="meta"), fake=True)
    assert not any(said in words for words, _ in texts(plots.roofline(large)))


def test_a_graph_of_views_has_no_roofline() -> None:
    graph = atlas.capture(nn.Flatten(), torch.randn(2, 3, 4))
    with pytest.raises(AnalysisError, match="has no points"):
        plots.roofline(graph)


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(4000, 700), (4000, 330)])
def test_bars_are_as_long_as_their_times(size: tuple[int, int]) -> None:
    graph = graph_of("transformer")
    svg = plots.time_by_type(graph, width=size[0], height=size[1])
    sums: dict[str, int] = {}
    for node in graph.where(kind="op"):
        key = f"{node.operation_type}, {node.phase}"
        sums[key] = sums.get(key, 0) + (node.time_ns or 0)
    bars = {said.rpartition(":")[0]: found[0] for said, found in shapes(svg, "rect").items()}
    long = {said: float(shape.attrib["width"]) for said, shape in bars.items()}
    longest = max((said for said in long if "other kinds" not in said), key=lambda said: long[said])
    unit = sums[longest] / long[longest]  # widths are rounded to 0.01 px: the longest bar tells it best
    for said, width in long.items():
        if "other kinds" not in said:
            assert width * unit == pytest.approx(sums[said], abs=0.02 * unit), said
    assert sum(long.values()) * unit == pytest.approx(sum(sums.values()), rel=1e-3)


def test_a_graph_without_times_is_refused() -> None:
    graph = Graph(dict(graph_of("one layer").columns), graph_of("one layer").tables)
    graph.columns["node_time_ns"] = np.full(len(graph), -1)
    with pytest.raises(AnalysisError, match="was timed"):
        plots.time_by_type(graph)


def test_what_was_not_timed_is_counted() -> None:
    graph = Graph(dict(graph_of("one layer").columns), graph_of("one layer").tables)
    graph.columns["node_time_ns"] = graph.columns["node_time_ns"].copy()
    graph.columns["node_time_ns"][graph.where(kind="op")[0].id] = -1
    assert any(re.match(r"at least .*; 1 more was not timed", words) for words, _ in texts(plots.time_by_type(graph)))


# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", ["stats", "all"])
@pytest.mark.parametrize("name", ["transformer", "convolutions", "one layer"])
def test_norms_are_those_of_the_real_gradients(name: str, values: str) -> None:
    torch.manual_seed(0)
    if name == "transformer":
        model, inputs = demo.TinyGPT(layers=2), torch.randint(0, 256, (2, 16))
    elif name == "convolutions":
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 5)]
        model, inputs = nn.Sequential(*layers), torch.randn(4, 3, 16, 16)
    else:
        model, inputs = nn.Linear(3, 2), torch.randn(5, 3)
    found = gradients.gradient_norms(graph_of(name, values))
    model(inputs).sum().backward()
    real = {path: float(one.grad.double().norm()) for path, one in model.named_parameters()}
    assert found.keys() == real.keys()
    for path, norm in real.items():
        assert found[path] == pytest.approx(norm, rel=1e-4, abs=1e-6), path


def test_dots_are_at_their_norms_in_the_order_of_use() -> None:
    graph = graph_of("convolutions")
    norms = {name: norm for name, norm in gradients.gradient_norms(graph).items() if norm > 0}
    svg = plots.gradient_norms(graph, width=4000, height=3000)
    dots = {said.rpartition(":")[0]: found[0] for said, found in shapes(svg, "circle").items()}
    at = [float(dots[name].attrib["cx"]) for name in norms]
    assert at == sorted(at)
    logs, page = [math.log10(norm) for norm in norms.values()], [float(dots[name].attrib["cy"]) for name in norms]
    slope, shift = np.polyfit(logs, page, 1)
    assert slope < 0
    assert np.abs(slope * np.array(logs) + shift - page).max() < 0.05


def test_zero_and_infinite_gradients_are_shown_and_counted() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain, self.none, self.wild = (nn.Parameter(torch.ones(3)) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.plain * x + self.none * 0.0 + self.wild * math.inf

    for values in ("stats", "all"):
        graph = atlas.capture(Odd(), torch.ones(3), backward=True, values=values)
        norms = gradients.gradient_norms(graph)
        assert norms["plain"] == pytest.approx(math.sqrt(3))
        assert norms["none"] == 0
        assert math.isnan(norms["wild"])
        svg = plots.gradient_norms(graph)
        assert any("1 zero, 1 not finite" in words for words, _ in texts(svg))
        dots = {said: float(found[0].attrib["cy"]) for said, found in shapes(svg, "circle").items()}
        assert dots["wild: not finite"] < dots["plain: 1.73"] < dots["none: 0"]


def test_norms_are_those_before_clipping() -> None:
    model = nn.Linear(3, 2)
    with atlas.recording(model, values="stats") as rec:
        model(100 * torch.ones(5, 3)).sum().backward()
        real = float(model.weight.grad.norm())
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    assert model.weight.grad.norm() < 1e-2 < real
    assert gradients.gradient_norms(rec.graph)["weight"] == pytest.approx(real, rel=1e-4)


def test_graphs_without_gradients_or_values_are_refused() -> None:
    with pytest.raises(AnalysisError, match="backward=True"):
        plots.gradient_norms(atlas.capture(nn.Linear(3, 2), torch.randn(5, 3), values="stats"))
    with pytest.raises(AnalysisError, match='values="stats"'):
        plots.gradient_norms(atlas.capture(nn.Linear(3, 2), torch.randn(5, 3), backward=True))


def test_gradients_of_a_kind_that_is_not_kept() -> None:
    tokens = torch.tensor([1, 2])
    with pytest.raises(AnalysisError, match="sparse=False"):
        plots.gradient_norms(atlas.capture(nn.Embedding(5, 3, sparse=True), tokens, backward=True, values="stats"))
    mixed = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
    words = texts(plots.gradient_norms(atlas.capture(mixed, tokens, backward=True, values="stats")))
    assert any("1 more were not kept" in text for text, _ in words)


@pytest.mark.parametrize("kind", ["memory", "roofline"])
@pytest.mark.parametrize(
    ("size", "inches"),
    [("column", (3.4, 2.7)), ("full", (7.0, 4.5)), ((5.5, 3), (5.5, 3.0)), ((3.34, 2.23), (3.34, 2.23))],
)
def test_a_plot_for_a_paper_has_its_size_and_type_that_can_be_read(
    kind: str, size: Any, inches: tuple[float, float]
) -> None:
    drawing = atlas.plot(demo.training_step(), kind, size=size)
    assert drawing.inches == pytest.approx(inches)
    root = ElementTree.fromstring(drawing.svg)
    assert [float(root.attrib[side].removesuffix("in")) for side in ("width", "height")] == pytest.approx(inches)
    points = 72 * inches[0] / float(root.attrib["viewBox"].split()[2])
    sizes = [float(text.attrib["font-size"]) for text in root.iter() if text.tag.endswith("text")]
    assert min(sizes) * points >= 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 3}, r"size=3 is too small for a plot.* use at least 3.34 x 2.23 inches"),
        ({"size": (7, 1)}, "too small for a plot"),
        ({"size": "colum"}, "did you mean 'column'"),
        ({"size": "column", "width": 600}, "two sizes"),
        ({"width": 0}, "width=0"),
    ],
)
def test_sizes_that_no_plot_has(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        atlas.plot(demo.training_step(), "memory", **options)
