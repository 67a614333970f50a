"""Traces: every op once, in its module, at its time; read by the parser of HTA."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_gpt2
from synthetic import random_graph
from torch import nn

import torchatlas as atlas
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.export.timeline import spans, timeline
from torchatlas.graph import Graph


@pytest.fixture(scope="module")
def step() -> Graph:
    """A training step of GPT-2."""
    model, inputs = tiny_gpt2()
    return atlas.capture(model, kwargs=inputs, loss=lambda output: output.loss, optimizer=torch.optim.AdamW)


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text)
    return document, document["traceEvents"]


def of(events: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [event for event in events if all(event.get(key) == item for key, item in wanted.items())]


def check_nesting(graph: Graph) -> None:
    """Each span lies in the one before it on the stack, and apart from its neighbours."""
    stacks: dict[int, list[Any]] = {}
    for span in spans(timeline(graph)):
        stack = stacks.setdefault(span.lane, [])
        while stack and stack[-1].depth >= span.depth:
            assert stack.pop().end_ns <= span.start_ns
        assert all(outer.start_ns <= span.start_ns <= span.end_ns <= outer.end_ns for outer in stack)
        stack.append(span)


def test_every_op_is_a_span_of_its_time(step: Graph, tmp_path: Path) -> None:
    document, events = read(step.save(tmp_path / "step.trace.json"))
    ops = of(events, cat="cpu_op")
    assert len(ops) == step.scopes[""].operations
    first = int(step.columns["node_start_ns"][step.columns["node_start_ns"] >= 0].min())
    for op in ops:
        node = step[op["args"]["External id"]]
        assert op["args"]["node"] == node.name
        assert node.start_ns is not None
        assert (round(op["ts"] * 1000), round(op["dur"] * 1000)) == (node.start_ns - first, node.time_ns)
        assert op["args"]["Output Dims"] == [list(value.shape) for value in node.outputs]
        assert op["args"]["Output type"] == [value.dtype for value in node.outputs]
        assert op["args"].get("Sequence number") == node.sequence_nr
        assert op["args"]["phase"] == node.phase
    products = [op for op in ops if op["name"] in ("aten::addmm", "aten::mm", "aten::bmm")]
    assert sum(op["args"]["FLOPs"] for op in products) > 0
    assert any("one run" in note for note in document["notes"])


def test_spans_lie_in_their_modules(step: Graph, tmp_path: Path) -> None:
    _, events = read(step.save(tmp_path / "step.trace.json"))
    blocks = of(events, cat="python_function", name="nn.Module: transformer.h.1.mlp")
    assert blocks
    inside = [
        op
        for op in of(events, cat="cpu_op")
        if any(b["ts"] <= op["ts"] and op["ts"] + op["dur"] <= b["ts"] + b["dur"] + 1e-6 for b in blocks)
    ]
    assert {op["args"]["External id"] for op in inside} == {
        node.id for node in step.where(kind="op", scope="transformer.h.1.mlp")
    }
    assert of(events, name="Optimizer.step#AdamW.step")
    assert [event["name"] for event in of(events, cat="user_annotation")].count("backward") == 1


def test_memory_and_flows(step: Graph, tmp_path: Path) -> None:
    _, events = read(step.save(tmp_path / "step.trace.json"))
    assert max(event["args"]["live bytes"] for event in of(events, ph="C")) == step.peak_bytes
    begins, ends = of(events, ph="s"), of(events, ph="f")
    assert [event["id"] for event in begins] == [event["id"] for event in ends]
    at = {(op["tid"], op["ts"]): step[op["args"]["External id"]] for op in of(events, cat="cpu_op")}
    pairs = {(at[s["tid"], s["ts"]].id, at[f["tid"], f["ts"]].id) for s, f in zip(begins, ends, strict=True)}
    assert pairs == {(node.id, node.backward_nodes[0].id) for node in step if node.backward_nodes}


@pytest.mark.filterwarnings("ignore")  # HTA's own, of pandas
def test_hta_reads_it_and_finds_the_same_time(step: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hta")
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    from hta.common.trace_file import get_trace_files
    from hta.trace_analysis import TraceAnalysis

    (tmp_path / "ranks").mkdir()
    files = atlas.save_ranks([rank(1, 4), rank(3, 4)], tmp_path / "ranks" / "step.trace.json", per_rank=True)
    assert get_trace_files(str(tmp_path / "ranks")) == dict(zip((1, 3), map(str, files), strict=True))

    step.save(tmp_path / "rank0.trace.json.gz")
    trace = TraceAnalysis(trace_dir=str(tmp_path)).t
    assert list(trace.traces) == [0]
    names = trace.symbol_table.sym_table
    table = trace.get_trace(0)
    ops = table[[names[number] == "cpu_op" for number in table["cat"]]]
    assert round(1000 * ops["dur"].sum()) == step.time_ns
    assert len(ops) == step.scopes[""].operations
    assert set(ops["iteration"]) == {0}
    products = ops[[names[number] == "aten::addmm" for number in ops["name"]]]
    assert round(1000 * products["dur"].sum()) == sum(node.time_ns or 0 for node in step.where(operation="addmm"))


def test_medians_stand_end_to_end_and_say_so(tmp_path: Path) -> None:
    graph = atlas.capture(nn.Linear(4, 2), torch.ones(1, 4), backward=True, repeat=3)
    document, events = read(graph.save(tmp_path / "step.trace.json"))
    at = 0.0
    for op in of(events, cat="cpu_op"):
        assert op["ts"] == pytest.approx(at)
        at += op["dur"]
    assert any("end to end, for times are medians of 3 runs" in note for note in document["notes"])


def test_what_has_no_time_has_no_span(tmp_path: Path) -> None:
    graph = random_graph(300, 600)
    line = timeline(graph)
    known = graph.columns["node_time_ns"] >= 0
    assert int(line.time_ns.sum()) == int(graph.columns["node_time_ns"][line.nodes].sum())
    assert known[line.nodes].all()
    assert not known[line.untimed].any()
    assert len(line.untimed) > 0
    assert any(f"{len(line.untimed):,} ops have no time" in note for note in line.notes)
    check_nesting(graph)
    read(graph.save(tmp_path / "odd.trace.json"))  # names with quotes and line breaks are JSON


@pytest.mark.parametrize("suffix", [".trace.json", ".speedscope.json"])
def test_a_graph_without_times_is_refused(tmp_path: Path, suffix: str) -> None:
    model, x = nn.Linear(4, 2), torch.ones(1, 4)
    for graph, why in [
        (atlas.capture(model, x, fake=True), "without fake=True"),
        (atlas.trace(model, x).graph, "was never run"),
        (Graph(), "no timeline to write"),
    ]:
        with pytest.raises(AnalysisError, match=why):
            graph.save(tmp_path / f"step{suffix}")
    assert not list(tmp_path.iterdir())


def rank(number: int, world: int = 2) -> Graph:
    graph = atlas.capture(nn.Linear(4, 2), torch.ones(number + 1, 4))
    graph.metadata |= {"rank": number, "world_size": world}
    return graph


def test_ranks_are_processes(tmp_path: Path) -> None:
    graphs = [rank(1, 4), rank(0, 4), rank(3, 4)]
    assert atlas.save_ranks(graphs, tmp_path / "all.trace.json") == [tmp_path / "all.trace.json"]
    document, events = read(tmp_path / "all.trace.json")
    for graph in graphs:
        mine = of(events, cat="cpu_op", pid=graph.metadata["rank"])
        assert round(1000 * sum(op["dur"] for op in mine)) == graph.time_ns
    assert document["distributedInfo"]["world_size"] == 4
    assert any("rank 2 of 4" in note for note in document["notes"])
    flows = [event["id"] for event in of(events, ph="s")]
    assert len(flows) == len(set(flows))


def test_ranks_that_do_not_fit_together(tmp_path: Path) -> None:
    path = tmp_path / "all.trace.json"
    alone = atlas.capture(nn.Linear(4, 2), torch.ones(1, 4))
    for graphs, why in [([rank(1), rank(1)], "both of rank 1"), ([rank(0), alone], "Graph 1 does"), ([], "no graph")]:
        with pytest.raises(InvalidInputError, match=why):
            atlas.save_ranks(graphs, path)
    with pytest.raises(InvalidInputError, match="no option detail"):
        atlas.save_ranks([rank(0)], path, detail=False)
    names = [one.name for one in atlas.save_ranks([rank(0), rank(1)], path, per_rank=True)]
    assert names == ["all-rank0.trace.json", "all-rank1.trace.json"]


def test_details_can_be_left_out(step: Graph, tmp_path: Path) -> None:
    whole, bare = step.save(tmp_path / "a.trace.json"), step.save(tmp_path / "b.trace.json", details=False)
    assert bare.stat().st_size < 0.6 * whole.stat().st_size
    assert "Input Dims" not in of(read(bare)[1], cat="cpu_op")[0]["args"]
    assert np.isclose(*(sum(op["dur"] for op in of(read(path)[1], cat="cpu_op")) for path in (whole, bare)))


def test_ops_inside_of_ops_stay_where_they_ran(tmp_path: Path) -> None:
    """Hooks on what is saved for backward run ops while an op runs: such an op may have been recorded before it."""
    graph = atlas.capture(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), torch.ones(2, 4), backward=True)
    ops = [node.id for node in graph.where(kind="op")]
    start, time = (graph.columns[name].copy() for name in ("node_start_ns", "node_time_ns"))
    start[ops], time[ops] = 1000 * np.arange(len(ops)), 800
    inner, outer = ops[3], ops[4]
    start[inner], time[inner] = start[outer] + 100, 300
    graph.columns |= {"node_start_ns": start, "node_time_ns": time}
    assert timeline(graph).nodes[timeline(graph).inside].tolist() == [inner]
    document, events = read(graph.save(tmp_path / "step.trace.json"))
    assert any("ran inside of other ops: 1," in note for note in document["notes"])
    bars = {op["args"]["External id"]: op for op in of(events, cat="cpu_op")}
    assert {node: (bar["ts"], bar["dur"]) for node, bar in bars.items()} == {
        node: (start[node] / 1000, time[node] / 1000) for node in ops
    }
    check_nesting(graph)
    time[inner] = 2000  # ends after the one around it: that is no timeline
    assert "end to end, for ops of one thread overlap" in timeline(graph).placed
    check_nesting(graph)


def test_a_graph_that_was_walked_says_how_to_get_times(tmp_path: Path) -> None:
    loss = nn.Linear(4, 2)(torch.ones(1, 4)).sum()
    with pytest.raises(AnalysisError, match=r"nothing was run\. Record its backward pass: atlas\.record_backward"):
        atlas.autograd_graph(loss).save(tmp_path / "step.trace.json")
