"""Recordings that begin and end in odd places: coroutines, generators, hooks, steps, other recordings, other processes.

A recording is of a thread: it sees all that its thread runs between its beginning and its end, whoever runs it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import torchatlas as atlas
from torchatlas.capturing import patches
from torchatlas.errors import StateError
from torchatlas.graph import Graph


def operations(graph: Graph) -> list[str]:
    return [node.operation.split(".")[1] for node in graph.where(kind="op")]


def places(graph: Graph) -> list[tuple[str, str, str]]:
    """Operation, scope and phase of every op."""
    return [(node.operation.split(".")[1], node.scope.path, str(node.phase)) for node in graph.where(kind="op")]


class Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.append(str(func).split(".")[1])
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """What a recording changes of the process is as before; conftest.py looks for modes on the stack."""
    before = patched()
    yield
    assert not patches._WATCHES
    assert patched() == before


def patched() -> list[Any]:
    return [
        nn.Module._call_impl,
        torch.autograd.backward,
        torch.autograd.graph.saved_tensors_hooks.__exit__,
        torch.Tensor.data,
        vars(threading.Thread)["start"],
        vars(threading.Thread)["_bootstrap_inner"],
        torch.utils._python_dispatch._is_in_torch_dispatch_mode,
        torch.utils._python_dispatch._is_in_non_infra_torch_dispatch_mode,
        gc.get_threshold(),
    ]


# -- coroutines ------------------------------------------------------------------------------------------------------


async def interleaved(model: nn.Module, turns: list[str], name: str) -> Tensor:
    """Calls a model and lets others run, again and again."""
    x = torch.ones(1, 2)
    for _ in range(3):
        turns.append(name)
        x = model(x)
        await asyncio.sleep(0)
    return x


def test_coroutines_that_take_turns_keep_their_modules_apart() -> None:
    models = nn.ModuleDict({name: nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for name in ("a", "b")})

    async def main(turns: list[str]) -> list[Tensor]:
        return await asyncio.gather(*(interleaved(models[name], turns, name) for name in "ab"))

    eager = asyncio.run(main([]))
    turns: list[str] = []
    with Names() as names, atlas.recording(models) as rec:
        found = asyncio.run(main(turns))
    assert turns == ["a", "b"] * 3
    assert all(torch.equal(one, other) for one, other in zip(found, eager, strict=True))
    assert operations(rec.graph) == names.found
    tanh = rec.graph.where(operation="tanh")
    assert [(node.scope.path, node.call_index) for node in tanh] == [
        (f"{name}.1", turn) for turn in range(3) for name in "ab"
    ]
    for node in tanh[2:]:
        layer = node.predecessors[0]
        assert (layer.scope.path, layer.call_index) == (node.scope.path.replace(".1", ".0"), node.call_index)


def test_a_recording_of_one_coroutine_sees_the_others_of_its_thread() -> None:
    """That is what it means to be of a thread; use a thread of its own to tell them apart."""

    async def records() -> Graph:
        with atlas.recording() as rec:
            torch.ones(1).sin()
            await asyncio.sleep(0)
            torch.ones(1).cos()
        return rec.graph

    async def computes() -> None:
        torch.ones(1).exp()
        await asyncio.sleep(0)
        torch.ones(1).log()

    async def main() -> Graph:
        return (await asyncio.gather(records(), computes()))[0]

    assert operations(asyncio.run(main())) == ["ones", "sin", "ones", "exp", "ones", "cos"]


def test_recordings_of_two_coroutines_that_overlap_are_an_error_that_leaves_nothing() -> None:
    async def records(turns: int, name: str) -> Graph:
        with atlas.recording() as rec:
            for _ in range(turns):
                getattr(torch.ones(1), name)()
                await asyncio.sleep(0)
        return rec.graph

    async def main() -> list[Any]:
        return await asyncio.gather(records(1, "sin"), records(2, "cos"), return_exceptions=True)

    first, second = asyncio.run(main())
    assert isinstance(first, StateError)
    assert "reverse order" in str(first)
    assert operations(second) == ["ones", "cos", "ones", "cos"]
    with atlas.recording() as after:
        torch.ones(1)
    assert operations(after.graph) == ["ones"]


def test_work_sent_to_a_thread() -> None:
    model = nn.Linear(2, 2)

    async def main() -> Tensor:
        return await asyncio.to_thread(model, torch.ones(1, 2))

    with atlas.recording(model) as rec:
        found = asyncio.run(main())
    assert torch.equal(found, model(torch.ones(1, 2)))
    assert operations(rec.graph) == ["ones", "t", "addmm"]
    assert rec.graph["addmm"].scope.type == "Linear"
    assert rec.graph["addmm"].thread != rec.graph["ones"].thread


def test_a_module_whose_forward_is_a_coroutine_has_left_when_it_runs() -> None:
    class Awaited(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        async def forward(self, x: Tensor) -> Tensor:
            await asyncio.sleep(0)
            return self.layer(x).sin()

    model = Awaited()
    with atlas.recording(model) as rec:
        asyncio.run(model(torch.ones(1, 2)))
    assert rec.graph.scopes[""].calls == 1
    assert [(node.scope.path, node.scope.calls) for node in rec.graph.where(operation="addmm")] == [("layer", 1)]
    assert operations(rec.graph) == ["ones", "t", "addmm", "sin"]


# -- generators ------------------------------------------------------------------------------------------------------


def test_a_module_whose_forward_is_a_generator() -> None:
    class Streams(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Iterator[Tensor]:
            for _ in range(3):
                x = self.layer(x)
                yield x

    model = Streams()
    with atlas.recording(model) as rec:
        for y in model(torch.ones(1, 2)):
            y.exp()
    assert [place[:2] for place in places(rec.graph) if place[0] in ("addmm", "exp")] == [
        ("addmm", "layer"),
        ("exp", ""),
    ] * 3
    assert [node.call_index for node in rec.graph.where(operation="addmm")] == [0, 1, 2]


def recording_between_yields(recs: list[Any]) -> Iterator[None]:
    with atlas.recording() as rec:
        recs.append(rec)
        torch.ones(1).sin()
        yield
        torch.ones(1).cos()


def test_a_recording_in_a_generator_sees_what_runs_between_its_turns() -> None:
    recs: list[Any] = []
    for _ in recording_between_yields(recs):
        torch.ones(1).exp()
    assert operations(recs[0].graph) == ["ones", "sin", "ones", "exp", "ones", "cos"]


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_a_recording_in_a_generator_that_does_not_go_on(how: str) -> None:
    recs: list[Any] = []
    generator = recording_between_yields(recs)
    next(generator)
    if how == "closed":
        generator.close()
    del generator
    torch.ones(1).exp()
    assert not recs[0].running
    assert operations(recs[0].graph) == ["ones", "sin"]


def test_a_recording_in_an_asynchronous_generator() -> None:
    recs: list[Any] = []

    async def numbers() -> AsyncIterator[int]:
        with atlas.recording() as rec:
            recs.append(rec)
            for number in range(2):
                torch.ones(1).sin()
                yield number
                await asyncio.sleep(0)

    async def main() -> None:
        async for _ in numbers():
            torch.ones(1).exp()

    asyncio.run(main())
    assert operations(recs[0].graph) == ["ones", "sin", "ones", "exp"] * 2


# -- recordings in recordings ----------------------------------------------------------------------------------------


def model_and_input() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), torch.randn(2, 2)


def state_of(model: nn.Module) -> list[Tensor]:
    return [tensor.clone() for tensor in model.state_dict().values()]


def test_a_capture_inside_a_recording() -> None:
    model, x = model_and_input()
    before = state_of(model)
    alone = atlas.capture(model, x, optimizer=torch.optim.SGD)
    with Names() as names, atlas.recording(model) as rec:
        inner = atlas.capture(model, x, optimizer=torch.optim.SGD)
    assert inner == alone
    assert operations(rec.graph) == operations(inner) == [name for name in names.found if "record_function" not in name]
    assert [place[1:] for place in places(rec.graph)] == [place[1:] for place in places(inner)]
    assert all(torch.equal(one, other) for one, other in zip(state_of(model), before, strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_recording_inside_a_capture() -> None:
    model, x = model_and_input()
    inner: list[Any] = []

    def function(x: Tensor) -> Tensor:
        with atlas.recording(model) as rec:
            y = model(x)
        inner.append(rec)
        return y.exp()

    graph = atlas.capture(function, x, backward=True)
    assert operations(inner[0].graph) == ["t", "addmm", "tanh", "detach", "t", "addmm"]
    assert operations(graph)[:7] == [*operations(inner[0].graph), "exp"]
    assert {node.scope.path for node in graph.where(operation="tanh_backward")} == {"1"}


def test_a_capture_of_a_function_that_captures() -> None:
    model, x = model_and_input()
    inner: list[Graph] = []

    def function(x: Tensor) -> Tensor:
        inner.append(atlas.capture(model, x, backward=True))
        return model(x)

    graph = atlas.capture(function, x)
    alone = atlas.capture(model, x, backward=True)
    assert inner[0] == alone
    assert operations(graph) == [*operations(alone), "t", "addmm", "tanh", "detach", "t", "addmm"]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_module_that_captures_itself_in_its_forward() -> None:
    class Curious(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = nn.Linear(2, 2), []

        def forward(self, x: Tensor) -> Tensor:
            if not self.seen:
                self.seen.append(atlas.capture(self.layer, x))
            return self.layer(x)

    model, x = Curious(), torch.randn(1, 2)
    with atlas.recording(model) as rec:
        model(x)
    assert operations(model.seen[0]) == ["t", "addmm"]
    assert [(node.scope.path, node.call_index) for node in rec.graph.where(operation="addmm")] == [
        ("layer", 0),
        ("layer", 1),
    ]


def test_recordings_left_in_the_wrong_order_leave_nothing() -> None:
    outer, inner = atlas.recording(), atlas.recording()
    outer.__enter__()
    inner.__enter__()
    torch.ones(1)
    with pytest.raises(StateError, match="reverse order"):
        outer.__exit__(None, None, None)
    assert not outer.running
    torch.zeros(1)
    inner.__exit__(None, None, None)
    assert operations(outer.graph) == ["ones"]
    assert operations(inner.graph) == ["ones", "zeros"]


# -- recordings that begin in the middle -----------------------------------------------------------------------------


def test_a_recording_inside_a_modules_forward() -> None:
    class Records(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.recs = nn.Linear(2, 2), []

        def forward(self, x: Tensor) -> Tensor:
            with atlas.recording(self) as rec:
                y = self.layer(x).sin()
            self.recs.append(rec)
            return y

    model = Records()
    model(torch.ones(1, 2))
    assert places(model.recs[0].graph) == [
        ("t", "layer", "forward"),
        ("addmm", "layer", "forward"),
        ("sin", "", "forward"),
    ]


def test_a_recording_that_begins_in_a_forward_and_ends_after_it() -> None:
    recs: list[Any] = []

    class Begins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            recs.append(atlas.recording(self).start())
            return self.layer(x).exp()

    model = Begins()
    y = model(torch.ones(1, 2))
    y.sum().backward()
    recs[0].stop()
    graph = recs[0].graph
    assert operations(graph)[:4] == ["t", "addmm", "exp", "detach"]
    assert [node.forward_node.name for node in graph.where(operation="mm")] == ["layer.addmm"]
    model.zero_grad()


def test_a_recording_that_ends_in_a_forward_it_began_before() -> None:
    class Ends(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.sin()
            rec.stop()
            return y.cos()

    rec = atlas.recording().start()
    nn.Sequential(Ends(), nn.Tanh())(torch.ones(1))
    assert places(rec.graph) == [("ones", "", "forward"), ("sin", "0", "forward")]


def backward_with(hook: Any) -> Tensor:
    """The gradient of x.sin().exp() at 1, with a hook in the middle."""
    x = torch.ones(1, requires_grad=True)
    y = x.sin()
    y.register_hook(hook)
    y.exp().sum().backward()
    return x.grad


EAGER = torch.ones(1).sin().exp() * torch.ones(1).cos()


def test_a_recording_inside_a_hook() -> None:
    recs: list[Any] = []

    def hook(gradient: Tensor) -> Tensor:
        with atlas.recording() as rec:
            changed = gradient * 2
        recs.append(rec)
        return changed

    assert torch.equal(backward_with(hook), 2 * EAGER)
    assert places(recs[0].graph) == [("mul", "", "backward")]
    assert recs[0].graph["mul"].forward_node is None


def test_a_recording_that_begins_in_a_hook_and_ends_after_backward() -> None:
    """torch puts back the modes that ran before the hook, and with it ends the recording."""
    recs: list[Any] = []
    gradient = backward_with(lambda gradient: recs.append(atlas.recording().start()))
    assert torch.equal(gradient, EAGER)
    with pytest.raises(StateError, match="began inside a backward pass"):
        recs[0].stop()
    assert operations(recs[0].graph) == ["cos", "mul"]  # the rest of the node whose hook it was
    with pytest.raises(StateError, match="not running"):
        recs[0].stop()


@pytest.mark.parametrize("ask", [True, False])
def test_a_recording_that_ends_in_a_hook(ask: bool) -> None:
    """torch puts it back, too; it must be silent, and gone after backward."""

    def hook(gradient: Tensor) -> None:
        gradient.neg()
        rec.stop()
        if ask:
            rec.graph

    rec = atlas.recording().start()
    gradient = backward_with(hook)
    assert not _get_current_dispatch_mode_stack()
    torch.ones(1).log()
    assert torch.equal(gradient, EAGER)
    assert operations(rec.graph)[-2:] == ["mul", "neg"]
    assert "cos" not in operations(rec.graph)
    with atlas.recording() as after:
        torch.ones(1).tan()
    assert operations(after.graph) == ["ones", "tan"]


def test_a_recording_that_ends_in_a_hook_of_autograd_grad_is_gone_with_the_next() -> None:
    rec = atlas.recording().start()
    x = torch.ones(1, requires_grad=True)
    y = x.sin()
    y.register_hook(lambda gradient: rec.stop())
    torch.autograd.grad(y.sum(), x)
    torch.ones(1).log()
    assert "log" not in operations(rec.graph)
    with atlas.recording() as after:
        torch.ones(1).tan()
    assert operations(after.graph) == ["ones", "tan"]


def test_a_recording_inside_a_functions_backward() -> None:
    recs: list[Any] = []

    class Records(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, slope: Tensor) -> Tensor:
            with atlas.recording() as rec:
                result = slope * 2
            recs.append(rec)
            return result

    x = torch.ones(1, requires_grad=True)
    with atlas.recording() as outer:
        Records.apply(x).sum().backward()
    assert places(recs[0].graph) == [("mul", "", "backward")]
    assert [node.forward_node and node.forward_node.name for node in outer.graph.where(phase="backward")][-2] == "mul"


def test_a_recording_inside_an_optimizer_step() -> None:
    """It does not know that a step runs: what touches no gradient is forward to it."""
    recs: list[Any] = []

    class Records(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            with atlas.recording() as rec:
                for parameter in self.param_groups[0]["params"]:
                    parameter.mul_(0.5)
            recs.append(rec)
            parameter.add_(1.0)

    model = nn.Linear(1, 1, bias=False)
    Records(model.parameters()).step()
    assert places(recs[0].graph) == [("mul_", "", "forward")]
    with atlas.recording(model) as outer:
        Records(model.parameters()).step()
        torch.ones(1).exp()
    assert places(outer.graph) == [
        ("mul_", "Records", "optimizer"),
        ("add_", "Records", "optimizer"),
        ("ones", "", "forward"),
        ("exp", "", "forward"),
    ]


@pytest.mark.parametrize("begins", [True, False], ids=["begins", "ends"])
def test_a_recording_that_begins_or_ends_in_a_step_hook(begins: bool) -> None:
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    rec = atlas.recording()
    optimizer.register_step_pre_hook(lambda *_: rec.start() and None if begins else rec.stop())
    if not begins:
        rec.start()
    torch.ones(1).sin()
    optimizer.step()
    torch.ones(1).cos()
    if begins:
        rec.stop()
    assert parameter.item() == 0.5
    assert operations(rec.graph) == (["add_", "ones", "cos"] if begins else ["ones", "sin"])
    assert str(rec.graph.nodes[-1].phase) == "forward"


# -- threads and the end of things -----------------------------------------------------------------------------------


def in_thread(function: Any) -> None:
    thread = threading.Thread(target=function, name="worker")
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_a_recording_is_left_in_the_thread_that_entered_it() -> None:
    errors: list[str] = []

    def leave() -> None:
        try:
            rec.stop()
        except StateError as error:
            errors.append(str(error))

    rec = atlas.recording().start()
    in_thread(leave)
    torch.ones(1)
    rec.stop()
    assert len(errors) == 1
    assert "began in thread 'MainThread'" in errors[0]
    assert "'worker'" in errors[0]
    assert operations(rec.graph) == ["ones"]


def test_a_recording_whose_thread_has_ended_can_be_left_anywhere() -> None:
    recs: list[Any] = []

    def enter() -> None:
        recs.append(atlas.recording().start())
        torch.ones(1).sin()

    in_thread(enter)
    assert recs[0].running
    torch.ones(1).cos()
    recs[0].stop()
    assert operations(recs[0].graph) == ["ones", "sin"]


def test_a_with_statement_that_ends_in_another_thread() -> None:
    """A generator may be carried on elsewhere; the thread it began in goes on unrecorded."""
    recs: list[Any] = []
    errors: list[BaseException] = []

    def carry_on() -> None:
        try:
            next(generator)
        except BaseException as error:
            errors.append(error)

    generator = recording_between_yields(recs)
    next(generator)
    in_thread(carry_on)
    torch.ones(1).exp()
    assert isinstance(errors[0], StateError)
    assert not recs[0].running
    assert operations(recs[0].graph) == ["ones", "sin", "ones", "cos"]
    with atlas.recording() as after:
        torch.ones(1).tan()
    assert operations(after.graph) == ["ones", "tan"]


@pytest.mark.parametrize("coarse", [False, True])
def test_a_recording_that_is_dropped_while_it_runs_ends(coarse: bool) -> None:
    model, x = model_and_input()
    rec = atlas.recording(model, track_tensor_ops=not coarse).start()
    model(x)
    reference = weakref.ref(rec)
    with pytest.warns(ResourceWarning, match="dropped while it ran"):
        del rec
    assert reference() is None
    model(x)
    with atlas.recording(model) as after:
        model(x)
    assert len(after.graph.where(operation="tanh")) == 1


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_ends_a_program_ends_a_recording(error: type[BaseException]) -> None:
    def program() -> None:
        torch.ones(1).sin()
        if error is SystemExit:
            sys.exit(3)
        raise error

    with pytest.raises(error), atlas.recording() as rec:
        program()
    assert not rec.running
    assert operations(rec.graph) == ["ones", "sin"]


def test_an_interrupt_in_the_middle_of_backward() -> None:
    model, x = model_and_input()

    def interrupt(gradient: Tensor) -> None:
        signal.raise_signal(signal.SIGINT)

    def program() -> None:
        y = model(x)
        y.register_hook(interrupt)
        y.sum().backward()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt), atlas.recording(model) as rec:
            program()
    finally:
        signal.signal(signal.SIGINT, before)
    assert operations(rec.graph)[-2:] == ["ones_like", "expand"]
    assert all(parameter.grad is None for parameter in model.parameters())


# -- other processes -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_goes_on_recording_for_itself() -> None:
    model, x = model_and_input()
    with atlas.recording(model) as rec:
        model(x)
        child = os.fork()
        if child == 0:
            # From here on no exception may leave: the child must not go on with the tests.
            code = 1
            try:
                model(x).exp()
                rec.stop()
                ours = operations(rec.graph)
                with atlas.recording() as another:
                    torch.ones(1).sin()
                code = 0 if ours.count("tanh") == 2 and "exp" in ours and len(another.graph) == 2 else 2
            finally:
                os._exit(code)
        model(x).log()
    assert exit_code(child) == 0
    assert operations(rec.graph).count("tanh") == 2
    assert "exp" not in operations(rec.graph)


def exit_code(child: int, seconds: float = 60.0) -> int:
    """Wait for a child; one that hangs is ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")
