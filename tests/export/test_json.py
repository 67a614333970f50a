"""`.json`: loads back identical, says where a file is wrong, and never does anything else."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corruption import damaged, outcome
from synthetic import random_graph

from torchatlas.errors import FileFormatError, FileSystemError, NewerVersionError
from torchatlas.graph import Graph, Operation
from torchatlas.graph.columns import COLUMNS
from torchatlas.graph.identity import first_difference

SIZES = [(0, 0), (1, 0), (2, 1), (30, 60), (3000, 6000), (45_000, 60_000)]


@pytest.mark.parametrize(("nodes", "edges"), SIZES)
def test_loads_back_identical(tmp_path: Path, nodes: int, edges: int) -> None:
    graph = random_graph(nodes, edges, seed=nodes)
    loaded = Graph.load(graph.save(tmp_path / "graph.json"))
    assert first_difference(graph, loaded) is None
    assert {name: column.dtype for name, column in loaded.columns.items()} == {
        name: np.dtype(dtype) for name, (dtype, _) in COLUMNS.items()
    }


def test_is_plain_json_with_nodes_and_edges_as_objects(tmp_path: Path) -> None:
    graph = random_graph(30, 60)
    document = json.loads(graph.save(tmp_path / "graph.json").read_bytes())
    assert (document["format"], document["version"]) == ("torchatlas", 3)
    assert [row["name"] for row in document["nodes"]] == [node.name for node in graph]
    for row, node in zip(document["nodes"], graph, strict=True):
        assert (row["operation"], row["operation_type"]) == (node.operation, node.operation_type)
        assert (row["kind"], row["phase"], row["scope"]) == (node.kind, node.phase, node.scope.path)
        assert row["inputs"] == [value.id for value in node.inputs]
        assert row.get("time_ns") == node.time_ns
        assert tuple(row.get("writes", [])) == node.writes
    for row, edge in zip(document["edges"], graph.edges, strict=True):
        assert (row["source"], row["target"], row["kind"]) == (edge.source_id, edge.target_id, edge.kind)
        assert row.get("output_index") == edge.output_index
    assert "-1" not in re.findall(r"-1\b", json.dumps(document["edges"]))
    assert not any(number == -1 for row in document["nodes"] + document["values"] for number in row.values())


def test_texts_that_stand_twice_in_a_table_are_told_apart(tmp_path: Path) -> None:
    graph = random_graph(40, 80)
    tables = graph.tables
    tables.operations.append(Operation(tables.operations[0].name))
    tables.arguments[6] = tables.arguments[3]  # neither names a tensor
    tables.names[5] = tables.names[4]
    tables.threads[1] = tables.threads[0]
    tables.devices[1] = tables.devices[0]
    graph.columns["node_operation"][7] = len(tables.operations) - 1
    graph.columns["node_arguments"][6:8] = [3, 6]
    path = graph.save(tmp_path / "graph.json")
    assert first_difference(graph, Graph.load(path)) is None
    rows = json.loads(path.read_bytes())["nodes"]
    assert rows[6]["arguments"] == rows[7]["arguments"]
    assert (rows[6].get("arguments_row"), rows[7]["arguments_row"]) == (None, 6)


@pytest.mark.parametrize("layout", [{"indent": 2}, {"sort_keys": True}, {"ensure_ascii": False}])
def test_reformatted_by_another_tool_it_is_the_same_graph(tmp_path: Path, layout: dict[str, Any]) -> None:
    graph = random_graph(50, 90)
    path = graph.save(tmp_path / "graph.json")
    path.write_text(json.dumps(json.loads(path.read_bytes()), **layout), encoding="utf-8")
    assert first_difference(graph, Graph.load(path)) is None


def test_null_and_unknown_keys_are_accepted(tmp_path: Path) -> None:
    def edit(document: dict[str, Any]) -> None:
        document["made by"] = {"my": "tool"}
        for row in document["nodes"]:
            for name in ("time_ns", "call", "thread", "given_name", "forward"):
                row.setdefault(name, None)

    graph = random_graph(50, 90)
    assert first_difference(graph, Graph.load(_edited(tmp_path, graph, edit))) is None


def test_recorded_values_are_left_to_atlas_and_that_is_said(tmp_path: Path) -> None:
    graph = random_graph(5, 5)
    graph.recorded["1:0"] = np.zeros(3)
    path = graph.save(tmp_path / "graph.json")
    assert json.loads(path.read_bytes())["recorded"] == ["1:0"]
    loaded = Graph.load(path)
    assert loaded.recorded == {}
    assert loaded.notes == [*graph.notes, "1 recorded values were left out of graph.json; .atlas files keep them"]


# -- files that are wrong --------------------------------------------------------------------------------------------


def _set(place: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """An edit: "nodes.3.phase" becomes `value`."""

    def edit(document: dict[str, Any]) -> None:
        *path, last = (int(key) if key.isdigit() else key for key in place.split("."))
        found: Any = document
        for key in path:
            found = found[key]
        if last == len(found):
            found.append(value)
        else:
            found[last] = value

    return edit


def _edited(folder: Path, graph: Graph, edit: Callable[[dict[str, Any]], None]) -> Path:
    path = graph.save(folder / "graph.json")
    document = json.loads(path.read_bytes())
    edit(document)
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("nodes.12.phase", "sideways", "nodes[12].phase: invalid enum value 'sideways'"),
        ("nodes.12.kind", 1, "nodes[12].kind: expected `str`, got `int`"),
        ("nodes.12.id", 13, "nodes[12].id: is 13, expected 12"),
        ("nodes.12.time_ns", -1, "nodes[12].time_ns: expected `int` >= 0"),
        ("nodes.12.time_ns", 2**63, "nodes[12].time_ns: expected `int` <= 9223372036854775807"),
        ("nodes.12.time_ns", 1.5, "nodes[12].time_ns: expected `int | null`, got `float`"),
        ("nodes.12.iteration", 2**31, "nodes[12].iteration: expected `int` <= 2147483647"),
        ("nodes.12.operation", "aten.nothing", "nodes[12].operation: 'aten.nothing' is not among the operations"),
        ("nodes.12.operation", 99, "nodes[12].operation: 99 is not among the operations"),
        ("nodes.12.thread", "no such", "nodes[12].thread: 'no such' is not among the threads"),
        ("nodes.12.arguments", [[1], {}], "nodes[12].arguments: this call is not among the arguments"),
        ("nodes.12.arguments_row", 3, "nodes[12].arguments_row: row 3 holds another call"),
        ("nodes.12.arguments_row", 300, "nodes[12].arguments_row: row 300 holds another call"),
        ("nodes.12.inputs", [10**6], "is 1000000, but there are"),
        ("nodes.12.writes", [10**6], "nodes[12].writes: 1000000, but it has"),
        ("nodes.12.call", 10**6, "node_call[12] is 1000000, but there are 66 rows in call"),
        ("nodes.12", None, "nodes[12]: expected `object`, got `null`"),
        ("edges.3.source", 29, "an edge points backward"),
        ("values.2.view_of", 2, "value_view_of[2] is 2: it points to itself or forward"),
        ("values.2.layout", "float32", "values[2].layout: expected `int`, got `str`"),
        ("arguments.30", 7, "arguments[30]: not a call"),
        ("arguments.30", [[{"a": 1, "b": 2}], {}], "arguments[30]: not a call"),
        ("arguments.30", [[{"complex": ["x", 1]}], {}], "arguments[30]: not a call"),
        ("operations.1.type", "magic", "operations[1].type: invalid enum value 'magic'"),
        ("notes", "text", "notes: expected `array`, got `str`"),
        ("format", "other", "not a torchatlas file: its format is 'other'"),
        ("version", 0, "there is no version 0"),
        ("version", "1", "version: expected `int`, got `str`"),
    ],
)
def test_says_what_is_wrong_and_where(tmp_path: Path, place: str, value: Any, message: str) -> None:
    path = _edited(tmp_path, random_graph(30, 60), _set(place, value))
    with pytest.raises(FileFormatError) as caught:
        Graph.load(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_a_file_of_version_1_is_of_one_run(tmp_path: Path) -> None:
    def older(document: dict[str, Any]) -> None:
        document["version"] = 1
        del document["timing"]
        for node in document["nodes"]:
            node.pop("time_spread_ns", None)

    graph = random_graph(30, 60)
    loaded = Graph.load(_edited(tmp_path, graph, older))
    assert loaded.timing is not None
    assert (loaded.timing.runs, loaded.time_ns) == (1, graph.time_ns)
    assert (loaded.columns["node_time_spread_ns"] == -1).all()


@pytest.mark.parametrize("broken", [False, True])
def test_a_newer_version_is_named_as_such(tmp_path: Path, broken: bool) -> None:
    def edit(document: dict[str, Any]) -> None:
        document["version"] = 4
        if broken:  # what the newer version changed must not hide that it is newer
            document["nodes"] = {"compressed": "..."}

    with pytest.raises(NewerVersionError, match=r"version 4 .* up to version 3.*pip install --upgrade"):
        Graph.load(_edited(tmp_path, random_graph(3, 3), edit))


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"format": "torchatlas"}',
        b"\x00\x01\x02\xff" * 100,
        b'{"format": "torchatlas", "version": 1e999}',
        b'{"format": "torchatlas", "version": NaN}',
        b'{"format": "torchatlas", "version": 99999999999999999999999999999}',
        b'{"format": "\xff\xfe"}',
        DEEP,
        b'{"metadata": {"x": ' + DEEP + b"}}",
        b'{"unknown": ' + DEEP + b"}",
    ],
)
def test_refuses_what_is_no_graph(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "graph.json"
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=re.escape(str(path))):
        Graph.load(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"phase":"forward"', b'"phase":"forward","phase":"backward"', "the key 'phase' stands twice"),
        (b'"version": 3,', b'"version": 3, "version": 3,', "the key 'version' stands twice"),
        (b'{"alpha":1.0}', b'{"alpha":1.0,"alpha":2.0}', "the key 'alpha' stands twice"),
        (b'"tuple":[1,2]', b'"tuple":[1,2],"tuple":[1]', "the key 'tuple' stands twice"),
        (b'"seed":0', b'"seed":0,"seed":1', "the key 'seed' stands twice"),
        (b'"x"', b'"\xff"', "UTF-8"),
        (b'"tuple"', b'"\xff"', "utf-8"),  # inside a call, which is not decoded at once
        (b'"tuple":[1,2]', b'"tuple":' + DEEP, "nested too deeply"),
    ],
)
def test_refuses_repeated_keys_wrong_text_and_depth(tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    path = random_graph(30, 60).save(tmp_path / "graph.json")
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    with pytest.raises(FileFormatError, match=message):
        Graph.load(path)


def test_any_depth_is_refused_or_harmless(tmp_path: Path) -> None:
    path = random_graph(30, 60).save(tmp_path / "graph.json")
    data = path.read_bytes()
    for depth in range(10, 1000, 33):  # Python's limit is met somewhere on the way, and not by all readers at once
        path.write_bytes(data.replace(b'"seed":', b'"deep":' + b"[" * depth + b"]" * depth + b',"seed":'))
        assert outcome(path) in ("refused", "loaded")
        path.write_bytes(data.replace(b'"tuple":[1,2]', b'"tuple":[' + b"[" * depth + b"]" * depth + b"]"))
        try:
            Graph.load(path)
        except FileFormatError:
            continue


def test_any_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    path = random_graph(12, 20, seed=3).save(tmp_path / "graph.json")
    seen = {"refused": 0, "loaded": 0}
    for data in damaged(path.read_bytes(), seed=1, count=1500):
        path.write_bytes(data)
        seen[outcome(path)] += 1
    assert min(seen.values()) > 20, seen  # a flipped digit of a time is still a graph


# -- writing ---------------------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = random_graph(30, 60).save(tmp_path / "graph.json")
    before = path.read_bytes()
    graph = random_graph(50_000, 60_000)  # several batches: it fails after some have been written
    graph.tables.threads[1] = "\udc80"
    with pytest.raises(FileFormatError, match="not Unicode"):
        graph.save(path)
    assert path.read_bytes() == before
    monkeypatch.setattr(os, "replace", _no_space)
    with pytest.raises(FileSystemError, match="No space left"):
        random_graph(5, 5).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["graph.json"]


def _no_space(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_link_stays_a_link_and_the_mode_is_kept(tmp_path: Path) -> None:
    target = random_graph(3, 3).save(tmp_path / "real.json")
    target.chmod(0o600)
    (tmp_path / "link.json").symlink_to(target)
    random_graph(30, 60).save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert len(Graph.load(target)) == 30
    assert target.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda graph: graph.metadata.update(pair=(1, 2)), "metadata['pair'] is not plain JSON"),
        (lambda graph: graph.metadata.update(bad=float("nan")), "metadata['bad'] is not plain JSON"),
        (lambda graph: graph.metadata.update({3: 4}), "metadata[3] is not plain JSON"),
        (lambda graph: graph.metadata.update(o=object()), "metadata['o'] is not plain JSON"),
        (lambda graph: graph.tables.arguments.append("[[],{}"), "arguments[30]: not a call"),
        (lambda graph: graph.tables.arguments.append("[[1,\n2],{}]"), "(a line break in the text of a call)"),
        (lambda graph: graph.columns["node_time_ns"].__setitem__(4, -7), "node_time_ns[4] is -7"),
        (lambda graph: graph.columns["input_written"].__setitem__(0, 2), "input_written[0] is 2, expected less than 2"),
    ],
)
@pytest.mark.parametrize("suffix", [".json", ".atlas"])
def test_what_could_not_be_read_back_is_not_written(
    tmp_path: Path, change: Callable[[Graph], Any], message: str, suffix: str
) -> None:
    graph = random_graph(30, 60)
    change(graph)
    with pytest.raises(FileFormatError, match=re.escape(message)):
        graph.save(tmp_path / f"graph{suffix}")
    assert os.listdir(tmp_path) == []
