"""Watching the engine: the private parts of torch it stands on, and who may come and go."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchatlas.autograd import engine_observer
from torchatlas.autograd.engine_observer import EngineRun, Gradients, watched
from torchatlas.torch_private import current_autograd_node


class Everything:
    """Sees every node's gradients and those on edges, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.tasks: list[EngineRun] = []

    def begin(self, task: EngineRun) -> None:
        self.told.append("begin")
        self.tasks.append(task)

    def before(self, task: EngineRun, node: int, gradients: Gradients) -> Gradients | None:
        self.told.append(("before", type(task.nodes[node]).__name__, len(gradients)))
        return None

    def passing(self, task: EngineRun) -> Callable[[int], bool]:
        return lambda node: True

    def edges(self, task: EngineRun) -> Callable[[int, torch.Tensor], None] | None:
        def see(edge: int, gradient: torch.Tensor) -> None:
            ends = (task.nodes[task.edges.source[edge]], task.nodes[task.edges.target[edge]])
            self.told.append(("edge", *(type(node).__name__ for node in ends), gradient.tolist()))

        return see

    def end(self, task: EngineRun, error: BaseException | None) -> None:
        self.told.append(("end", type(error).__name__))


class Glances(Everything):
    """Wants to see the gradients of some."""

    def __init__(self, wanted: str) -> None:
        super().__init__()
        self.wanted = wanted

    def edges(self, task: EngineRun) -> None:
        return None

    def passing(self, task: EngineRun) -> Callable[[int], bool]:
        def passes(node: int) -> bool:
            name = type(task.nodes[node]).__name__
            self.told.append(("passing", name))
            return name == self.wanted

        return passes


def test_a_node_takes_the_hooks_of_a_tensor() -> None:
    """`_register_hook_dict`, `_backward_hooks`, and what the engine knows while such a hook runs."""
    x = torch.ones(2, requires_grad=True)
    y = x.sin()
    node, seen = y.grad_fn, []
    tensor = torch.empty(0)
    tensor._backward_hooks = hooks = {
        0: lambda gradient: seen.append((gradient.tolist(), current_autograd_node(), torch._C._current_graph_task_id()))
    }
    assert node is not None
    node._register_hook_dict(tensor)  # type: ignore[attr-defined]
    y.sum().backward(retain_graph=True)
    ((gradient, current, number),) = seen
    assert gradient == [1.0, 1.0]
    assert current is node
    assert number >= 0
    assert torch._C._current_graph_task_id() == -1
    hooks.clear()
    y.sum().backward()
    assert len(seen) == 1


def test_a_hook_registered_at_the_bell_runs_for_the_same_node() -> None:
    x = torch.ones(2, requires_grad=True)
    with watched(observer := Glances("SinBackward0")):
        x.exp().sin().sum().backward()
    assert observer.told == [
        "begin",
        ("passing", "SumBackward0"),
        ("passing", "SinBackward0"),
        ("before", "SinBackward0", 1),
        ("passing", "ExpBackward0"),
        ("before", "AccumulateGrad", 1),  # there is no bell on it
        ("end", "NoneType"),
    ]


@pytest.mark.parametrize("options", [{"retain_graph": True}, {"inputs": []}])
def test_gradients_are_shown_of_what_may_run_again_or_not_at_all(options: dict[str, Any]) -> None:
    x = torch.ones(2, requires_grad=True)
    loss = x.exp().sin().sum()
    if "inputs" in options:
        options = {"inputs": [x]}
    with watched(observer := Glances("SinBackward0")):
        loss.backward(**options)
    names = ["SumBackward0", "SinBackward0", "ExpBackward0", "AccumulateGrad"]
    assert observer.told == ["begin", *(("before", name, 1) for name in names), ("end", "NoneType")]
    (task,) = observer.tasks
    assert [type(task.nodes[place]).__name__ for place in task.ran] == names


@pytest.mark.parametrize("options", [{}, {"retain_graph": True}])
def test_gradients_on_edges_are_seen_as_they_arrive_or_where_they_meet_as_they_were_made(options: Any) -> None:
    x = torch.ones(2, requires_grad=True)
    with watched(observer := Everything()):
        (x * x.sin()).sum().backward(**options)
    wave, slope = torch.ones(2).sin().tolist(), torch.ones(2).cos().tolist()
    assert [each for each in observer.told if each[0] == "edge"] == [
        ("edge", "SumBackward0", "MulBackward0", [1.0, 1.0]),
        ("edge", "MulBackward0", "AccumulateGrad", wave),
        ("edge", "MulBackward0", "SinBackward0", [1.0, 1.0]),
        ("edge", "SinBackward0", "AccumulateGrad", slope),
    ]


@pytest.mark.parametrize("options", [{}, {"retain_graph": True}])
def test_gradients_that_arrive_at_other_inputs_than_the_first_are_seen(options: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    with watched(observer := Everything()):
        first, second, third = x.exp().unbind()
        (first.sin() + second.cos() * 2.0 + third).backward(**options)
    into = [each for each in observer.told if each[:3:2] == ("edge", "UnbindBackward0")]
    e = torch.ones(()).exp()
    assert sorted(into) == sorted(
        [
            ("edge", "SinBackward0", "UnbindBackward0", e.cos().item()),
            ("edge", "CosBackward0", "UnbindBackward0", (-2 * e.sin()).item()),
            ("edge", "AddBackward0", "UnbindBackward0", 1.0),
        ]
    )


def test_what_backward_begins_with_is_on_no_edge_and_meets_what_arrives() -> None:
    x = torch.ones(2, requires_grad=True)
    inner = x.sin()
    with watched(observer := Everything()):
        torch.autograd.backward([inner, inner.exp()], [torch.full((2,), 5.0), torch.ones(2)])
    into = [each for each in observer.told if each[:3:2] == ("edge", "SinBackward0")]
    assert into == [("edge", "ExpBackward0", "SinBackward0", inner.exp().tolist())]


def test_those_who_watch_may_leave_in_any_order() -> None:
    engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    x = torch.ones(2, requires_grad=True)
    first, second = Everything(), Everything()
    watches = watched(first), watched(second)
    for watch in watches:
        watch.__enter__()
    x.sin().sum().backward()
    watches[0].__exit__(None, None, None)
    x.cos().sum().backward()
    watches[1].__exit__(None, None, None)
    assert (first.told.count("begin"), second.told.count("begin")) == (1, 2)
    assert torch.autograd._engine_run_backward is engine  # type: ignore[attr-defined]
    assert engine_observer._watchers == engine_observer._patch == []


def test_nothing_keeps_the_graph_after_it_was_watched() -> None:
    x = torch.ones(2, requires_grad=True)
    loss = x.exp().sum()
    with watched(observer := Glances("")):
        loss.backward()
    assert loss.grad_fn is not None
    freed: list[str] = []

    class Token:
        def __del__(self) -> None:
            freed.append("freed")

    loss.grad_fn.metadata["token"] = Token()
    observer.tasks.clear()
    del loss
    gc.collect()
    assert freed == ["freed"]
