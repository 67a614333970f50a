"""A graph as a networkx.MultiDiGraph."""

import io
import sys

import pytest
from synthetic import random_graph

from torchatlas.errors import MissingDependencyError
from torchatlas.graph import Graph

networkx = pytest.importorskip("networkx")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_graph(200, 400)


def test_every_node_and_edge_is_there(graph: Graph) -> None:
    found = graph.to_networkx()
    assert isinstance(found, networkx.MultiDiGraph)
    assert (found.number_of_nodes(), found.number_of_edges()) == (200, 400)
    for node in graph:
        attributes = found.nodes[node.id]
        assert (attributes["name"], attributes["operation"]) == (node.name, node.operation)
        assert (attributes["phase"], attributes["scope"]) == (node.phase, node.scope.path)
        assert attributes.get("time_ns") == node.time_ns
        assert attributes.get("thread") == node.thread
    expected = sorted((e.source_id, e.target_id, e.kind, e.output_index, e.input_index) for e in graph.edges)
    edges = found.edges(data=True)
    assert expected == sorted((s, t, d["kind"], d.get("output_index"), d.get("input_index")) for s, t, d in edges)
    assert networkx.is_directed_acyclic_graph(found)


def test_networkx_can_write_it(graph: Graph) -> None:
    networkx.write_graphml(graph.to_networkx(), io.BytesIO())  # refuses None, lists and numpy numbers


def test_an_empty_graph() -> None:
    assert len(Graph().to_networkx()) == 0


def test_a_missing_package_is_named_with_the_command(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'torchatlas\[networkx\]'"):
        graph.to_networkx()
