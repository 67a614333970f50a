"""Stepping through backward: torch's own gradients and order, wherever one stops and looks."""

from __future__ import annotations

import gc
import math
import signal
import sys
import threading
import warnings
from contextlib import nullcontext
from contextvars import ContextVar
from typing import Any

import children
import pytest
import torch
from autograd.graphs import GRAPHS, build
from autograd.running import assert_same, debugger, differentiate, gradients
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import torchatlas as atlas
from torchatlas.errors import AnalysisError, InvalidInputError, NodeNotFoundError, StateError
from torchatlas.torch_private import saved_tensor_hooks_forbidden

BACKWARD = [name for name in GRAPHS if not build(name).grad]


@pytest.mark.parametrize("how", ["stepping", "running"])
@pytest.mark.parametrize("name", BACKWARD)
def test_gradients_and_order_are_torchs_own(name: str, how: str) -> None:
    expected_case = build(name)
    with atlas.recording_backward() as rec:
        expected = gradients(expected_case, differentiate)
    case = build(name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Using backward\(\) with create_graph=True")
        with debugger(case) as dbg:
            if how == "running":
                assert dbg.run() is None
            else:
                while dbg.step() is not None:
                    assert dbg.current is not None
                    assert len(dbg.ready) + len(dbg.waiting) <= len(dbg.graph)
    assert dbg.finished
    assert_same([tensor.grad for tensor in case.leaves], expected)
    assert case.log == expected_case.log
    ran = [node.operation for run in rec.runs for node in run.graph.nodes]
    assert len(dbg.executed) == len(ran)


def test_the_ready_queue_is_what_runs_next() -> None:
    """Our model of the engine's queue: what runs next was in it, or was fed by the node that just ran."""
    case = build("many_paths")
    with debugger(case) as dbg:
        dbg.step()
        while True:
            assert dbg.current is not None
            ready, waiting = {node.name for node in dbg.ready}, {node.name for node in dbg.waiting}
            fed = {node.name for node in dbg.current.node.successors}
            assert not ready & waiting
            if dbg.step() is None:
                break
            assert dbg.current is not None
            assert dbg.current.name in ready | fed
            numbers = [_turn(node) for node in dbg.ready]
            assert numbers == sorted(numbers, reverse=True)
            assert all(_turn(dbg.current.node) >= number for number in numbers)
            assert ready - {dbg.current.name} <= {node.name for node in dbg.ready}
        assert ready == waiting == set()


def _turn(node: atlas.GraphNode) -> float:
    """What the engine sorts by: what accumulates gradients comes first."""
    return math.inf if node.operation == "AccumulateGrad" else float(node.sequence_nr or 0)


def test_a_deep_graph_that_was_never_run_is_freed() -> None:
    y = x = torch.ones(1, requires_grad=True)
    for _ in range(60_000):
        y = y * 1.0
    dbg = atlas.debug_backward(y)
    assert len(dbg.graph) == 60_001
    del dbg, y
    gc.collect()
    assert x.grad is None


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def recorded() -> tuple[nn.Sequential, torch.Tensor, atlas.Graph]:
    net = model()
    with atlas.recording(net) as rec:
        loss = net(torch.randn(3, 4, generator=torch.Generator().manual_seed(1))).square().mean()
    return net, loss, rec.graph


def test_the_first_step_only_goes_to_the_first_node() -> None:
    net, loss, forward = recorded()
    with atlas.debug_backward(loss, model=net, forward=forward) as dbg:
        assert dbg.current is None
        assert repr(dbg) == f"<backward of {len(dbg.graph)} nodes, not begun>"
        first = dbg.step()
        assert first is not None
        assert (first.name, first.number, dbg.executed) == ("MeanBackward0", 0, [])
        assert torch.equal(dbg.gradients[0], torch.tensor(1.0))
        second = dbg.step()
        assert second is not None
        assert (second.name, dbg.executed) == ("PowBackward0", ["MeanBackward0"])
        fifth = dbg.step(3)
        assert fifth is not None
        assert fifth.number == 4
        assert "in 4" in str(fifth)


def test_modules_names_parameters_and_conditions() -> None:
    net, loss, forward = recorded()
    with atlas.debug_backward(loss, model=net, forward=forward) as dbg:
        modules = []
        while (stop := dbg.next_module()) is not None:
            modules.append(stop.module)
        assert modules == ["", "4", "3", "2", "1", "0"]
    net, loss, _ = recorded()
    with (
        atlas.debug_backward(loss, model=net) as dbg,
        pytest.raises(StateError, match=r"debug_backward\(loss, forward=forward.graph\)"),
    ):
        dbg.next_module()  # it would run to the end without a word
    net, loss, forward = recorded()
    with atlas.debug_backward(loss, model=net, forward=forward) as dbg:
        stop = dbg.run_until("2")
        assert stop is not None
        assert stop.module == "2"
        stop = dbg.run_until("TanhBackward0")
        assert stop is not None
        assert stop.name == "1.TanhBackward0"
        stop = dbg.run_until("0.weight")
        assert stop is not None
        assert (stop.parameter, stop.operation) == ("0.weight", "AccumulateGrad")
        assert stop.gradients[0] is not None
        assert stop.gradients[0].shape == (8, 4)
        assert stop.norm() == pytest.approx(stop.gradients[0].norm().item())
        assert dbg.run_until(lambda stop: False) is None


def test_breakpoints() -> None:
    net, loss, forward = recorded()
    with atlas.debug_backward(loss, model=net, forward=forward) as dbg:
        first = dbg.break_at("TanhBackward0")
        names = []
        while (stop := dbg.run()) is not None:
            names.append(stop.name)
            if len(names) == 2:
                dbg.break_at("0.bias")
                dbg.breakpoints.remove(first)
        assert names == ["3.TanhBackward0", "1.TanhBackward0", "0.AccumulateGrad"]


def test_breakpoints_on_gradients() -> None:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    with atlas.debug_backward((x.sqrt() * 2).sum()) as dbg:
        stop = dbg.run_until(nan=True)
        assert stop is not None
        assert stop.name == "SqrtBackward0"  # not the one after it
        assert stop.made is not None
        assert [each.tolist() for each in stop.made if each is not None] == [[math.inf, 0.5]]
        assert [each.tolist() for each in stop.gradients if each is not None] == [[2.0, 2.0]]
        assert repr(stop).startswith("<Stop after #2 SqrtBackward0")
        assert [node.name for node in dbg.ready] == ["AccumulateGrad"]
        assert dbg.executed[-1] == "SqrtBackward0"
        with pytest.raises(InvalidInputError, match="SqrtBackward0 has run already: step once"):
            dbg.replace(torch.ones(2))
        stop = dbg.step()
        assert stop is not None
        assert (stop.name, stop.made) == ("AccumulateGrad", None)
        dbg.replace(torch.ones(2))
        assert dbg.run() is None
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0]
    x = torch.ones(4, requires_grad=True)
    with atlas.debug_backward((x * 3e38).sum()) as dbg:  # finite, but their sum is not
        assert dbg.run_until(nan=True) is None
    x = torch.tensor([2.0], requires_grad=True)
    with atlas.debug_backward(((x * 100).sin() * 0).sum()) as dbg:
        stop = dbg.run_until(zero=True)
        assert stop is not None
        assert stop.name == "SinBackward0"
    with atlas.debug_backward((x * 100 * 100).sum()) as dbg:
        stop = dbg.run_until(above=99)
        assert stop is not None
        assert stop.norm() == pytest.approx(100)
    with atlas.debug_backward((x * 100 * 100).sum()) as dbg:
        stop = dbg.run_until("AccumulateGrad", above=1e6)
        assert stop is None


def test_every_node_that_makes_nan_and_none_that_hands_it_on() -> None:
    x, y = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    with atlas.debug_backward(((x * 3).sqrt() * 2 + (y * 3).sqrt()).sum()) as dbg:
        dbg.break_at(nan=True)
        stops = []
        while (stop := dbg.run()) is not None:
            stops.append((stop.operation, stop.made is not None))
    assert stops == [("SqrtBackward0", True)] * 2
    assert x.grad is not None


def test_a_node_that_is_asked_for_at_a_stop_before_it() -> None:
    x = torch.zeros(2, requires_grad=True)
    with atlas.debug_backward((x.sqrt() * 2).sum()) as dbg:
        dbg.run_until("SqrtBackward0")
        stop = dbg.run_until(nan=True)
        assert stop is not None
        assert (stop.name, stop.number) == ("SqrtBackward0", 2)
        assert dbg.run_until(nan=True) is None


def test_nan_from_outside_is_where_it_arrives() -> None:
    x = torch.ones(2, requires_grad=True)
    hidden = x * 2
    hidden.register_hook(lambda gradient: gradient * math.nan)
    with atlas.debug_backward((hidden.sin() * 3).sum()) as dbg:
        dbg.break_at(nan=True)
        stop = dbg.run()
        assert stop is not None
        assert (stop.name, stop.made) == ("MulBackward0_1", None)
        assert dbg.run() is None
    with atlas.debug_backward(x * 2, torch.tensor([1.0, math.inf])) as dbg:
        stop = dbg.run_until(nan=True)
        assert stop is not None
        assert (stop.name, stop.made) == ("MulBackward0", None)


def test_nan_made_inside_of_a_checkpoint_is_told_once() -> None:
    x = torch.zeros(2, requires_grad=True)
    hidden = checkpoint(lambda x: (x * 2).sqrt(), x, use_reentrant=True)
    with atlas.debug_backward(hidden.sum()) as dbg:
        dbg.break_at(nan=True)
        stops = []
        while (stop := dbg.run()) is not None:
            stops.append(stop.operation)
    assert stops == ["SqrtBackward0"]


def test_nan_does_not_change_what_is_computed() -> None:
    grads = []
    for watch in (False, True):
        net = model()
        with atlas.debug_backward(net(torch.ones(3, 4)).square().sum()) as dbg:
            if watch:
                dbg.break_at(nan=True)
            dbg.run()
        grads.append([p.grad for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True) if a is not None and b is not None)


def test_a_name_that_is_part_of_others_is_explained() -> None:
    net = model()
    with atlas.recording(net) as rec:
        loss = net(torch.ones(3, 4)).square().sum()
    with atlas.debug_backward(loss, model=net, forward=rec.graph) as dbg:
        with pytest.raises(NodeNotFoundError, match=r"named 'tanh'; did you mean 'TanhBackward0'\?"):
            dbg.run_until("tanh")
        with pytest.raises(NodeNotFoundError, match=r"named 'xyz'; there are AccumulateGrad, Addmm.*, 0\.bias"):
            dbg.break_at("xyz")


def test_a_gradient_can_be_replaced() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with atlas.debug_backward((x.sin() * 3).sum()) as dbg:
        dbg.run_until("SinBackward0")
        dbg.replace(torch.tensor([10.0, 20.0]))
        assert torch.equal(dbg.gradients[0], torch.tensor([10.0, 20.0]))
        dbg.run()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.tensor([10.0, 20.0]) * x.detach().cos())
    with atlas.debug_backward(x.sin().sum()) as dbg:
        dbg.step()
        with pytest.raises(InvalidInputError, match=r"float32 of \[\] on cpu; this is torch.float64 of \[2\] on"):
            dbg.replace(torch.ones(2, dtype=torch.float64))
        with pytest.raises(InvalidInputError, match="there is no number 3"):
            dbg.replace(torch.tensor(1.0), 3)
        with pytest.raises(InvalidInputError, match="not float"):
            dbg.replace(1.0)


def test_aborting() -> None:
    x = torch.ones(2, requires_grad=True)
    loss = x.exp().sin().sum()
    with atlas.debug_backward(loss) as dbg:
        dbg.step(3)
        assert "2 nodes ran: what they saved is freed" in dbg.abort()
    assert x.grad is None
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    loss = x.exp().sin().sum()
    with atlas.debug_backward(loss, retain_graph=True) as dbg:
        dbg.step(3)
        assert "backward can run again" in dbg.abort()
    loss.backward()
    assert x.grad is not None
    with pytest.raises(StateError, match="is over"):
        dbg.step()
    with pytest.raises(StateError, match="no node is about to run"):
        dbg.gradients
    loss = x.exp().sum()
    with atlas.debug_backward(loss) as dbg:
        assert "no node ran" in dbg.abort()
    loss.backward()


def test_leaving_the_block_ends_the_thread_and_takes_hooks_off() -> None:
    x = torch.ones(2, requires_grad=True)
    threads, loss = threading.active_count(), x.exp().sin().sum()
    with atlas.debug_backward(loss, retain_graph=True) as dbg:
        dbg.step(2)
        assert threading.active_count() == threads + 1
    assert threading.active_count() == threads
    with atlas.recording_backward() as rec:
        loss.backward()
    assert len(rec.order) == 4
    assert dbg.finished


def test_one_that_is_dropped_is_aborted() -> None:
    x = torch.ones(2, requires_grad=True)
    threads = threading.active_count()
    dbg = atlas.debug_backward(x.exp().sum(), retain_graph=True)
    dbg.step()
    del dbg
    gc.collect()
    assert threading.active_count() == threads


def test_what_backward_raises_is_raised_where_one_steps() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.sin()
    y.register_hook(lambda gradient: 1 / 0)
    dbg = atlas.debug_backward((y * 2).sum())
    with pytest.raises(ZeroDivisionError):
        dbg.run()
    assert dbg.finished
    loss = x.exp().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time") as caught:
        atlas.debug_backward(loss).run()
    assert "torchatlas was debugging; it happened at #1 ExpBackward0" in caught.value.__notes__[0]


def test_what_a_checkpoint_runs_inside_is_stepped_as_well() -> None:
    net, x = model(), torch.randn(3, 4, requires_grad=True)
    with atlas.debug_backward(checkpoint(net, x, use_reentrant=True).sum(), model=net) as dbg:
        stop = dbg.run_until("TanhBackward0")
        assert stop is not None
        assert len(dbg.graph) > 10
        assert dbg.run_until("0.weight") is not None
    assert net[0].weight.grad is None


def test_only_what_is_wanted_is_ready() -> None:
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with atlas.debug_backward((x.sin() * w.cos()).sum(), inputs=[x]) as dbg:
        dbg.step(3)
        assert [node.operation for node in dbg.ready] == []
        assert dbg.current is not None
        assert dbg.current.name == "SinBackward0"
        dbg.run()
    assert w.grad is None
    assert x.grad is not None


class Look(torch.autograd.Function):
    """Calls a function in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, look: Any) -> torch.Tensor:
        ctx.look = look
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.look()
        return gradient, None


def seen_in_backward(look: Any) -> list[Any]:
    """What a function returns inside of a plain backward, of one that is run in a debugger, and of one in steps."""
    seen: list[Any] = []

    def loss() -> torch.Tensor:
        with torch.enable_grad():
            return Look.apply(torch.ones(2, requires_grad=True), lambda: seen.append(look())).sum()

    torch.autograd.backward(loss())
    with atlas.debug_backward(loss()) as dbg:
        dbg.run()
    with atlas.debug_backward(loss()) as dbg:
        while dbg.step() is not None:
            pass
    return seen


class Function(TorchFunctionMode):
    """Counts what passes. To enter it again would be seen."""

    def __init__(self) -> None:
        self.entered, self.calls, self.passes = 0, 0, 0

    def __enter__(self) -> Any:
        self.entered += 1
        return super().__enter__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        self.passes += func is torch.autograd.backward
        return func(*args, **(kwargs or {}))


class Dispatch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.entered, self.calls = 0, 0

    def __enter__(self) -> Any:
        self.entered += 1
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


SETTING: ContextVar[str] = ContextVar("setting", default="none")
STATES: dict[str, tuple[Any, Any]] = {
    "autocast": (
        lambda: torch.autocast("cpu", torch.float16, cache_enabled=False),
        lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()),
    ),
    "no grad": (torch.no_grad, torch.is_grad_enabled),
    "one thread of the engine": (
        lambda: torch.autograd.set_multithreading_enabled(False),
        torch._C._is_multithreading_enabled,
    ),
    "saved tensors": (
        lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x * 0 + 7, lambda x: x),
        lambda: torch.ones(1, requires_grad=True).exp().grad_fn._saved_result.tolist(),  # type: ignore[union-attr]
    ),
    "no hooks for saved tensors": (
        lambda: torch.autograd.graph.disable_saved_tensors_hooks("not here"),
        saved_tensor_hooks_forbidden,
    ),
    "deterministic": (nullcontext, torch.are_deterministic_algorithms_enabled),
    "default dtype": (nullcontext, torch.get_default_dtype),
    "number of threads": (nullcontext, torch.get_num_threads),
    "variables of the context": (nullcontext, SETTING.get),
}


@pytest.mark.parametrize("name", STATES)
def test_state_of_the_thread_is_taken_along(name: str) -> None:
    enter, look = STATES[name]
    torch.set_num_threads(2)
    token = SETTING.set("mine")
    torch.set_default_dtype(torch.float64)
    try:
        outside = look()
        with enter():
            inside = look()
            plain, run, stepped = seen_in_backward(look if name != "saved tensors" else _with_grad(look))
    finally:
        torch.set_default_dtype(torch.float32)
        SETTING.reset(token)
        torch.set_num_threads(1)
    assert plain == run == stepped
    if enter is not nullcontext:
        assert outside != inside
    if name != "no grad":  # the engine itself turns it off
        assert plain == inside


def _with_grad(look: Any) -> Any:
    def looking() -> Any:
        with torch.enable_grad():
            return look()

    return looking


def test_dispatch_modes_of_the_thread_are_taken_along() -> None:
    mode = Dispatch()

    def look() -> int:
        before = mode.calls
        torch.ones(1) + 1
        return int(mode.calls - before)

    with mode:
        plain, run, stepped = seen_in_backward(look)
    assert plain == run == stepped == 2
    assert mode.entered == 1


def test_function_modes_of_the_thread_are_taken_along() -> None:
    """As by torch: newer versions let them see that backward is called, and turn them off in it; older ones do not."""
    mode = Function()

    def look() -> tuple[int, int]:
        before = mode.calls
        torch.ones(1) + 1
        return mode.passes, mode.calls - before

    with mode:
        found = seen_in_backward(look)
    passes, inside = found[0]
    assert (passes > 0) != (inside > 0)
    assert found == [(passes * count, inside) for count in (1, 2, 3)]
    assert mode.entered == 1


@pytest.mark.parametrize("kind", [Function, Dispatch])
def test_conditions_are_not_seen_by_modes(kind: Any) -> None:
    calls = []
    for condition in (None, {"nan": True, "above": 1e6}):
        with kind() as mode:
            loss = (torch.ones(2, requires_grad=True) * 2).sum()
            before = mode.calls
            with atlas.debug_backward(loss) as dbg:
                if condition is not None:
                    dbg.break_at(**condition)
                dbg.run()
            calls.append(mode.calls - before)
    assert calls[0] == calls[1]


def test_a_recording_sees_each_op_of_a_debugged_backward_once() -> None:
    def operations(debugged: bool) -> list[str]:
        net = model()
        with atlas.recording(net) as rec:
            loss = net(torch.ones(3, 4)).sum()
            if debugged:
                with atlas.debug_backward(loss) as dbg:
                    dbg.run()
            else:
                loss.backward()
        return [node.operation for node in rec.graph.where(kind="op")]

    assert operations(debugged=True) == operations(debugged=False)


def test_a_transform_cannot_wait_in_another_thread() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        atlas.debug_backward((x * 2).sum())
        return x.sum()

    with pytest.raises(StateError, match=r"inside of torch.func.grad.*recording_backward"):
        torch.func.grad(function)(torch.ones(2))


def test_names_that_do_not_exist() -> None:
    net, loss, forward = recorded()
    with atlas.debug_backward(loss, model=net, forward=forward) as dbg:
        with pytest.raises(NodeNotFoundError, match=r"did you mean '3\.TanhBackward0'"):
            dbg.run_until("3.TanBackward0")
        with pytest.raises(InvalidInputError, match="a name or a function, not int"):
            dbg.break_at(3)
        with pytest.raises(InvalidInputError, match="say where to stop"):
            dbg.break_at()
        with pytest.raises(InvalidInputError, match="from 1, not 0"):
            dbg.step(0)
    with pytest.raises(AnalysisError, match="does not require a gradient"):
        atlas.debug_backward(torch.ones(2))


def test_things_may_be_given_for_their_names() -> None:
    net, loss, forward = recorded()
    with atlas.debug_backward(loss, params=net.named_parameters(), model=net, forward=forward) as dbg:
        points = [dbg.break_at(net[2]), dbg.break_at(dbg.graph["1.TanhBackward0"]), dbg.break_at(net[0].bias)]
        assert [str(point) for point in points] == ["2", "1.TanhBackward0", "0.bias"]
        while (stop := dbg.run()) is not None:
            assert stop.module in ("2", "1", "0")
        assert [point.hits for point in points] == [4, 1, 1]
        with pytest.raises(InvalidInputError, match="this Sequential is the whole model"):
            dbg.break_at(net)
        with pytest.raises(InvalidInputError, match="this Linear is not in the model"):
            dbg.break_at(nn.Linear(1, 1))
        with pytest.raises(InvalidInputError, match="this tensor has no name"):
            dbg.break_at(torch.ones(1))
        with pytest.raises(InvalidInputError, match="a name or a function, not Linear"):
            dbg.break_at(nn.Linear)
    dbg = atlas.debug_backward(net(torch.ones(1, 4)).sum(), model=net)
    with pytest.raises(NodeNotFoundError, match=r"named '2'; did you mean '2\.bias' .* Modules are known with"):
        dbg.break_at(net[2])
    dbg = atlas.debug_backward(net(torch.ones(1, 4)).sum())
    with pytest.raises(InvalidInputError, match=r"which of the modules this Linear is .* pass model="):
        dbg.break_at(net[2])


def test_numbers_that_are_none() -> None:
    x = torch.ones(2, requires_grad=True)
    with atlas.debug_backward(x.exp().sum()) as dbg:
        for count in ("2", 1.5, None):
            with pytest.raises(InvalidInputError, match="the number of nodes to run is a whole number, not"):
                dbg.step(count)
        for above in ("1", math.nan, [1.0]):
            with pytest.raises(InvalidInputError, match="`above` is a number, not"):
                dbg.break_at(above=above)
        dbg.step()
        with pytest.raises(InvalidInputError, match="the index of a gradient is a whole number, not '0'"):
            dbg.replace(torch.tensor(1.0), "0")
        assert dbg.executed == []


def test_what_torch_would_not_take_for_a_gradient() -> None:
    """It would refuse it after the fact, and end the pass."""
    w = torch.ones(3, 2, requires_grad=True)
    with atlas.debug_backward(nn.functional.embedding(torch.tensor([1]), w, sparse=True).sum()) as dbg:
        dbg.step()
        with pytest.raises(InvalidInputError, match="1 gradient arrives at this node; there is no number 1"):
            dbg.replace(torch.tensor(1.0), 1)
        with pytest.raises(InvalidInputError, match=r"on cpu; this is torch.float32 of \[\] on meta"):
            dbg.replace(torch.tensor(1.0, device="meta"))
        dbg.run_until("AccumulateGrad")
        with pytest.raises(InvalidInputError, match=r"is torch.sparse_coo torch.float32 of \[3, 2\] on"):
            dbg.replace(torch.ones(3, 2))
        dbg.replace(dbg.gradients[0] * 5)
        dbg.run()
    assert w.grad is not None
    assert w.grad.to_dense().tolist() == [[0, 0], [5, 5], [0, 0]]


class Half(torch.autograd.Function):
    """Two results, of which one may not be used."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 1, x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[1] * 2


def test_a_gradient_that_does_not_arrive_cannot_be_replaced() -> None:
    with atlas.debug_backward(Half.apply(torch.ones(2, requires_grad=True))[1].sum()) as dbg:
        dbg.run_until("HalfBackward")
        assert dbg.gradients[0] is None
        with pytest.raises(InvalidInputError, match="no gradient arrives as number 0"):
            dbg.replace(torch.ones(2))
        assert dbg.run() is None


def test_a_recording_may_be_given_for_its_graph() -> None:
    net = model()
    with atlas.recording(net) as rec:
        loss = net(torch.ones(3, 4)).sum()
        with pytest.raises(StateError, match="is still running: leave its block first"):
            atlas.debug_backward(loss, forward=rec)
    with atlas.debug_backward(loss, model=net, forward=rec) as dbg:
        stop = dbg.next_module()
        assert stop is not None
        stop = dbg.next_module()
        assert stop is not None
        assert stop.module == "4"
    with pytest.raises(InvalidInputError, match="`forward` is the graph of a recording, not Sequential"):
        atlas.debug_backward(loss, forward=net)


def test_arguments_in_the_wrong_place() -> None:
    net = model()
    with pytest.raises(InvalidInputError, match=r"not Sequential: the model is named, debug_backward\(loss, model="):
        atlas.debug_backward(net(torch.ones(3, 4)).sum(), net)
    with pytest.raises(InvalidInputError, match="`params` are names and tensors"):
        atlas.debug_backward(net(torch.ones(3, 4)).sum(), params=net.parameters())
    with pytest.raises(InvalidInputError, match=r"`indent` is a number, not Sequential.*print_graph\(loss, model="):
        atlas.print_graph(net(torch.ones(3, 4)).sum(), net)


def test_an_edge_is_one_output() -> None:
    x = torch.ones(2, requires_grad=True)
    with atlas.debug_backward(torch.autograd.graph.get_gradient_edge(x.exp().sum())) as dbg:
        dbg.run()
    assert dbg.executed == ["SumBackward0", "ExpBackward0", "AccumulateGrad"]


PROGRAM = """
import os, signal, time, torch, torchatlas as atlas
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has background jobs ignore it
x = torch.ones(2, requires_grad=True)
loss = x.exp().sin().sum()
dbg = atlas.debug_backward(loss, retain_graph=True)
{}
"""


@pytest.mark.parametrize(
    "end",
    [
        "dbg.step(2)\nprint('fine')",  # and the process ends while it waits
        "def slow(stop):\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(0.2)\n    return False\n"
        "try:\n    dbg.run_until(slow)\nexcept KeyboardInterrupt:\n    pass\n"
        "assert dbg.current is not None\ndbg.run()\nassert x.grad is not None\nloss.backward()\nprint('fine')",
    ],
)
def test_the_end_of_the_process_and_interrupts_leave_torch_healthy(end: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(end)]
    # On torch 2.12.1 a process in which another thread ran backward may abort at its end, also without us.
    aborts = [-signal.SIGABRT] if torch.__version__.startswith("2.12.") else []
    (printed,) = children.run(command, codes=(0, -signal.SIGINT, *aborts))
    assert printed.out == "fine\n"
