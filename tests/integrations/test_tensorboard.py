"""TensorBoard's own readers see our nodes, edges and times."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import support
import torch
from google.protobuf import text_format
from tensorboard import context
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.compat.proto import config_pb2, graph_pb2
from tensorboard.plugins import base_plugin
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import torchatlas as atlas
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph
from torchatlas.integrations.tensorboard import add_graph, graph_def


def training_step(model: nn.Module, *args: Any, **kwargs: Any) -> Graph:
    return atlas.capture(model, *args, backward=True, optimizer=torch.optim.Adam(model.parameters()), **kwargs)


def edges_of(definition: Any) -> tuple[Counter[tuple[str, str, int]], set[tuple[str, str]]]:
    """Data edges with their output, and edges of order, as TensorFlow writes them."""
    data: Counter[tuple[str, str, int]] = Counter()
    order = set()
    for node in definition.node:
        for text in node.input:
            if text.startswith("^"):
                order.add((text[1:], node.name))
            else:
                source, _, output = text.partition(":")
                data[source, node.name, int(output or 0)] += 1
    return data, order


def test_nodes_edges_and_times_are_read_back() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    graph = training_step(model, torch.randn(3, 4))
    with SummaryWriter("logs") as writer:
        add_graph(writer, graph, tag="the step")
    events = EventAccumulator("logs").Reload()
    definition = events.Graph()
    assert len(definition.node) == len(graph.nodes)
    names = dict(zip([node.id for node in graph.nodes], [node.name for node in definition.node], strict=True))
    assert len(set(names.values())) == len(graph.nodes)
    scopes = {"/".join(name.split("/")[:end]) for name in names.values() for end in range(1, name.count("/") + 1)}
    assert not scopes & set(names.values())
    assert [node.op for node in definition.node] == [node.operation or str(node.kind) for node in graph.nodes]
    data, order = edges_of(definition)
    mine = [edge for edge in graph.edges if edge.kind == "data"]
    assert data == Counter((names[one.source_id], names[one.target_id], one.output_index or 0) for one in mine)
    assert order == {(names[one.source_id], names[one.target_id]) for one in graph.edges if one.kind == "order"}
    assert order, "this step has no edge of order to compare"
    assert any(edge.output_index for edge in mine), "nor one from a second output"
    (device,) = events.RunMetadata("the step").step_stats.dev_stats
    times = {one.node_name: one.all_end_rel_nanos for one in device.node_stats}
    assert times == {names[node.id]: node.time_ns for node in graph.nodes if node.time_ns is not None}
    assert sum(times.values()) == graph.time_ns
    micros = {one.node_name: one.all_end_rel_micros for one in device.node_stats}
    assert all(abs(micros[name] - max(1, times[name] / 1000)) <= 0.5 for name in times)
    allocated = sum(memory.total_bytes for one in device.node_stats for memory in one.memory)
    born = [storage.bytes for storage in graph.storages if storage.born is not None]
    assert allocated == sum(size for size in born if size is not None) > 0
    linear = next(node for node in definition.node if node.name == "0/addmm")
    shape = linear.attr["_output_shapes"].list.shape[0]
    assert [dim.size for dim in shape.dim] == [3, 8]
    assert any(name.startswith("backward/0/") for name in names.values())
    assert any(name.startswith("optimizer/Adam/") for name in names.values())


@pytest.mark.filterwarnings("ignore:html5lib's sanitizer is deprecated")
def test_the_graph_plugin_serves_it() -> None:
    """By the code that answers the page: what it merges and sends is the same graph."""
    from tensorboard.plugins.graph.graphs_plugin import GraphsPlugin

    graph = training_step(nn.Linear(4, 2), torch.randn(3, 4))
    add_graph("logs/one", graph)
    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory("logs")
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, "logs")
    plugin = GraphsPlugin(base_plugin.TBContext(logdir="logs", data_provider=provider))
    request = context.RequestContext()
    (run,) = plugin.info_impl(request, "").values()
    assert run["run_graph"]
    assert run["tags"]["step"]["profile"]
    text, kind = plugin.graph_impl(request, "one", None, False, "")
    assert kind == "text/x-protobuf"
    served = text_format.Parse(text, graph_pb2.GraphDef())
    definition, times = graph_def(graph)
    assert served.node == definition.node
    text, _ = plugin.run_metadata_impl(request, "", "one", "step")
    assert text_format.Parse(text, config_pb2.RunMetadata()) == times


def test_a_transformer_and_odd_names() -> None:
    model, inputs = support.tiny_gpt2()
    graph = training_step(model, **inputs)
    definition, times = graph_def(graph)
    data, _ = edges_of(definition)
    assert sum(data.values()) == sum(edge.kind == "data" for edge in graph.edges)
    assert sum(len(on.node_stats) for on in times.step_stats.dev_stats) == len(graph.where(kind="op"))
    assert any(node.name.startswith("transformer/h/0/attn/") for node in definition.node)

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("a/b:c ^", nn.Linear(2, 2))
            self.add_module("relu", nn.Sequential(nn.ReLU()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.relu(self.get_submodule("a/b:c ^")(x)).relu()

    graph = atlas.capture(Odd(), torch.ones(1, 2))
    names = [node.name for node in graph_def(graph)[0].node]
    assert "a_b_c__/addmm" in names
    assert "relu/0/relu" in names
    assert "relu_1" in names  # relu is a module


def test_what_has_no_time_is_not_zero() -> None:
    graph = atlas.capture(nn.Linear(2, 2), torch.ones(1, 2), fake=True)
    definition, times = graph_def(graph)
    assert len(definition.node) == len(graph.nodes)
    assert not times.step_stats.dev_stats


def test_bad_input(tmp_path: Path) -> None:
    graph = atlas.capture(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(InvalidInputError, match="a SummaryWriter or a folder, not float"):
        add_graph(math.pi, graph)
    with pytest.raises(InvalidInputError, match="takes a Graph, not Linear"):
        add_graph(tmp_path, nn.Linear(2, 2))  # type: ignore[arg-type]
