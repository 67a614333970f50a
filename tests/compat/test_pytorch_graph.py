"""What people who come from pytorch-graph 0.2.5 find: members of the tracker, and its words for operations."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.compat.pytorch_graph import OperationType
from torchatlas.errors import FileFormatError, InvalidInputError
from torchatlas.graph import Graph


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.fixture(scope="module")
def tracker() -> atlas.ComputationalGraphTracker:
    return atlas.track_computational_graph(model(), torch.randn(1, 4))


# pytorch-graph's own signatures; `None` for a default says that it is another one here, and why stands in the docs
SIGNATURES: dict[str, dict[str, Any]] = {
    "__init__": {"model": ..., "track_memory": True, "track_timing": True, "track_tensor_ops": True},
    "start_tracking": {},
    "stop_tracking": {},
    "get_graph_summary": {},
    "get_graph_data": {},
    "export_graph": {"filepath": ..., "format": None},
    "visualize_graph": {"renderer": "plotly"},
    "save_graph_png": {
        "filepath": ...,
        "width": 1200,
        "height": 800,
        "dpi": 300,
        "show_legend": True,
        "node_size": 20,
        "font_size": 10,
    },
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_and_defaults_are_the_same(name: str) -> None:
    parameters = inspect.signature(getattr(atlas.ComputationalGraphTracker, name)).parameters.values()
    found = {one.name: ... if one.default is one.empty else one.default for one in parameters if one.name != "self"}
    assert found == SIGNATURES[name]
    assert list(found) == list(SIGNATURES[name])


def test_members(tracker: atlas.ComputationalGraphTracker) -> None:
    assert tracker.is_tracking is False
    assert list(tracker.nodes.values()) == list(tracker.graph.nodes)
    assert tracker.edges == list(tracker.graph.edges)
    assert all(tracker.nodes[edge.source_id] == edge.source for edge in tracker.edges)
    with tracker.__class__(model()) as running:
        assert running.is_tracking is True


def test_graph_data_has_the_keys_of_pytorch_graph(tracker: atlas.ComputationalGraphTracker) -> None:
    data = tracker.get_graph_data()
    assert list(data) == ["nodes", "edges", "summary"]
    assert (len(data["nodes"]), len(data["edges"])) == (len(tracker.graph), len(tracker.graph.edges))
    assert {edge[end] for edge in data["edges"] for end in ("source_id", "target_id")} <= {
        node["id"] for node in data["nodes"]
    }
    product = next(node for node in data["nodes"] if node["name"] == "0.addmm")
    assert (product["module_name"], product["output_shapes"]) == ("0", [(1, 4)])
    assert product["metadata"]["module_type"] == "Linear"
    json.dumps(data, default=str)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("graph.json", None),
        ("graph.json", "json"),
        ("graph", "json"),
        ("graph.txt", "JSON"),
        ("graph.atlas", None),
        ("g", "atlas"),
    ],
)
def test_export_by_suffix_or_by_format(
    tracker: atlas.ComputationalGraphTracker, name: str, given: str | None, tmp_path: Path
) -> None:
    path = tracker.export_graph(str(tmp_path / name), *([] if given is None else [given]))
    assert path == tmp_path / name
    kind = (given or path.suffix[1:]).lower()
    assert Graph.load(path.rename(tmp_path / f"read.{kind}")).identical(tracker.graph)


@pytest.mark.parametrize(("name", "given"), [("graph.atlas", "json"), ("graph.json", "dot"), ("graph", "xml")])
def test_formats_that_are_refused(
    tracker: atlas.ComputationalGraphTracker, name: str, given: str, tmp_path: Path
) -> None:
    with pytest.raises(FileFormatError, match=given):
        tracker.export_graph(tmp_path / name, format=given)
    assert not (tmp_path / name).exists()


def test_both_renderers_give_our_picture(tracker: atlas.ComputationalGraphTracker, tmp_path: Path) -> None:
    picture = tracker.visualize_graph()
    assert picture.svg == tracker.visualize_graph(renderer="matplotlib").svg == atlas.draw(tracker.graph).svg
    with pytest.raises(InvalidInputError, match="not one of plotly, matplotlib"):
        tracker.visualize_graph("bokeh")


# -- its words for operations ------------------------------------------------------------------------------------------

HELD = {
    OperationType.FORWARD: ["0.addmm", "1.relu"],
    OperationType.BACKWARD: ["0.mm", "1.threshold_backward"],
    OperationType.TENSOR_OP: ["0.addmm", "1.relu", "0.mm"],
    OperationType.MEMORY_OP: ["0.t"],
    OperationType.LAYER_OP: [],
    OperationType.GRADIENT_OP: [],
    OperationType.CUSTOM: [],
}


@pytest.mark.parametrize("word", OperationType)
def test_each_word_is_a_set_of_nodes(tracker: atlas.ComputationalGraphTracker, word: OperationType) -> None:
    found = tracker.graph.where(word)
    assert found == [node for node in tracker.graph.nodes if node in word]
    assert {*HELD[word]} <= {node.name for node in found}
    assert bool(found) == bool(HELD[word])
    assert all(node.kind == "call_function" for node in found)


def test_calls_of_modules_and_nodes_of_autograd() -> None:
    coarse = atlas.track_computational_graph(model(), torch.randn(1, 4), track_tensor_ops=False).graph
    assert [node.operation for node in coarse.where(OperationType.LAYER_OP)] == ["nn.Linear", "nn.ReLU", "nn.Linear"]
    graph = atlas.autograd_graph(model()(torch.randn(1, 4)).sum())
    found = graph.where(OperationType.GRADIENT_OP)
    assert {"ReluBackward0", "torch::autograd::AccumulateGrad"} & {node.operation for node in found}
    assert graph.where(OperationType.TENSOR_OP) == []
