"""The native recorder among all else that can be on: modes, transforms, threads, profilers, exceptions, forks."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import support
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import torchatlas as atlas
from torchatlas.capturing.native import build
from torchatlas.capturing.native.recorder import NativeRecorder
from torchatlas.errors import NotAvailableError, StateError
from torchatlas.torch_private import dispatch_mode_stack

X = torch.randn(4, 8)


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


def names(graph: atlas.Graph) -> list[str]:
    """The ops of a graph without the named differences."""
    found = [str(node.operation) for node in graph.nodes if "detach" not in str(node.operation)]
    return [name.replace("add_.", "add.") for name in found]


def recorded(run: Callable[[nn.Module], Any], native: bool) -> atlas.Graph:
    net = model()
    with atlas.recording(net, native=native) as rec:
        run(net)
    return rec.graph


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def in_a_mode(net: nn.Module) -> None:
    with Passing():
        net(X)
    net(X)


def in_a_thread(net: nn.Module) -> None:
    thread = threading.Thread(target=lambda: net(X), name="worker")
    thread.start()
    thread.join()
    net(X)


def in_autocast(net: nn.Module) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        net(X).sum().backward()


def in_fake_mode(net: nn.Module) -> None:
    net(X)
    with torch._subclasses.fake_tensor.FakeTensorMode():
        torch.ones(3) + 1
    net(X)


def after_an_error(net: nn.Module) -> None:
    with pytest.raises(RuntimeError):
        X @ torch.ones(3, 3)
    net(X)


def offloaded(net: nn.Module) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        net(X.clone().requires_grad_()).sum().backward()


PROGRAMS: dict[str, Callable[[nn.Module], Any]] = {
    "autocast": in_autocast,
    "checkpoint": lambda net: checkpoint(net, X.clone().requires_grad_(), use_reentrant=False).sum().backward(),
    "cond": lambda net: torch.cond(net(X).sum() > 0, torch.sin, torch.cos, (X,)) * 2,
    "error": after_an_error,
    "fake": in_fake_mode,
    "grad": lambda net: (net(X), torch.func.grad(lambda w: (w * X).sum())(torch.ones(8)), net(X)),
    "inference": lambda net: torch.inference_mode()(net)(X),
    "mode": in_a_mode,
    "nested": lambda net: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)]).sin(),
    "quantized": lambda net: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8).dequantize(),
    "saved": offloaded,
    "sparse": lambda net: torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2)).to_dense() + 1,
    "thread": in_a_thread,
    "vmap": lambda net: (net(X), torch.vmap(torch.sin)(X), net(X)),
    "wrapper": lambda net: (TwoTensor(X, X.clone()) * 2).sum(),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.usefixtures("native")
def test_same_ops(program: str) -> None:
    python, native = recorded(PROGRAMS[program], False), recorded(PROGRAMS[program], True)
    assert names(native) == names(python)
    assert native.metadata["recorder"] == "native"
    assert list(native.tables.threads) == list(python.tables.threads)
    middle = any("took over from the native one" in note for note in native.notes)
    assert middle == (program in ("cond", "fake", "grad", "vmap"))


@pytest.mark.usefixtures("native")
def test_the_compiler_leaves_what_is_asked_for_an_op_alone() -> None:
    @torch.compiler.disable(recursive=False)
    def op_by_op(x: torch.Tensor) -> torch.Tensor:
        return x.cos().exp()

    def frames(around: Any) -> int:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        with around:
            torch.compile(lambda x: op_by_op(x.sin()) * 2, backend="eager")(torch.ones(2))
        return int(torch._dynamo.utils.counters["frames"]["total"])

    assert frames(atlas.recording(native=True)) == frames(nullcontext())


@pytest.mark.usefixtures("native")
def test_a_checkpoint_that_stops_recomputing_is_no_failure() -> None:
    def stopped_early(net: nn.Module) -> None:
        checkpoint(lambda x: net(x).sin() * 2, X.clone().requires_grad_(), use_reentrant=False).sum().backward()

    assert recorded(stopped_early, True).notes == []


@pytest.mark.usefixtures("native")
def test_the_recorder_in_python_takes_over_at_the_start() -> None:
    with Passing():
        graph = recorded(lambda net: net(X), True)
    assert graph.metadata["recorder"] == "python"
    assert any("not the native one: a dispatch mode is on" in note for note in graph.notes)


def checkpointed() -> None:
    checkpoint(model(), X.clone().requires_grad_(), use_reentrant=False).sum().backward()


def packed() -> None:
    offloaded(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh()))


def begun_inside() -> None:
    model()(X.clone().requires_grad_()).exp().sum().backward()


@pytest.mark.parametrize("program", [checkpointed, packed, begun_inside])
@pytest.mark.usefixtures("native")
def test_values_are_kept_where_ops_run_inside_of_ops(program: Callable[[], None]) -> None:
    """Hooks on saved tensors run inside of an op: whoever keeps values would take theirs for those of another op."""
    around = nullcontext()
    if program is begun_inside:
        around = torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2)
    with around, atlas.recording(values="replay", native=True) as rec:
        program()
    report = atlas.verify(rec.graph)
    assert report, str(report)
    assert any("hooks on saved tensors" in note for note in rec.graph.notes)


@pytest.mark.usefixtures("native")
def test_chosen_by_default_and_by_name() -> None:
    net = model()
    assert atlas.capture(net, X).metadata["recorder"] == "native"
    assert atlas.capture(net, X, native=False).metadata["recorder"] == "python"
    assert atlas.capture(net, X, values="all").metadata["recorder"] == "python"


def test_an_error_where_there_is_none() -> None:
    build.forget()
    assert atlas.capture(model(), X).metadata["recorder"] == "python"
    with pytest.raises(NotAvailableError, match=r"native=True.*torchatlas native"):
        atlas.capture(model(), X, native=True)


@pytest.mark.usefixtures("native")
def test_failures_name_op_module_and_line() -> None:
    net, rec = model(), atlas.recording(native=True)
    with pytest.raises(RuntimeError), rec:
        net(torch.ones(3, 3))
    assert str(rec.failure).startswith("aten.addmm.default in Sequential.0 at ") or " in 0 at " in str(rec.failure)
    assert __file__ in str(rec.failure)
    other = atlas.recording(native=True)
    with pytest.raises(ValueError, match="unrelated"), other:  # noqa: PT012
        after_an_error(net)
        raise ValueError("unrelated")
    assert other.failure is None


@pytest.mark.usefixtures("native")
def test_nested_and_out_of_order() -> None:
    net = model()
    with atlas.recording(native=True) as outer:
        net(X)
        with atlas.recording(native=True) as inner, atlas.recording(native=False) as python:
            net(X)
    assert len(names(outer.graph)) == 2 * len(names(inner.graph)) - 1  # an input is one
    assert names(inner.graph) == names(python.graph)
    first, second = atlas.recording(native=True).start(), atlas.recording(native=True).start()
    with pytest.raises(StateError, match="reverse order"):
        first.stop()
    second.stop()
    first.stop()


@pytest.mark.usefixtures("native")
def test_threads_see_only_their_own() -> None:
    lengths: dict[int, int] = {}

    def work(count: int) -> None:
        with atlas.recording(native=True) as rec:
            for _ in range(count):
                torch.sin(X)
        lengths[count] = len([node for node in rec.graph.nodes if "sin" in str(node.operation)])

    threads = [threading.Thread(target=work, args=(count,)) for count in (50, 80, 110)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lengths == {50: 50, 80: 80, 110: 110}


def allocated_peak(run: Callable[[], Any]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        run()
    events = [event for event in prof.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


@pytest.mark.usefixtures("native")
def test_the_allocators_peak_is_the_profilers_and_both_can_run() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 4))
    pictures = torch.randn(2, 3, 32, 32)

    def step() -> None:
        net(pictures).sum().backward()
        net.zero_grad()

    step()
    with atlas.recording(native=True) as rec:
        step()
    alone = rec.graph
    assert alone.metadata["allocated_peak_bytes"] == allocated_peak(step) > 0
    with atlas.recording(native=True) as around:
        inside = allocated_peak(step)
    assert inside > 0
    assert names(around.graph) == names(alone)
    assert (around.graph.columns["storage_died"] == alone.columns["storage_died"]).all()
    graphs = []

    def watched() -> None:
        with atlas.recording(native=True) as rec:
            step()
        graphs.append(rec.graph)

    assert allocated_peak(watched) > 0
    assert names(graphs[0]) == names(alone)
    assert graphs[0].metadata["allocated_peak_bytes"] is None


@pytest.mark.usefixtures("native")
def test_it_ends_in_a_hook_and_leaves_nothing_on() -> None:
    tensor, rec = X.clone().requires_grad_(), atlas.recording(native=True).start()
    made = tensor * 1
    made.register_hook(lambda gradient: rec.stop())
    made.sum().backward()
    torch.sin(X)
    assert "aten.sin.default" not in names(rec.graph)
    with atlas.recording(native=True) as after:
        torch.sin(X)
    assert names(after.graph) == ["input", "aten.sin.default"]


@pytest.mark.usefixtures("native")
def test_a_fork_in_the_middle() -> None:
    net = model()
    with atlas.recording(native=True) as rec:
        net(X)
        child = os.fork()
        if child == 0:
            net(X)
            os._exit(0 if rec.running else 1)
        assert os.waitpid(child, 0)[1] == 0
        net(X)
    assert names(rec.graph).count("aten.tanh.default") == 2


@pytest.mark.child
@pytest.mark.usefixtures("native")
def test_what_dies_with_the_shell_of_a_tensor_may_be_memory() -> None:
    """The value of a batched tensor dies with the last weak reference to it, which is ours."""
    net = model()
    weights = {name: torch.randn(50, *parameter.shape) for name, parameter in net.named_parameters()}
    with atlas.recording(net, native=True) as rec, torch.no_grad():
        for _ in range(80):  # until entries of tensors that are gone are swept
            stacked = {name: weight * 1 for name, weight in weights.items()}
            made = torch.func.vmap(lambda parameters: torch.func.functional_call(net, parameters, (X,)).sum())(stacked)
    assert made.shape == (50,)
    assert names(rec.graph).count("aten.tanh.default") == 80


def learnt_from_one(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The loss of each example after a step with it alone: functional_call in grad in vmap."""
    weights = dict(net.named_parameters())

    def loss(parameters: dict[str, torch.Tensor], example: torch.Tensor) -> torch.Tensor:
        return functional_call(net, parameters, (example,)).sum()

    def after_a_step(example: torch.Tensor) -> torch.Tensor:
        slopes = grad(loss)(weights, example)
        return loss({name: weight - slopes[name] for name, weight in weights.items()}, example)

    return vmap(after_a_step)(x)


TRANSFORMS: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "functional_call in grad in vmap": learnt_from_one,
    "grad": lambda net, x: grad(lambda v: net(v).sum())(x),
    "grad of functional_call": lambda net, x: grad(lambda p: functional_call(net, p, (x,)).sum())(
        dict(net.named_parameters())
    )["0.weight"],
    "jvp": lambda net, x: jvp(net, (x,), (torch.ones_like(x),))[1],
    "vmap": lambda net, x: vmap(net)(x),
    "vmap in vmap": lambda net, x: vmap(vmap(net))(x[None]),
}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.usefixtures("native")
def test_nothing_lives_longer_under_a_transform(transform: str, backward: bool) -> None:
    """c10's weak reference to a wrapper of torch.func would keep the tensor inside of it."""
    net, peaks = model(), []
    for native in (False, True, True):
        net.zero_grad()
        inputs = []
        with atlas.recording(net, native=native) as rec:
            for _ in range(5):
                x = torch.randn(4, 8)
                inputs.append(weakref.ref(x))
                made = TRANSFORMS[transform](net, x).sum()
                if backward:
                    made.backward()
                del x, made
            gc.collect()
            assert sum(reference() is not None for reference in inputs) == 0
        assert rec.graph.metadata["recorder"] == ("native" if native else "python")
        peaks.append(rec.graph.peak_bytes)
    assert peaks == peaks[:1] * 3


def compressed(values: torch.Tensor) -> torch.Tensor:
    return torch.sparse_csr_tensor(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1]), values)


OWNERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # tensors that own a tensor
    "compressed": compressed,
    "nested": lambda part: torch.nested.nested_tensor([part, part], layout=torch.jagged),
    "quantized": lambda scales: torch.quantize_per_channel(torch.ones(4, 2), scales, torch.arange(4), 0, torch.qint8),
    "sparse": lambda values: torch.sparse_coo_tensor(torch.arange(4)[None], values, (4,)),
    "wrapper": lambda part: TwoTensor(part, part.clone()),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning")
@pytest.mark.parametrize("kind", OWNERS)
@pytest.mark.usefixtures("native")
def test_what_a_tensor_owns_dies_with_it(kind: str) -> None:
    with atlas.recording(native=True):
        part = torch.ones(4, dtype=torch.float64)
        owner = OWNERS[kind](part)
        owner.clone()
        memory = weakref.ref(part.untyped_storage())
        del part, owner
        gc.collect()
        assert memory() is None


@pytest.mark.usefixtures("native")
def test_zeros_without_memory_take_none() -> None:
    with atlas.recording(native=True) as rec:
        torch._efficientzerotensor(1000) * torch.ones(1000)
    assert [node.outputs[0].storage.bytes for node in rec.graph.where(kind="op")] == [0, 4000, 0]


@pytest.mark.usefixtures("native")
def test_a_mode_of_the_program_ends_also_if_the_recorder_in_python_takes_over_in_it() -> None:
    class Silent(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    x = torch.randn(3)
    with atlas.recording(native=True) as recording:
        with Silent():
            torch.func.vjp(torch.tanh, x)[1](x)
        x.sin()
    assert not dispatch_mode_stack()
    assert [node.operation for node in recording.graph.where(kind="op")][-1] == "aten.sin.default"


@pytest.mark.usefixtures("native")
def test_the_seventeenth_at_once_is_recorded_in_python() -> None:
    outer = [atlas.recording(native=True).start() for _ in range(16)]
    with atlas.recording() as rec:
        torch.sin(X)
    for each in reversed(outer):
        each.stop()
    assert rec.graph.metadata["recorder"] == "python"
    assert any("sixteen native recordings" in note for note in rec.graph.notes)
    assert names(outer[0].graph) == names(outer[15].graph) == names(rec.graph)


@pytest.mark.usefixtures("native")
def test_a_recording_that_cannot_begin_leaves_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with atlas.recording(native=True):
        torch.sin(X)
    gc.collect()  # it may serve again, and remembers where it stood
    waiting = atlas.recording(native=True)
    with atlas.recording(native=True) as rec:
        monkeypatch.setattr(waiting._watch, "start", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            waiting.start()
        torch.cos(X)
    assert names(rec.graph) == ["input", "aten.cos.default"]


def raise_interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("native")
def test_an_operator_that_could_not_be_described_is_seen_by_later_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*names: Any) -> Any:
        raise RuntimeError("ours")

    monkeypatch.setattr("torchatlas.capturing.native.recorder._IDLE", [])
    with monkeypatch.context() as patched:
        patched.setattr(NativeRecorder, "_describe", failing)
        rec = atlas.recording(native=True)  # its recorder is made now, and asks that
    with pytest.warns(RuntimeWarning, match="ours"), rec:
        torch.atan2(X, X)
    del rec
    with atlas.recording(native=True) as after:
        torch.atan2(X, X)
    assert names(after.graph).count("aten.atan2.default") == 1


@pytest.mark.usefixtures("native")
def test_a_thousand_recordings_leave_nothing() -> None:
    net = model()
    dropped = weakref.ref(net)
    for count in range(1000):
        with atlas.recording(native=True) as rec:
            torch.sin(X)
        if count % 100 == 0:
            assert len(names(rec.graph)) == 2
    for at in range(4):  # an exception at every op
        seen = 0

        def stop_there(module: Any, args: Any, out: Any, at: int = at) -> None:
            nonlocal seen
            if seen == at:
                raise KeyError(at)
            seen += 1

        handle = net[1].register_forward_hook(stop_there)
        with pytest.raises(KeyError), atlas.recording(net, native=True):  # noqa: PT012
            for _ in range(5):
                net(X).sum().backward()
        handle.remove()
    del net, rec, handle, stop_there
    gc.collect()
    assert dropped() is None


@pytest.mark.usefixtures("native")
def test_what_it_made_for_python_is_let_go_of() -> None:
    """Objects that C++ holds count as allocated, whoever forgot them."""
    net = model()

    def program() -> None:
        with atlas.recording(net, native=True) as rec:
            net(X).sum().backward()
            torch.ones(3).to_sparse()  # Python describes such a tensor
            in_a_thread(net)
        assert len(rec.graph.nodes) > 10
        with atlas.recording(net, native=True):  # and one that nobody decodes
            net(X)
        atlas.capture(net, X, native=True)  # its recorder does not serve again

    clear_caches = support.either(sys, "_clear_internal_caches", "_clear_type_cache")
    counts = []
    for _ in range(5):
        for _ in range(20):
            program()
        gc.collect()
        clear_caches()  # the one of attributes holds 4096 names, and fills up as classes are changed
        counts.append(sys.getallocatedblocks())
    growth = [after - before for before, after in itertools.pairwise(counts)]
    assert min(growth) < 20, growth  # a leak would show in all of them, and be 20 or more


SILENT = """
import torch, torchatlas as atlas
net = torch.nn.Linear(8, 8)
net(torch.ones(2, 8)).sum().backward()
for _ in range(3):
    old = [torch.ones(2) for _ in range(3000)]
    with atlas.recording(native=True) as rec:
        net.zero_grad()  # frees memory from before
        old.clear()  # and much of it, with no op in between
        net(torch.ones(2, 8)).sum().backward()
    rec.graph
print(rec.graph.metadata["recorder"])
"""


@pytest.mark.usefixtures("native")
def test_nothing_is_printed() -> None:
    ran = subprocess.run([sys.executable, "-W", "error", "-c", SILENT], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "native\n", "")


@pytest.mark.usefixtures("native")
def test_frames_are_read_as_python_reads_them() -> None:
    module = build.load()
    assert module is not None
    frame = sys._getframe()
    code, instruction = module.line_here()
    assert (code, code.co_positions is not None) == (frame.f_code, True)
    assert 0 < instruction < len(code.co_code)


def test_a_fault_of_ours_is_told(native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops in C++ cannot be stopped by it: the program goes on, and the recording says what it may lack."""

    def broken(self: NativeRecorder, name: str, overload: str) -> Any:
        raise ValueError(f"cannot describe {name}")

    monkeypatch.setattr(NativeRecorder, "_describe", broken)
    monkeypatch.setattr("torchatlas.capturing.native.recorder._IDLE", [])
    rec = atlas.recording(native=True)
    with pytest.warns(RuntimeWarning, match=r"a fault of torchatlas: .* ValueError: cannot describe aten::"), rec:
        total = torch.ones(3).add(1).sum()
    assert total == 6
    assert any("cannot describe aten::" in note for note in rec.graph.notes)


@pytest.mark.usefixtures("native")
def test_an_exception_in_a_callback_is_told_and_nothing_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It left its thread counted among those that use the recorder, and the end of the recording waited for ever."""
    describe = NativeRecorder._describe

    def wrong(recorder: NativeRecorder, name: str, overload: str) -> tuple[Any, ...]:
        number, readable, sliced, words, slots, others, keywords, _, *rest = describe(recorder, name, overload)
        written = (99,) if name == "aten::mul_" else ()  # there is no such argument
        return (number, readable, sliced, words, slots, others, keywords, written, *rest)

    monkeypatch.setattr(NativeRecorder, "_describe", wrong)
    monkeypatch.setattr("torchatlas.capturing.native.recorder._IDLE", [])
    x = torch.ones(3, requires_grad=True)
    rec = atlas.recording(native=True)

    def program() -> torch.Tensor:
        with rec:
            y = x * 2
            y.mul_(3)
            return y + 1

    with pytest.warns(RuntimeWarning, match=r"a fault of torchatlas: .* invalid index Index = 99; Length = 2; ops may"):
        z = program()
    assert z.tolist() == [7.0, 7.0, 7.0]
    assert [str(node.operation) for node in rec.graph.where(kind="op")] == ["aten.mul.Tensor", "aten.add.Tensor"]


@pytest.mark.usefixtures("native")
def test_memory_of_other_allocators_ends_before_the_result_is_noted() -> None:
    """Nobody reports the end of such memory, so it is looked for: before ops, and before what Python notes."""

    class Taking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.from_numpy(np.ones(8, np.float32))

    died = []
    for native in (False, True):
        net = Taking()
        with atlas.recording(net, native=native) as rec:
            result = net(X)
        died.append(rec.graph.columns["storage_died"].tolist())
        assert result.shape == X.shape
    assert died[0] == died[1]
    assert max(died[1]) >= 0


@pytest.mark.child
@pytest.mark.usefixtures("native")
def test_the_garbage_collector_may_run_where_objects_are_made_for_python() -> None:
    """It may free memory, whose end waits for the lock: who makes objects with the lock would wait for himself."""
    net = model()
    with atlas.recording(net, native=True) as rec:
        core = rec._recorder._core  # type: ignore[attr-defined]
        out = net(X)
        asked: list[Callable[[], Any]] = [
            *(core.counts, core.live, core.failures, core.leaves, core.ops, core.place, core.marks, core.error),
            lambda: core.known(out._cdata),
            lambda: core.memory(out.untyped_storage()._cdata),
            lambda: core.look([out._cdata], "seen"),
            lambda: core.tensors([]),
            lambda: core.storages([]),
            lambda: core.drain([]),
        ]
        # Python has tuples and lists in store, and collects nothing as long as it takes them from there
        kept: list[Any] = [[(n,) * length for n in range(2100)] for length in range(1, 5)] + [[] for _ in range(100)]
        before = gc.get_threshold()
        gc.set_threshold(1, 1, 1)
        try:
            for ask in asked:
                for _ in range(10):
                    gc.disable()
                    garbage: list[Any] = [torch.ones(50) + 1]
                    garbage.append(garbage)
                    del garbage
                    gc.enable()  # from here on, the first new object sets it off
                    kept.append(ask())
        finally:
            gc.enable()
            gc.set_threshold(*before)


def test_all_runs_of_a_capture_have_one_recorder(native: None) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    graph = atlas.capture(model, torch.randn(2, 3), backward=True, values="stats", warmup=1, repeat=3)
    assert graph.timing is not None
    assert graph.timing.runs == 3, graph.notes
