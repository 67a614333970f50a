"""Asking a graph: conditions, parts, sameness, names, other libraries, and what makes columns no graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from synthetic import random_graph
from torch import nn

import torchatlas as atlas
from torchatlas.errors import NodeNotFoundError
from torchatlas.graph import Graph, Phase, Tables
from torchatlas.graph.columns import COLUMNS, ENUMS, POINTERS, Array
from torchatlas.graph.consistency import faults


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2))


@pytest.fixture(scope="module")
def graph() -> Graph:
    return atlas.capture(model(), torch.ones(1, 1, 4, 4), backward=True)


# -- looking ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ({"kind": "input"}, lambda node: node.kind == "input"),
        ({"kind": "placeholder"}, lambda node: node.kind == "input"),
        ({"phase": "backward"}, lambda node: node.phase is Phase.BACKWARD),
        ({"operation": "mm"}, lambda node: node.operation == "aten.mm.default"),
        ({"operation": "aten.t.default"}, lambda node: node.operation == "aten.t.default"),
        ({"operation_type": "convolution"}, lambda node: node.operation_type == "convolution"),
        ({"scope": "3"}, lambda node: node.scope.path == "3"),
        ({"scope": ""}, lambda node: True),
        ({"iteration": 0}, lambda node: node.iteration == 0),
        ({"iteration": 1}, lambda node: False),
        ({"phase": "forward", "scope": "3"}, lambda node: node.phase == "forward" and node.scope.path == "3"),
    ],
)
def test_where_is_a_filter(graph: Graph, condition: dict[str, Any], holds: Callable[[Any], bool]) -> None:
    assert graph.where(**condition) == [node for node in graph.nodes if holds(node)]


def test_where_with_a_predicate(graph: Graph) -> None:
    heavy = graph.where(lambda node: len(node.inputs) > 2, kind="op")
    assert heavy == [node for node in graph.nodes if node.kind == "op" and len(node.inputs) > 2]
    with pytest.raises(ValueError, match="nonsense"):
        graph.where(phase="nonsense")


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ReLU()

    def forward(self, layers: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.layers(layers["relu"]) + self.layers(layers["relu_1"])


def test_names_are_unique_where_an_input_is_called_like_an_op_in_a_module() -> None:
    graph = atlas.capture(Layers(), {"relu": torch.ones(2), "relu_1": torch.ones(2)})
    assert [node.name for node in graph.nodes][:4] == [
        "layers.relu",
        "layers.relu_1_0",
        "layers.relu_1",
        "layers.relu_2",
    ]
    assert all(graph[node.name] == node for node in graph.nodes)


def test_names_ids_and_near_names(graph: Graph) -> None:
    assert graph["3.addmm"].name == "3.addmm"
    assert graph[0] == graph.nodes[0]
    assert "3.addmm" in graph
    assert "3.admm" not in graph
    with pytest.raises(NodeNotFoundError, match=r"no node or module is named '3.admm'; did you mean '3.addmm'"):
        graph["3.admm"]
    with pytest.raises(KeyError):
        graph["nothing like it at all"]
    with pytest.raises(IndexError):
        graph[len(graph)]


def test_rows_are_sequences(graph: Graph) -> None:
    assert graph.nodes[-1].id == len(graph) - 1
    assert [node.id for node in graph.nodes[1:4]] == [1, 2, 3]
    assert list(graph) == list(graph.nodes) == graph.topological_order()
    assert len({*graph.nodes, *graph.nodes}) == len(graph)
    assert graph.nodes[0] != graph.values[0]


def test_neighbours_follow_data_edges(graph: Graph) -> None:
    for node in graph.nodes:
        assert node.successors == sorted(
            {e.target for e in graph.edges if e.source == node and e.kind == "data"}, key=id_
        )
        assert node.predecessors == sorted(
            {e.source for e in graph.edges if e.target == node and e.kind == "data"}, key=id_
        )
    for value in graph.values:
        assert value.consumers == [node for node in graph.nodes if value in node.inputs]


def id_(node: Any) -> int:
    return int(node.id)


# -- parts -----------------------------------------------------------------------------------------------------------


def test_a_part_is_a_sound_graph(graph: Graph) -> None:
    part = graph.subgraph(scope="3")
    whole = graph.where(scope="3")
    assert faults(part.columns, part.tables) is None
    assert [node.operation for node in part.nodes] == [node.operation for node in whole]
    assert [node.arguments for node in part.nodes] == [node.arguments for node in whole]
    assert [[value.shape for value in node.inputs] for node in part.nodes] == [
        [value.shape for value in node.inputs] for node in whole
    ]
    inside = {node.id for node in whole}
    among = [edge for edge in graph.edges if edge.source_id in inside and edge.target_id in inside]
    assert len(part.edges) == len(among)
    assert part.notes[-1] == f"part of a graph of {len(graph)} nodes"
    taken = next(node for node in part.nodes if node.operation == "aten.addmm.default").inputs[1]
    assert taken.producer is None  # it comes from outside the part


def test_a_part_by_nodes_names_and_ids(graph: Graph) -> None:
    part = graph.subgraph(["3.addmm", graph["1.tanh"], 0])
    assert [node.operation for node in part.nodes] == ["input", "aten.tanh.default", "aten.addmm.default"]
    assert len(graph.subgraph([])) == 0
    everything = graph.subgraph(graph.nodes)
    assert everything == graph


def test_a_part_keeps_recorded_values() -> None:
    whole = atlas.capture(model(), torch.ones(1, 1, 4, 4), values="all")
    part = whole.subgraph(["1.tanh", "3.addmm"])
    for node, name in zip(part.nodes, ["1.tanh", "3.addmm"], strict=True):
        np.testing.assert_array_equal(part.recorded[f"{node.id}:0"], whole.recorded[f"{whole[name].id}:0"])


# -- sameness --------------------------------------------------------------------------------------------------------


def test_two_captures_are_equal_and_not_identical(graph: Graph) -> None:
    other = atlas.capture(model(), torch.ones(1, 1, 4, 4), backward=True)
    assert other == graph
    assert other.hash == graph.hash
    assert hash(other) == hash(graph)
    assert not other.identical(graph)  # times differ
    assert graph.identical(graph)
    assert graph != "a graph"


@pytest.mark.parametrize(
    "change",
    [
        lambda: atlas.capture(model(), torch.ones(2, 1, 4, 4), backward=True),  # shape
        lambda: atlas.capture(model().double(), torch.ones(1, 1, 4, 4).double(), backward=True),  # dtype
        lambda: atlas.capture(model(), torch.ones(1, 1, 4, 4)),  # phases
        lambda: atlas.capture(nn.Sequential(model()), torch.ones(1, 1, 4, 4), backward=True),  # scopes
    ],
)
def test_what_makes_graphs_differ(graph: Graph, change: Callable[[], Graph]) -> None:
    assert change() != graph


def test_an_argument_makes_graphs_differ() -> None:
    one, other = (atlas.capture(lambda x, k=k: x.add(x, alpha=k), torch.ones(2)) for k in (2, 3))
    assert one != other


def test_inputs_that_are_swapped_make_graphs_differ() -> None:
    one = atlas.capture(lambda x, y: x - y, torch.ones(2), torch.ones(2))
    other = atlas.capture(lambda x, y: y - x, torch.ones(2), torch.ones(2))
    assert one != other


@pytest.mark.parametrize("column", COLUMNS)
def test_identical_looks_at_every_column(column: str) -> None:
    one, other = random_graph(60, 120), random_graph(60, 120)
    assert one.identical(other)
    other.columns[column] = other.columns[column].copy()
    other.columns[column][-1] += 1
    assert not one.identical(other)


@pytest.mark.parametrize("table", Tables.__slots__)
def test_identical_looks_at_every_table(table: str) -> None:
    one, other = random_graph(60, 120), random_graph(60, 120)
    setattr(other.tables, table, getattr(other.tables, table)[:-1])
    assert not one.identical(other)


# -- totals and other libraries --------------------------------------------------------------------------------------


def test_totals(graph: Graph) -> None:
    assert graph.time_ns == sum(node.time_ns or 0 for node in graph.nodes)
    assert graph.peak_bytes == max(node.memory_bytes or 0 for node in graph.nodes)
    assert graph.data_edges == len([edge for edge in graph.edges if edge.kind == "data"])
    assert graph.nbytes == sum(column.nbytes for column in graph.columns.values())
    empty = Graph()
    assert (len(empty), empty.time_ns, empty.peak_bytes, empty.data_edges) == (0, None, None, 0)


def test_networkx_is_an_acyclic_graph_of_the_same_size(graph: Graph) -> None:
    found = graph.to_networkx()
    assert networkx.is_directed_acyclic_graph(found)
    assert (found.number_of_nodes(), found.number_of_edges()) == (len(graph), len(graph.edges))
    assert found.nodes[graph["3.addmm"].id]["operation"] == "aten.addmm.default"
    assert sorted((a, b) for a, b in found.edges()) == sorted((e.source_id, e.target_id) for e in graph.edges)


# -- faults: every kind of damage is found ---------------------------------------------------------------------------


def broken(change: Callable[[dict[str, Array], Tables], None]) -> str | None:
    graph = random_graph(60, 120)
    tables = copy.deepcopy(graph.tables)
    columns = {name: column.copy() for name, column in graph.columns.items()}
    assert faults(columns, tables) is None
    change(columns, tables)
    return faults(columns, tables)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_missing_short_or_mistyped_column_is_found(name: str) -> None:
    def remove(columns: dict[str, Array], tables: Tables) -> None:
        del columns[name]

    def shorten(columns: dict[str, Array], tables: Tables) -> None:
        columns[name] = columns[name][:-1]

    def retype(columns: dict[str, Array], tables: Tables) -> None:
        columns[name] = columns[name].astype("f8")

    assert broken(remove) == f"column {name} is missing"
    assert broken(shorten) is not None
    assert name in str(broken(retype))


@pytest.mark.parametrize("name", POINTERS)
@pytest.mark.parametrize("value", [-2, 2**14])
def test_a_pointer_to_nowhere_is_found(name: str, value: int) -> None:
    def change(columns: dict[str, Array], tables: Tables) -> None:
        columns[name][len(columns[name]) // 2] = value

    assert name in str(broken(change))


@pytest.mark.parametrize("name", [name for name, (dtype, _) in COLUMNS.items() if dtype.startswith("i")])
def test_a_number_below_none_is_found(name: str) -> None:
    def change(columns: dict[str, Array], tables: Tables) -> None:
        columns[name][len(columns[name]) // 2] = -7

    assert name in str(broken(change))


@pytest.mark.parametrize("name", ENUMS)
def test_an_unknown_word_is_found(name: str) -> None:
    def change(columns: dict[str, Array], tables: Tables) -> None:
        columns[name][0] = ENUMS[name]

    assert name in str(broken(change))


@pytest.mark.parametrize("name", ["input_ptr", "output_ptr"])
def test_pointers_that_do_not_divide_are_found(name: str) -> None:
    def backwards(columns: dict[str, Array], tables: Tables) -> None:
        columns[name][10], columns[name][11] = columns[name][30], columns[name][10]

    def late(columns: dict[str, Array], tables: Tables) -> None:
        columns[name][0] = 1

    assert name in str(broken(backwards))
    assert name in str(broken(late))


@pytest.mark.parametrize(
    "name", ["node_operation", "input_value", "value_layout", "edge_source", "edge_target", "call_module"]
)
def test_what_may_not_be_absent_is_found(name: str) -> None:
    def change(columns: dict[str, Array], tables: Tables) -> None:
        columns[name][3] = -1

    assert name in str(broken(change))


def test_loops_are_found() -> None:
    def edge(columns: dict[str, Array], tables: Tables) -> None:
        columns["edge_source"][0] = columns["edge_target"][0]

    def parent(columns: dict[str, Array], tables: Tables) -> None:
        columns["call_parent"][4] = 4

    def view(columns: dict[str, Array], tables: Tables) -> None:
        columns["value_view_of"][4] = 5

    assert "edge" in str(broken(edge))
    assert "call_parent" in str(broken(parent))
    assert "value_view_of" in str(broken(view))


def test_a_table_that_is_too_short_is_found() -> None:
    for table in ("operations", "layouts", "arguments", "sources", "modules", "names", "threads", "devices"):
        assert broken(lambda columns, tables, table=table: setattr(tables, table, [])) is not None, table
