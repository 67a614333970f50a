"""atlas.draw: colours by type and by measure, and the critical path."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from render.layout import verify
from render.pictures import Block, texts, tower, words
from render.reading import SVG
from torch import nn
from zoo import ZOO, Specimen

import torchatlas as atlas
from torchatlas.analysis.critical_path import critical_path
from torchatlas.analysis.gradients import gradient_norms
from torchatlas.demo import training_step
from torchatlas.graph import Graph, OperationType
from torchatlas.operations import type_of_box
from torchatlas.render.color_by import BOX_MEASURES
from torchatlas.render.layout.highlight import HighlightedPath
from torchatlas.render.picture import Picture
from torchatlas.render.scene_painter import heaviest
from torchatlas.render.theme import DARK, LIGHT


def fills(picture: Picture) -> list[str]:
    return [element.get("fill", "") for element in ElementTree.fromstring(picture.svg).iter(f"{SVG}rect")]


@pytest.mark.parametrize("measure", ["time", "memory", "flops", "intensity", "gradient"])
def test_boxes_are_coloured_by_a_measure(measure: str) -> None:
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 2))
    graph = atlas.capture(model, torch.randn(64, 64), backward=True, values="stats")
    picture = atlas.draw(graph, color_by=measure)
    assert LIGHT.heat(1.0)[0] in fills(picture)  # the most there is
    assert any(text.startswith("0 to ") for text in texts(picture))
    assert atlas.draw(graph).svg != picture.svg


def test_the_heaviest_box_is_the_darkest() -> None:
    model = nn.Sequential(nn.Linear(8, 1024), nn.ReLU(), nn.Linear(1024, 1))
    picture = atlas.draw(atlas.capture(model, torch.randn(4, 8)), color_by="flops")
    root = ElementTree.fromstring(picture.svg)
    heaviest = [element for element in root.iter(f"{SVG}rect") if element.get("fill") == LIGHT.heat(1.0)[0]]
    titles = {title.text for element in heaviest for title in element.iter(f"{SVG}title")}
    assert {str(title).splitlines()[0] for title in titles} == {"Linear"}
    assert "0 · 8→1024" in "".join(map(str, titles))


def test_the_critical_path_is_marked() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heavy, self.light = nn.Linear(64, 64), nn.Linear(64, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.heavy(x) + self.light(x)
            return y

    graph = atlas.capture(Two(), torch.randn(2, 64))
    picture = atlas.draw(graph, critical_path="flops")
    marked = [
        element
        for element in ElementTree.fromstring(picture.svg).iter(f"{SVG}rect")
        if element.get("stroke") == LIGHT.accent and len(element)  # that of the legend has no tooltip
    ]
    names = ["".join(element.itertext()).splitlines()[1] for element in marked]
    assert any("heavy" in name for name in names)
    assert not any("light" in name for name in names)
    assert LIGHT.accent not in atlas.draw(graph).svg


class Residual(nn.Module):
    """The lines around the chain join two of its boxes too."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64), nn.Tanh()), Block(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x)
        y: torch.Tensor = self.three(x + self.two(x))
        return y


@pytest.mark.parametrize("name", ["residual", "tower", "step"])
def test_the_critical_path_is_one_chain(name: str) -> None:
    graph = {
        "residual": lambda: atlas.capture(Residual(), torch.randn(8, 64)),
        "tower": tower,
        "step": training_step,
    }[name]()
    picture = atlas.draw(graph, critical_path="flops")
    way = HighlightedPath(picture.outline, picture.scene, heaviest(picture.outline.tree, "flops"))
    assert verify.broken(picture.scene, way) == []
    assert len(way.lines) > 5
    assert len(re.findall(f'd="[^"Z]*" fill="none" stroke="{LIGHT.accent}"', picture.svg)) == len(way.lines)
    frames = picture.scene.frames
    for end in (0, 1):
        joined = [line.ends[end] for line in way.lines if line.ends[end] is not None]
        assert len(set(joined)) == len(joined)  # no box, open or closed, has two
    ends = {frames[end] for line in way.lines for end in line.ends if end is not None and not frames[end].open}
    # A thick line ends at the frame of a phase: the one box of a last phase that is on the path has no line of its own.
    assert ends == way.boxes or ends == way.boxes - {way.chain[-1]}
    if name == "residual":
        (add,) = (number for number, frame in enumerate(frames) if frame.title == "add" and not frame.depth)
        (marked,) = (line for line in way.lines if line.ends[1] == add)
        assert sum(line.ends[1] == add for line in picture.scene.lines) == 2
        assert frames[marked.ends[0]].title == "Sequential"  # type: ignore[index]
    if name == "step":
        assert [line for line in way.lines if line.many > 1], "a thick line leads from lane to lane"


def test_the_critical_path_runs_through_the_round_of_a_repeat_that_it_touches() -> None:
    def branches(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([(y @ one).relu().sin() for one in x])

    graph = atlas.capture(branches, torch.randn(20, 4, 4), torch.randn(2, 4))
    names = [node.operation for node in graph.nodes]
    times = graph.columns["node_time_ns"]
    times[:] = 1
    times[[number for number, name in enumerate(names) if "sin" in name][13]] = 1000  # not the first of them
    picture = atlas.draw(graph, critical_path=True)
    (branch,) = (frame for frame in picture.scene.frames if frame.item.repeat == 20 and frame.open)
    inner = [frame for frame in picture.scene.frames if frame.item.parent is branch.item]
    assert set(inner) < HighlightedPath(picture.outline, picture.scene, heaviest(picture.outline.tree, "time")).boxes


def path(graph: Graph, by: str = "count") -> tuple[list[str], HighlightedPath]:
    """The titles along the critical path, which is one chain, and the way itself."""
    picture = atlas.draw(graph, critical_path=by)
    way = HighlightedPath(picture.outline, picture.scene, heaviest(picture.outline.tree, by))
    assert verify.broken(picture.scene, way) == []
    return [frame.title for frame in way.chain], way


def test_the_critical_path_follows_tensors_not_the_order_of_writes() -> None:
    def noise(x: torch.Tensor) -> torch.Tensor:
        x = x.sin().cos()
        mask = torch.empty_like(x).bernoulli_(0.5)  # the room for the mask has no box, and what fills it no line
        return x * mask.div_(0.5)

    graph = atlas.capture(noise, torch.randn(3))
    along = [graph.nodes[node].operation for node in critical_path(graph, by="count").ids]
    assert "aten.empty_like.default" in along
    assert path(graph)[0] == ["x", "sin", "cos", "mul", "output"]

    def doubled(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        before = y.sin()
        y.mul_(2)  # waits for the sine, of which it takes nothing
        return y.exp().log() + before

    assert path(atlas.capture(doubled, torch.randn(3)))[0] == ["x", "clone", "mul", "exp", "log", "add", "output"]


def test_the_critical_path_takes_one_whole_way_through_a_repeat() -> None:
    """What a decoder makes goes out, what it chooses to the next step: the first step alone leads to no line out."""

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.look, self.embed, self.out = nn.Linear(8, 8), nn.Embedding(9, 8), nn.Linear(16, 9)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            token, made = torch.zeros(2, dtype=torch.int64), []
            for _ in range(6):
                seen = self.look(x).tanh().softmax(-1)
                made.append(self.out(torch.cat([seen, self.embed(token)], 1)))
                token = made[-1].argmax(1)
            return torch.stack(made)

    titles, way = path(atlas.capture(Decoder(), torch.randn(2, 8)))
    assert titles == ["x", "Linear", "tanh", "softmax", "cat", "Linear", "stack", "output"]
    assert not any(line.returning for line in way.lines)


def test_the_critical_path_goes_along_the_dashed_line_where_no_round_alone_leads_on() -> None:
    def pipeline(x: torch.Tensor, state: torch.Tensor, clock: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = []
        for _ in range(6):
            clock = clock.tan()
            made.append(state.cos().cosh())
            state = x.sin().sinh()
        return torch.stack(made), clock

    graph = atlas.capture(pipeline, torch.randn(3), torch.randn(3), torch.randn(3))
    is_clock = np.array([node.operation == "aten.tan.default" for node in graph.nodes])
    graph.columns["node_time_ns"][:] = np.where(is_clock, 1, 1000)
    titles, way = path(graph, "time")
    assert titles == ["x", "sin", "sinh", "cos", "cosh", "stack"]
    assert any(line.returning for line in way.lines)


def test_the_critical_path_follows_a_line_out_of_a_repeat_to_where_the_dashed_one_begins() -> None:
    """What a round hands on and what leaves the repeat is the same tensor here."""

    def rounds(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made, seen = [], []
        for _ in range(6):
            seen.append(x.cosh())
            x = x.sin()
            made.append(x)
        return torch.stack(made), torch.stack(seen)

    graph = atlas.capture(rounds, torch.randn(3))
    graph.columns["node_time_ns"][:] = 1
    heavy = [number for number, node in enumerate(graph.nodes) if "cosh" in node.operation][3]
    graph.columns["node_time_ns"][heavy] = 1000
    titles, way = path(graph, "time")
    assert titles[:4] == ["x", "sin", "cosh", "stack"]
    titled = [frame.title for frame in way.scene.frames]
    leaving = [line for line in way.lines if line.ends == (titled.index("sin"), None) and not line.returning]
    assert len(leaving) == 1
    way.lines -= frozenset(leaving)  # then the dashed line begins in the air
    assert verify.broken(way.scene, way)[0] == "no marked lines lead from sin '' to cosh ''"


def some_weights(count: int, seed: int) -> np.ndarray:
    """Times that lead any way: about equal, far apart, nearly all nothing, many ties."""
    rng = np.random.default_rng(seed)
    kinds = (
        lambda: rng.integers(0, 1000, count),
        lambda: np.exp(rng.normal(0, 3, count)).astype(np.int64) + 1,
        lambda: 1000 * (rng.random(count) < 0.1),
        lambda: rng.integers(1, 3, count),
    )
    return kinds[seed % len(kinds)]()


@pytest.mark.parametrize("specimen", ZOO, ids=str)
def test_the_critical_path_of_every_specimen_is_one_chain_whatever_it_weighs(specimen: Specimen) -> None:
    """What is drawn does not depend on the weights, only what is marked."""
    model, args, kwargs = specimen.build()
    graph = atlas.capture(model, *args, kwargs=kwargs, backward=specimen.trains)
    picture = atlas.draw(graph)
    weights = [graph.columns["node_time_ns"], *(some_weights(len(graph), seed) for seed in range(8))]
    for by, times in [("count", weights[0]), ("flops", weights[0]), *(("time", each) for each in weights[1:])]:
        graph.columns["node_time_ns"][:] = times
        way = HighlightedPath(picture.outline, picture.scene, heaviest(picture.outline.tree, by))
        assert verify.broken(picture.scene, way) == [], (by, times.tolist())
        assert way.chain


def test_the_legend_says_what_the_critical_path_is_measured_by() -> None:
    timed, fake = tower(), atlas.capture(Block(8), torch.randn(2, 8), fake=True)
    for graph, wanted, said in (
        (timed, True, "time"),
        (fake, True, "all arithmetic"),
        (timed, "flops", "all arithmetic"),
        (timed, "bytes", "bytes moved"),
        (timed, "roofline", "roofline"),
    ):
        assert f"critical path by {said}" in words(graph, critical_path=wanted)
        assert any(
            f"; bold: critical path by {said}" in text for text in words(graph, critical_path=wanted, color_by="flops")
        )


def test_flops_are_the_same_in_legend_and_footer_and_cost() -> None:
    graph = atlas.capture(nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)), torch.randn(64, 4))
    picture = atlas.draw(graph, color_by="flops")
    value = BOX_MEASURES["flops"](picture.outline).value
    boxes = {frame.title: value(frame.item) for frame in picture.scene.closed}
    flops = atlas.cost(graph).flops
    assert flops == 2 * 64 * 4 * 4
    assert (boxes["Linear"], boxes["Softmax"]) == (flops, 0)
    assert value(picture.outline.root) == flops
    said = [text for text in texts(picture) if "FLOPs" in text]
    assert said[0] == "FLOPs (2 per multiply-add)"
    assert [re.findall(r"[\d.]+ KFLOPs", text) for text in said[1:]] == [["2.05 KFLOPs"]] * 2


def test_a_module_has_one_colour_in_forward_and_backward() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    graph = atlas.capture(model, torch.randn(2, 3, 8, 8), backward=True)
    svg = ElementTree.fromstring(atlas.draw(graph).svg)
    pools = [
        element.get("fill")
        for element in svg.iter(f"{SVG}rect")
        if "".join(element.itertext()).startswith("AdaptiveAvgPool2d")
    ]
    assert pools == [LIGHT.fills[OperationType.POOLING][0]] * 2
    assert "pooling" in words(graph)
    assert type_of_box(OperationType.REDUCTION, "Linear") is OperationType.REDUCTION  # the sum of a bias in backward
    assert type_of_box(OperationType.POINTWISE, "") is OperationType.POINTWISE


def test_dark_pages_are_dark() -> None:
    assert fills(atlas.draw(tower(), theme="dark"))[0] == DARK.background


def test_boxes_of_backward_are_coloured_by_the_gradients_they_make() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    graph = atlas.capture(model, torch.randn(4, 6), backward=True, values="stats")
    norms = gradient_norms(graph)
    picture = atlas.draw(graph, color_by="gradient", width=2400, height=1800)
    value = BOX_MEASURES["gradient"](picture.outline).value
    found = {
        (frame.item.parent.name if frame.item.parent is not None else "", frame.subtitle): value(frame.item)
        for frame in picture.scene.closed
    }
    assert found["2", "grad of weight"] == pytest.approx(norms["2.weight"])
    assert found["2", "grad of bias"] == pytest.approx(norms["2.bias"])
    both = math.hypot(norms["2.weight"], norms["2.bias"])
    assert found["", "2 · 5→2"] == pytest.approx(both)
    assert math.isnan(found["2", "2→5"])  # makes the gradient of an activation
    group = next(frame for frame in picture.scene.frames if frame.open and frame.title == "Linear")
    assert value(group.item) == pytest.approx(both)
    everything = math.sqrt(sum(norm**2 for norm in norms.values()))
    lanes = [frame.item for frame in picture.scene.frames if frame.item.kind == "lane"]
    assert [value(lane) for lane in lanes] == pytest.approx([everything, everything])
    assert any("grey: none" in text for text in texts(picture))


def test_a_repeat_is_coloured_by_the_gradients_of_its_largest_round() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()) for _ in range(6)), nn.Linear(4, 4))
    graph = atlas.capture(model, torch.randn(3, 4), backward=True, values="stats")
    norms = gradient_norms(graph)
    rounds = [math.hypot(norms[f"{at}.0.weight"], norms[f"{at}.0.bias"]) for at in range(6)]
    assert max(rounds) > 10 * min(rounds)  # they vanish, which all of them together would hide
    picture = atlas.draw(graph, phases=["forward"], color_by="gradient")
    measure = BOX_MEASURES["gradient"](picture.outline)
    first = picture.outline.tree.leaf_of_node[graph["0.0.addmm"].id]
    found = [frame for frame in picture.scene.frames if frame.item.start <= first < frame.item.stop]
    assert [(frame.open, frame.item.repeat) for frame in found[-2:]] == [(True, 6), (False, 1)]
    for frame in found[-2:]:
        assert measure.value(frame.item) == pytest.approx(max(rounds))
        said = f"gradient norm of parameters: {min(rounds):.3g} to {max(rounds):.3g} in 6 rounds"
        assert measure.tooltip(frame.item) == said
    shown = [frame.item for frame in picture.scene.closed]
    assert measure.of_rounds(shown) == f"the largest round (smallest: {min(rounds):.3g})"


def loops() -> Graph:
    """Repeats of one box, of several, and within each other."""
    inner = [nn.Sequential(nn.Linear(16, 16), nn.Sigmoid()) for _ in range(10)]
    nested = [
        nn.Sequential(nn.Tanh(), *(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(3))) for _ in "abcd"
    ]
    model = nn.Sequential(
        nn.Sequential(*(nn.Linear(16, 16) for _ in range(10))), nn.Sequential(*inner), nn.Sequential(*nested)
    )
    return atlas.capture(model, torch.randn(4, 16), backward=True)


@pytest.mark.parametrize("size", [(1600, 1200), (900, 500)])
@pytest.mark.parametrize("name", ["loops", "tower", "step"])
def test_the_boxes_of_a_picture_sum_to_what_ran(name: str, size: tuple[int, int]) -> None:
    graph = {"loops": loops, "tower": tower, "step": training_step}[name]()
    picture = atlas.draw(graph, width=size[0], height=size[1])
    boxes = [frame.item for frame in picture.scene.closed]
    assert any(frame.item.repeat > 1 for frame in picture.scene.frames)
    for by in ("time", "memory", "flops"):
        value = BOX_MEASURES[by](picture.outline).value
        worth = [value(box) for box in boxes if not math.isnan(value(box))]
        assert sum(worth) == pytest.approx(value(picture.outline.root))
    assert sum(map(BOX_MEASURES["flops"](picture.outline).value, boxes)) == atlas.cost(graph).flops


def test_boxes_in_an_open_repeat_stand_for_all_its_rounds() -> None:
    picture = atlas.draw(loops(), phases=["forward"], color_by="flops")
    measure = BOX_MEASURES["flops"](picture.outline)
    linears = [frame.item for frame in picture.scene.closed if frame.title == "Linear"]
    assert {frame.item.repeat for frame in picture.scene.frames if frame.open} >= {10, 4, 3}
    assert [measure.value(item) for item in linears] == [20480, 20480, 12 * 2048]
    assert measure.tooltip(linears[1]) == "FLOPs (2 per multiply-add): 20.5 KFLOPs in 10 rounds together"
    assert measure.of_rounds(linears) == "all rounds together"
    single = atlas.draw(atlas.capture(nn.Linear(4, 3), torch.randn(2, 4)))
    (box,) = (frame.item for frame in single.scene.closed if frame.title == "Linear")
    alone = BOX_MEASURES["flops"](single.outline)
    assert (alone.tooltip(box), alone.of_rounds([box])) == ("FLOPs (2 per multiply-add): 48 FLOPs", "")


class Broken(nn.Module):
    """One gradient is infinite, others are not."""

    def __init__(self) -> None:
        super().__init__()
        self.root, self.scale = nn.Parameter(torch.zeros(4)), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(x).sum() + self.root.sqrt().sum()


def test_gradients_that_are_not_finite_are_no_missing_ones() -> None:
    graph = atlas.capture(Broken(), torch.randn(2, 4), backward=True, values="stats")
    picture = atlas.draw(graph, color_by="gradient", phases=["forward"])
    measure = BOX_MEASURES["gradient"](picture.outline)
    found = {frame.title: (measure.value(frame.item), measure.tooltip(frame.item)) for frame in picture.scene.closed}
    assert found["sqrt"] == (math.inf, "gradient norm of parameters: not finite")
    assert 0 < found["Linear"][0] < math.inf
    assert found["add"][1] == "gradient norm of parameters: none"
    blue = LIGHT.fills[OperationType.CONVOLUTION][1]
    assert fills(picture).count(blue) == 2  # the box, and the legend's
    assert "not finite" in texts(picture)
    assert f"0 to {found['Linear'][0]:.3g}" in "".join(texts(picture))  # the scale ends at what is finite
    sound = atlas.capture(nn.Linear(4, 4), torch.randn(2, 4), backward=True, values="stats")
    assert "not finite" not in words(sound, color_by="gradient")


def test_a_picture_by_a_measure_says_what_its_boxes_are_worth() -> None:
    picture = atlas.draw(loops(), phases=["forward"], color_by="flops")
    assert picture.svg.count("20.5 KFLOPs in 10 rounds together") == 2
    assert any("; ×n: all rounds together" in text for text in texts(picture))
    assert "rounds" not in atlas.draw(loops(), phases=["forward"]).svg


def test_grey_is_explained_where_there_is_some() -> None:
    graph = atlas.capture(nn.Linear(4, 3), torch.randn(2, 4))
    assert not any("grey" in text for text in texts(atlas.draw(graph, color_by="time")))
    chain = atlas.capture(lambda x: x.relu().exp().sum(), torch.randn(2, 4))
    chain.columns["node_time_ns"][1] = -1
    picture = atlas.draw(chain, color_by="time")
    assert any("grey: not timed" in text for text in texts(picture))
    assert fills(picture).count(LIGHT.heat(math.nan)[0]) == 1
