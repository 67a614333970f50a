"""Nodes and edges answer to the names of torch.fx and of pytorch-graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph, GraphNode, NodeKind

MODEL = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU()).eval()


@pytest.fixture(scope="module")
def graph() -> Graph:
    return atlas.capture(MODEL, torch.randn(1, 3, 8, 8))


# -- torch.fx ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words", "shown"),
    [
        (NodeKind.INPUT, ["input", "placeholder"], "placeholder"),
        (NodeKind.OP, ["op", "call_function", "call_module", "call_method"], "call_function"),
        (NodeKind.OUTPUT, ["output"], "output"),
    ],
)
def test_kinds_are_equal_to_the_words_of_torch_fx(kind: NodeKind, words: list[str], shown: str) -> None:
    every = ["input", "placeholder", "op", "call_function", "call_module", "call_method", "output", "get_attr", ""]
    assert [word for word in every if kind == word] == words
    assert [word for word in every if word == kind] == words
    assert [word for word in every if kind != word] == [word for word in every if word not in words]
    assert all(NodeKind(word) is kind for word in words)
    assert kind.fx_word == shown
    assert shown in repr(kind)
    assert [one for one in NodeKind if one == kind] == [kind]
    assert kind != 1
    assert {kind: 1}[NodeKind(words[0])] == 1


FX: dict[str, tuple[str, str, Any]] = {
    "input": ("input", "placeholder", "input"),
    "operator": ("0.convolution", "call_function", torch.ops.aten.convolution.default),
    "output": ("output", "output", "output"),
}


@pytest.mark.parametrize("name", FX)
def test_op_and_target(graph: Graph, name: str) -> None:
    node, op, target = FX[name]
    assert (graph[node].op, graph[node].target) == (op, target)


def test_arguments_are_nodes_and_values(graph: Graph) -> None:
    x, weight, bias, *rest = graph["0.convolution"].args
    assert x == graph["input"]
    assert (weight.parameter, bias.parameter) == ("0.weight", "0.bias")
    assert rest == [[2, 2], [1, 1], [1, 1], False, [0, 0], 1]
    assert graph["output"].args == (graph["1.relu"],)
    with atlas.recording() as rec:
        torch.add(torch.ones(2), torch.ones(2), alpha=3)
    assert rec.graph["add"].kwargs == {"alpha": 3}


def test_hyperparameters_are_tuples_and_parameters(graph: Graph) -> None:
    found = graph["0.convolution"].hyperparameters
    assert {name: found[name] for name in ("stride", "padding", "dilation", "groups", "kernel_size")} == {
        "stride": (2, 2),
        "padding": (1, 1),
        "dilation": (1, 1),
        "groups": 1,
        "kernel_size": (3, 3),
    }
    assert (found["weight"].parameter, found["bias"].shape) == ("0.weight", (4,))


@pytest.mark.parametrize(
    "name",
    [
        "mine.scan.default",  # nobody has declared it
        "aten.relu.nothing",
        "aten.relu",
        "load_library.x.y",  # what torch.ops has beside operators
        "aten.__class__.__init__",
        "__class__.__init__.__globals__",
        "ReluBackward0",
        "nn.Linear",
        "",
    ],
)
def test_a_name_that_is_no_operator_stays_a_name(graph: Graph, name: str, tmp_path: Path) -> None:
    """Also of a file that somebody else wrote."""
    loaded = Graph.load(graph.save(tmp_path / "graph.json"))
    row = loaded.columns["node_operation"][loaded["1.relu"].id]
    known = loaded.tables.operations[row]
    loaded.tables.operations[row] = type(known)(name, known.type, known.parameters)
    node = GraphNode(loaded, 2)
    assert node.operation == node.target == name


# -- pytorch-graph -----------------------------------------------------------------------------------------------------

NODE: dict[str, Callable[[GraphNode], Any]] = {
    "module_name": lambda node: "0",
    "input_shapes": lambda node: [(1, 3, 8, 8), (4, 3, 3, 3), (4,)],
    "output_shapes": lambda node: [(1, 4, 4, 4)],
    "parameters": lambda node: node.attributes,
    "execution_time": lambda node: node.time_ns / 1e9,
    "timestamp": lambda node: node.start_ns / 1e9,
    "memory_usage": lambda node: node.memory_bytes,
    "parent_ids": lambda node: [0],
    "child_ids": lambda node: [2],
    "metadata": lambda node: {
        "operation": "aten.convolution.default",
        "phase": "forward",
        "module_type": "Conv2d",
        "module_parameters": 4 * 27 + 4,
        "input_count": 3,
        "output_count": 1,
        "input_dtypes": ["float32"] * 3,
        "input_devices": ["cpu"] * 3,
    },
}


@pytest.mark.parametrize("name", NODE)
def test_names_of_a_node(graph: Graph, name: str) -> None:
    assert getattr(graph["0.convolution"], name) == NODE[name](graph["0.convolution"])


def test_an_enum_that_is_a_text(graph: Graph) -> None:
    found = graph["0.convolution"].operation_type
    assert (found.value, found) == ("convolution", "convolution")


def test_what_was_not_timed_has_no_times() -> None:
    found = atlas.capture(MODEL, torch.randn(1, 3, 8, 8), fake=True)["0.convolution"]
    assert (found.timestamp, found.execution_time) == (None, None)


def test_timestamps_do_not_go_back(graph: Graph) -> None:
    times = [node.timestamp for node in graph.where(kind="op")]
    assert all(one is not None for one in times)
    assert times == sorted(times)


def test_names_of_an_edge(graph: Graph) -> None:
    edge = next(edge for edge in graph.edges if edge.source == graph["0.convolution"])
    assert (edge.source_id, edge.target_id, edge.edge_type, edge.tensor_shape) == (1, 2, "data", (1, 4, 4, 4))
    assert edge.metadata == {"output_index": 0, "input_index": 0, "dtype": "float32", "device": "cpu"}
