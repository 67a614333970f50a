"""One row per node: as a DataFrame, as CSV, as Parquet."""

import csv
import io
import sys
from pathlib import Path

import pytest
from synthetic import random_graph

from torchatlas.errors import MissingDependencyError
from torchatlas.graph import Graph

pandas = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_graph(200, 400)


def test_a_row_says_what_the_node_says(graph: Graph) -> None:
    table = graph.to_pandas()
    assert len(table) == len(graph)
    for row, node in zip(table.to_dict("records"), graph, strict=True):
        assert (row["id"], row["name"], row["kind"]) == (node.id, node.name, node.kind)
        assert (row["operation"], row["operation_type"]) == (node.operation, node.operation_type)
        assert (row["phase"], row["scope"]) == (node.phase, node.scope.path)
        assert row["inputs"].count("[") == len(node.inputs)
        assert row["outputs"].count("[") + row["outputs"].count("None") == len(node.outputs)
        assert pandas.isna(row["line"]) if node.source is None else row["line"] == node.source.line
    assert table["inputs"].str.contains("float32[s0, 3]", regex=False).any()


def test_unknown_is_na_and_never_a_number(graph: Graph) -> None:
    table = graph.to_pandas()
    for name in ("time_ns", "sequence_nr", "forward_node", "call_index", "line"):
        column = "node_forward" if name == "forward_node" else f"node_{name}"
        assert table[name].dtype == "Int64"
        assert table[name].isna().any()
        assert table[name].min() >= 0
        if column in graph.columns:
            assert table[name].isna().tolist() == (graph.columns[column] < 0).tolist()
    assert table["thread"].isna().tolist() == (graph.columns["node_thread"] < 0).tolist()
    assert int(table["time_ns"].sum()) == graph.time_ns


@pytest.mark.parametrize(("nodes", "edges"), [(0, 0), (1, 0), (200, 400)])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_files_hold_the_same_table(tmp_path: Path, nodes: int, edges: int, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    graph = random_graph(nodes, edges)
    path = graph.save(tmp_path / f"graph{suffix}")
    table = graph.to_pandas()
    if suffix == ".parquet":
        pandas.testing.assert_frame_equal(
            pandas.read_parquet(path), table, check_categorical=False, check_dtype=nodes > 0
        )
        return
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == table["name"].tolist()
    assert [row["time_ns"] for row in rows] == ["" if one is pandas.NA else str(one) for one in table["time_ns"]]
    assert list(tmp_path.iterdir()) == [path]


def test_a_csv_needs_no_pandas(tmp_path: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = io.StringIO()
    graph.to_pandas().to_csv(expected, index=False, lineterminator="\r\n")
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert graph.save(tmp_path / "graph.csv").read_bytes().decode() == expected.getvalue()


@pytest.mark.parametrize(("package", "suffix"), [("pandas", ".parquet"), ("pyarrow", ".parquet")])
def test_a_missing_package_is_named_with_the_command(
    tmp_path: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch, package: str, suffix: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    extra = "parquet" if package == "pyarrow" else "pandas"
    with pytest.raises(MissingDependencyError, match=rf"needs? {package}: pip install 'torchatlas\[{extra}\]'"):
        graph.save(tmp_path / f"graph{suffix}")
    assert list(tmp_path.iterdir()) == []
