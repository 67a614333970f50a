"""autograd_graph: the nodes behind a tensor, in the engine's order, with the engine's edges and the leaves' names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.autograd.walk import MOST_NODES, autograd_graph
from torchatlas.graph.columns import faults


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def order_of_the_engine(loss: torch.Tensor) -> list[str]:
    """What really runs, by a hook on every node."""
    ran: list[str] = []
    seen, stack, handles = set(), [loss.grad_fn], []
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        handles.append(node.register_prehook(lambda _, node=node: ran.append(node.name())))
        stack += [following for following, _ in node.next_functions]
    loss.backward()
    for handle in handles:
        handle.remove()
    return ran


@pytest.mark.parametrize("case", ["chain", "residual", "shared", "several outputs", "embedding"])
def test_nodes_come_in_the_order_in_which_the_engine_runs_them(case: str) -> None:
    net, x = model(), torch.randn(3, 4)
    losses = {
        "chain": lambda: net(x).sum(),
        "residual": lambda: (net[0](x) + net[0](x).relu()).mean(),
        "shared": lambda: (net(x) * net(x.exp())).sum(),
        "several outputs": lambda: torch.stack(net(x).unbind(1)[::-1]).pow(2).sum(),
        "embedding": lambda: nn.functional.embedding(torch.tensor([0, 1, 1]), net[0].weight).logsumexp(0).sum(),
    }
    graph = autograd_graph(losses[case]())
    assert [node.operation for node in graph.nodes] == order_of_the_engine(losses[case]())
    assert faults(graph.columns, graph.tables) is None
    assert graph.source == "autograd"


def test_edges_are_next_functions() -> None:
    net, x = model(), torch.randn(3, 4)
    loss = (net(x) * net(x)).sum()
    graph = autograd_graph(loss)
    count, stack, seen = 0, [loss.grad_fn], set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        for following, _ in node.next_functions:
            if following is not None:
                count += 1
                stack.append(following)
    assert len(graph) == len(seen)
    assert len(graph.edges) == count
    first = graph.nodes[0]
    assert first.operation == "SumBackward0"
    assert [edge.value.shape for edge in graph.edges if edge.source.id == 0] == [(3, 2)]


def test_leaves_have_their_names_and_shapes() -> None:
    net = model()
    graph = autograd_graph(net(torch.randn(3, 4)).sum(), model=net)
    leaves = {
        value.parameter: value.shape for value in graph.values if value.producer is None and value.parameter is not None
    }
    assert leaves == {name: tuple(parameter.shape) for name, parameter in net.named_parameters()}
    assert graph.scopes[""].parameters == sum(parameter.numel() for parameter in net.parameters())
    named = autograd_graph(net(torch.randn(3, 4)).sum(), params={"w": net[0].weight})
    assert [value.parameter for value in named.values if value.parameter] == ["w"]


def test_pictures_show_every_node() -> None:
    graph = autograd_graph(model()(torch.randn(3, 4)).sum())
    picture = atlas.draw(graph)
    assert picture.boxes == len(graph)
    assert "AccumulateGrad" in picture.svg


def test_what_has_no_graph() -> None:
    with pytest.raises(atlas.errors.AnalysisError, match="does not require a gradient"):
        autograd_graph(torch.ones(2))
    with pytest.raises(atlas.errors.AnalysisError, match="leaf"):
        autograd_graph(torch.ones(2, requires_grad=True))
    with pytest.raises(atlas.errors.InvalidInputError, match="not float"):
        autograd_graph(3.0)  # type: ignore[arg-type]
    with pytest.raises(atlas.errors.InvalidInputError, match="not list"):
        autograd_graph([])


def test_graphs_too_deep_to_be_freed_after_a_look() -> None:
    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(MOST_NODES + 10):
        y = y + 1
    with pytest.raises(atlas.errors.AnalysisError, match="more than 20,000 nodes"):
        autograd_graph(y)
    del y  # and freeing it now does not end the process
