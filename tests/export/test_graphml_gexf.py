"""GraphML and GEXF as networkx reads them: every node, every attribute, every edge."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import networkx
import pytest
from every_source import SOURCES, step

from torchatlas.export.xml_text import xml_text
from torchatlas.graph import Graph


def read(path: Path) -> Any:
    if path.suffix == ".gexf":
        return networkx.read_gexf(path, node_type=int)
    return networkx.read_graphml(path, node_type=int, force_multigraph=True)


@pytest.mark.parametrize("suffix", [".graphml", ".gexf"])
@pytest.mark.parametrize("source", SOURCES)
def test_every_edge_and_node_is_read_back(source: str, suffix: str, tmp_path: Path) -> None:
    graph = SOURCES[source]()
    found = read(graph.save(tmp_path / f"graph{suffix}"))
    assert list(found.nodes) == list(range(len(graph)))
    names = ("kind", "output_index", "input_index")
    theirs = Counter(
        (*ends, *(data.get(name) for name in names)) for *ends, data in found.edges(data=True)
    )  # fmt: skip
    columns = ("kind", "output_index", "input_index")
    ours = Counter((e.source_id, e.target_id, *(_plain(getattr(e, name)) for name in columns)) for e in graph.edges)
    assert theirs == ours
    for node in graph.nodes[:200]:
        data = found.nodes[node.id]
        assert data["operation_type"] == str(node.operation_type)
        assert data.get("time_ns") == node.time_ns
        assert data.get("memory_bytes") == node.memory_bytes
        if source != "hostile":  # what XML cannot hold is escaped
            assert data["module"].replace("\\x00", "\0") == node.scope.path


def _plain(item: Any) -> Any:
    return str(item) if isinstance(item, str) else item


@pytest.mark.parametrize("suffix", [".graphml", ".gexf"])
def test_attributes_have_types_and_what_is_unknown_is_left_out(suffix: str, tmp_path: Path) -> None:
    found = read(step().save(tmp_path / f"graph{suffix}"))
    data = found.nodes[step()["0.convolution"].id]
    assert (data["shape"], data["dtype"], data["module_1"]) == ("[2, 4, 6, 6]", "float32", "0")
    assert data["flops"] == 2 * (2 * 4 * 36 * 27)
    assert isinstance(data["time_ns"], int)
    assert data["line"] > 0
    start = found.nodes[0]
    assert start["kind"] == "input"
    assert "flops" not in start
    assert "time_ns" not in start
    edge = next(data for source, _, data in found.edges(data=True) if source == 0)
    assert (edge["shape"], edge["bytes"]) == ("[2, 3, 8, 8]", 4 * 2 * 3 * 64)


def test_what_xml_forbids_is_shown_and_what_it_would_change_is_numbered() -> None:
    assert xml_text('a\x00\x1b\ufffe\ud800<&">\r\n\t𝄞') == "a\\x00\\x1b\\ufffe\\ud800&lt;&amp;&quot;&gt;&#13;&#10;&#9;𝄞"


def test_a_graph_whose_sizes_are_unknown_says_what_is_left_out(tmp_path: Path) -> None:
    graph = SOURCES["export"]()
    graph = Graph(graph.columns, graph.tables, source="export")  # without metadata: nobody knows what s0 was
    found = read(graph.save(tmp_path / "graph.graphml"))
    assert "FLOPs and bytes are left out" in found.graph["notes"]
    assert all("flops" not in data for _, data in found.nodes(data=True))
