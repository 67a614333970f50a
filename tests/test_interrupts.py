"""Ctrl-C at every moment at which Python looks for signals in our code: a real signal, and nothing stays behind.

The default run takes a sample of them; TORCHATLAS_EVERY_INTERRUPT=1 takes all, for a quarter of an hour.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from capturing.world import differences, snapshot
from support import sampled
from torch import nn

import torchatlas as atlas
from torchatlas.interrupts import Bracket, CheckedSignals, bracketed, signals_deferred

OURS = (str(Path(atlas.__file__).parent), "<plan of")
EVERY = bool(os.environ.get("TORCHATLAS_EVERY_INTERRUPT"))
SAMPLE = 60


@pytest.fixture(autouse=True)
def _default_handler() -> Iterator[None]:
    """A shell has background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# -- signals wait ------------------------------------------------------------------------------------------------------


def test_a_signal_waits_and_is_handled_afterwards() -> None:
    done = []

    def deferring() -> None:
        with signals_deferred():
            signal.raise_signal(signal.SIGINT)
            done.append("the rest")

    with pytest.raises(KeyboardInterrupt):
        deferring()
    assert done == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_every_handler_is_called_also_if_one_raises() -> None:
    called: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        called.append(number)
        raise TimeoutError

    def deferring() -> None:
        with signals_deferred():
            for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
                signal.raise_signal(number)
            assert not called

    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGALRM)}
    try:
        with pytest.raises((TimeoutError, KeyboardInterrupt)):
            deferring()
        assert called == [signal.SIGALRM, signal.SIGTERM]
        assert all(signal.getsignal(number) is handler for number in before)
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def test_a_handler_that_is_set_meanwhile_stays() -> None:
    called: list[int] = []
    with signals_deferred():
        signal.signal(signal.SIGINT, lambda number, frame: called.append(number))
    signal.raise_signal(signal.SIGINT)
    assert called == [signal.SIGINT]


def test_what_is_ignored_or_ends_the_process_is_left_alone() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with signals_deferred():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_wakeup_descriptor_hears_of_a_signal_once() -> None:
    signal.signal(signal.SIGINT, lambda number, frame: None)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing)
    try:
        with signals_deferred():
            signal.raise_signal(signal.SIGINT)
        assert os.read(reading, 10) == bytes([signal.SIGINT])
        assert signal.set_wakeup_fd(writing) == writing
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


def test_other_threads_have_no_signals_to_wait_for() -> None:
    found = []

    def run() -> None:
        with signals_deferred():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert found == [signal.default_int_handler]


# -- brackets ----------------------------------------------------------------------------------------------------------


class Switch(Bracket["Switch"]):
    def __init__(self, at: str = "") -> None:
        self.on, self.ends, self.at = False, 0, at

    def _begin(self) -> Switch:
        self.on = True
        if self.at == "begin":
            signal.raise_signal(signal.SIGINT)
        return self

    def _end(self, *raised: Any) -> None:
        if self.at == "end":
            signal.raise_signal(signal.SIGINT)
        self.on, self.ends = False, self.ends + 1


@pytest.mark.parametrize("at", ["begin", "end"])
def test_what_begins_ends(at: str) -> None:
    switch = Switch(at)
    with pytest.raises(KeyboardInterrupt), switch:
        assert at == "end"
    assert (switch.on, switch.ends) == (False, 1)


def test_what_is_begun_without_a_with_statement_ends_too() -> None:
    switch = Switch("begin")
    with pytest.raises(KeyboardInterrupt):
        switch.__enter__()
    assert (switch.on, switch.ends) == (False, 1)


def test_an_end_that_is_cut_off_has_a_second_chance() -> None:
    """In its first instruction, where nothing can catch it."""

    def cut_off(frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code is Switch._leave.__code__:
            signal.raise_signal(signal.SIGINT)

    switch = Switch()
    before = sys.gettrace()
    with pytest.raises(KeyboardInterrupt) as caught, switch:
        sys.settrace(cut_off)
    sys.settrace(before)
    assert caught.value.__traceback__ is not None  # which holds the frame that was cut off
    assert (switch.on, switch.ends) == (False, 1)


def test_asking_for_the_end_ends_nothing() -> None:
    with Switch() as switch:
        assert hasattr(switch, "__exit__")
        assert switch.on
    assert switch.ends == 1
    with contextlib.ExitStack() as stack:
        switch = stack.enter_context(Switch())
        assert switch.on
    assert switch.ends == 1


def test_a_bracket_of_a_generator_sees_what_is_raised() -> None:
    seen: list[BaseException | None] = []

    @bracketed
    def noting() -> Iterator[int]:
        try:
            yield 3
            seen.append(None)
        except ValueError as error:
            seen.append(error)
            raise

    with noting() as number:
        assert number == 3
    with pytest.raises(ValueError, match="here"), noting():
        raise ValueError("here")
    assert [type(each) for each in seen] == [type(None), ValueError]


# -- signals that wait for a check -------------------------------------------------------------------------------------


def test_a_signal_waits_for_the_next_check() -> None:
    def work() -> None:
        with CheckedSignals() as signals:
            signal.raise_signal(signal.SIGINT)
            done.append("the rest")
            signals.check()
            done.append("too much")

    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("checked", [True, False])
def test_what_is_swallowed_comes_out_in_the_end(checked: bool) -> None:
    """Also what is an Exception, from a handler of the program's: an alarm, say."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    def work() -> None:
        with CheckedSignals() as signals:
            signal.raise_signal(signal.SIGALRM)
            for _ in range(2 * CheckedSignals._PAUSE + 10) if checked else ():
                try:
                    signals.check()
                except TimeoutError:
                    told.append(True)

    told: list[bool] = []
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TimeoutError):
            work()
        assert len(told) == (3 if checked else 0)
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.signal(signal.SIGALRM, before)


def test_without_a_check_a_signal_waits_no_longer_than_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        with CheckedSignals():
            signal.raise_signal(signal.SIGINT)
            for _ in range(6000):
                time.sleep(0.01)
            waited.append(True)

    waited: list[bool] = []
    monkeypatch.setattr(CheckedSignals, "_LONGEST_WAIT_S", 0.01)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert not waited


def test_a_handler_that_raises_nothing_is_called_once() -> None:
    called: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: called.append(number))
    with CheckedSignals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert not called
        signals.check()
        signals.check()
    assert called == [signal.SIGINT]


class Stubborn(nn.Module):
    """Is interrupted while it is traced, and swallows everything."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            signal.raise_signal(signal.SIGINT)
            return self.layer(x)
        except BaseException:
            return self.layer(x)


def test_an_interrupt_leads_out_of_a_trace_that_swallows_it() -> None:
    model = Stubborn().eval()
    for _ in range(2):  # what torch and we do only once
        with pytest.raises(KeyboardInterrupt):
            atlas.trace(model, X)
        if not _:
            before = snapshot(model, X)
    gc.collect(0)
    found = [change for change in differences(before, snapshot(model, X)) if "weak references" not in change]
    assert not [change for change in found if not change.startswith(FOLLOWING)]


# -- every moment ------------------------------------------------------------------------------------------------------


class Interrupter:
    """Sends Ctrl-C at the k-th moment at which Python looks for signals in our code, or counts them.

    It looks when a function begins, after a call and when a loop turns back, not before every instruction: nobody can
    be interrupted between the last instruction of a `with` block and the call of a lock's `__exit__`.
    """

    def __init__(self, at: int = -1) -> None:
        self.at, self.seen, self.where = at, 0, ""
        self.first: dict[Any, int] = {}  # of each place in the code, when it first came
        self.last: dict[Any, int] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not is_ours(frame) or asks_for_a_device(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        code, last = frame.f_code.co_code, -1

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal last
            if event == "opcode":
                if last >= 0 and looks_for_signals(dis.opname[code[last]]):
                    self.moment(frame)
                last = frame.f_lasti
            return trace

        self.moment(frame)
        return trace

    def moment(self, frame: FrameType) -> None:
        self.seen += 1
        place = frame.f_code, frame.f_lasti
        self.first.setdefault(place, self.seen)
        self.last[place] = self.seen
        if self.seen == self.at:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_name}, {frame.f_lasti}"
            signal.raise_signal(signal.SIGINT)


def is_ours(frame: FrameType | None) -> bool:
    """Our code, and what contextlib does for it; what torch does with contextlib is as safe as torch is."""
    if frame is not None and frame.f_code.co_filename == contextlib.__file__:
        return is_ours(frame.f_back)
    return frame is not None and frame.f_code.co_filename.startswith(OURS)


def asks_for_a_device(frame: FrameType | None) -> bool:
    """torch asks fake tensors for their device from C++ that must not raise: Ctrl-C aborts there, also without us."""
    for _ in range(8):
        if frame is not None and frame.f_code.co_name == "dispatch":
            return str(frame.f_locals.get("operator")) == "prim.device.default"
        frame = None if frame is None else frame.f_back
    return False


@functools.cache
def looks_for_signals(name: str) -> bool:
    return name.startswith("CALL") or ("JUMP_BACKWARD" in name and "NO_INTERRUPT" not in name)


def interrupted(run: Callable[[], Any], at: int) -> Interrupter:
    interrupter, before = Interrupter(at), sys.gettrace()
    sys.settrace(interrupter)
    try:
        run()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return interrupter


MODEL = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
X = torch.ones(2, 3)
SGD = torch.optim.SGD(MODEL.parameters(), lr=0.1, momentum=0.9)


def record() -> None:
    with atlas.recording(MODEL):
        MODEL(X)


def record_modules() -> None:
    with atlas.recording(MODEL, track_tensor_ops=False):
        MODEL(X)


def capture() -> None:
    atlas.capture(MODEL, X, backward=True, optimizer=SGD)


def capture_repeated() -> None:
    atlas.capture(MODEL, X, backward=True, optimizer=SGD, warmup=1, repeat=2)


def capture_values() -> None:
    atlas.capture(MODEL, X, backward=True, values="replay")


def capture_fake() -> None:
    atlas.capture(MODEL, X, backward=True, fake=True)


def track() -> None:
    with atlas.ComputationalGraphTracker(MODEL):
        MODEL(X)


def trace() -> None:
    atlas.trace(nn.Linear(3, 3), X)


def record_backward() -> None:
    atlas.record_backward(MODEL(X).sum(), statistics=True)


def debug_backward() -> None:
    with atlas.debug_backward(MODEL(X).sum()) as debugger:
        debugger.step()
        debugger.step()
        debugger.run()


def doctor() -> None:
    with atlas.doctor(only=DOCTOR):
        MODEL(X).sum().backward()
        SGD.step()


DOCTOR = ("in-place", "exploding", "not-finite-forward", "not-finite-backward")  # others walk through all objects
RESTORING = (capture, capture_repeated, capture_values, capture_fake)  # the model is afterwards as before
RUNS = (record, record_modules, *RESTORING, track, trace, record_backward, debug_backward, doctor)
FOLLOWING = ("random", "torch random", "context variables")  # of programs that run as alone, and of torch.export


def moments_of(run: Callable[[], Any]) -> list[int]:
    """The first and the last time that each place came: in between it is a loop that does the same."""
    found = interrupted(run, -1)
    moments = sorted({*found.first.values(), *found.last.values()})
    assert len(moments) > 100
    return moments if EVERY else moments[:: max(1, len(moments) // SAMPLE)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may come inside of a __del__
@pytest.mark.parametrize("run", sampled(RUNS, 4), ids=lambda run: run.__name__)
def test_an_interrupt_at_any_moment_leaves_nothing_behind(run: Callable[[], None]) -> None:
    for _ in range(2):  # what torch and we do only once
        run()
    moments = moments_of(run)
    roots = (MODEL, X, SGD) if run in RESTORING else ()
    failures: list[tuple[str, list[str]]] = []
    for at in moments:
        MODEL.zero_grad()
        before = snapshot(*roots)
        interrupter = interrupted(run, at)
        gc.collect(0)
        found = [change for change in differences(before, snapshot(*roots)) if "weak references" not in change]
        if run not in RESTORING:
            found = [change for change in found if not change.startswith(FOLLOWING)]
        if found:
            failures.append((interrupter.where, found))
            break  # what stays behind would be seen ever after
    assert not failures
