"""What a program frees is freed: tensors, models and code live as long as without a recording, and nothing piles up."""

from __future__ import annotations

import contextlib
import functools
import gc
import signal
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from capturing.training import Watching, build, nested, squared, step
from capturing.world import differences, snapshot, traces
from torch import Tensor, nn
from zoo import ZOO, Specimen, loss_of, tensors_in

import torchatlas as atlas
from torchatlas.capturing import recorder, table_rows

pytestmark = pytest.mark.usefixtures("warm")


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """What is gone in here is gone at once, not when the garbage collector comes by."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# -- what the program frees is freed ---------------------------------------------------------------------------------


class Living(Watching):
    """Notes before every op, and when asked, which of the tensors and storages that ops have made are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[Callable[[], Any]] = []
        self.alive: list[list[bool]] = []

    def look(self) -> None:
        self.alive.append([reference() is not None for reference in self.references])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.look()
        out = super().__torch_dispatch__(func, types, args, kwargs)
        for tensor in tensors_in([out]):
            self.references.append(weakref.ref(tensor))
            with contextlib.suppress(NotImplementedError, RuntimeError):  # sparse
                self.references.append(weakref.ref(tensor.untyped_storage()))
        return out


def lives(specimen: Specimen, record: Callable[[Any], Any], decode: bool) -> Living:
    """The life of every tensor of a training step; `record` gives what is kept until after the model is gone."""
    model, args, kwargs, optimizer = build(specimen)
    torch.manual_seed(1)
    with Living() as living, record(model if isinstance(model, nn.Module) else None) as rec:
        result = model(*args, **kwargs)
        living.look()
        if specimen.trains:
            loss_of(result).backward()
            living.look()
            if optimizer is not None:
                optimizer.step()
        del result
        living.look()
    living.look()
    if decode and rec is not None:
        assert rec.graph is not None
    living.look()
    del model, args, kwargs, optimizer
    living.look()
    return living


@pytest.mark.parametrize(
    ("options", "decode", "specimens"),
    [
        ({}, True, ZOO[::4]),
        ({}, False, ZOO[1::8]),
        ({"values": "all"}, True, ZOO[2::10]),
        ({"values": "stats"}, False, ZOO[3::12]),
        ({"track_tensor_ops": False}, False, ZOO[4::10]),
    ],
    ids=["ops", "not decoded", "all values", "statistics", "modules"],
)
def test_tensors_die_when_they_die_without_a_recording(options: Any, decode: bool, specimens: list[Specimen]) -> None:
    with without_collector():
        for specimen in specimens:
            alone = lives(specimen, lambda model: contextlib.nullcontext(), decode)
            recorded = lives(specimen, functools.partial(atlas.recording, **options), decode)
            assert recorded.names == alone.names, specimen.name
            assert recorded.alive == alone.alive, specimen.name


def failing_product() -> None:
    held = noted(torch.ones(3, 1))
    torch.mm(noted(torch.ones(2, 2)), noted(held * 2))


def failing_layer() -> None:
    nn.Sequential(nn.Linear(2, 3), nn.Linear(4, 1))(noted(torch.ones(2, 2)) * noted(torch.ones(2)))


def failing_backward() -> None:
    y = noted(noted(torch.ones(2, requires_grad=True)) * 2)
    noted(y.sum()).backward(noted(torch.ones(5)))


def failing_hook() -> None:
    y = noted(torch.ones(2, requires_grad=True)) * 2
    y.register_hook(lambda grad: torch.mm(noted(grad + 1), grad))
    y.sum().backward()


def failing_twice() -> None:
    try:
        torch.mm(noted(torch.ones(2, 2)), noted(torch.ones(3, 1)))
    except RuntimeError as error:
        raise ValueError("bang") from error


NOTED: list[weakref.ref[Any]] = []


def noted(tensor: Tensor) -> Tensor:
    NOTED.extend((weakref.ref(tensor), weakref.ref(tensor.untyped_storage())))
    return tensor


def survivors(program: Callable[[], None], record: Callable[[], Any]) -> tuple[list[bool], list[bool]]:
    """What is alive while the exception is kept, and when it has gone."""
    NOTED.clear()
    with pytest.raises((RuntimeError, ValueError)) as caught, record():
        program()
    kept = caught.value
    del caught
    alive = [reference() is not None for reference in NOTED]
    del kept
    return alive, [reference() is not None for reference in NOTED]


@pytest.mark.parametrize(
    "program", [failing_product, failing_layer, failing_backward, failing_hook, failing_twice], ids=lambda f: f.__name__
)
def test_a_traceback_holds_what_it_holds_without_a_recording(program: Callable[[], None]) -> None:
    with without_collector():
        alone = survivors(program, contextlib.nullcontext)
        assert not any(alone[1])
        for options in ({}, {"values": "all"}, {"track_tensor_ops": False}):
            assert survivors(program, functools.partial(atlas.recording, **options)) == alone
        assert survivors(program, lambda: nested(None)) == alone


def test_what_the_branches_of_a_conditional_hold_is_not_kept() -> None:
    """An operator without a schema is given functions."""
    with without_collector(), atlas.recording() as rec:
        weight = torch.ones(3)
        reference = weakref.ref(weight.untyped_storage())
        branches = [lambda t, weight=weight: t * weight, lambda t: t.clone()]
        torch.ops.higher_order.cond(torch.tensor(True), *branches, (torch.ones(3),))
        del weight, branches
        assert reference() is None
    assert rec.graph.where(operation="higher_order.cond")


def recorded_step(model: nn.Module, x: Tensor, optimizer: Any, decode: bool = True, **options: Any) -> Any:
    with atlas.recording(model, **options) as rec:
        model(x).sum().backward()
        optimizer.step()
    return rec.graph if decode else rec


def in_a_thread(model: nn.Module, x: Tensor, optimizer: Any) -> Any:
    with atlas.recording(model) as rec:
        thread = threading.Thread(target=lambda: model(x).sum().backward())
        thread.start()
        thread.join(timeout=60)
    return rec.graph, thread


def beside_a_thread(model: nn.Module, x: Tensor, optimizer: Any) -> Any:
    go = threading.Event()
    with atlas.recording(model) as rec:
        thread = threading.Thread(target=go.wait, args=(60,))
        thread.start()
        model(x)
    LEFT.append(lambda: (go.set(), thread.join(timeout=60)))
    return rec.graph


def refused(model: nn.Module, x: Tensor, optimizer: Any) -> None:
    with contextlib.suppress(RuntimeError):
        atlas.capture(model, x[:, :2], loss=squared, optimizer=optimizer)


def explained(model: nn.Module, x: Tensor, optimizer: Any) -> Any:
    return atlas.analyze_computational_graph(model, x)["summary"]


LEFT: list[Callable[[], Any]] = []  # how to end the threads that a test has left
HOLDERS: dict[str, Callable[..., Any]] = {
    "capture": lambda model, x, optimizer: atlas.capture(model, x, optimizer=optimizer),
    "capture, all values": lambda model, x, optimizer: atlas.capture(model, x, optimizer=optimizer, values="all"),
    "capture, modules": lambda model, x, optimizer: atlas.capture(model, x, backward=True, track_tensor_ops=False),
    "capture, fake": lambda model, x, optimizer: atlas.capture(model, x, backward=True, fake=True),
    "capture, failed": refused,
    "recording": recorded_step,
    "recording, not decoded": functools.partial(recorded_step, decode=False),
    "recording, all values": functools.partial(recorded_step, values="all"),
    "recording, modules": functools.partial(recorded_step, decode=False, track_tensor_ops=False),
    "a thread that ended": in_a_thread,
    "a thread that goes on": beside_a_thread,
    "analysis": explained,
}


@pytest.mark.parametrize("how", HOLDERS)
def test_the_model_goes_while_its_graph_stays(how: str) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)), torch.ones(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.step()  # what torch sets up the first time is not ours
    references = [weakref.ref(item) for item in (model, model[0], optimizer, x, x.untyped_storage(), model[0].weight)]
    references += [weakref.ref(parameter.untyped_storage()) for parameter in model.parameters()]
    with without_collector():
        kept = HOLDERS[how](model, x, optimizer)
        del model, x, optimizer
        left = [reference() for reference in references]
        while LEFT:
            LEFT.pop()()
    assert left == [None] * len(left)
    del kept


# -- a thousand captures ---------------------------------------------------------------------------------------------


def objects() -> tuple[Counter[str], int]:
    """What the collector follows, by class, and how many blocks of memory Python has handed out."""
    for _ in range(2):
        gc.collect()
    return Counter(type(item).__qualname__ for item in gc.get_objects()), sys.getallocatedblocks()


def growth(run: Callable[[], Any], times: int) -> tuple[Counter[str], int]:
    """What there is more of after so many runs, after a warm-up of a tenth."""
    for _ in range(times // 10):
        run()
    before, blocks = objects()
    for _ in range(times):
        run()
    after, more = objects()
    return after - before, more - blocks


def python_calls(run: Callable[[], Any]) -> list[str]:
    """Every function that is called, Python's and C's: a wrapper left anywhere would be among them."""
    seen: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            seen.append(f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}")
        elif event == "c_call":
            seen.append(argument.__qualname__)

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return seen


def test_a_thousand_captures_leave_nothing() -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        step(model, x, optimizer)
    calls = python_calls(lambda: step(model, x, optimizer))
    before, hung = snapshot(), traces(model, x, optimizer)
    found, blocks = growth(lambda: atlas.capture(model, x), 1000)
    # Not one object a capture. In a long run of other tests a few dozen were counted, in a run of its own none.
    assert found.total() < 500, found
    assert blocks < 1000, found
    assert not differences(before, snapshot())
    assert not differences(hung, traces(model, x, optimizer))
    assert python_calls(lambda: step(model, x, optimizer)) == calls


@pytest.mark.parametrize("threads", [False, True], ids=["one thread", "threads"])
def test_many_recordings_of_every_kind_leave_nothing(threads: bool) -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    skipped = (in_a_thread, beside_a_thread, HOLDERS["capture, fake"], HOLDERS["capture"])
    kinds = [in_a_thread] if threads else [how for how in HOLDERS.values() if how not in skipped]

    def run() -> None:
        for how in kinds:
            how(model, x, optimizer)

    found, blocks = growth(run, 25)
    assert max(found.values(), default=0) < 40, (
        found
    )  # less than one of any class a run: Python fills caches of its own
    assert blocks < 600, found


MADE = """
class Net{0}(nn.Module):
    def forward(self, x):
        return x + {0}
program = lambda x: Net{0}()(x).sum()
"""


def test_a_thousand_programs_made_at_run_time_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorders are used again, and know the code they have met by its id: they must not keep all of it."""
    monkeypatch.setattr(recorder, "_MOST_KEPT", 100)
    x, codes, classes = torch.ones(1, 2), [], []
    for number in range(1000):
        made: dict[str, Any] = {"nn": nn}
        exec(compile(MADE.format(number), f"<made {number}>", "exec"), made)
        net, program = made[f"Net{number}"], made["program"]
        codes += [weakref.ref(net.forward.__code__), weakref.ref(program.__code__)]
        classes.append(weakref.ref(net))
        if number % 5:
            with atlas.recording() as rec:
                program(x)
            if number % 5 == 1:  # the others are dropped as they are
                assert rec.graph["add"].source.file == f"<made {number}>"
        else:
            atlas.capture(program, x)
    del net, program, made, rec
    gc.collect()
    assert not any(reference() for reference in classes)
    lines = table_rows._source_row.cache_info()
    assert lines.currsize <= lines.maxsize == 4096
    table_rows._source_row.cache_clear()
    assert sum(reference() is not None for reference in codes) <= 450  # of 2,000: four recorders with 100 each
    assert len(recorder._IDLE) <= 4


def test_tables_of_shapes_and_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_MOST_KEPT", 100)
    monkeypatch.setattr(table_rows, "_MOST_TEXTS", 100)
    monkeypatch.setattr(table_rows, "_TEXTS", {})
    for size in range(1, 400):
        with atlas.recording() as rec:
            torch.ones(size)
        assert rec.graph["ones"].outputs[0].shape == (size,)
    assert len(table_rows._TEXTS) <= 100
    assert all(len(idle.numbers.sizes) <= 100 for idle in recorder._IDLE)


DEEP = """
import sys, threading, torch
from torch.utils._python_dispatch import TorchDispatchMode

class Asks(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "asks" in sys.argv:
            torch._C._current_autograd_node()
        return func(*args, **(kwargs or {}))

def train():
    x = torch.ones(1, requires_grad=True)
    with Asks():
        for _ in range(4000):
            x = x.sin()
        x.sum().backward()
    del x

threading.stack_size(512 * 1024)  # with the usual 8 MB, 40,000 ops pass and 60,000 do not
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


@pytest.mark.parametrize("asks", [True, False])
def test_torch_frees_a_graph_whose_nodes_were_asked_for_on_the_stack(asks: bool) -> None:
    """Why capturing/deep_graphs.py exists: the recorder asks which node runs, and torch keeps the answer.

    torch does so since 2.13. If this fails, torch has mended it.
    """
    keeps = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
    command = [sys.executable, "-c", DEEP, *(["asks"] if asks else [])]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    # Other codes are torch's own affair: 2.12 may abort when a process ends in which a thread ran backward.
    assert (done.returncode == -signal.SIGSEGV) == (asks and keeps)
