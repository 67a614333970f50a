"""Times of a profiler land on the right ops; what has no partner is listed; what is no such trace is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from profiled_step import KERNELS, LOST, PATH, SPLIT, made
from torch import nn
from torch.profiler import ProfilerActivity, profile

import torchatlas as atlas
from torchatlas.errors import AnalysisError, FileFormatError, FileSystemError, InvalidInputError
from torchatlas.export import kineto
from torchatlas.export.align_ops import Op, align
from torchatlas.graph import Graph

Trace = dict[str, Any]


@pytest.fixture
def step() -> Graph:
    model, optimizer, x = made()
    return atlas.capture(model, x, optimizer=optimizer)


@pytest.fixture
def trace() -> Trace:
    return json.loads(gzip.decompress(PATH.read_bytes()))  # type: ignore[no-any-return]


def written(trace: Any, folder: Path) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps(trace))
    return path


def test_kernels_land_on_their_ops_and_modules(step: Graph) -> None:
    before = step.time_ns
    found = atlas.join_profile(step, PATH)
    ns = {name: round(1000 * us) for name, (_, us) in KERNELS.items()}
    for node in step:
        short = "aten::" + node.operation.split(".")[1] if node.kind == "op" else ""
        expected = 3000 if short == SPLIT else ns.get(short)
        assert node.device_time_ns == expected, node.name
    assert step.scopes["up"].device_time_ns == ns["aten::addmm"] + ns["aten::mm"]
    assert step.scopes["down"].device_time_ns == ns["aten::addmm"] + 2 * ns["aten::mm"]
    assert found.modules["norm"] == ns["aten::native_layer_norm"]
    assert found.device_ns == step.scopes[""].device_time_ns == found.modules[""]
    assert found.unjoined_kernels == {LOST[0]: round(1000 * LOST[1])}
    assert step.time_ns == before  # the host's time is another one
    assert found.step == 3
    (note,) = [note for note in step.notes if note.startswith("device times: ")]
    assert "one run of a profiler" in note
    assert LOST[0] in note


def test_ops_are_the_same_ops(step: Graph, trace: Trace) -> None:
    found = atlas.join_profile(step, PATH)
    assert not found.other_shapes
    assert not found.unjoined_events
    # The optimizer made its state in the first step, which is what was captured.
    assert {step[name].operation for name in found.unjoined_ops} <= {
        "aten.lift_fresh.default",
        "aten.zeros_like.default",
        "aten.detach.default",  # the recorder in Python sums gradients out of place, and says so
    }
    forward = [one for one in found.nodes if one.node.phase == "forward" and one.node.sequence_nr is not None]
    assert len(forward) >= 6
    assert {one.by for one in forward} == {"sequence number"}
    host = {(event["name"], round(1000 * event["dur"])) for event in trace["traceEvents"] if event["cat"] == "cpu_op"}
    for one in found.nodes:
        name = f"aten::{one.node.operation.split('.')[1]}"
        assert any((name, one.host_ns + more) in host for more in (-1, 0, 1)), one


def test_another_step_can_be_taken(step: Graph) -> None:
    last, first = atlas.join_profile(step, PATH), atlas.join_profile(step, PATH, step=2)
    assert (last.step, first.step) == (3, 2)
    assert last.host_ns != first.host_ns
    assert last.device_ns == first.device_ns
    assert sum(note.startswith("device times: ") for note in step.notes) == 1
    with pytest.raises(InvalidInputError, match="has the steps 2, 3"):
        atlas.join_profile(step, PATH, step=7)


@pytest.mark.parametrize("suffix", [".atlas", ".json", ".html"])
def test_files_and_parts_keep_device_times(step: Graph, tmp_path: Path, suffix: str) -> None:
    atlas.join_profile(step, PATH)
    again = Graph.load(step.save(tmp_path / f"step{suffix}"))
    assert [node.device_time_ns for node in again] == [node.device_time_ns for node in step]
    part = again.subgraph(scope="down")
    assert part.scopes["down"].device_time_ns == step.scopes["down"].device_time_ns
    again.metadata["device_times"]["by_node"]["99999"] = 1
    with pytest.raises(FileFormatError, match="no such node"):
        again.save(tmp_path / f"bad{'.atlas' if suffix == '.html' else suffix}")


def test_all_modules_are_summed_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking one module after the other went through all nodes each time."""
    graph = atlas.capture(nn.Sequential(*[nn.Linear(2, 2) for _ in range(40)]), torch.ones(1, 2))
    ops = [node.id for node in graph.where(kind="op")]
    reads = []

    class Counted(dict[str, int]):
        def get(self, key: str, default: Any = None) -> Any:
            reads.append(key)
            return super().get(key, default)

    graph.metadata["device_times"] = {"trace": "", "step": 0, "by_node": Counted({str(node): 10 for node in ops})}
    monkeypatch.setattr(atlas.Graph, "where", None)
    times = {path: scope.device_time_ns for path, scope in graph.scopes.items()}
    assert times[""] == 10 * len(ops)
    assert times["7"] == 20  # t and addmm
    assert len(reads) == len(graph)


def test_a_run_of_now_is_found_whole(tmp_path: Path) -> None:
    """Without numbers, in another order of processes, and with ops that the graph does not have before it."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Softmax(-1))
    x = torch.ones(3, 8)
    with torch.no_grad():
        graph = atlas.capture(model, x)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
            torch.ones(3, 3).cumsum(0)
            model(x)
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    found = atlas.join_profile(graph, tmp_path / "trace.json")
    assert not found.unjoined_ops
    assert {one.by for one in found.nodes} == {"order"}
    assert not found.other_shapes
    assert found.device_ns is None
    assert all(node.device_time_ns is None for node in graph)
    assert not any("device times" in note for note in graph.notes)
    assert "not in the graph" not in str(found)
    half = atlas.join_profile(atlas.capture(model[:2], x), tmp_path / "trace.json")
    assert "ops of the trace are not in the graph (aten::" in str(half)
    larger = atlas.capture(model, torch.ones(4, 8))
    assert "0.addmm" in atlas.join_profile(larger, tmp_path / "trace.json").other_shapes


def test_our_own_trace_comes_back(step: Graph, tmp_path: Path) -> None:
    found = atlas.join_profile(step, step.save(tmp_path / "step.trace.json.gz"))
    assert [(one.node.id, one.host_ns) for one in found.nodes] == [
        (node.id, node.time_ns) for node in step.where(kind="op")
    ]


def test_another_program_is_refused(tmp_path: Path) -> None:
    graph = atlas.capture(nn.Conv2d(3, 4, 3), torch.ones(1, 3, 8, 8), backward=True)
    with pytest.raises(AnalysisError, match=r"another program.*It has no aten::convolution"):
        atlas.join_profile(graph, PATH)
    assert not any("device times" in note for note in graph.notes)
    with pytest.raises(AnalysisError, match="no ops"):
        atlas.join_profile(Graph(), PATH)


def no_ops(trace: Trace) -> Trace:
    return {"traceEvents": [event for event in trace["traceEvents"] if event["cat"] != "cpu_op"]}


def endless(trace: Trace) -> Trace:
    trace["traceEvents"][0]["dur"] = 1e300
    return trace


def nested(trace: Trace) -> Trace:
    """Ops in ops without end: a launch, or a kernel, looks through all of them for the op that it belongs to."""
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1}
    return {"traceEvents": [op | {"ts": depth, "dur": 10_000 - 2 * depth} for depth in range(2000)]}


BAD: list[tuple[str, Callable[[Trace], Any]]] = [
    ("no traceEvents", lambda trace: {}),
    ("no traceEvents", lambda trace: []),
    ("traceEvents", lambda trace: {"traceEvents": 3}),
    (r"traceEvents\[0\]", lambda trace: {"traceEvents": [7]}),
    (r"traceEvents\[0\].ts", lambda trace: {"traceEvents": [{"ts": "soon"}]}),
    ("category cpu_op", no_ops),
    ("category cpu_op", lambda trace: {"traceEvents": []}),
    ("no such time", endless),
    ("lies in more than 1,000 other ops", nested),
    ("no such time", lambda trace: {"traceEvents": [{"ph": "X", "cat": "cpu_op", "ts": -5, "dur": 1}]}),
]


@pytest.mark.parametrize(("says", "change"), BAD)
def test_what_is_no_trace_is_refused(
    step: Graph, trace: Trace, tmp_path: Path, says: str, change: Callable[[Trace], Any]
) -> None:
    with pytest.raises(FileFormatError, match=says):
        atlas.join_profile(step, written(change(trace), tmp_path))


def test_traces_that_are_not_whole(step: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, data = tmp_path / "trace.json", PATH.read_bytes()
    text = gzip.decompress(data)
    for content, says in [
        (text[:-20], "ends in the middle"),
        (data[:-200], "middle of what was packed"),
        (data[:50] + b"\0" * 50 + data[100:], "unpacked|middle"),
        (b"\xff\xfe", "not a profiler's trace"),
        (b"", "not a profiler's trace"),
        (b"PK\3\4", "not readable as JSON: invalid character"),
        (b'{"traceEvents":' + b"[" * 100_000, "not a profiler's trace"),
    ]:
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=says):
            atlas.join_profile(step, path)
    path.write_bytes(gzip.compress(b'{"traceEvents":[]' + b" " * 1_000_000 + b"}"))
    with pytest.raises(FileFormatError, match="more than 100 times its size"):
        atlas.join_profile(step, path)
    monkeypatch.setattr(kineto, "MOST_TRACE_BYTES", 10_000)
    for content in (data, text):  # packed, it is smaller than that
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match="Profile fewer steps"):
            atlas.join_profile(step, path)
    with pytest.raises(FileSystemError, match="no such file"):
        atlas.join_profile(step, tmp_path / "none.json")


def test_ops_without_the_fields_that_join_are_joined_by_order(step: Graph, trace: Trace, tmp_path: Path) -> None:
    for event in trace["traceEvents"]:
        event["args"] = {"External id": str(event["args"].get("External id", ""))}  # as text, as old versions wrote it
    found = atlas.join_profile(step, written(trace, tmp_path))
    assert {one.by for one in found.nodes} == {"order"}
    # Kernels that named their op by correlation only cannot be joined any more, and are listed.
    assert 0 < (found.device_ns or 0) < atlas.join_profile(step, PATH).device_ns  # type: ignore[operator]
    assert len(found.unjoined_kernels) > 1


def test_alignment_survives_what_only_one_side_has() -> None:
    def named(names: str) -> list[Op]:
        return [Op(name) for name in names]

    pairs, _ = align(named("abcdefgh"), named("abXcdYYefgh"))
    assert {"abcdefgh"[one]: "abXcdYYefgh"[other] for one, other in pairs.items()} == {c: c for c in "abcdefgh"}
    pairs, _ = align(named("abQcdef"), named("abcdef"))
    assert len(pairs) == 6
    # Equal names everywhere: only the numbers, 100 ahead, tell which is which.
    ours, theirs = [Op("a", n) for n in range(5)], [Op("a", 100 + n) for n in range(-3, 5)]
    pairs, numbered = align(ours, theirs)
    assert numbered == set(pairs) == set(range(5))
    assert [theirs[pairs[at]].sequence for at in range(5)] == [100, 101, 102, 103, 104]
