"""The document of a page: what is always in it, what it refuses, and graphs of every sort."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hostile import HOSTILE, NO_UNICODE, hostile_graph
from render.graphs import Sketch
from render.pictures import tower
from render.viewer.documents import Document, read
from torch import nn

import torchatlas as atlas
from torchatlas.errors import FileFormatError, InvalidInputError
from torchatlas.export.archive import graph_of_bytes
from torchatlas.graph import Graph
from torchatlas.render.viewer import subject
from torchatlas.render.viewer.document import document
from torchatlas.render.viewer.sections import SECTIONS


def step(**options: object) -> Graph:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return atlas.capture(model, torch.ones(5, 8), backward=True, **options)


def test_a_document_is_an_archive_of_the_graph() -> None:
    graph = step()
    data = document(graph)
    loaded = graph_of_bytes(data, Path("step.html"))
    assert graph.identical(loaded)
    assert data == document(graph) == document(loaded)  # equal graphs, equal bytes, whoever made them


def test_recorded_values_stay_outside() -> None:
    graph = step(values="replay")
    assert "replay" in graph.metadata
    loaded = graph_of_bytes(document(graph), Path("step.html"))
    assert loaded.recorded == {}
    assert "replay" not in loaded.metadata  # it describes what is not there
    assert loaded == graph


def test_info() -> None:
    graph = step(repeat=3)
    info = read(graph, title="a <b>title</b>", device="a100-80gb")["info.json"]
    cost = atlas.cost(graph)
    assert info["version"] == 1
    assert info["title"] == "a <b>title</b>"
    assert info["program"] == atlas.__version__
    assert info["time"].startswith("median of 3")
    assert info["totals"] == {
        "ops": cost.total.operations,
        "parameters": 212,
        "flops": cost.flops,
        "peak_bytes": atlas.memory(graph).peak_bytes,
        "time_ns": graph.time_ns,
        "at_least": [],
    }
    assert info["device"]["name"] == "a100-80gb"
    assert info["device"]["flops_per_second"] == 19.5e12
    assert info["device"]["bytes_per_second"] == 2039e9
    assert info["device"]["basis"].startswith("float32; ")
    assert info["notes"] == graph.notes
    assert info["failed"] is None
    assert info["left_out"] == []


def test_the_title_of_a_page_without_one_is_the_models_class() -> None:
    assert read(step())["info.json"]["title"] == "Sequential"
    with pytest.raises(InvalidInputError, match="title=7 is no text"):
        document(step(), title=7)


def test_rates_are_those_of_the_dtype_that_computes_most() -> None:
    model = nn.Linear(8, 8, dtype=torch.bfloat16)
    info = read(atlas.capture(model, torch.ones(2, 8, dtype=torch.bfloat16)), device="a100-80gb")["info.json"]
    assert info["device"]["flops_per_second"] == 312e12
    assert info["device"]["basis"].startswith("bfloat16; ")


def test_an_empty_graph() -> None:
    page = read(Graph())
    assert page["info.json"]["totals"] == {
        "ops": 0,
        "parameters": 0,
        "flops": 0,
        "peak_bytes": None,
        "time_ns": None,
        "at_least": [],
    }
    assert page["outline.json"]["templates"] == [[]]
    assert page["names.json"] == []
    assert graph_of_bytes(document(Graph()), Path("x")) == Graph()


def test_one_node() -> None:
    sketch = Sketch()
    sketch.op("relu", sketch.parameter("w", (2, 3)))
    (box,) = read(sketch.graph()).boxes()
    assert (box.kind, box.start, box.stop, box.title) == ("leaf", 0, 1, "relu")


def test_unknown_is_not_zero() -> None:
    sketch = Sketch()
    sketch.op("nobody_knows", sketch.input())
    page = read(sketch.graph())
    totals = page["info.json"]["totals"]
    assert totals["flops"] is totals["time_ns"] is totals["peak_bytes"] is None
    assert totals["at_least"] == ["flops"]
    assert page.array("node_flops").tolist() == [0, -1]  # an input takes no work
    assert page.array("node_arithmetic").tolist() == [0, -1]
    assert page.array("node_moved").tolist() == [0, -1]


def test_a_graph_that_an_exception_ended() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4))
    with pytest.raises(RuntimeError, match="shapes"), atlas.recording(model) as rec:
        model(torch.ones(2, 4))
    info = read(rec.graph)["info.json"]
    assert rec.graph.nodes[info["failed"]["node"]].id == len(rec.graph) - 1
    assert "aten.addmm.default" in info["failed"]["message"]
    assert str(rec.failure) in info["failed"]["message"]


def test_a_graph_of_autograd() -> None:
    x = torch.ones(3, requires_grad=True)
    page = read(atlas.autograd_graph((x.sin() * x).sum(), params={"x": x}))
    assert "node_flops.npy" not in page  # there are no arguments to cost
    assert page["info.json"]["totals"]["flops"] is None
    assert page["info.json"]["device"] is None
    assert page["critical.json"]["by"] == "count"
    assert {len(readers) for readers in page["saved.json"].values()} == {1}


def test_hostile_names_are_kept_as_they_are_and_shown_clean() -> None:
    graph = hostile_graph()
    page = read(graph)
    assert any(HOSTILE in name for name in page["names.json"])  # data stays exact
    assert all(box.title.isprintable() and box.subtitle.isprintable() for box in page.boxes())
    assert graph_of_bytes(document(graph), Path("x")).identical(
        Graph(graph.columns, graph.tables, source=graph.source, notes=graph.notes, metadata=graph.metadata)
    )


def test_very_long_names() -> None:
    sketch = Sketch()
    x = sketch.input("<script>alert(1)</script>")
    with sketch.module("m" * 100_000, "C" * 100_000):
        x = sketch.op("relu", sketch.op("sin", x))
    sketch.output(x)
    page = read(sketch.graph())
    boxes = list(page.boxes())
    assert max(len(box.title) for box in boxes) < 100
    assert any(box.title == "<script>alert(1)</script>" for box in boxes)


def test_names_that_no_file_can_hold_are_refused() -> None:
    with pytest.raises(FileFormatError, match="not written"):
        document(hostile_graph(NO_UNICODE))


def test_unknown_arguments_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"takes no overlays=; did you mean 'overlay'\?"):
        document(step(), overlays={})
    with pytest.raises(InvalidInputError, match="a viewer page shows a Graph, not str"):
        document("step.atlas")  # type: ignore[arg-type]


def test_a_large_graph_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tower(4)
    for name in ("names", "attributes"):
        monkeypatch.setattr(f"torchatlas.render.viewer.sections.{name}.MOST_NODES", len(graph) - 1)
    page = read(graph)
    assert subject.MOST_NODES == 200_000
    assert "names.json" not in page
    assert "attributes.json" not in page
    left_out = page["info.json"]["left_out"]
    assert len(left_out) == 2
    assert all("graph.subgraph(scope=...)" in sentence for sentence in left_out)
    assert len(list(page.boxes())) > 5  # the tree is all there


def test_every_section_is_one_file() -> None:
    folder = Path(subject.__file__).parent / "sections"
    code = {path.stem: path.read_text() for path in folder.glob("*.py") if path.stem not in ("__init__", "registered")}
    added = [name for name in SECTIONS if any(f'@section("{name}"' in text for text in code.values())]
    assert added == list(SECTIONS)
    assert all("@section(" in text for text in code.values())


def test_arrays_are_little_endian() -> None:
    page = Document(document(step()))
    assert {array.dtype.str for array in page.members.values() if isinstance(array, np.ndarray)} <= {
        "<i4",
        "<i8",
        "<f8",
        "|u1",
    }
