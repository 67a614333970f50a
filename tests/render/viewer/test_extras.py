"""The sections that show what the caller brings: overlays, findings, partitions, a backward pass, another graph."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from render.viewer.documents import read
from torch import nn

import torchatlas as atlas
from torchatlas.errors import InvalidInputError, UnknownNameError
from torchatlas.graph import Graph, SourceLine
from torchatlas.render.viewer.document import document
from torchatlas.types import Finding, Severity, Where


def model(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), activation(), nn.Linear(16, 4))


def step(**options: Any) -> Graph:
    return atlas.capture(model(), torch.ones(5, 8), backward=True, **options)


# -- overlays ----------------------------------------------------------------------------------------------------------


def test_an_overlay_of_nodes_and_modules() -> None:
    graph = step()
    (found,) = read(graph, overlay={"0.addmm": 2, "2": np.float32(0.5), "1.relu": torch.tensor(3.0), "": 1})[
        "overlay.json"
    ]
    assert found["title"] == "overlay"
    assert found["nodes"] == [[graph["0.addmm"].id, 2.0], [graph["1.relu"].id, 3.0]]
    assert found["modules"] == [["2", 0.5], ["", 1.0]]


def test_several_overlays_by_title() -> None:
    found = read(step(), overlay={"<b>error</b>": {"0": 1.0}, "bits": {"2": math.nan}})["overlay.json"]
    assert [one["title"] for one in found] == ["<b>error</b>", "bits"]
    assert found[1]["modules"] == [["2", None]]  # unknown is not zero
    assert "overlay.json" not in read(step(), overlay={})


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        ({"0.addm": 1.0}, r"no node or module is named '0.addm'; did you mean '0.addmm'"),
        ({7: 1.0}, "no node or module is named 7"),
        ({"0": "much"}, "'0' has 'much', which is no number"),
        ({"0": "1"}, "which is no number"),
        ({"0": torch.ones(2)}, "which is no number"),
        ({"0": 1, "more": {"2": 1}}, "not both at once"),
        ({3: {"0": 1}}, "a title is text"),
        ([("0", 1)], "not list"),
    ],
)
def test_overlays_that_are_refused(overlay: Any, words: str) -> None:
    with pytest.raises((UnknownNameError, InvalidInputError), match=words):
        document(step(), overlay=overlay)


# -- groups ------------------------------------------------------------------------------------------------------------


def test_subgraphs_of_a_partition() -> None:
    graph = step()
    report = atlas.GraphPartitioner().partition(graph)
    page = read(graph, partition=report)
    group, about = page.array("node_partition"), page["groups/partition.json"]
    assert len(about["names"]) == len(about["reasons"]) == len(report.subgraphs) > 1
    for number, subgraph in enumerate(report.subgraphs):
        assert np.flatnonzero(group == number).tolist() == list(subgraph.ops)
        assert about["names"][number] == f"{subgraph.node_id} {subgraph.pattern}"
    assert {graph.nodes[node].kind for node in np.flatnonzero(group < 0).tolist()} == {"input", "output"}


def test_stages_of_a_pipeline() -> None:
    graph = step()
    plan = atlas.pipeline_stages(graph, 3)
    page = read(graph, stages=plan)
    stage, about = page.array("node_stage"), page["groups/stages.json"]
    assert about["names"] == ["stage 0", "stage 1", "stage 2"]
    assert about["seconds"] == [one.seconds for one in plan.stages]
    for number, one in enumerate(plan.stages):
        assert np.flatnonzero(stage == number).tolist() == list(one.ops)


def test_reports_of_other_graphs_are_refused() -> None:
    other = atlas.capture(model(nn.GELU), torch.ones(5, 8), backward=True)
    with pytest.raises(InvalidInputError, match="partition= is of another graph"):
        document(step(), partition=atlas.GraphPartitioner().partition(other))
    with pytest.raises(InvalidInputError, match="stages= takes a PipelinePlan, not int"):
        document(step(), stages=3)


# -- findings ----------------------------------------------------------------------------------------------------------


def test_findings_of_the_doctor_at_their_nodes() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with atlas.doctor(model=net) as visit:
        for _ in range(3):  # gradients are never set to zero
            net(torch.ones(5, 8)).sum().backward()
            optimizer.step()
    with atlas.recording(net) as rec:
        net(torch.ones(5, 8)).sum().backward()
        optimizer.step()
    rows = read(rec.graph, findings=visit)["findings.json"]
    (row,) = [one for one in rows if one["key"] == "not-zeroed"]
    (finding,) = [one for one in visit if one.key == "not-zeroed"]
    assert row["severity"] == str(finding.severity)
    assert (row["title"], row["message"], row["fix"]) == (finding.what, finding.why, finding.fix)
    assert (row["file"], row["line"]) == finding.lines[0]
    assert row["times"] == finding.times
    assert row["cause"] is None


def finding(*where: Where, what: str = "wrong", **more: Any) -> Finding:
    return Finding("in-place", what, where, "because", "mend it", **more)


def test_findings_belong_to_the_nodes_of_their_line_or_of_their_words() -> None:
    net = model()
    with atlas.recording(net) as rec:
        y = net(torch.ones(5, 8))
        loss = (y * y).sum() + y.mean()
    line = rec.graph["mul"].source
    assert line is not None
    elsewhere = SourceLine("other.py", 1, "f", "")
    found = read(
        rec.graph,
        findings=[
            finding(Where("done", line)),
            finding(Where("written by mul", line)),
            finding(Where("done", elsewhere), what="'2.weight' gets no gradient"),
            finding(what="nothing of this is in the graph"),
            finding(what="the sum of input 1 and 0 is wrong"),  # plain English, though nodes and modules are called so
        ],
    )["findings.json"]
    names = [[rec.graph.nodes[node].name for node in row["nodes"]] for row in found]
    assert names[0] == ["mul", "sum", "mean", "add"]
    assert names[1] == ["mul"]
    assert names[2] == ["2.t", "2.addmm"]
    assert names[3] == names[4] == []
    assert loss.ndim == 0


def test_consequences_come_after_their_cause() -> None:
    below = finding(what="a consequence", severity=Severity.NOTE)
    rows = read(step(), findings=[finding(what="first"), finding(what="cause", follows=(below,))])["findings.json"]
    assert [(row["title"], row["cause"]) for row in rows] == [("first", None), ("cause", None), ("a consequence", 1)]


def test_no_findings_are_a_result_and_others_are_refused() -> None:
    assert read(step(), findings=[])["findings.json"] == []
    with pytest.raises(InvalidInputError, match=r"what atlas\.doctor returns, not int"):
        document(step(), findings=3)


# -- a backward pass ---------------------------------------------------------------------------------------------------


def recorded(statistics: bool = True, factor: float = 1.0) -> tuple[Graph, Any]:
    net = model()
    with atlas.recording(net) as rec:
        loss = (net(torch.ones(5, 8)) * factor).sum()
        with atlas.recording_backward(net, statistics=statistics) as backward:
            loss.backward()
    return rec.graph, backward


def test_a_backward_pass_step_by_step() -> None:
    graph, recording = recorded()
    page, run = read(graph, backward=recording)["backward.json"], recording.runs[0]
    assert page["names"] == recording.order
    assert page["waiting_bytes"] == run.graph.columns["node_memory_bytes"].tolist()
    assert max(page["waiting_bytes"]) == page["peak_bytes"] == run.peak_gradient_bytes
    assert page["error"] is None
    assert page["statistics"] is True
    edges = page["edges"]
    norms = [float(f"{one.norm:.6g}") for one in run.statistics]
    assert edges["norm"] == norms
    assert [page["names"][step] for step in edges["source"]] == [one.source for one in run.statistics]
    # A step is ready when all that lead to it have run, and it runs after it is ready.
    for number, ready in enumerate(page["ready_after"]):
        before = [s for s, t in zip(edges["source"], edges["target"], strict=True) if t == number]
        assert ready == max(before, default=-1) < number


def test_steps_know_the_nodes_that_they_ran() -> None:
    graph, recording = recorded()
    page = read(graph, backward=recording)["backward.json"]
    ran = {name: graph.nodes[node] for name, node in zip(page["names"], page["nodes"], strict=True)}
    assert ran["ReluBackward0"].operation == "aten.threshold_backward.default"
    assert ran["AddmmBackward0"].scope.path == "2"
    assert ran["AddmmBackward0"].operation == "aten.mm.default"
    for step, name in page["parameters"].items():
        made = graph.nodes[page["nodes"][int(step)]].outputs
        assert name in [value.parameter for value in made]
    own = read(recording.graph, backward=recording.runs[0])["backward.json"]
    assert own["nodes"] == list(range(len(recording.graph)))


def test_a_pass_of_another_process_is_played_without_nodes(tmp_path: Any) -> None:
    graph, recording = recorded()
    loaded = atlas.load(graph.save(tmp_path / "step.atlas"))
    page = read(loaded, backward=recording)
    assert set(page["backward.json"]["nodes"]) == {-1}
    assert any("could not be matched" in note for note in page["info.json"]["notes"])


def test_the_first_gradient_that_is_not_finite() -> None:
    graph, recording = recorded()
    assert read(graph, backward=recording)["backward.json"]["first_not_finite"] is None
    graph, recording = recorded(factor=math.inf)
    page, first = read(graph, backward=recording)["backward.json"], recording.first_not_finite
    edge = page["first_not_finite"]
    assert page["names"][page["edges"]["source"][edge]] == first.source
    assert page["names"][page["edges"]["target"][edge]] == first.target
    assert page["edges"]["not_finite"][edge] == first.not_finite
    assert page["edges"]["norm"][edge] is None


def test_without_statistics_norms_are_unknown() -> None:
    graph, recording = recorded(statistics=False)
    page = read(graph, backward=recording)["backward.json"]
    assert page["statistics"] is False
    assert set(page["edges"]["norm"]) == {None}
    assert all(size > 0 for size in page["edges"]["bytes"])


def test_backward_passes_that_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"backward= takes what atlas\.record_backward returns, not Graph"):
        document(step(), backward=step())
    with atlas.recording_backward() as nothing:
        pass
    with pytest.raises(InvalidInputError, match="a recording in which nothing ran"):
        document(step(), backward=nothing)


def test_of_several_runs_the_first_is_played_and_said_so() -> None:
    net = model()
    with atlas.recording_backward(net) as recording:
        for _ in range(2):
            net(torch.ones(5, 8)).sum().backward()
    assert "plays the first" in read(step(), backward=recording)["info.json"]["left_out"][0]


# -- comparison --------------------------------------------------------------------------------------------------------


def test_two_graphs_side_by_side() -> None:
    a = step()
    b = atlas.capture(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 6)), torch.ones(5, 8), backward=True)
    page, report = read(a, other=b)["alignment.json"], atlas.compare(a, b)
    assert page["sentence"] in str(report)
    assert [a.nodes[node] for node in page["only_a"]] == report.removed
    assert [b.nodes[node] for node in page["only_b"]] == report.added
    assert [[one.before.id, one.after.id] for one in report.changed] == [row[:2] for row in page["changed"]]
    assert len(page["pairs"]) == report.unchanged + len(report.changed)
    left, right = (sorted(row[side] for row in page["pairs"]) for side in (0, 1))
    assert sorted([*left, *page["only_a"]]) == list(range(len(a)))  # every node stands in exactly one list
    assert sorted([*right, *page["only_b"]]) == list(range(len(b)))
    addmm = next(row for row in page["changed"] if row[0] == a["2.addmm"].id)
    assert addmm[2]["out_features"] == ["4", "6"]
    modules = {row["path"]: row for row in page["modules"]}
    assert modules["2"]["a"]["parameters"] == 68
    assert modules["2"]["b"]["parameters"] == 102
    assert page["times"][""] == "not compared"
    assert page["time"].endswith("one run each: not compared")


def test_equal_graphs_and_refusals() -> None:
    page = read(step(), other=step())["alignment.json"]
    assert page["sentence"].startswith("the same ")
    assert page["changed"] == page["only_a"] == page["only_b"] == []
    with pytest.raises(InvalidInputError, match="other= takes a Graph to compare with, not str"):
        document(step(), other="other.atlas")


# -- steps of a run ----------------------------------------------------------------------------------------------------


def table(**more: Any) -> dict[str, Any]:
    return {"number": [3, 4], "wall_ns": [10, 20], "structure": [0, 1], "in_full": [False, True], **more}


def test_the_steps_of_a_run() -> None:
    given = {"columns": table(loss=[math.nan, 2.5], norm=[None, math.inf], empty=[None, None]), "shown": 4}
    found = read(step(), steps={**given, "changes": {4: "batch 8 -> 4"}})["steps.json"]
    assert found == {
        "shown": 4,
        "numbers": [3, 4],
        "changes": [[4, "batch 8 -> 4"]],
        "rows": [
            {"name": "wall_ns", "unit": "ns", "values": [10, 20]},
            {"name": "loss", "unit": "", "values": ["nan", 2.5]},
            {"name": "norm", "unit": "", "values": [None, "inf"]},
        ],
    }


def test_of_very_many_steps_the_last_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchatlas.render.viewer.sections.steps.MOST_STEPS", 1)
    found = read(step(), steps={"columns": table()})
    assert found["steps.json"]["numbers"] == [4]
    assert "the last 1" in " ".join(found["info.json"]["left_out"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (7, "takes the table of a run"),
        ({"columns": {"number": [1]}}, "takes the table of a run"),
        ({"columns": table(loss=[1.0])}, "differ in length"),
        ({"columns": table(loss=["low", "high"])}, "'low', which is no number"),
    ],
)
def test_a_bad_table_of_steps(given: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        document(step(), steps=given)
