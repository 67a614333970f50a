"""atlas.draw: what is on the page, in which size, for real models and for what is no sensible request."""

from __future__ import annotations

import gc
import re
import struct
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import children
import numpy as np
import pytest
import torch
from render.layout.verify import account, defects, hidden
from render.pictures import texts, tower, words
from render.reading import SVG
from torch import nn
from zoo import ZOO, Specimen

import torchatlas as atlas
from torchatlas.demo import training_step
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph, NodeKind, Phase
from torchatlas.render.drawing import scaled
from torchatlas.render.fonts import text_width
from torchatlas.render.picture import Picture


def problems(picture: Picture) -> list[str]:
    found = account(picture.outline, picture.scene)
    return [*defects(picture.scene), *found.missing, *found.invented, *hidden(picture.outline, picture.scene)]


# -- what is shown ---------------------------------------------------------------------------------------------------


def test_blocks_that_repeat_are_drawn_once() -> None:
    picture = atlas.draw(tower(4))
    assert "×4" in texts(picture)
    assert texts(picture).count("LayerNorm") == 1
    assert {"Linear", "add", "relu", "output", "input"} <= set(texts(picture))
    assert "0 · 4→8" in texts(picture)
    assert "3×8" in texts(picture)  # a shape beside a line
    assert problems(picture) == []


def test_a_large_page_shows_all_and_a_small_one_less() -> None:
    graph = training_step()
    pages = [
        atlas.draw(graph, width=width, height=height) for width, height in ((3000, 2400), (1600, 1200), (700, 500))
    ]
    assert pages[0].boxes > pages[1].boxes > pages[2].boxes >= 5
    for page in pages:
        assert problems(page) == []
        assert page.smallest_text >= 9


def test_forward_backward_and_optimizer_lie_in_lanes() -> None:
    picture = atlas.draw(training_step())
    lanes = [frame for frame in picture.scene.frames if frame.item.kind == "lane"]
    assert [frame.title for frame in lanes] == ["forward", "backward", "optimizer"]
    bundles = [line for line in picture.scene.lines if line.many > 1]
    assert sum(line.many for line in bundles) > 50  # activations kept for backward, gradients for the step
    assert any(text.endswith(" tensors") for text in texts(picture))
    assert any("grad of weight" in text for text in texts(picture))


def test_phases_choose_what_is_drawn() -> None:
    graph = training_step()
    forward = atlas.draw(graph, phases=["forward"])
    assert not any(frame.item.kind == "lane" for frame in forward.scene.frames)
    assert problems(forward) == []
    assert "forward" in texts(forward)
    assert "forward" not in texts(atlas.draw(tower(), phases=["forward"]))  # there is nothing else
    both = atlas.draw(graph, phases=("forward", "backward"))
    assert [frame.title for frame in both.scene.frames if frame.item.kind == "lane"] == ["forward", "backward"]


def test_backward_alone_has_no_output_and_says_what_it_is() -> None:
    def first(x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        return (x * x).sum()

    graph = atlas.capture(first, torch.randn(3, requires_grad=True), torch.randn(2), backward=True)
    whole, backward = atlas.draw(graph), atlas.draw(graph, phases=["backward"])
    assert {"output", "unused", "x"} <= set(texts(whole))  # what nothing reads is shown
    assert "output" not in texts(backward)
    assert {"x", "mul", "backward"} <= set(texts(backward))
    assert problems(backward) == []


def test_the_architecture_shows_modules() -> None:
    graph = training_step()
    modules = atlas.draw(graph, view="modules", phases=["forward"], width=3000, height=2400)
    for frame in modules.scene.frames:
        if frame.open and frame.item.kind == "module":
            assert any(child.call >= 0 for child in modules.outline.children(frame.item))
    assert modules.boxes < atlas.draw(graph, phases=["forward"], width=3000, height=2400).boxes
    assert problems(modules) == []


def test_the_architecture_shows_where_a_residual_is_added() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.second(self.first(x).tanh().exp())

    graph = atlas.capture(Residual(), torch.randn(2, 8))
    scene = atlas.draw(graph, view="modules").scene
    assert [frame.title for frame in scene.frames] == ["x", "Linear", "functional ops", "Linear", "add", "output"]
    add = next(number for number, frame in enumerate(scene.frames) if frame.title == "add")
    assert sum(line.ends[1] == add for line in scene.lines) == 2


@pytest.mark.parametrize("specimen", ZOO, ids=str)
def test_every_specimen_of_the_zoo(specimen: Specimen) -> None:
    function, args, kwargs = specimen.build()
    graph = atlas.capture(function, *args, kwargs=kwargs, backward=specimen.trains)
    for width, height in ((1400, 1000), (420, 300)):
        picture = atlas.draw(graph, width=width, height=height)
        assert problems(picture) == []
        assert picture.smallest_text >= 9
        inside = picture.fit.scale * picture.scene.width <= width and picture.fit.scale * picture.scene.height <= height
        assert inside


# -- words -----------------------------------------------------------------------------------------------------------


def test_title_legend_and_totals() -> None:
    picture = atlas.draw(tower(), title="my model")
    assert "my model" in texts(picture)
    assert "Sequential" in texts(picture)
    assert {"matmul", "norm", "pointwise"} <= set(texts(picture))
    assert any("parameters" in text and "boxes shown" in text for text in texts(picture))
    assert "matmul" not in texts(atlas.draw(tower(), legend=False))
    assert {"×n", "identical repeats", "×4"} <= set(texts(picture))
    assert "×3" not in texts(picture)


def test_the_legend_stands_right_above_the_footer() -> None:
    """Whatever else the graph holds: room is kept for the types of all ops, but few boxes may fit."""
    for options in ({}, {"color_by": "flops"}, {"view": "modules"}):
        picture = atlas.draw(training_step(), width=420, height=300, **options)  # type: ignore[arg-type]
        root = ElementTree.fromstring(picture.svg).findall(f"{SVG}text")
        heights = sorted({float(element.get("y", 0)) for element in root})
        assert heights[-1] - heights[-2] < 2.5 * float(root[-1].get("font-size", 0))


def test_nothing_is_written_outside_the_page() -> None:
    for width, height in ((1600, 1200), (500, 360)):
        picture = atlas.draw(training_step(), width=width, height=height)
        root = ElementTree.fromstring(picture.svg)
        for element in root.findall(f"{SVG}text"):  # title, legend and footer; boxes are checked by the verifier
            x, size, text = float(element.get("x", 0)), float(element.get("font-size", 0)), "".join(element.itertext())
            wide = text_width(text, size, element.get("font-weight") is not None)
            left = x - wide if element.get("text-anchor") == "end" else x
            assert left >= 0
            assert left + wide <= width + 1


def test_names_cannot_inject_markup() -> None:
    hostile = '</text><script>alert(1)</script>&"<'
    model = nn.Module()
    model.add_module(hostile, nn.Linear(2, 2))
    model.add_module("名前" * 3000, nn.Linear(2, 2))

    def forward(x: torch.Tensor) -> torch.Tensor:
        for child in model.children():
            x = child(x)
        return x

    model.forward = forward
    picture = atlas.draw(atlas.capture(model, torch.ones(1, 2)), title=hostile)
    root = ElementTree.fromstring(picture.svg)
    assert not list(root.iter(f"{SVG}script"))
    assert any(text.startswith("</text><script>") for text in texts(picture))
    assert problems(picture) == []
    assert picture.png().startswith(b"\x89PNG")


# -- files and sizes -------------------------------------------------------------------------------------------------


def test_files_by_suffix(tmp_path: Path) -> None:
    graph = tower()
    for name in ("graph.svg", "graph.png"):
        assert graph.save(tmp_path / name) == tmp_path / name
    ElementTree.parse(tmp_path / "graph.svg")
    assert png_size((tmp_path / "graph.png").read_bytes()) == (1600, 1200)
    picture = atlas.draw(graph, width=640, height=480)
    assert png_size(picture.save(tmp_path / "small.png", dpi=300).read_bytes()) == (640, 480)
    assert picture._repr_svg_() == scaled(picture.svg)
    assert graph._repr_svg_().startswith("<svg")


def png_size(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_folders_that_are_missing_and_formats_that_are_none(tmp_path: Path) -> None:
    picture = atlas.draw(tower())
    with pytest.raises(atlas.errors.FileSystemError, match="does not exist"):
        picture.save(tmp_path / "missing" / "graph.png")
    assert not (tmp_path / "missing").exists()
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(atlas.errors.FileSystemError, match="directory"):
        picture.save(tmp_path / "taken.png")
    with pytest.raises(atlas.errors.FileFormatError, match=r"\.svg, \.png or \.pdf"):
        picture.save(tmp_path / "graph.gif")
    (tmp_path / "taken").write_text("")
    for writes in (picture, tower()):
        with pytest.raises(atlas.errors.FileSystemError, match="taken is a file, not a folder"):
            writes.save(tmp_path / "taken" / "deeper" / "graph.png")


@pytest.mark.parametrize("path", [None, 3, b"graph.png", "gra\0ph.png"])
def test_paths_that_are_none(path: Any) -> None:
    with pytest.raises(atlas.errors.InvalidInputError, match="path of a file"):
        atlas.draw(tower()).save(path)
    with pytest.raises(atlas.errors.InvalidInputError, match="path of a file"):
        tower().save(path)
    with pytest.raises(atlas.errors.InvalidInputError, match="path of a file"):
        atlas.load(path)


def test_a_folder_that_may_not_be_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_dir", refuse)  # as for others than root, who runs these tests in a container
    with pytest.raises(atlas.errors.FileSystemError, match=r"Cannot write .*x\.dot: Permission denied"):
        tower().save("closed/x.dot")


def test_the_case_of_a_suffix_does_not_matter(tmp_path: Path) -> None:
    graph = tower()
    assert graph.save(tmp_path / "GRAPH.PNG").read_bytes()[1:4] == b"PNG"
    assert atlas.draw(graph).save(tmp_path / "other.Png").read_bytes()[1:4] == b"PNG"
    assert atlas.load(graph.save(tmp_path / "GRAPH.ATLAS")).identical(graph)


def test_sizes_of_numpy_are_sizes(tmp_path: Path) -> None:
    graph = tower()
    picture = atlas.draw(graph, width=np.int64(640), height=np.int32(480), font_size=np.float32(10))  # type: ignore[arg-type]
    assert picture.svg == atlas.draw(graph, width=640, height=480, font_size=10).svg
    assert png_size(picture.save(tmp_path / "x.png", dpi=np.int64(300)).read_bytes()) == (640, 480)  # type: ignore[arg-type]
    plot = atlas.plot(tower(), width=np.int64(640), height=np.int32(480))  # type: ignore[arg-type]
    assert png_size(plot.png()) == (640, 480)


def test_graphs_with_nothing_or_little_in_them() -> None:
    empty = atlas.draw(Graph())
    assert empty.boxes == 0
    assert "nothing was recorded" in texts(empty)
    one = atlas.draw(atlas.capture(lambda: torch.ones(2)), width=300, height=200)
    assert problems(one) == []
    assert "ones" in texts(one)
    assert one.smallest_text > 11  # a page with little on it is not left empty


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width=0"),
        ({"height": -5}, "height=-5"),
        ({"width": 1e3}, "width=1000.0"),
        ({"height": 10**9}, "20,000"),
        ({"width": 10, "height": 10}, "too few to show anything"),
        ({"font_size": 0}, "font_size=0"),
        ({"font_size": float("nan")}, "font_size=nan"),
        ({"node_size": -1}, "node_size=-1 is no size for boxes"),
        ({"width": 1, "height": 1}, "1 x 1 pixels are too few to show anything: margins"),
        ({"title": 3}, "title=3 is no text"),
        ({"width": True}, "width=True"),
        ({"view": "modles"}, "'modules'"),
    ],
)
def test_sizes_that_are_none(options: dict[str, object], message: str) -> None:
    with pytest.raises(atlas.errors.InvalidInputError, match=message):
        atlas.draw(tower(), **options)  # type: ignore[arg-type]


def test_the_size_that_is_advised_is_enough() -> None:
    for width, height in ((24, 24), (30, 200), (400, 24)):
        with pytest.raises(atlas.errors.InvalidInputError, match="use at least") as caught:
            atlas.draw(tower(), width=width, height=height)
        wide, tall = map(int, re.findall(r"least (\d+) x (\d+)", str(caught.value))[0])
        assert atlas.draw(tower(), width=wide, height=tall).boxes


def test_words_that_are_unknown() -> None:
    with pytest.raises(atlas.errors.UnknownNameError, match="did you mean 'time'"):
        atlas.draw(tower(), color_by="tme")
    with pytest.raises(atlas.errors.UnknownNameError, match="did you mean 'dark'"):
        atlas.draw(tower(), theme="darkk")
    with pytest.raises(atlas.errors.InvalidInputError, match="'frward' is no phase"):
        atlas.draw(tower(), phases=["frward"])
    with pytest.raises(atlas.errors.InvalidInputError, match=r"ran in optimizer, .* it has forward"):
        atlas.draw(tower(), phases=["optimizer"])
    assert atlas.draw(tower(), phases=["optimizer", "forward"]).boxes
    with pytest.raises(atlas.errors.InvalidInputError, match="not Linear"):
        atlas.draw(nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(atlas.errors.AnalysisError, match="was timed"):
        atlas.draw(atlas.capture(nn.Linear(2, 2), torch.ones(1, 2), fake=True), color_by="time")
    with pytest.raises(atlas.errors.AnalysisError, match="backward=True"):
        atlas.draw(tower(), color_by="gradient")


def test_text_and_boxes_are_as_large_as_asked() -> None:
    for font in (6, 9, 14, 20):
        picture = atlas.draw(tower(), font_size=font, node_size=40)
        assert picture.smallest_text >= font
        assert min(frame.height for frame in picture.scene.closed) * picture.fit.scale >= 40 - 1e-6
        sizes = [float(size) for size in re.findall(r'font-size="([\d.]+)"', picture.svg)]
        drawn = [size * picture.fit.scale if size in (11, 12.5) else size for size in sizes]
        assert min(drawn) >= font - 1e-6


def test_the_same_graph_gives_the_same_picture_in_another_process(tmp_path: Path) -> None:
    file = training_step().save(tmp_path / "step.atlas")
    code = (
        "import hashlib, torchatlas as atlas;"
        f"print(hashlib.sha256(atlas.draw(atlas.load({str(file)!r})).svg.encode()).hexdigest())"
    )
    assert len({children.python(code, PYTHONHASHSEED=seed) for seed in ("1", "2")}) == 1


def test_boxes_of_one_structure_have_their_own_names() -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wa, self.wb, self.wc = (nn.Parameter(torch.randn(4, 4)) for _ in range(3))

        def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            return query @ self.wa + key @ self.wb + value @ self.wc

    model = Three()
    found = words(atlas.capture(model, *(torch.randn(4, 4) for _ in range(3)), backward=True))
    for name in ("query", "key", "value", "wa", "wb", "wc"):
        assert [word for word in found if name in word.split()], (name, found)
    loss = model(*(torch.randn(4, 4) for _ in range(3))).sum()
    found = words(atlas.autograd_graph(loss, model=model))
    assert {"wa", "wb", "wc"} <= {part for word in found for part in word.split()}


def test_a_tensor_that_is_taken_many_times_is_one() -> None:
    graph = atlas.capture(nn.Linear(4, 3), torch.randn(2, 4), optimizer=torch.optim.AdamW)
    assert [word for word in words(graph) if "tensors" in word] == ["2 tensors"]  # the gradients, each read thrice


def test_footer_and_legend_are_of_what_is_drawn() -> None:
    graph = atlas.capture(nn.Linear(4, 3), torch.randn(2, 4), optimizer=torch.optim.SGD)
    forward = sum(node.phase is Phase.FORWARD and node.kind is NodeKind.OP for node in graph.nodes)
    found = words(graph, phases=["forward"])
    assert any(f"({forward} with views) ·" in word and "peak" not in word for word in found)
    assert not any("critical path" in word for word in found)


@pytest.mark.parametrize("build", [training_step, tower], ids=["step", "tower"])
def test_the_footer_counts_what_frames_and_boxes_count(build: Callable[[], Graph]) -> None:
    graph = build()
    picture = atlas.draw(graph, width=3000, height=2400)
    (footer,) = (text for text in texts(picture) if "boxes shown" in text)
    drawn, every = re.match(r"([\d,]+) ops \(([\d,]+) with views", footer).groups()  # type: ignore[union-attr]
    lanes = [frame.subtitle for frame in picture.scene.frames if frame.item.kind == "lane"]
    if lanes:
        assert sum(int(text.removesuffix(" ops").replace(",", "")) for text in lanes) == int(drawn.replace(",", ""))
    leaves = picture.outline.tree.node
    assert int(drawn.replace(",", "")) == sum(graph.nodes[node].kind is NodeKind.OP for node in leaves.tolist())
    assert int(every.replace(",", "")) == sum(node.kind is NodeKind.OP for node in graph.nodes)


def test_the_footer_names_what_it_leaves_out() -> None:
    norm = atlas.capture(nn.BatchNorm1d(3), torch.randn(4, 3))  # counts its calls
    assert any("with views and bookkeeping)" in text for text in texts(atlas.draw(norm)))
    plain = atlas.capture(torch.relu, torch.randn(4, 3))
    assert any(text.startswith("1 op · ") for text in texts(atlas.draw(plain)))


def test_a_small_page_has_a_shorter_footer_in_whole_words() -> None:
    graph = atlas.capture(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.randn(2, 4), backward=True, values="stats")
    graph.columns["node_time_ns"][:] = 12_345
    seen = []
    for width in range(240, 1000, 40):
        picture = atlas.draw(graph, width=width, height=300)
        footer = [text for text in texts(picture) if re.match(r"\d+ ops", text)][-1]  # the last thing that is drawn
        assert re.fullmatch(
            r"\d+ ops( \(\d+ with views\))?( · [\d.]+ parameters)?( · [\d.]+ FLOPs)?"
            r"( · [\d.]+ [mµn]?s in ops \(one run\))?( · peak [\d.]+ (KiB|B))?( · \d+ boxes shown, \d+ groups? open)?",
            footer,
        )
        seen.append(footer)
        for color_by in ("gradient", "time"):
            assert not any("…" in text for text in texts(atlas.draw(graph, width=width, height=300, color_by=color_by)))
    assert len({footer.count("·") for footer in seen}) > 2
    assert "boxes shown" in seen[-1]
    assert "boxes shown" not in seen[0]


def test_names_of_any_script_have_their_figures_and_no_empty_boxes() -> None:
    model = nn.Sequential()
    for number, name in enumerate(("\u05e9\u05db\u05d1\u05d4", "注意力", "x" * 500)):
        model.add_module(name, nn.Linear(8 + number, 9 + number))
    picture = atlas.draw(atlas.capture(model, torch.randn(2, 8)))
    hebrew, chinese, long = (next(one for one in texts(picture) if one.endswith(f" · {n}→{n + 1}")) for n in (8, 9, 10))
    assert hebrew.startswith("\u2068\u05e9")
    assert chinese == "注意力 · 9→10"
    assert long.startswith("xxx")
    assert problems(picture) == []


@pytest.mark.parametrize(("phases", "match"), [(["forwards"], "did you mean 'forward'"), ([], "nothing to draw")])
def test_phases_that_are_none(phases: list[str], match: str) -> None:
    with pytest.raises(InvalidInputError, match=match):
        atlas.draw(tower(), phases=phases)


@pytest.mark.parametrize("is_on", [True, False])
def test_the_garbage_collector_is_left_as_it_was(is_on: bool) -> None:
    graph = tower()
    try:
        (gc.enable if is_on else gc.disable)()
        atlas.draw(graph)
        assert gc.isenabled() is is_on
        with pytest.raises(InvalidInputError, match="too few"):
            atlas.draw(graph, width=5, height=5)
        assert gc.isenabled() is is_on
    finally:
        gc.enable()


def test_a_picture_lets_go_of_its_graph_without_the_collector() -> None:
    """A graph may be large: it must not wait for the collector because a picture keeps itself alive."""
    gc.disable()
    try:
        picture = atlas.draw(tower(), color_by="flops")
        assert picture.svg
        assert picture.png()
        tree = weakref.ref(picture.outline.tree)
        del picture
        assert tree() is None
    finally:
        gc.enable()
