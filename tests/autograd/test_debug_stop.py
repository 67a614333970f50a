"""Where a debugged backward pass is: the numbers that arrive, what is ready, what is printed of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from autograd.graphs import GRAPHS, build
from autograd.running import debugger
from autograd.test_gradient_statistics import Elsewhere
from torch import nn
from torch.nn import functional as F

import torchatlas as atlas
from torchatlas.autograd.debug_console import _figures
from torchatlas.autograd.debug_stop import Stop, precise
from torchatlas.autograd.print_graph import shape_text
from torchatlas.errors import InvalidInputError

nested_is_a_prototype = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")


def arriving(*gradients: torch.Tensor | None) -> Stop:
    """A stop without a graph."""
    node: Any = SimpleNamespace(name="Some", scope=SimpleNamespace(path=""), source=None, inputs=[])
    run: Any = None
    return Stop(run, node, 0, gradients)


# -- numbers -----------------------------------------------------------------------------------------------------------


MATRIX = torch.tensor([[0.0, 3.0], [4.0, 0.0]])
RAGGED = [torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0, 0.0])]
TWICE = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([3.0, 1.0]), (4,), check_invariants=True)
KINDS: dict[str, tuple[Callable[[], torch.Tensor], float, str]] = {  # a gradient, its norm, its shape as text
    "strided": (lambda: MATRIX, 5.0, "[2, 2]"),
    "one place twice": (lambda: TWICE, 4.0, "[4]"),
    "nothing in it": (lambda: torch.sparse_coo_tensor(size=(3,), check_invariants=True), 0.0, "[3]"),
    "compressed": (MATRIX.to_sparse_csr, 5.0, "[2, 2]"),
    "complex": (lambda: torch.tensor([3j, 4.0]), 5.0, "[2]"),
    "large complex": (lambda: torch.tensor([complex(3e38, 3e38)]), 3e38 * math.sqrt(2), "[1]"),
    "bfloat16": (MATRIX.bfloat16, 5.0, "[2, 2]"),
    "jagged": (lambda: torch.nested.nested_tensor(RAGGED, layout=torch.jagged), 5.0, "[2, j"),
    "nested": (lambda: torch.nested.nested_tensor(RAGGED), 5.0, "[2, *]"),
}


@nested_is_a_prototype
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_every_kind_have_numbers(kind: str) -> None:
    make, norm, shape = KINDS[kind]
    gradient = make()
    stop = arriving(None, gradient)
    assert stop.norm() == pytest.approx(norm)
    assert all(each.layout is torch.strided and not each.is_nested for each in stop.dense())
    assert f"gradient none, {shape}" in str(stop)
    assert shape_text(gradient).startswith(shape)


def test_a_device_without_float64() -> None:
    assert torch.linalg.vector_norm(precise(MATRIX.as_subclass(Elsewhere))).item() == 5.0
    assert " norm 5, " in _figures(MATRIX.as_subclass(Elsewhere))


@pytest.mark.parametrize("above", [1.0, torch.tensor(1.0)])
def test_a_complex_gradient_is_as_large_as_its_numbers(above: Any) -> None:
    z = torch.ones(1, dtype=torch.cfloat, requires_grad=True)
    with atlas.debug_backward(z * 1, torch.tensor([5j])) as dbg:
        dbg.break_at(above=above)
        stop = dbg.run()
        assert stop is not None
        assert stop.norm() == 5.0


@pytest.mark.parametrize(("factor", "condition"), [(math.nan, {"nan": True}), (0.0, {"zero": True})])
def test_breakpoints_look_into_sparse_gradients(factor: float, condition: dict[str, bool]) -> None:
    w = torch.ones(3, 2, requires_grad=True)
    with atlas.debug_backward((F.embedding(torch.tensor([1, 1]), w, sparse=True) * factor).sum()) as dbg:
        dbg.break_at("AccumulateGrad", **condition)
        stop = dbg.run()
        assert stop is not None
        assert stop.gradients[0] is not None
        assert stop.gradients[0].is_sparse


@nested_is_a_prototype
def test_a_backward_pass_of_nested_tensors() -> None:
    n = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], requires_grad=True)
    with atlas.debug_backward((n * 2).to_padded_tensor(0.0).sum()) as dbg:
        dbg.break_at(above=1e6)
        stop = dbg.run_until("AccumulateGrad")
        assert stop is not None
        assert "gradient [2, *]" in str(stop)
        assert stop.norm() == pytest.approx(math.sqrt(5 * 4))
        with pytest.raises(InvalidInputError, match="strided nested tensor"):
            dbg.replace(dbg.gradients[0])
        dbg.run()
    assert n.grad is not None
    assert [part.tolist() for part in n.grad] == [[2.0, 2.0], [2.0, 2.0, 2.0]]


def test_a_meta_gradient_has_no_numbers() -> None:
    with pytest.raises(InvalidInputError, match="arrives at Some is on the meta device"):
        arriving(torch.ones(2, device="meta")).norm()
    assert "gradient [2]" in str(arriving(torch.ones(2, device="meta")))


# -- queues ------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings(r"ignore:Using backward\(\) with create_graph=True")
@pytest.mark.parametrize("name", GRAPHS)
def test_who_is_first_in_the_queue_runs_next(name: str) -> None:
    """To the node, where the one that runs makes no other ready: of all the nodes that leaves have as well."""
    case = build(name)
    if case.grad:
        pytest.skip("runs torch.autograd.grad, not backward")
    with debugger(case) as dbg:
        stop = dbg.step()
        while stop is not None:
            ready, run = [node.id for node in dbg.ready], stop.run
            stop = dbg.step()
            if stop is not None and stop.run is run:
                now = [node.id for node in dbg.ready]
                if {*now, stop.node.id} == set(ready):
                    assert [stop.node.id, *now] == ready
                else:
                    assert set(ready) <= {*now, stop.node.id}


def test_leaves_run_in_the_order_of_the_engines_heap() -> None:
    leaves = {f"l{number}": torch.ones(2, requires_grad=True) for number in range(8)}
    with atlas.debug_backward(torch.stack(list(leaves.values())).sum(), params=leaves) as dbg:
        stop = dbg.run_until("AccumulateGrad")
        expected = [node.inputs[-1].parameter for node in dbg.ready]
        ran = []
        while (stop := dbg.step()) is not None:
            ran.append(stop.parameter)
        assert ran == expected
        assert ran != sorted(ran, key=str)  # else they would tell nothing


def test_roots_are_ready_from_the_beginning() -> None:
    x = torch.ones(2, requires_grad=True)
    with atlas.debug_backward([x.exp().sum(), x.sin().sum()]) as dbg:
        stop = dbg.step()
        assert [node.operation for node in dbg.ready] == ["SumBackward0"]
        assert stop is not None
        assert dbg.ready[0].name != stop.name
        assert dbg.waiting == []


def test_a_leaf_that_is_a_root_waits_for_the_rest() -> None:
    x = torch.tensor(1.0, requires_grad=True)
    with atlas.debug_backward([x, x.sin()]) as dbg:
        stop = dbg.step()
        assert stop is not None
        assert stop.operation == "SinBackward0"
        assert [node.operation for node in dbg.waiting] == ["AccumulateGrad"]
        assert dbg.ready == []
        stop = dbg.step()
        assert stop is not None
        assert stop.operation == "AccumulateGrad"
        assert dbg.waiting == []


# -- what is printed ---------------------------------------------------------------------------------------------------


def test_what_a_notebook_echoes_is_one_short_line() -> None:
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(40)])
    with atlas.recording_backward(net) as rec:
        net(torch.ones(1, 4)).sum().backward()
    with atlas.debug_backward(net(torch.ones(1, 4)).sum(), model=net) as dbg:
        stop = dbg.step()
        assert stop is not None
        point = dbg.break_at("0.weight")
        shown = [repr(each) for each in (stop, stop.run, point, rec, rec.runs[0], dbg)]
    assert [text for text in shown if len(text) > 100 or "\n" in text] == []
    assert shown[0] == "<Stop before #0 SumBackward0: gradient []>"
    assert shown[1] == "<DebuggedRun 0: 0 of 161 nodes ran>"
    assert shown[2] == "<Breakpoint at 0.weight, came 0 times>"
    assert shown[3] == "<BackwardRecording: 1 run of the engine, 161 nodes>"
    assert shown[4].startswith("<BackwardRun: 161 nodes in ")


def test_one_node_is_not_several() -> None:
    x = torch.tensor(1.0, requires_grad=True)
    with atlas.debug_backward(x.sin()) as dbg:
        dbg.step(2)
        assert dbg.abort().startswith("1 node ran: what it saved is freed, and backward through it cannot")
        assert repr(dbg) == "<backward, over: 1 node ran>"
    assert "backward: 1 node in" in str(atlas.record_backward(x))
    meta = torch.ones((), device="meta", requires_grad=True)
    with atlas.recording_backward(statistics=True) as rec:
        meta.sin().backward()
    assert rec.graph.notes[0].startswith("1 gradient is on the meta device")
    assert atlas.print_graph(x.sin().exp(), most=3).endswith("... 1 more node")
