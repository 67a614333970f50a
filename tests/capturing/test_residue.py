"""Nothing of a recording stays behind: no hook, no mode, no flag, no tensor, no memory; not even after an exception."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from capturing.training import Watching, build, decoded, nested, squared, step, train
from capturing.world import differences, snapshot, traces
from support import sampled
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_pre_hook
from zoo import ZOO, Specimen

import torchatlas as atlas
from torchatlas.capturing import patches, recorder
from torchatlas.graph.consistency import faults

pytestmark = pytest.mark.usefixtures("warm")


# -- the process is as it was ----------------------------------------------------------------------------------------


def leave_a_thread() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait, args=(60,))
    thread.start()
    LEFT.append(lambda: (go.set(), thread.join(timeout=60)))


def leave_a_patch(owner: Any, name: str) -> None:
    own, original = vars(owner).get(name), getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: original(*args, **kwargs))
    LEFT.append(lambda: delattr(owner, name) if own is None else setattr(owner, name, own))


def leave_a_mode(mode: Any) -> None:
    mode.__enter__()
    LEFT.append(lambda: mode.__exit__(None, None, None))


def leave_a_handle(handle: Any) -> None:
    LEFT.append(handle.remove)


def leave_a_threshold() -> None:
    before = gc.get_threshold()
    gc.set_threshold(1234, *before[1:])
    LEFT.append(lambda: gc.set_threshold(*before))


def leave_a_filter() -> None:
    before = list(warnings.filters)
    warnings.simplefilter("ignore", BytesWarning)
    LEFT.append(lambda: warnings.filters.__setitem__(slice(None), before))


LEFT: list[Callable[[], Any]] = []  # how to clear away what a test has left on purpose
LEAVINGS: dict[str, Callable[[nn.Module], Any]] = {
    "torch.nn.modules.module.Module._call_impl": lambda model: leave_a_patch(nn.Module, "_call_impl"),
    "torch.autograd.backward": lambda model: leave_a_patch(torch.autograd, "backward"),
    "torch.Tensor.data": lambda model: leave_a_patch(torch.Tensor, "data"),
    "torch.storage.UntypedStorage.resize_": lambda model: leave_a_patch(torch.UntypedStorage, "resize_"),
    "threading.Thread._bootstrap_inner": lambda model: leave_a_patch(threading.Thread, "_bootstrap_inner"),
    "threads": lambda model: leave_a_thread(),
    "dispatch modes": lambda model: leave_a_mode(Watching()),
    "function modes": lambda model: leave_a_mode(torch.overrides.BaseTorchFunctionMode()),
    "grad": lambda model: leave_a_mode(torch.inference_mode()),
    "autocast": lambda model: leave_a_mode(torch.autocast("cpu")),
    "saved tensors hooks": lambda model: leave_a_mode(torch.autograd.graph.save_on_cpu()),
    "anomaly": lambda model: leave_a_mode(torch.autograd.detect_anomaly(check_nan=False)),
    "gc.threshold": lambda model: leave_a_threshold(),
    "warnings.filters": lambda model: leave_a_filter(),
    "torch random": lambda model: torch.rand(1),
    "torch.optim.optimizer._global_optimizer_pre_hooks": lambda model: leave_a_handle(
        register_optimizer_step_pre_hook(lambda *args: None)
    ),
    "torch.nn.modules.module._global_forward_hooks": lambda model: leave_a_handle(
        nn.modules.module.register_module_forward_hook(lambda *args: None)
    ),
    "module 0: hooks": lambda model: leave_a_handle(model[0].register_forward_hook(lambda *args: None)),
    "module 0: attributes": lambda model: setattr(model[0], "mark", 1),
    "module : weak references": lambda model: LEFT.append(functools.partial(weakref.ref(model))),
    "0.weight: weak references": lambda model: LEFT.append(functools.partial(weakref.ref(model[0].weight))),
    "0.weight: weak references to the storage": lambda model: LEFT.append(
        functools.partial(weakref.ref(model[0].weight.untyped_storage()))
    ),
    "0.weight: hooks": lambda model: leave_a_handle(model[0].weight.register_hook(lambda grad: None)),
    "0.bias: hooks": lambda model: leave_a_handle(model[0].bias.register_post_accumulate_grad_hook(lambda grad: None)),
    "0.weight: version": lambda model: model[0].weight.detach().add_(0),
    "0.bias: contents": lambda model: model[0].bias.data.add_(1),
}


@pytest.mark.parametrize("where", LEAVINGS)
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
def test_the_snapshot_sees_what_is_left(where: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    process, before = snapshot(), snapshot(model)
    try:
        LEAVINGS[where](model)
        found = differences(before, snapshot(model))
    finally:
        while LEFT:
            LEFT.pop()()
    assert any(change.startswith(f"{where}: ") for change in found), found
    assert where == "torch random" or not differences(process, snapshot())


def tracked(model: Any, *args: Any, kwargs: Any, **options: Any) -> None:
    if isinstance(model, nn.Module):
        tracker = atlas.track_computational_graph(model, kwargs or args)
        tracker.get_graph_summary()


WAYS: dict[str, tuple[Callable[..., Any], dict[str, Any], list[Specimen]]] = {
    "ops": (atlas.capture, {}, ZOO[0::5]),
    "ops of the others": (atlas.capture, {}, [specimen for at, specimen in enumerate(ZOO) if at % 5]),
    "all values": (atlas.capture, {"values": "all"}, ZOO[0::8]),
    "statistics": (atlas.capture, {"values": "stats"}, ZOO[1::8]),
    "modules": (atlas.capture, {"track_tensor_ops": False}, ZOO[2::6]),
    "tracker": (tracked, {}, ZOO[3::14]),
    "fake": (atlas.capture, {"fake": True}, [specimen for specimen in ZOO[::9] if specimen.fakes]),
}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] * (way == "ops of the others")) for way in WAYS]
)
def test_capturing_leaves_the_world_as_it_was(way: str) -> None:
    capture, options, specimens = WAYS[way]
    for specimen in specimens:
        if specimen.name in ("own_generator", "colliding_keywords") and way in ("fake", "tracker"):
            continue  # torch cannot copy a generator to a fake one; a tracker takes no keywords beside the input
        model, args, kwargs, optimizer = build(specimen)
        roots = (model, args, kwargs, optimizer)
        before = snapshot(*roots)
        capture(model, *args, kwargs=kwargs, backward=specimen.trains, optimizer=optimizer, **options)
        found = differences(before, snapshot(*roots))
        if way == "fake":  # torch's FakeTensorMode knows the real tensors, weakly, until the collector comes by
            found = [change for change in found if "weak references" not in change]
        assert not found, specimen.name


class Meddling(nn.Linear):
    """Draws random numbers of every kind and turns switches, when it is built and when it runs."""

    def __init__(self) -> None:
        super().__init__(2, 2, dtype=torch.float32)
        self.meddle()

    def forward(self, x: Tensor) -> Tensor:
        self.meddle()
        return super().forward(x)

    def meddle(self) -> None:
        random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
        torch.set_default_dtype(torch.float32 if torch.get_default_dtype() is torch.float64 else torch.float64)
        torch.set_grad_enabled(not torch.is_grad_enabled())
        torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled())


@pytest.mark.parametrize(
    "options", [{}, {"track_tensor_ops": False}, {"fake": True}, {"fake": True, "built": True}], ids=str
)
def test_switches_and_random_numbers_are_put_back(options: dict[str, Any]) -> None:
    model, _ = Meddling(), Meddling()  # the second turns back what the first has turned
    before, built = snapshot(), options.get("built", False)
    atlas.capture(Meddling if built else model, torch.ones(1, 2), **{k: v for k, v in options.items() if k != "built"})
    assert not differences(before, snapshot())


def test_a_model_that_is_fake_already_is_as_it_was() -> None:
    with FakeTensorMode():
        model, x = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), torch.ones(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = snapshot(model, x, optimizer)
    atlas.capture(model, x, fake=True, optimizer=optimizer)
    assert not differences(before, snapshot(model, x, optimizer))


def test_the_weak_references_of_a_fake_capture_go_with_the_collector() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    before = snapshot(model, x)
    atlas.capture(model, x, fake=True, backward=True)
    gc.collect()
    assert not differences(before, snapshot(model, x))


@contextlib.contextmanager
def tracking(model: Any) -> Iterator[None]:
    tracker = atlas.ComputationalGraphTracker(model or nn.Identity())
    tracker.start_tracking()
    yield
    tracker.stop_tracking()
    assert tracker.graph.where(kind="op")


RECORDS: dict[str, tuple[Callable[[Any], Any], list[Specimen]]] = {
    "recording": (decoded, ZOO[::5]),
    "all values": (functools.partial(decoded, values="all"), ZOO[1::10]),
    "modules": (functools.partial(decoded, track_tensor_ops=False), ZOO[2::10]),
    "tracker": (tracking, ZOO[3::14]),
    "nested": (nested, ZOO[4::14]),
}


@pytest.mark.parametrize("way", RECORDS)
def test_recording_leaves_the_world_as_the_code_alone_does(way: str) -> None:
    record, specimens = RECORDS[way]
    for specimen in specimens:
        alone = train(specimen, lambda model: contextlib.nullcontext())
        expected, expected_traces = snapshot(), traces(*alone)
        recorded = train(specimen, record)
        assert not differences(expected, snapshot()), specimen.name
        assert not differences(expected_traces, traces(*recorded)), specimen.name


@pytest.mark.parametrize("coarse", [False, True], ids=["ops", "modules"])
def test_threads_leave_the_world_as_it_was(coarse: bool) -> None:
    """One ends with the recording, one after it, one cannot start; and recordings of two threads overlap."""
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    step = threading.Barrier(2)
    record = functools.partial(atlas.recording, model, track_tensor_ops=not coarse)

    def first() -> None:
        with record():
            step.wait(timeout=60)  # both run
            model(x)
        step.wait(timeout=60)  # the first is over

    def second() -> None:
        with record():
            step.wait(timeout=60)
            model(x)
            step.wait(timeout=60)

    before = snapshot(model, x)
    for go in (threading.Event(), threading.Event()):
        with record() as rec:
            late = threading.Thread(target=lambda go=go: (go.wait(timeout=60), model(x)))
            late.start()
            done = threading.Thread(target=lambda: model(x))
            done.start()
            done.join(timeout=60)
            with pytest.raises(RuntimeError, match="threads can only be started once"):
                done.start()
        assert rec.graph.where(kind="op")
        found = differences(before, snapshot(model, x))
        assert all(change.startswith("thread") for change in found), found  # one still runs
        go.set()
        late.join(timeout=60)
        assert not differences(before, snapshot(model, x))
        pair = [threading.Thread(target=target) for target in (first, second)]
        for thread in pair:
            thread.start()
        for thread in pair:
            thread.join(timeout=60)
        del rec, late, done, pair, thread
        assert not differences(before, snapshot(model, x))


def test_a_number_that_a_late_thread_has_drawn_disturbs_nobody() -> None:
    """It goes on after the recording, and its row may come after decoding, or never."""
    with atlas.recording() as rec:
        x = torch.ones(3)
        for counter in rec._recorder.numbers.counters:
            next(counter)
        y = x.sum(0, keepdim=True)
    assert valid(rec.graph)
    assert operations(rec.graph) == ["aten.ones.default", "aten.sum.dim_IntList"]
    assert [node.outputs[0].shape for node in rec.graph.nodes] == [x.shape, y.shape]


def test_what_the_program_patches_meanwhile_stays() -> None:
    before = snapshot()
    with atlas.recording() as rec:
        ours = torch.autograd.backward
        torch.autograd.backward = theirs = lambda *args, **kwargs: ours(*args, **kwargs)
        torch.ones(2, requires_grad=True).sum().backward()
    assert rec.graph.where(phase="backward")
    assert torch.autograd.backward is theirs
    torch.ones(2, requires_grad=True).sum().backward()
    torch.autograd.backward = before["torch.autograd"].items["backward"]
    assert not differences(before, snapshot())


# -- an exception at every op ----------------------------------------------------------------------------------------


class Block(nn.Module):
    """Convolution, batch statistics, attention, dropout: buffers that are written and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv1d(2, 4, 3, padding=1), nn.BatchNorm1d(4, affine=False)
        self.head, self.dropout = nn.Linear(4, 1), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.convolution(x)).relu_().transpose(1, 2)
        return self.head(self.dropout(nn.functional.scaled_dot_product_attention(x, x, x)))


def trained() -> tuple[nn.Module, Tensor, torch.optim.Optimizer]:
    """A model with gradients, and an optimizer with state."""
    torch.manual_seed(3)
    model, x = Block(), torch.randn(2, 2, 3)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    squared(model(x)).backward()
    optimizer.step()
    return model, x, optimizer


KINDS = (ValueError, KeyboardInterrupt, MemoryError, SystemExit, RuntimeError, GeneratorExit, StopIteration)


def valid(graph: atlas.Graph) -> bool:
    names = [node.name for node in graph.nodes]
    return faults(graph.columns, graph.tables) is None and len(set(names)) == len(names)


def operations(graph: atlas.Graph) -> list[str]:
    return [node.operation for node in graph.where(kind="op")]


SHARES = 5  # the ops of a program are dealt out to so many tests


@pytest.mark.parametrize("first", sampled(range(SHARES), SHARES))
@pytest.mark.parametrize("above", [False, True], ids=["below", "above"])
def test_an_exception_at_every_op_of_a_recording(above: bool, first: int) -> None:
    program = trained()
    with Watching() as whole:
        step(*program)
    assert len(whole.names) > 60
    before = snapshot()
    for at in range(first, len(whole.names), SHARES):
        bomb = Watching(at, error := KINDS[at % len(KINDS)]("bang"))
        rec = atlas.recording(program[0])
        order = [rec, bomb] if above else [bomb, rec]
        with pytest.raises(type(error)) as caught, order[0], order[1]:
            step(*program)
        assert caught.value is error
        found = [change for change in differences(before, snapshot()) if not change.startswith("torch random: ")]
        assert not found, at
        assert operations(rec.graph) == whole.names[:at]
        assert valid(rec.graph)
        if above:  # it did not come as far as the recorder
            assert rec.failure is None
        else:
            assert rec.failure.operation == whole.names[at]
            assert rec.failure.message == f"{type(error).__name__}: bang"
            assert any(f"stopped at {whole.names[at]}" in note for note in rec.graph.notes)


@pytest.mark.parametrize("first", sampled(range(SHARES), SHARES))
@pytest.mark.parametrize("coarse", [False, True], ids=["ops", "modules"])
def test_an_exception_at_every_op_of_a_capture(coarse: bool, first: int) -> None:
    model, x, optimizer = trained()
    capture = functools.partial(atlas.capture, model, x, loss=squared, optimizer=optimizer, track_tensor_ops=not coarse)
    before = snapshot(model, x, optimizer)
    with Watching() as whole:
        graph = capture()
    assert coarse or operations(graph) == whole.names
    assert not differences(before, snapshot(model, x, optimizer))
    for at in range(first, len(whole.names), SHARES):
        name, error = whole.names[at], KINDS[at % len(KINDS)]("bang")
        with pytest.raises(type(error)) as caught, Watching(at, error):
            capture()
        assert caught.value is error
        del caught  # with the traceback, which holds what the capture made until then
        error.__traceback__ = None
        assert not differences(before, snapshot(model, x, optimizer)), (at, name)
        if isinstance(error, Exception) and not coarse:
            assert f"it happened at {name}" in error.__notes__[0]


class Guarded(nn.Module):
    """Runs a model, and a loss, inside a mode of its own: above the recorder's."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.mode = model, Watching()

    def forward(self, x: Tensor) -> Tensor:
        with self.mode:
            return self.model(x)

    def loss(self, y: Tensor) -> Tensor:
        with self.mode:
            return squared(y)


def test_an_exception_above_the_recorder_of_a_capture() -> None:
    model, x, optimizer = trained()
    guarded = Guarded(model)
    before = snapshot(guarded, x, optimizer)
    capture = functools.partial(atlas.capture, guarded, x, loss=guarded.loss, optimizer=optimizer)
    capture()
    names = guarded.mode.names
    assert len(names) > 10
    for at in range(len(names)):
        error = KINDS[at % len(KINDS)]("bang")
        vars(guarded.mode).update(at=at, error=error, names=[])
        with pytest.raises(type(error)) as caught:
            capture()
        assert caught.value is error
        assert guarded.mode.names == names[:at]
        del caught
        error.__traceback__ = None
        assert not differences(before, snapshot(guarded, x, optimizer)), at


class Bang(torch.autograd.Function):
    """Raises where it is told to."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, raises: Callable[[str], None]) -> Tensor:
        ctx.raises = raises
        raises("function's forward")
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad * 2
        ctx.raises("function's backward")
        return grad, None


class Stepping(torch.optim.SGD):
    raises: Callable[[str], None]

    def step(self, closure: Any = None) -> None:
        super().step()
        self.raises("step")


PLACES = (
    "module's forward",
    "forward pre-hook",
    "forward hook",
    "saved tensor's pack hook",
    "saved tensor's unpack hook",
    "function's forward",
    "loss",
    "function's backward",
    "gradient hook",
    "module's backward hook",
    "accumulation hook",
    "step pre-hook",
    "step",
)


def fragile(place: str, error: BaseException) -> tuple[nn.Module, Tensor, Callable[..., Any], torch.optim.Optimizer]:
    """A training step that raises at one place, between ops."""
    torch.manual_seed(0)

    def raises(where: str, *result: Any) -> Any:
        if where == place:
            raise error
        return result[0] if result else None

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            pack, unpack = functools.partial(raises, PLACES[3]), functools.partial(raises, PLACES[4])
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                y = self.first(x).sin()
            raises("module's forward")
            y.register_hook(lambda grad: raises("gradient hook"))
            return self.second(Bang.apply(y, raises))

    def loss(y: Tensor) -> Tensor:
        total = y.square().sum()
        return raises("loss", total)

    model = Net()
    model.second.register_forward_pre_hook(lambda *args: raises("forward pre-hook"))
    model.second.register_forward_hook(lambda *args: raises("forward hook"))
    model.second.register_full_backward_hook(lambda *args: raises("module's backward hook"))
    model.first.weight.register_post_accumulate_grad_hook(lambda leaf: raises("accumulation hook"))
    optimizer = Stepping(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.raises = raises
    optimizer.register_step_pre_hook(lambda *args: raises("step pre-hook"))
    return model, torch.ones(2, 3), loss, optimizer


def fragile_step(model: nn.Module, x: Tensor, loss: Callable[..., Any], optimizer: torch.optim.Optimizer) -> None:
    loss(model(x)).backward()
    optimizer.step()


@pytest.mark.parametrize("place", PLACES)
def test_an_exception_of_the_programs_own(place: str) -> None:
    kind = KINDS[PLACES.index(place) % len(KINDS)]
    model, x, loss, optimizer = fragile(place, error := kind("bang"))
    with pytest.raises(kind), Watching() as witness:
        fragile_step(model, x, loss, optimizer)
    before = snapshot()
    model, x, loss, optimizer = fragile(place, error)
    with pytest.raises(kind) as caught, atlas.recording(model) as rec:
        fragile_step(model, x, loss, optimizer)
    assert caught.value is error
    assert not differences(before, snapshot())
    assert operations(rec.graph) == witness.names
    assert valid(rec.graph)
    assert rec.failure is None, "no op failed"

    model, x, loss, optimizer = fragile(place, error)
    for options in ({}, {"values": "all"}, {"track_tensor_ops": False}):
        before = snapshot(model, x, optimizer)
        with pytest.raises(kind) as caught:
            atlas.capture(model, x, loss=loss, optimizer=optimizer, **options)
        assert caught.value is error
        del caught  # with the traceback, which holds what the capture made until then
        error.__traceback__ = None
        assert not differences(before, snapshot(model, x, optimizer))


def test_modes_and_trackers_that_an_exception_left_open_do_not_hold_a_recording_open() -> None:
    before, tracker = snapshot(), atlas.ComputationalGraphTracker(nn.Identity())
    mode, error = Watching(), KeyError("bang")

    def leave_open() -> None:
        mode.__enter__()
        tracker.start_tracking()
        torch.ones(1)
        raise error

    with pytest.raises(KeyError) as caught, atlas.recording() as rec:
        leave_open()
    assert caught.value is error
    assert operations(rec.graph) == ["aten.ones.default"]
    torch.zeros(1)
    tracker.stop_tracking()
    torch.zeros(2)
    assert operations(tracker.graph) == ["aten.ones.default", "aten.zeros.default"]
    mode.__exit__(None, None, None)
    assert mode.names == ["aten.ones.default", "aten.zeros.default", "aten.zeros.default"]
    assert not differences(before, snapshot())


def interrupted(*args: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("owner", "name", "replacement"),
    [(patches, "_FOR_ALL", (*patches._FOR_ALL, interrupted)), (recorder.Recorder, "start", interrupted)],
    ids=["patches", "recorder"],
)
def test_a_recording_that_cannot_begin_leaves_nothing(
    owner: Any, name: str, replacement: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    before = snapshot(model, x)
    monkeypatch.setattr(owner, name, replacement)
    for begin in (atlas.recording(model).start, functools.partial(atlas.capture, model, x)):
        with pytest.raises(KeyboardInterrupt):
            begin()
    monkeypatch.undo()
    del begin
    assert not [change for change in differences(before, snapshot(model, x)) if "weak references" not in change]
    with atlas.recording(model) as rec:
        model(x)
    assert operations(rec.graph) == ["aten.t.default", "aten.addmm.default"]


def test_gradients_are_put_back_when_saving_fails() -> None:
    """The model's own class may raise when it is asked for anything."""

    class Refusing(nn.Parameter):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is Tensor.detach:
                raise PermissionError("no")
            return super().__torch_function__(func, types, args, kwargs or {})

    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    model.register_parameter("last", Refusing(torch.ones(1)))
    before = snapshot(model.weight, model.bias)
    with pytest.raises(PermissionError):
        atlas.capture(model, torch.ones(1, 2), backward=True)
    assert model.weight.grad is not None
    assert not differences(before, snapshot(model.weight, model.bias))
