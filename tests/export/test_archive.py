"""`.atlas`: loads back identical, recorded values included; no file makes it allocate, execute or crash."""

import io
import pickle
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from corruption import damaged, outcome
from synthetic import random_graph

from torchatlas.errors import FileFormatError, NewerVersionError, NotAvailableError
from torchatlas.graph import Graph
from torchatlas.graph.identity import first_difference
from torchatlas.graph.timing import Measured, Timing

RECORDED = (
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array(2.5),
    np.zeros((0, 3), np.int64),
    np.array([True, False]),
    np.arange(12, dtype=np.float16).reshape(3, 4).T,
    np.array([1 + 2j], np.complex64),
)


def with_values(graph: Graph, *arrays: np.ndarray) -> Graph:
    """Keep each array as the first output of one of the nodes that have one."""
    nodes = np.flatnonzero(np.diff(graph.columns["output_ptr"]))
    graph.recorded.update({f"{node}:0": array for node, array in zip(nodes, arrays, strict=False)})
    return graph


@pytest.mark.parametrize(("nodes", "edges"), [(0, 0), (1, 0), (2, 1), (30, 60), (3000, 6000)])
def test_loads_back_identical(tmp_path: Path, nodes: int, edges: int) -> None:
    graph = with_values(random_graph(nodes, edges, seed=nodes), *RECORDED)
    loaded = Graph.load(graph.save(tmp_path / "graph.atlas"))
    assert first_difference(graph, loaded) is None
    loaded.columns["node_kind"][:] = 1  # columns can be written to, as those of a captured graph


def test_the_shape_of_a_recorded_value_counts() -> None:
    one, other = random_graph(3, 3), random_graph(3, 3)
    one.recorded["0:0"], other.recorded["0:0"] = np.zeros((2, 3)), np.zeros((3, 2))
    assert first_difference(one, other) == "recorded value 0:0"


def test_equal_graphs_give_equal_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / "one.atlas", tmp_path / "two.atlas"]
    for path in paths:
        with_values(random_graph(30, 60), *RECORDED).save(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_numpy_reads_the_columns(tmp_path: Path) -> None:
    graph = random_graph(30, 60)
    with zipfile.ZipFile(graph.save(tmp_path / "graph.atlas")) as archive:
        column = np.load(io.BytesIO(archive.read("columns/node_time_ns.npy")), allow_pickle=False)
    assert (column == graph.columns["node_time_ns"]).all()


def test_a_dtype_that_safetensors_lacks_is_refused(tmp_path: Path) -> None:
    graph = with_values(random_graph(3, 3), np.array(["text"]))
    with pytest.raises(NotAvailableError, match="<U4"):
        graph.save(tmp_path / "graph.atlas")


# -- files that are wrong --------------------------------------------------------------------------------------------


def _rewritten(path: Path, change: Callable[[dict[str, bytes]], None], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("unpickled",)


def _header(**changes: object) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        members["header.json"] = msgspec.json.encode(msgspec.json.decode(members["header.json"]) | changes)

    return change


def _member(name: str, data: bytes) -> Callable[[dict[str, bytes]], None]:
    return lambda members: members.update({name: data})


_CLAIM = _npy(np.zeros(30, np.uint8)).replace(b"(30,), }            ", b"(1000000000000,), } ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_member("columns/node_kind.npy", _npy(np.array([Bomb()] * 30, object))), "not an .npy file of version 1.0"),
        (_member("columns/node_kind.npy", pickle.dumps(Bomb())), "not an .npy file of version 1.0"),
        (
            _member("columns/node_kind.npy", _npy(np.zeros(30, np.int64))),
            "not an .npy file of version 1.0 with flat |u1",
        ),
        (_member("columns/node_kind.npy", _npy(np.zeros((5, 6), np.uint8))), "not an .npy file"),
        (
            _member("columns/node_kind.npy", _npy(np.zeros(29, np.uint8))),
            "column node_operation has 30 rows, expected 29",
        ),
        (_member("columns/node_kind.npy", _npy(np.zeros(30, np.uint8))[:-1]), "claims 30 numbers, but 29 bytes follow"),
        (_member("columns/node_kind.npy", _CLAIM), "claims 1000000000000 numbers, but 30 bytes follow"),
        (_member("columns/node_kind.npy", b""), "not an .npy file"),
        (_member("columns/edge_target.npy", _npy(np.zeros(60, np.int32))), "an edge points backward"),
        (lambda members: members.pop("columns/value_role.npy"), "columns/value_role.npy is missing"),
        (lambda members: members.pop("header.json"), "header.json is missing"),
        (_header(format="other"), "not a torchatlas file"),
        (_header(columns=["node_colour"]), "there is no column 'node_colour' in version 3"),
        (_header(tables={"operations": [{"name": 3}]}), "header.json: tables.operations[0].name: expected `str`"),
        (_header(tables={}), "node_operation[0] is 1, but there are 0 rows in operations"),
        (_member("header.json", b'{"format": "torchatlas", "version": 1'), "header.json: not readable as JSON"),
        (_member("header.json", b'{"metadata":{"x":' + b"[" * 100_000), "header.json: nested too deeply"),
        (_member("values.safetensors", b"\xff" * 20), "values.safetensors: "),
        (_member("values.safetensors", struct.pack("<Q", 2**60) + b"{}"), "values.safetensors: "),
        (_member("values.safetensors", b""), "values.safetensors: "),
    ],
)
def test_says_what_is_wrong_and_where(tmp_path: Path, change: Callable[[dict[str, bytes]], None], message: str) -> None:
    path = _rewritten(random_graph(30, 60).save(tmp_path / "graph.atlas"), change)
    with pytest.raises(FileFormatError) as caught:
        Graph.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_a_file_of_version_1_is_of_one_run(tmp_path: Path) -> None:
    graph = random_graph(30, 60)

    def older(members: dict[str, bytes]) -> None:
        header = msgspec.json.decode(members["header.json"])
        younger = {"node_time_spread_ns", "node_composites"}
        del header["timing"]
        for name in younger:
            del members[f"columns/{name}.npy"]
        columns = [name for name in header["columns"] if name not in younger]
        members["header.json"] = msgspec.json.encode(header | {"version": 1, "columns": columns})

    loaded = Graph.load(_rewritten(graph.save(tmp_path / "graph.atlas"), older))
    assert loaded.timing == Timing()
    assert loaded.measured() == Measured(graph.time_ns)
    assert (loaded.columns["node_time_spread_ns"] == -1).all()
    assert {node.composites for node in loaded.nodes} == {None}
    assert loaded.hash == graph.hash
    with pytest.raises(FileFormatError, match=r"columns/node_time_spread_ns.npy is missing"):
        Graph.load(_rewritten(graph.save(tmp_path / "new.atlas"), lambda m: m.pop("columns/node_time_spread_ns.npy")))


@pytest.mark.parametrize(
    ("timing", "message"),
    [
        ({"runs": 0}, "timing: 0 runs and 0 warm-ups"),
        ({"runs": 3, "warmup": -1}, "timing: 3 runs and -1 warm-ups"),
        ({"runs": 2, "recorded_ns": [5]}, "timing.recorded_ns: 1 times of 2 runs"),
        ({"runs": 2, "eager_ns": [5, -5]}, "timing.eager_ns: a time from 0 to 4611686018427387904 ns was expected"),
        ({"runs": 2, "eager_ns": [10**30]}, "timing.eager_ns: a time from 0 to"),
        ({"runs": "2"}, "header.json: timing.runs: expected `int`"),
    ],
)
def test_times_that_cannot_be_are_refused(tmp_path: Path, timing: dict[str, object], message: str) -> None:
    path = _rewritten(random_graph(30, 60).save(tmp_path / "graph.atlas"), _header(timing=timing))
    with pytest.raises(FileFormatError) as caught:
        Graph.load(path)
    assert message in str(caught.value)


def test_a_newer_version_is_named_as_such(tmp_path: Path) -> None:
    path = random_graph(30, 60).save(tmp_path / "graph.atlas")
    with pytest.raises(NewerVersionError, match=r"version 7 .* up to version 3"):
        Graph.load(_rewritten(path, _header(version=7, tables=None)))


def test_other_members_are_ignored(tmp_path: Path) -> None:
    graph = random_graph(30, 60)
    path = _rewritten(graph.save(tmp_path / "graph.atlas"), _member("../../README", b"hello"))
    assert first_difference(graph, Graph.load(path)) is None


def test_compressed_members_are_refused(tmp_path: Path) -> None:
    path = random_graph(30, 60).save(tmp_path / "graph.atlas")
    with pytest.raises(FileFormatError, match="is compressed"):
        Graph.load(_rewritten(path, lambda members: None, zipfile.ZIP_DEFLATED))


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    def change(members: dict[str, bytes]) -> None:
        members["header.json"] = members["header.json"].replace(b'"source":"run"', b'"source":"run","source":"fx"')

    path = _rewritten(random_graph(30, 60).save(tmp_path / "graph.atlas"), change)
    with pytest.raises(FileFormatError, match="the key 'source' stands twice"):
        Graph.load(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = random_graph(30, 60).save(tmp_path / "graph.atlas")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("header.json", b"{}")
    with pytest.raises(FileFormatError, match=re.escape("'header.json' is in it twice")):
        Graph.load(path)


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """The zip bomb without compression: a small file whose members all claim the same large part of it."""
    path = random_graph(30, 60).save(tmp_path / "graph.atlas")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("large", b"\0" * 50_000)
        archive.writestr("larger", b"\0" * 10)
        archive.filelist[-1].header_offset = archive.filelist[-2].header_offset
        archive.filelist[-1].file_size = archive.filelist[-1].compress_size = 50_000
    with pytest.raises(FileFormatError, match=r"claim \d+ bytes, but the file has \d+"):
        Graph.load(path)


def test_any_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    graph = with_values(random_graph(12, 20, seed=3), *RECORDED)
    path = graph.save(tmp_path / "graph.atlas")
    seen = {"refused": 0, "loaded": 0}
    for data in damaged(path.read_bytes(), seed=2, count=1500):
        path.write_bytes(data)
        seen[outcome(path)] += 1
    assert min(seen.values()) > 20, seen  # some bytes of a zip mean nothing


def test_memory_per_node() -> None:
    graph = random_graph(100_000, 200_000)
    assert graph.nbytes / len(graph) <= 300


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".json", ".atlas"])
def test_a_million_nodes(tmp_path: Path, suffix: str) -> None:
    graph = random_graph(1_000_000, 2_000_000)
    assert graph.nbytes / len(graph) <= 300
    assert first_difference(graph, Graph.load(graph.save(tmp_path / f"graph{suffix}"))) is None
