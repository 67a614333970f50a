"""Forward and backward nodes know each other: compared with what autograd itself says.

A function mode sees every torch call of the program, and which autograd numbers were given out during it. A backward
node that has one of those numbers must belong to an op of the same call.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from zoo import Specimen, loss_of, specimens

import torchatlas as atlas
from torchatlas.graph import Graph, GraphNode

# worker_thread: autograd numbers and dispatch modes belong to a thread.
TRAINED = [specimen for specimen in specimens(trains=True) if specimen.name != "worker_thread"]


class Counter(TorchDispatchMode):
    """Counts ops; entered before the recording, so that what the recording adds is not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.ops += not str(func).startswith(("prim.", "profiler."))
        return out


class Calls(TorchFunctionMode):
    """For every torch call: the autograd numbers given out, and the ops that ran."""

    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self.counter = counter
        self.rows: list[tuple[range, range]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        number, op = _get_sequence_nr(), self.counter.ops
        out = func(*args, **(kwargs or {}))
        if func is not torch.Tensor.backward:
            self.rows.append((range(number, _get_sequence_nr()), range(op, self.counter.ops)))
        return out


def watched(specimen: Specimen) -> tuple[Graph, list[tuple[range, range]]]:
    model, args, kwargs = specimen.build()
    counter = Counter()
    calls = Calls(counter)
    with counter, atlas.recording(model if isinstance(model, nn.Module) else None) as rec, calls:
        loss_of(model(*args, **kwargs)).backward()
    return rec.graph, calls.rows


@pytest.mark.parametrize("specimen", TRAINED, ids=str)
def test_backward_nodes_belong_to_the_call_that_made_their_number(specimen: Specimen) -> None:
    graph, calls = watched(specimen)
    ops = graph.where(kind="op")
    rank = {node.id: position for position, node in enumerate(ops)}
    ops_of = {number: during for numbers, during in calls for number in numbers if during}
    linked = 0
    for node in ops:
        if node.phase != "backward" or node.sequence_nr not in ops_of:
            continue
        assert node.forward_node is not None, f"{node.name} belongs to no forward node"
        assert rank[node.forward_node.id] in ops_of[node.sequence_nr], f"{node.name} of {node.forward_node.name}"
        linked += 1
    if any(node.phase == "backward" and node.sequence_nr is not None for node in ops):
        assert linked, "nothing was compared"


@pytest.mark.parametrize("specimen", TRAINED, ids=str)
def test_backward_nodes_have_the_module_and_line_of_their_forward_node(specimen: Specimen) -> None:
    graph, _ = watched(specimen)
    for node in graph.where(phase="backward"):
        forward = node.forward_node
        if forward is not None and forward.phase != "backward":
            assert (node.scope, node.call_index, node.source) == (forward.scope, forward.call_index, forward.source)
            assert node in forward.backward_nodes


def numbers_of(tensor: torch.Tensor) -> dict[int, str]:
    """Autograd's own graph: sequence number -> name, without the leaves."""
    found: dict[Any, None] = {}
    waiting = [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found[node] = None
            waiting += [edge[0] for edge in node.next_functions]
    return {node._sequence_nr(): node.name() for node in found if "AccumulateGrad" not in node.name()}


def test_sequence_numbers_are_autograds() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2))
    with atlas.recording(model) as rec:
        loss = model(torch.randn(1, 1, 4, 4)).square().mean()
        truth = numbers_of(loss)
        loss.backward()
    named = {node.sequence_nr: node for node in rec.graph.where(phase="forward") if node.sequence_nr is not None}
    assert {number: name for number, name in truth.items() if number not in named} == {}
    pairs = [(truth[number], node.operation.split(".")[1]) for number, node in sorted(named.items())]
    assert pairs == [
        ("ConvolutionBackward0", "convolution"),
        ("TanhBackward0", "tanh"),
        ("ViewBackward0", "view"),
        ("TBackward0", "t"),
        ("AddmmBackward0", "addmm"),
        ("PowBackward0", "pow"),
        ("MeanBackward0", "mean"),
    ]
    for node in rec.graph.where(phase="backward"):
        if node.sequence_nr is not None:
            assert node.forward_node == named[node.sequence_nr]


def backward_operations(graph: Graph, name: str) -> set[str]:
    return {node.operation.split(".")[1] for node in graph[name].backward_nodes}


def test_which_backward_ops_belong_to_which_forward_op() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 1))
    graph = atlas.capture(model, torch.randn(2, 3, requires_grad=True), backward=True)
    assert backward_operations(graph, "1.sigmoid") - {"detach"} == {"sigmoid_backward"}  # saved outputs are detached
    assert backward_operations(graph, "0.addmm") >= {"mm", "sum"}
    assert {node.scope.path for node in graph["0.addmm"].backward_nodes} == {"0"}
    assert all(node.backward_nodes == [] for node in graph.where(phase="backward"))


def test_a_module_called_twice_has_two_backwards() -> None:
    layer = nn.Linear(3, 3)
    with atlas.recording(layer) as rec:
        layer(torch.tanh(layer(torch.randn(2, 3)))).sum().backward()
    found = defaultdict(set)
    for node in rec.graph.where(operation="mm", phase="backward"):
        assert node.forward_node is not None
        found[node.forward_node.name].add(node.call_index)
    assert found == {"addmm": {0}, "addmm_1": {1}}


def test_an_op_without_gradient_after_a_write_to_a_view_takes_no_number() -> None:
    weight = torch.randn(3, 3, requires_grad=True)
    with atlas.recording() as rec:
        y = weight * 1
        row = y[0]
        row.mul_(2)
        with torch.no_grad():
            y.sin()
        y.sum().backward()
    graph = rec.graph
    assert graph["sin"].sequence_nr is None
    assert graph["sin"].backward_nodes == []
    assert backward_operations(graph, "mul_") >= {"copy_", "mul"}  # CopySlices and MulBackward0


def test_an_in_place_op_keeps_its_backward_though_its_input_is_cloned_first() -> None:
    weight, scale = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    with atlas.recording() as rec:
        y = weight * 1
        y.mul_(scale)  # both are needed by its backward, so autograd clones y before
        y.sum().backward()
    assert "clone" in rec.graph
    assert backward_operations(rec.graph, "mul_") >= {"mul"}
    assert rec.graph["clone"].backward_nodes == []


def test_a_handled_failure_shifts_no_number() -> None:
    weight = torch.randn(3, 3, requires_grad=True)
    with atlas.recording() as rec:
        with pytest.raises(RuntimeError, match="shape"):
            weight @ torch.ones(5, 5)
        y = weight.sin()
        number = y.grad_fn._sequence_nr()
        y.sum().backward()
    assert rec.graph["sin"].sequence_nr == number
    assert backward_operations(rec.graph, "sin") == {"cos", "mul"}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return (grad + grad).neg().neg()


def test_a_custom_functions_backward_belongs_to_its_forward() -> None:
    x = torch.randn(3, requires_grad=True)
    with atlas.recording() as rec:
        Doubled.apply(x).sum().backward()
    assert backward_operations(rec.graph, "mul") == {"add", "neg"}
    assert rec.graph["neg"].source == rec.graph["mul"].source


def test_double_backward_links_to_the_backward_that_built_it() -> None:
    x = torch.randn(3, requires_grad=True)
    with atlas.recording() as rec:
        (first,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
        first.sum().backward()
    chain: list[GraphNode] = [node for node in rec.graph.where(phase="backward") if node.forward_node is not None]
    built = [node for node in chain if node.forward_node in chain]
    assert built, "no node of the second backward belongs to one of the first"


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_backward_has_its_module_and_line(reentrant: bool) -> None:
    block = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    x = torch.randn(2, 3, requires_grad=True)
    with atlas.recording(block) as rec:
        checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    found = [node for node in rec.graph.where(phase="backward") if node.operation.startswith("aten.tanh_backward")]
    assert [node.scope.path for node in found] == ["1"]
    assert found[0].forward_node is not None
    assert found[0].forward_node.operation == "aten.tanh.default"
    assert "checkpoint(block, x" in found[0].source.text
