"""An exported program as a graph: inputs, calls, views, writes, blocks, symbolic sizes, tied weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import ZOO

from torchatlas.analysis.cost import cost
from torchatlas.capturing.exported import block_of, graph_of_export
from torchatlas.graph import Graph
from torchatlas.graph.consistency import faults

MODELS = ["mlp", "tied_weights", "lstm_cell_loop", "inplace_on_view", "multi_output_views", "dict_in_dict_out"]


def graph_of(model: nn.Module, *args: Any, dynamic: bool = True) -> tuple[Graph, dict[str, int], Any]:
    free = [dict.fromkeys(range(arg.dim()), torch.export.Dim.AUTO) for arg in args]
    program = torch.export.export(model, args, dynamic_shapes=tuple(free) if dynamic else None)
    return (*graph_of_export(program, model, list(args)), program)


@pytest.mark.parametrize("name", MODELS)
def test_columns_are_sound_and_every_op_has_a_node(name: str) -> None:
    model, args, kwargs = next(one for one in ZOO if one.name == name).build()
    program = torch.export.export(model, args, kwargs)
    graph, numbers = graph_of_export(program, model, list(args))
    assert faults(graph.columns, graph.tables) is None
    for node in program.graph.nodes:
        if node.op == "call_function" and str(node.target).startswith("aten.") and "_assert" not in str(node.target):
            assert graph.nodes[numbers[node.name]].operation == str(node.target)
    assert graph.source == "export"


def test_symbolic_sizes_are_shown_as_such_and_known_for_the_example() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, x]).reshape(-1)

    graph, _, _ = graph_of(Model(), torch.randn(3, 4))
    rows, columns = graph.nodes[0].outputs[0].shape
    assert graph.metadata["sizes"] == {rows: 3, columns: 4}
    assert graph["reshape"].outputs[0].shape == (f"2*{rows}*{columns}",) or "*" in str(graph["reshape"].outputs[0])
    assert cost(graph).macs == 0


def test_a_write_makes_a_new_version_on_the_same_storage() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            y[0].relu_()
            return y

    graph, _, _ = graph_of(Model(), torch.randn(3, 4))
    made, view, written = (graph[name].outputs[0] for name in ("mul", "select", "relu_"))
    assert made.storage.id == view.storage.id == written.storage.id
    assert (made.version, written.version) == (0, 1)
    assert view.view_of is not None
    assert view.view_of.id == made.id
    assert graph["relu_"].writes == (0,)


def test_tied_weights_are_one_storage_and_roles_are_known() -> None:
    model, args, _ = next(one for one in ZOO if one.name == "tied_weights").build()
    graph, _ = graph_of_export(torch.export.export(model, args), model, list(args))
    assert graph.scopes[""].parameters == sum(parameter.numel() for parameter in model.parameters())
    bound = nn.BatchNorm1d(3).eval()
    graph, _, _ = graph_of(bound, torch.randn(4, 3))
    roles = {value.parameter: value.role for value in graph["batch_norm"].inputs if value.parameter}
    assert roles == {"weight": "parameter", "bias": "parameter", "running_mean": "buffer", "running_var": "buffer"}


def test_nodes_in_a_block_are_nodes_with_names_of_their_own() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            with torch.no_grad():
                z = y + 2
                z = z * 3
            return y + z

    graph, numbers, program = graph_of(Model(), torch.randn(3))
    assert [node.operation.split(".")[1] for node in graph.where(kind="op")] == ["add", "add", "mul", "add"]
    assert len(numbers) == len(set(numbers.values())) == len(graph)
    wrapper = next(node for node in program.graph.nodes if node.op == "call_function" and block_of(node) is not None)
    block = block_of(wrapper)
    assert block is not None
    assert (block.kind, block.settings) == ("wrap_with_set_grad_enabled", (False,))
    assert f"{wrapper.name}.mul" in numbers
    assert [edge.source.name for edge in graph.edges if edge.target.id == numbers[f"{wrapper.name}.mul"]] == ["add_1"]


def test_module_calls_and_lines() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x)).sin()  # this line

    graph, _, _ = graph_of(Twice(), torch.randn(2, 3))
    assert graph.scopes["layer"].calls == 2
    assert graph.columns["call_index"].tolist() == [0, 0, 0, 0, 1, 1, 1]  # the model, then thrice two calls
    source = graph["sin"].source
    assert source is not None
    assert source.text.startswith("return self.layer(self.layer(x)).sin()")


def test_attributes_by_name() -> None:
    graph, _, _ = graph_of(nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), torch.randn(2, 4, 8, 8))
    attributes = graph["conv2d"].attributes
    for name, wanted in {"stride": [2, 2], "padding": [1, 1], "groups": 2, "dilation": [1, 1]}.items():
        assert attributes[name] == wanted
