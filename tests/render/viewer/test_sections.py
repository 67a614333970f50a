"""The sections that are computed from the graph alone: they say what the reports say."""

from __future__ import annotations

import json
import linecache
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from render.graphs import Sketch
from render.viewer.documents import read
from torch import nn

import torchatlas as atlas
from torchatlas.analysis.critical_path import critical_path
from torchatlas.graph import Graph, SourceLine
from torchatlas.render.color_by import BOX_MEASURES
from torchatlas.render.layout.outline import Outline
from torchatlas.render.layout.tree import build


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.first(x).mean((2, 3)))
        return y


def step(**options: Any) -> Graph:
    torch.manual_seed(0)
    optimizer = options.pop("optimizer", None)
    return atlas.capture(Net(), torch.randn(2, 3, 8, 8), backward=True, optimizer=optimizer, **options)


def test_work_sums_to_the_cost() -> None:
    graph = step()
    page, cost = read(graph), atlas.cost(graph)
    assert page.array("node_flops").sum() == cost.flops > 0
    assert page.array("node_arithmetic").sum() == cost.flops + cost.elementwise_flops
    assert page.array("node_moved").sum() == cost.total.bytes


def test_parameters_of_modules() -> None:
    graph = step()
    paths = [module.path for module in graph.tables.modules]
    counts = dict(zip(paths, read(graph).array("module_parameters").tolist(), strict=True))
    assert counts[""] == sum(parameter.numel() for parameter in Net().parameters())
    assert counts["last"] == 36
    assert counts["first"] == counts["first.0"] + counts["first.1"]


def test_the_critical_path_by_time() -> None:
    graph = step()
    page, path = read(graph), critical_path(graph)
    assert np.flatnonzero(page.array("node_critical")).tolist() == sorted(path.ids)
    assert page["critical.json"] == {"by": "time", "length": path.length, "work": path.work, "at_least": False}


def test_the_critical_path_of_what_was_not_timed() -> None:
    graph = step(fake=True)
    page, path = read(graph), critical_path(graph, "flops")
    assert page["critical.json"]["by"] == "flops"
    assert page["critical.json"]["length"] == path.length
    assert np.flatnonzero(page.array("node_critical")).tolist() == sorted(path.ids)


def test_gradients_are_those_of_the_picture() -> None:
    graph = step(values="stats")
    page = read(graph)
    outline = Outline(build(graph))
    measure, norms, seen = BOX_MEASURES["gradient"](outline), page.array("node_gradient"), 0
    stack = [outline.root]
    while stack:
        for item in outline.children(stack.pop()):
            if item.is_leaf and item.repeat == 1 and item.parent is not None and item.parent.repeat == 1:
                expected = measure.value(item)
                assert norms[outline.tree.node[item.start]] == pytest.approx(expected, nan_ok=True)
                seen += not math.isnan(expected)
            else:
                stack.append(item)
    assert seen > 5


def test_a_gradient_that_is_not_finite() -> None:
    model = nn.Linear(2, 2, bias=False)
    graph = atlas.capture(
        model, torch.full((1, 2), 1e38), backward=True, loss=lambda y: (y * 1e38).sum(), values="stats"
    )
    page = read(graph)
    assert np.isinf(page.array("node_gradient")).any()


def test_without_kept_gradients_there_is_no_such_section() -> None:
    assert "node_gradient.npy" not in read(step())


def test_attributes() -> None:
    graph = step()
    found = read(graph)["attributes.json"]
    assert len(found["rows"]) == len(set(found["rows"])) < len(graph)
    for node, row in zip(graph.nodes, found["node"], strict=True):
        shown = json.loads(found["rows"][row])
        assert list(shown) == list(node.attributes)
    convolution = graph["first.0.convolution"]
    shown = json.loads(found["rows"][found["node"][convolution.id]])
    assert (shown["kernel_size"], shown["padding"], shown["groups"]) == ([3, 3], [1, 1], 1)


def test_attributes_that_json_has_no_words_for() -> None:
    graph = atlas.capture(
        lambda x: x.clamp(max=float("inf")).to(torch.float64) + torch.full((1,), 2**60), torch.ones(2)
    )
    found = read(graph)["attributes.json"]
    texts = " ".join(found["rows"])
    assert '"max":"inf"' in texts
    assert '"dtype":"float64"' in texts
    assert f'"{2**60}"' in texts


# -- source lines ------------------------------------------------------------------------------------------------------


def with_line(graph: Graph, *lines: SourceLine, own: bool = True) -> Graph:
    graph.tables.sources = list(lines)
    graph.columns["node_source"][:] = 0
    graph.own = own
    return graph


def test_lines_around_those_of_the_graph() -> None:
    graph = step()
    here = next(row for row in graph.tables.sources if row.function.endswith("Net.forward"))
    ranges = read(graph)["sources.json"][here.file]
    (mine,) = [one for one in ranges if one["first"] <= here.line < one["first"] + len(one["lines"])]
    assert mine["lines"][here.line - mine["first"]].strip() == here.text
    assert mine["first"] <= here.line - 3
    assert any("def forward" in line for line in mine["lines"])


def test_ranges_that_meet_are_one(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("\n".join(f"line{number}" for number in range(1, 41)))
    rows = [SourceLine(str(file), number, "f", f"line{number}") for number in (30, 2, 9, 37)]
    found = read(with_line(step(), *rows))["sources.json"][str(file)]
    assert [(one["first"], len(one["lines"])) for one in found] == [(1, 12), (27, 14)]


def test_a_file_that_changed_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("y = x + 2\n")
    for own in (True, False):
        linecache.clearcache()
        page = read(with_line(step(), SourceLine(str(file), 1, "f", "y = x + 1"), own=own))
        assert "sources.json" not in page


def test_a_graph_from_a_file_shows_only_lines_of_python(tmp_path: Path) -> None:
    """Its author may name any file of the reader, and guess a line of it."""
    secret, code = tmp_path / "passwd", tmp_path / "model.py"
    secret.write_text("root\nsecret\n")
    code.write_text("y = x\nz = y\n")
    rows = SourceLine(str(secret), 1, "f", "root"), SourceLine(str(code), 1, "f", "y = x")
    rows += (SourceLine(str(tmp_path), 1, "f", ""), SourceLine("\0.py", 1, "f", ""), SourceLine("gone.py", 1, "f", ""))
    assert list(read(with_line(step(), *rows, own=False))["sources.json"]) == [str(code)]


def test_cells_of_a_notebook() -> None:
    name = "<ipython-input-1-atlas>"
    linecache.cache[name] = (6, None, ["a = 1\n", "b = 2\n"], name)
    try:
        found = read(with_line(step(), SourceLine(name, 2, "f", "b = 2")))["sources.json"]
        assert found == {name: [{"first": 1, "lines": ["a = 1", "b = 2"]}]}
    finally:
        del linecache.cache[name]


# -- values ------------------------------------------------------------------------------------------------------------


def test_statistics_of_recorded_values() -> None:
    graph, whole = step(values="stats"), step(values="all")
    noted, computed = read(graph)["values.json"], read(whole)["values.json"]
    assert noted.keys() == computed.keys()
    assert len(noted) > 10
    for value, row in noted.items():
        for name in ("mean", "std", "min", "max", "finite"):
            assert row[name] == pytest.approx(computed[value][name], rel=1e-4, abs=1e-9)
        assert row["histogram"] is row["zeros"] is None  # nobody knows
    relu = graph["first.2.relu"].outputs[0]
    row, numbers = computed[str(relu.id)], whole.recorded[f"{graph['first.2.relu'].id}:0"]
    expected, _ = np.histogram(numbers, 32)
    assert row["histogram"] == expected.tolist()
    assert sum(row["histogram"]) == numbers.size
    assert row["zeros"] == pytest.approx((numbers == 0).mean(), rel=1e-5)
    assert (row["low"], row["high"]) == (row["min"], row["max"])


def test_values_that_are_not_finite_constant_or_empty() -> None:
    def odd(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x / 0, x * 1e38 * torch.tensor([1.0, -1.0, 1.0, 0.0]), x[:0] + 1, x > 5, (x * 0.0).log()

    graph = atlas.capture(odd, torch.tensor([3.0, 3.0, 3.0, 0.0]), values="all")
    found = read(graph)["values.json"]
    rows = {node.name: found.get(str(node.outputs[0].id)) for node in graph.nodes if node.outputs}
    assert rows["div"] == {
        "finite": 0.0,
        "zeros": None,
        **dict.fromkeys(("mean", "std", "min", "max", "low", "high", "histogram")),
    }
    big = rows["mul_1"]
    assert big is not None
    assert big["max"] == pytest.approx(3e38, rel=1e-3)
    assert big["std"] == pytest.approx(2.5e38, rel=0.1)
    assert rows["add"] is None  # it has no numbers
    assert rows["gt"]["histogram"] == [4, *[0] * 31]  # type: ignore[index]
    assert rows["log"]["finite"] == 0.0  # type: ignore[index]


def test_many_values_are_left_out_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = step(values="all")
    monkeypatch.setattr("torchatlas.render.viewer.sections.values._MOST_HISTOGRAMS", 10)
    page = read(graph)
    assert {row["histogram"] for row in page["values.json"].values()} == {None}
    assert "histograms" in page["info.json"]["left_out"][0]
    monkeypatch.setattr("torchatlas.render.viewer.sections.values._MOST_VALUES", 10)
    page = read(graph)
    assert "values.json" not in page
    assert "graph.subgraph" in page["info.json"]["left_out"][0]


# -- saved tensors -----------------------------------------------------------------------------------------------------


def test_what_backward_reads_of_forward() -> None:
    graph = step()
    found = read(graph)["saved.json"]
    kept = graph["first.0.convolution"].inputs[0]  # the batch, for the gradient of the weight
    readers = [graph.nodes[node].operation for node in found[str(kept.id)]]
    assert readers == ["aten.convolution_backward.default"]
    for value, nodes in found.items():
        assert all(graph.nodes[node].phase == "backward" for node in nodes)
        assert graph.values[int(value)].role != "parameter"


def test_forward_alone_keeps_nothing() -> None:
    sketch = Sketch()
    sketch.output(sketch.op("relu", sketch.input()))
    assert "saved.json" not in read(sketch.graph())
