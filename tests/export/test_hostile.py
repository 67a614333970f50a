"""Files whose parts do not fit together are refused, with the place, in time and memory linear in their size."""

import io
import json
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from synthetic import random_graph

from torchatlas.errors import FileFormatError
from torchatlas.graph import Graph

Contents = dict[str, Any]  # "header" as data, columns as arrays, "recorded" as a dictionary, "raw" members as bytes


def rewritten(path: Path, change: Callable[[Contents], Any]) -> Path:
    """An .atlas file with other contents, all of whose sizes and sums are right."""
    with zipfile.ZipFile(path) as archive:
        names = [name.removeprefix("columns/").removesuffix(".npy") for name in archive.namelist()[1:]]
        found: Contents = {name: np.load(io.BytesIO(archive.read(f"columns/{name}.npy"))) for name in names}
        found |= {"header": json.loads(archive.read("header.json")), "recorded": {}, "raw": {}}
    change(found)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", json.dumps(found["header"]))
        if found["recorded"]:
            archive.writestr("values.safetensors", save(found["recorded"]))
        for name in names:
            made = io.BytesIO()
            np.save(made, found[name])
            archive.writestr(f"columns/{name}.npy", made.getvalue())
        for name, data in found["raw"].items():
            archive.writestr(name, data)
    return path


def _cell(name: str, value: int, where: Callable[[Contents], Any] | int = 0) -> Callable[[Contents], None]:
    """One number of a column; `where` finds the row."""

    def change(found: Contents) -> None:
        found[name][where if isinstance(where, int) else int(np.flatnonzero(where(found))[0])] = value

    return change


def _row(table: str, row: int, **fields: Any) -> Callable[[Contents], None]:
    return lambda found: found["header"]["tables"][table][row].update(fields)


def _text(table: str, row: int, text: str) -> Callable[[Contents], None]:
    return lambda found: found["header"]["tables"][table].__setitem__(row, text)


def _metadata(**items: Any) -> Callable[[Contents], None]:
    return lambda found: found["header"]["metadata"].update(items)


def _recorded(**items: Any) -> Callable[[Contents], None]:
    return lambda found: found["recorded"].update({key.replace("_at_", ":"): item for key, item in items.items()})


def _nested(depth: int) -> Any:
    found: Any = 0
    for _ in range(depth):
        found = [found]
    return found


def _deep_calls(found: Contents) -> None:
    calls = np.arange(10_001, dtype=np.int32)
    found["call_module"], found["call_parent"], found["call_index"] = 0 * calls, calls - 1, calls


def _data(found: Contents) -> Any:
    return found["edge_kind"] == 0


def _made(found: Contents) -> Any:
    return found["value_producer"] >= 0


def _freed(found: Contents) -> Any:
    return (found["storage_died"] >= 0) & (found["storage_born"] > 0)


ARRAY = np.zeros(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_cell("value_output_index", 2, _made), "value_output_index[2] is 2, but node 1 has 1 outputs"),
        (_cell("edge_output_index", 2, _data), "edge_output_index[14] is 2, but node"),
        (_cell("edge_output_index", -1, _data), "edge_output_index[14] is absent, but the edge carries data"),
        (_cell("edge_input_index", 99, _data), "edge_input_index[14] is 99, but node"),
        (_cell("edge_input_index", -1, _data), "edge_input_index[14] is absent, but the edge carries data"),
        (_cell("edge_value", 0, _data), "edge_value[14] is 0, but input 0 of node"),
        (_cell("edge_value", -1, _data), "edge_value[14] is -1, but input 0 of node"),
        (_cell("node_forward", 29, 29), "node_forward[29] is 29: it points to itself or forward"),
        (_deep_calls, "call_parent: calls lie 10001 deep in each other, expected at most 10000"),
        (_cell("storage_died", 0, _freed), "before storage_born"),
        (_cell("value_producer", 29, _made), "value that node 29 makes"),
        (_cell("storage_bytes", 2**63 - 1), "storage_bytes sums to 9.22e+18"),
        (_cell("node_time_ns", 2**63 - 1), "node_time_ns sums to 9.22e+18"),
        (_cell("node_start_ns", 2**63 - 1, 4), "node_start_ns[4] is 9223372036854775807"),
        (_row("layouts", 3, stride=[1]), "layouts[3]: 3 sizes and 1 strides"),
        (_row("layouts", 3, shape=[2, -1, 3]), "layouts[3].shape[1] is -1, which is no size"),
        (_row("layouts", 3, shape=[2, 2**63, 3]), "layouts[3].shape[1] is 9223372036854775808, which is no size"),
        (_row("layouts", 3, shape=[2, 10**500, 3]), "layouts[3].shape[1] is 10 to the 500, which is no size"),
        (_row("layouts", 3, stride=[1, -3, 1]), "layouts[3].stride[1] is -3, which is no size"),
        (_row("layouts", 3, shape=[2**40, 2**40, 1]), "layouts[3].shape has more than 9223372036854775807 elements"),
        (_row("layouts", 3, dtype="float 32"), "layouts[3].dtype is 'float 32', which is no dtype"),
        (_row("layouts", 3, dtype=""), "layouts[3].dtype is '', which is no dtype"),
        (_row("layouts", 3, device="cuda:x"), "layouts[3].device is 'cuda:x', which is no device"),
        (_row("layouts", 3, kind="\x1b[2J"), "layouts[3].kind is '\\x1b[2J', which is no kind"),
        (_text("devices", 1, "a b"), "devices[1] is 'a b', which is no device"),
        (_row("modules", 1, path="a." * 300), "modules[1].path has 301 parts, expected at most 250: 'a.a."),
        (_row("modules", 1, kind="a b"), "modules[1].kind is 'a b', which is no word"),
        (_text("names", 1, "a." * 300), "names[1] has 301 parts, expected at most 250"),
        (_row("sources", 1, line=2**70), "sources[1].line is 1180591620717411303424, which is no line"),
        (_row("operations", 2, parameters=[{"name": "x"}, {"name": "x"}]), "operations[2] has two parameters"),
        (_row("operations", 2, parameters=[{"name": "x", "default": '{"tensor":0}'}]), "default of 'x' is a tensor"),
        (_row("operations", 2, parameters=[{"name": "x", "default": "nope"}]), "operations[2]: the default of 'x'"),
        (_text("arguments", 0, '[[{"tensor":9}],{}]'), "arguments[0] names the tensor 9, counted from 0, but node"),
        (_text("arguments", 0, '[[{"tensor":-1}],{}]'), "arguments[0]: not a call"),
        (_text("arguments", 0, '[[{"tensor":1.5}],{}]'), "(a reference to a tensor is a number from 0 on)"),
        (_text("arguments", 0, '[[{"tensor":99999999999999999999}],{}]'), "(a reference to a tensor is a number"),
        (_text("arguments", 0, "[[NaN],{}]"), "(NaN is no number of JSON)"),
        (_text("arguments", 0, '[["\\ud83d"],{}]'), "surrogates not allowed"),
        (_text("arguments", 0, "[[1e999],{}]"), "(a number that is not finite)"),
        (_text("arguments", 0, f"[[{'9' * 4400}],{{}}]"), "arguments[0]: not a call"),
        (_text("arguments", 0, " [[],{}]"), "(space around it)"),
        (_text("arguments", 0, '[[{"dtype":3}],{}]'), "(expected text, got int)"),
        (_text("arguments", 0, '[[{"tuple":"ab"}],{}]'), "(expected a list, got str)"),
        (_text("arguments", 0, "[[" + "[" * 250 + "]" * 250 + "],{}]"), "(nested more than 200 deep)"),
        (_metadata(deep=_nested(250)), "metadata: nested more than 200 deep"),
        (_metadata(torch=3), "metadata.torch: expected `str`, got `int`"),
        (_metadata(groups={"0": 3}), "metadata.groups[...]: expected `object`, got `int`"),
        (_metadata(groups={"0": {"ranks": ["a"]}}), "metadata.groups[...].ranks[0]: expected `int`"),
        (_metadata(fx_nodes={"relu": [30]}), "metadata.fx_nodes['relu']: there is no node 30"),
        (_metadata(fx_nodes={"relu": [-1]}), "metadata.fx_nodes[...][0]: expected `int` >= 0"),
        (_metadata(sizes={"s0": -1}), "metadata.sizes[...]: expected `int` >= 0"),
        (_metadata(resized=[[10**6, 0, 0, 0]]), "metadata.resized[0]: storage 1000000 at node 0 of"),
        (_metadata(resized=[[0, 31, 0, 0]]), "metadata.resized[0]: storage 0 at node 31 of"),
        (_metadata(program=[]), "metadata.program: expected `object`, got `array`"),
        (_recorded(**{"30_at_0": ARRAY}), "recorded '30:0': there is no such output"),
        (_recorded(**{"0_at_9": ARRAY}), "recorded '0:9': there is no such output"),
        (_recorded(other=ARRAY), "recorded 'other': the key is not of the form node:output"),
        (_recorded(input_nr=ARRAY), "recorded 'input_nr': float64 of shape (3,), expected int64 of shape (60,)"),
        (lambda found: found["header"].update(source="walk"), "its source is 'walk', expected one of run"),
        (lambda found: found["raw"].update({str(n): b"" for n in range(1000)}), "members, expected at most 1000"),
        (lambda found: found["raw"].update({"x" * 65_000 + str(n): b"" for n in range(17)}), "its directory has"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(
    tmp_path: Path, change: Callable[[Contents], None], message: str
) -> None:
    path = rewritten(random_graph(30, 60).save(tmp_path / "graph.atlas"), change)
    with pytest.raises(FileFormatError) as caught:
        Graph.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 300


# -- time and memory -------------------------------------------------------------------------------------------------


def _document(**sections: bytes) -> bytes:
    """A .json file whose sections are given as text."""
    head = {"format": b'"torchatlas"', "version": b"1", "source": b'"run"', "notes": b"[]", "metadata": b"{}"}
    lists = "nodes edges values storages calls operations arguments layouts sources modules names threads devices"
    found = {**head, **dict.fromkeys(lists.split(), b"[]"), **sections}
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), text) for name, text in found.items()) + b"}"


REPEATED = {
    "a repeated key at the end of many": lambda n: _document(
        metadata=b"{%s}" % b",".join(b'"%d":0' % key for key in [*range(n // 10), n // 10 - 1])
    ),
    "the same key over and over": lambda n: _document(metadata=b'{"a":0%s}' % (b',"a":0' * (n // 6))),
    "lists in lists": lambda n: _document(metadata=b'{"a":%s}' % (b"[" * n)),
    "an integer": lambda n: _document(metadata=b'{"a":%s}' % (b"9" * n)),
    "names with dots": lambda n: _document(names=b'["%s"]' % (b"a." * (n // 2))),
    "numbers among the nodes": lambda n: _document(nodes=b"[%s1]" % (b"1," * (n // 2))),
    "backslashes": lambda n: _document(notes=b'["%s]' % (b"\\\\" * (n // 2))),
}


@pytest.mark.parametrize("kind", REPEATED)
def test_refusing_takes_time_linear_in_the_size(tmp_path: Path, kind: str) -> None:
    """It is a matter of a second; with the square of the size it would take hours, and the test's time-out ends it."""
    path = tmp_path / "graph.json"
    path.write_bytes(REPEATED[kind](4_000_000))
    with pytest.raises(FileFormatError):
        Graph.load(path)


SMALL_PARTS = {
    "empty objects": lambda n: _document(metadata=b'{"a":[%s{}]}' % (b"{}," * (n // 3))),
    "numbers for calls": lambda n: _document(arguments=b"[%s0]" % (b"0," * (n // 2))),
    "empty texts": lambda n: _document(names=b'[%s""]' % (b'"",' * (n // 3))),
    "notes": lambda n: _document(notes='[{}"é"]'.format('"é",' * (n // 5)).encode()),
    "keys": lambda n: _document(metadata=b"{%s}" % b",".join(b'"%d":0' % key for key in range(n // 11))),
    "storages": lambda n: _document(
        storages=b"[%s]" % b",".join(b'{"id":%d,"role":"input"}' % row for row in range(n // 28))
    ),
}
JSON_FACTOR = 128  # bytes of memory for one of a .json file, at most; docs/limits.md


@pytest.mark.slow
@pytest.mark.parametrize("kind", SMALL_PARTS)
def test_memory_is_bounded_by_the_size_of_a_json_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "graph.json"
    path.write_bytes(SMALL_PARTS[kind](1_000_000))
    assert _peak_of_loading(path) < JSON_FACTOR * path.stat().st_size


ARCHIVE_FACTOR = 30  # of an .atlas file


def _many_members(found: Contents) -> None:
    found["raw"].update({f"{number}": b"" for number in range(900)})


def _many_values(found: Contents) -> None:
    found["recorded"].update({f"-1:{number}": np.zeros(0) for number in range(10_000)})


def _one_value(found: Contents) -> None:
    found["recorded"]["-1:x"] = np.zeros(10**6)


@pytest.mark.parametrize("change", [_many_members, _many_values, _one_value])
def test_memory_is_bounded_by_the_size_of_an_archive(tmp_path: Path, change: Callable[[Contents], None]) -> None:
    path = rewritten(random_graph(3000, 6000).save(tmp_path / "graph.atlas"), change)
    assert _peak_of_loading(path) < ARCHIVE_FACTOR * path.stat().st_size


def _peak_of_loading(path: Path) -> int:
    tracemalloc.start()
    try:
        Graph.load(path)
    except FileFormatError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    print(f"{peak / path.stat().st_size:.1f} bytes of memory for one of {path.name}")
    return peak


def test_a_directory_that_lies_is_refused(tmp_path: Path) -> None:
    path = random_graph(30, 60).save(tmp_path / "graph.atlas")
    data = bytearray(path.read_bytes())
    end = data.rindex(b"PK\5\6")
    (size,) = struct.unpack("<L", data[end + 12 : end + 16])
    for field, wrong in ((12, 2**31), (12, size + 10**7), (16, 2**32 - 2), (12, 0)):
        path.write_bytes(data[: end + field] + struct.pack("<L", wrong) + data[end + field + 4 :])
        with pytest.raises(FileFormatError, match=r"graph\.atlas: "):
            Graph.load(path)
