"""Nodes in Python against torch's own: the same edges, numbers, metadata and gradients."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch

import torchatlas as atlas
from torchatlas.autograd.engine import Edge
from torchatlas.autograd.engine.building import (
    AddBackward,
    MulBackward,
    Node,
    SavedVariable,
    SinBackward,
    SumBackward,
    Variable,
    call,
    collect_next_edges,
    gradient_edge,
)
from torchatlas.errors import AnalysisError, StateError

Shown = list[tuple[str, int, list[tuple[str | None, int]], list[list[int]]]]


def real(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * w
    return ((y.sin() + y) * x).sum()


def mirrored(x: Variable, w: Variable) -> Variable:
    y = call(MulBackward, x, w)
    return call(SumBackward, call(MulBackward, call(AddBackward, call(SinBackward, y), y), x))


def plain(node: Any) -> str:
    return str(node.name()).rpartition("::")[2].removesuffix("0")


def shown(nodes: list[Any], first: int) -> Shown:
    """What can be compared of nodes: names, numbers from the first on, edges, shapes."""
    return [
        (
            plain(node),
            node._sequence_nr() - (first if node.next_functions else 0),
            [(None if edge[0] is None else plain(edge[0]), edge[1]) for edge in node.next_functions],
            [list(metadata.shape) for metadata in node._input_metadata],
        )
        for node in nodes
    ]


@pytest.mark.parametrize("frozen", [False, True])
def test_nodes_in_python_are_as_torchs(frozen: bool) -> None:
    data, factor = torch.randn(3, 1), torch.randn(3, 4)
    x, w = data.clone().requires_grad_(), factor.clone().requires_grad_(not frozen)
    a, b = Variable(data, requires_grad=True), Variable(factor, requires_grad=not frozen)
    loss, ours = real(x, w), mirrored(a, b)
    graph = atlas.autograd_graph(loss)
    task = ours.backward()
    theirs: list[Any] = []
    stack: list[Any] = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in theirs:
            theirs.append(node)
            stack += [target for target, _ in node.next_functions]
    last = ours.grad_fn
    assert last is not None
    of_ours = shown(task.order, last.sequence_nr)
    of_theirs = shown(theirs, loss.grad_fn._sequence_nr())  # type: ignore[union-attr]
    key = repr  # the two lists are in different orders
    assert sorted(of_ours, key=key) == sorted(of_theirs, key=key)
    assert [node.topological_nr for node in task.order] == graph.recorded["topological_nr"].tolist()
    loss.backward()
    assert torch.equal(a.grad, x.grad)  # type: ignore[arg-type]
    assert (b.grad is None and w.grad is None) if frozen else torch.equal(b.grad, w.grad)  # type: ignore[arg-type]


def test_no_node_is_made_where_none_is_needed() -> None:
    x = Variable(torch.ones(2), requires_grad=True)
    assert call(SinBackward, Variable(torch.ones(2))).grad_fn is None
    with torch.no_grad():
        assert call(SinBackward, x).grad_fn is None


def test_graphs_of_a_leaf_share_its_node_and_do_not_keep_it() -> None:
    x = Variable(torch.ones(2), requires_grad=True)
    outputs = [call(SinBackward, x), call(SinBackward, x)]
    first, second = ([edge.node for edge in output.grad_fn.next_functions] for output in outputs if output.grad_fn)
    assert first == second == [gradient_edge(x).node]
    del outputs, first, second
    gc.collect()
    assert x.accumulator is not None
    assert x.accumulator() is None
    assert collect_next_edges(x)[0].node.variable is x


def test_a_number_is_final_once_somebody_stands_above() -> None:
    below, above = Node(), Node()
    above.set_next_edges([Edge(below, 0), Edge(None, 0)])
    assert above.topological_nr == 1
    with pytest.raises(StateError, match="already has a parent"):
        below.add_next_edge(Edge(Node(), 0))


def test_every_thread_counts_its_own_nodes() -> None:
    Node()
    numbers: list[int] = []
    thread = threading.Thread(target=lambda: numbers.extend(Node().sequence_nr for _ in range(2)))
    thread.start()
    thread.join()
    assert numbers == [0, 1]


def test_what_was_saved_is_checked_and_let_go_of() -> None:
    data = torch.ones(2)
    saved = SavedVariable(data)
    assert saved.unpack() is data
    data += 1
    with pytest.raises(AnalysisError, match="at version 1; version 0 was saved"):
        saved.unpack()
    x = Variable(torch.ones(2), requires_grad=True)
    loss = call(SumBackward, call(SinBackward, x))
    assert loss.grad_fn is not None
    loss.grad_fn.next_functions[0].node.release_variables()
    with pytest.raises(StateError, match="let go of"):
        loss.backward()
