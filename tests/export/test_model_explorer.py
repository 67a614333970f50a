"""Model Explorer's files and adapter, through its own extension manager and classes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from every_source import SOURCES, step
from torch import nn

import torchatlas as atlas
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.escapes import encodable
from torchatlas.export.model_explorer import graph_facts
from torchatlas.graph import Graph

pytest.importorskip("model_explorer")


@pytest.fixture(scope="module")
def manager() -> Iterator[Any]:
    from model_explorer.extension_manager import ExtensionManager

    before, ExtensionManager.instance = (
        ExtensionManager.instance,
        None,
    )  # there is one, with the extensions of the first
    found = ExtensionManager(["torchatlas.integrations.model_explorer"])
    found.load_extensions()
    yield found
    ExtensionManager.instance = before


def converted(manager: Any, path: Path) -> dict[str, Any]:
    """What its server answers when the page opens a file."""
    command = {"cmdId": "convert", "extensionId": "torchatlas", "modelPath": str(path), "settings": {}}
    (graph,) = json.loads(json.dumps(manager.run_cmd({**command, "deleteAfterConversion": False})))["graphs"]
    return graph  # type: ignore[no-any-return]


def edges_of(found: dict[str, Any]) -> Counter[tuple[str, ...]]:
    ends = ("sourceNodeId", "sourceNodeOutputId", "targetNodeInputId")
    return Counter(
        (node["id"], *(edge[end] for end in ends)) for node in found["nodes"] for edge in node["incomingEdges"]
    )


def expected_edges(graph: Graph) -> Counter[tuple[str, ...]]:
    names = [encodable(name) for name in graph.index.names()]
    return Counter(
        (names[edge.target_id], names[edge.source_id], str(edge.output_index or 0), str(edge.input_index or 0))
        for edge in graph.edges
        if edge.kind == "data"
    )


def overlay(found: dict[str, Any], name: str) -> list[tuple[str, str]]:
    lists = (found.get("tasksData") or {}).get("edgeOverlaysDataListLeftPane", [])
    shown = [one for each in lists for one in each["overlays"] if one["name"].startswith(name)]
    return [(edge["sourceNodeId"], edge["targetNodeId"]) for one in shown for edge in one["edges"]]


@pytest.mark.parametrize("source", SOURCES)
def test_a_file_holds_every_node_and_edge(source: str, tmp_path: Path) -> None:
    graph = SOURCES[source]()
    document = json.loads(graph.save(tmp_path / "step.model-explorer.json").read_bytes())
    assert document["label"] == "step"
    (found,) = document["graphs"]
    names = [encodable(name) for name in graph.index.names()]
    assert [node["id"] for node in found["nodes"]] == names
    assert edges_of(found) == expected_edges(graph)
    order = [(names[edge.source_id], names[edge.target_id]) for edge in graph.edges if edge.kind == "order"]
    assert overlay(found, "order") == order


def test_its_own_server_code_loads_our_files(manager: Any, tmp_path: Path) -> None:
    known = {one["id"]: one for one in manager.get_extensions_metadata()}
    assert known["torchatlas"]["fileExts"] == ["atlas"]
    graph = step()
    found = converted(manager, graph.save(tmp_path / "step.atlas"))
    assert edges_of(found) == expected_edges(graph)
    assert len(overlay(found, "forward op")) == sum(node.forward_node is not None for node in graph)
    by_id = {node["id"]: node for node in found["nodes"]}
    convolution = by_id["0.convolution"]
    assert (convolution["label"], convolution["namespace"]) == ("convolution", "forward/0")
    said = {one["key"]: one["value"] for one in convolution["attrs"]}
    assert said["parameter"] == "0.weight float32[4, 3, 3, 3], 0.bias float32[4]"
    assert said["kernel_size"] == "[3, 3]"
    assert said["FLOPs"] == "15.6 KFLOPs"
    assert "time" in said
    assert said["backward nodes"]["nodeIds"] == [node.name for node in graph["0.convolution"].backward_nodes]
    (made,) = convolution["outputsMetadata"]
    assert {"key": "tensor_shape", "value": "float32[2,4,6,6]"} in made["attrs"]
    assert found["groupNodeAttributes"]["backward/1"]["class"] == "BatchNorm2d"
    written = json.loads(graph.save(tmp_path / "step.model-explorer.json").read_bytes())["graphs"][0]
    assert edges_of(written) == edges_of(found)


def test_the_modules_are_layers(tmp_path: Path) -> None:
    found = json.loads(SOURCES["odd names"]().save(tmp_path / "a.model-explorer.json").read_bytes())["graphs"][0]
    spaces = {node["namespace"] for node in found["nodes"]}
    assert {"parts/a∕b", "parts/a∕b (call 2)", 'parts/q"<&>', "parts/ü\0"} <= spaces
    shared = nn.Sequential(nn.Linear(2, 2))
    model = nn.Sequential(shared, nn.ReLU(), shared)
    graph = atlas.capture(model, torch.ones(1, 2))
    assert set(graph_facts(graph)["groupNodeAttributes"]) >= {"0/0", "0 (call 2)/0 (call 2)"}


@pytest.mark.parametrize("by", ["time", "memory", "flops", "bytes"])
def test_numbers_to_colour_nodes_by(by: str, manager: Any, tmp_path: Path) -> None:
    graph = step()
    (found,) = json.loads(graph.save(tmp_path / "a.node-data.json", by=by).read_bytes()).values()
    values = {name: result["value"] for name, result in found["results"].items()}
    cost = atlas.cost(graph)
    expected = {
        "time": graph.time_ns / 1000 if graph.time_ns else 0,
        "flops": cost.flops + cost.elementwise_flops,
        "bytes": cost.total.bytes,
    }
    if by == "memory":
        assert max(values.values()) == graph.peak_bytes
    else:
        assert sum(values.values()) == pytest.approx(expected[by])
    command = {"cmdId": "run", "extensionId": f"torchatlas_{by}", "graphId": "torchatlas", "configValues": {}}
    answer = manager.run_cmd({**command, "modelPath": str(graph.save(tmp_path / "a.atlas"))})
    assert {name: result["value"] for name, result in answer["result"]["results"].items()} == values


def test_bad_input_is_answered(manager: Any, tmp_path: Path) -> None:
    fake = atlas.capture(nn.Linear(2, 2), torch.ones(1, 2), fake=True)
    with pytest.raises(AnalysisError, match=r"not known of any node.*Choose one of memory, flops, bytes"):
        fake.save(tmp_path / "a.node-data.json", by="time")
    with pytest.raises(InvalidInputError, match="did you mean 'time'"):
        fake.save(tmp_path / "a.node-data.json", by="tiem")
    command = {"cmdId": "run", "extensionId": "torchatlas_time", "graphId": "torchatlas", "configValues": {}}
    answer = manager.run_cmd({**command, "modelPath": str(fake.save(tmp_path / "a.atlas"))})
    assert "not known of any node" in answer["error"]
    (tmp_path / "b.atlas").write_bytes(b"nothing of ours")
    with pytest.raises(atlas.AtlasError, match=r"b\.atlas"):
        converted(manager, tmp_path / "b.atlas")
