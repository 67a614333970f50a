"""Recording backward: the real engine's order and gradients, and what is told about them."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from autograd.graphs import GRAPHS, Case, build
from autograd.running import assert_same, differentiate, gradients
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchatlas as atlas
from torchatlas.autograd.tasks import reached, starting_node
from torchatlas.errors import AnalysisError, InvalidInputError, StateError
from torchatlas.graph.columns import faults


def order_of_torch(case: Case) -> list[str]:
    """What really runs, by a hook on every node behind the outputs."""
    ran: list[str] = []
    outputs = case.outputs if isinstance(case.outputs, list) else [case.outputs]
    roots = [starting_node(output) for output in outputs]
    for node in reached(list(dict.fromkeys(roots))):
        node.register_prehook(lambda _, node=node: ran.append(node.name().rpartition("::")[2]))
    differentiate(case)
    return ran


@pytest.mark.parametrize("name", GRAPHS)
def test_order_and_gradients_are_torchs_own(name: str) -> None:
    expected = gradients(build(name), differentiate)
    case = build(name)
    with atlas.recording_backward(statistics=True) as rec:
        found = gradients(case, differentiate)
    assert_same(found, expected)
    assert case.log == build_log(name)
    assert [node.operation for node in rec.graph.nodes] == order_of_torch(build(name))
    for run in rec.runs:
        assert faults(run.graph.columns, run.graph.tables) is None
        assert str(run)
        assert len(run.statistics) <= len(run.graph.edges)


def build_log(name: str) -> list[Any]:
    case = build(name)
    differentiate(case)
    return case.log


def test_at_least_forty_graphs() -> None:
    assert len(GRAPHS) >= 40


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def test_times_modules_lines_and_memory() -> None:
    net, x = model(), torch.randn(3, 4)
    with atlas.recording(net) as forward:
        loss = net(x).square().sum()
    rec = atlas.record_backward(loss, model=net, forward=forward.graph)
    run = rec.runs[0]
    assert rec.order == [node.name for node in rec.graph.nodes]
    assert sum(node.time_ns or 0 for node in rec.graph.nodes) <= run.time_ns
    assert all((node.time_ns or 0) > 0 for node in rec.graph.nodes)
    assert {node.scope.path for node in rec.graph.nodes} == {"", "0", "1", "2"}
    assert rec.graph["2.AddmmBackward0"].source is not None
    assert run.peak_gradient_bytes == 8 * 4 + 4 * 8 * 4  # of the first layer: bias and weight
    assert rec.graph.nodes[-1].memory_bytes == 0
    assert "backward: " in str(rec)
    assert rec.to_dict()["runs"][0]["order"] == rec.order


def test_where_gradients_are_summed() -> None:
    x = torch.ones(5, requires_grad=True)
    y = x.sin()
    rec = atlas.record_backward((y * y + y.exp()).sum(), params={"x": x})
    (found,) = rec.sums
    assert (found.node, found.input_nr, found.gradients, found.bytes) == ("SinBackward0", 0, 3, 20)


def test_statistics_of_each_edge() -> None:
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    rec = atlas.record_backward((x * 3).sum(), statistics=True)
    last = rec.statistics[-1]
    assert (last.source, last.target) == ("MulBackward0", "AccumulateGrad")
    assert (last.smallest, last.largest, last.not_finite) == (3.0, 3.0, 0)
    assert last.norm == pytest.approx(18**0.5)
    assert atlas.record_backward((x * 3).sum()).statistics == []


def test_the_first_gradient_that_is_not_finite() -> None:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    rec = atlas.record_backward((x.sqrt() * 2).sum(), statistics=True)
    bad = rec.first_not_finite
    assert bad is not None
    assert (bad.source, bad.target, bad.not_finite, bad.largest) == ("SqrtBackward0", "AccumulateGrad", 1, 0.5)
    assert "not finite: from SqrtBackward0 to" in str(rec)


def test_numbers_whose_squares_overflow_are_finite() -> None:
    x = torch.ones(2, requires_grad=True)
    rec = atlas.record_backward((x * 1e30).sum(), statistics=True)
    assert rec.first_not_finite is None
    assert rec.statistics[-1].norm == pytest.approx(2**0.5 * 1e30)


def test_gradients_whose_squares_vanish_have_a_norm() -> None:
    x = torch.ones(2, requires_grad=True)
    rec = atlas.record_backward((x * 1e-30).sum(), statistics=True)
    assert rec.statistics[-1].norm == pytest.approx(2**0.5 * 1e-30)


def test_what_runs_inside_of_backward_is_a_run_of_its_own() -> None:
    net, x = model(), torch.randn(3, 4, requires_grad=True)
    with atlas.recording_backward(net) as rec:
        checkpoint(net, x, use_reentrant=True).sum().backward()
    assert [run.task.outer for run in rec.runs] == [None, 0]
    assert "AddmmBackward0" in [node.operation for node in rec.runs[1].graph.nodes]
    assert "1 more runs of the engine" in str(rec)


def test_only_what_is_wanted_runs() -> None:
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    rec = atlas.record_backward((x.sin() * w.cos()).sum(), inputs=[x], params={"x": x})
    assert rec.order == ["SumBackward0", "MulBackward0", "SinBackward0", "AccumulateGrad"]
    assert w.grad is None


def test_after_an_exception_there_is_what_ran() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.sin()
    y.register_hook(lambda gradient: 1 / 0)
    with atlas.recording_backward() as rec, pytest.raises(ZeroDivisionError):
        (y * 2).sum().backward()
    assert rec.order == ["SumBackward0", "MulBackward0"]  # the hook runs before the next one
    assert "ZeroDivisionError" in rec.graph.notes[-1]


def test_nothing_is_left_behind() -> None:
    net, run = model(), torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    loss = net(torch.randn(3, 4)).sum()
    atlas.record_backward(loss, retain_graph=True)
    assert torch.autograd._engine_run_backward is run  # type: ignore[attr-defined]
    with atlas.recording_backward() as rec:
        loss.backward(retain_graph=True)
    count = len(rec.order)
    del rec
    gc.collect()
    with atlas.recording_backward() as rec:
        loss.backward()
    assert len(rec.order) == count  # no hook of the first is still there to note it twice


def test_recordings_nest() -> None:
    x = torch.ones(2, requires_grad=True)
    with atlas.recording_backward() as outer:
        with atlas.recording_backward() as inner:
            x.sin().sum().backward()
        x.cos().sum().backward()
    assert (len(inner.runs), len(outer.runs)) == (1, 2)
    assert outer.runs[0].graph.nodes[1].operation == "SinBackward0"


def test_what_cannot_be_recorded() -> None:
    with pytest.raises(AnalysisError, match="does not require a gradient"):
        atlas.record_backward(torch.ones(2))
    with pytest.raises(InvalidInputError, match="takes a tensor or several, not int"):
        atlas.record_backward(3)
    with atlas.recording_backward() as rec:
        pass
    with pytest.raises(StateError, match="no backward pass ran"):
        rec.graph
    x = torch.ones(2, requires_grad=True)
    loss = x.exp().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        atlas.record_backward(loss)
