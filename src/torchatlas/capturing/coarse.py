"""Recording module calls only: no dispatch mode, almost no cost.

Every call of a module that calls no other module becomes one node, backward and each optimizer step one node each.
What runs between modules is not seen: a value it makes has no producer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torchatlas.capturing.modules import CALL_ROW, Watch, replace_call
from torchatlas.capturing.plans import Plan, Slot
from torchatlas.capturing.run import Recording
from torchatlas.capturing.stream import Recorder
from torchatlas.inputs import named_tensors

NOTE = "only module calls were recorded: functions between modules are not in the graph, nor are edges through them"

_SLOT = Slot("inputs", 0, many=True, written=False, overwritten=False)


class CoarseRecording(Recording):
    """A Recording without the dispatcher."""

    def __init__(self, model: nn.Module | None = None, *, track_timing: bool = True, track_memory: bool = True) -> None:
        super().__init__(model, track_timing=track_timing, track_memory=track_memory, only_inputs=True)
        self._watch = CoarseWatch(self._recorder, model, on_model_call=self.arrived, on_model_result=self.left)
        self._unseen = True

    def start(self) -> Recording:
        self._recorder.thread, self._recorder.began_ns = threading.current_thread().name, time.perf_counter_ns()
        self._watch.start()
        self._state = "running"
        return self

    def stop(self, error: BaseException | None = None) -> None:
        self._recorder.end = len(self._recorder.stream)
        self._watch.stop()
        self._state = "done"

    def _notes(self, graph: Any) -> list[str]:
        return [NOTE]


class CoarseWatch(Watch):
    """Writes rows of the event stream for whole calls."""

    def _row(self, name: str, times: tuple[int, int], call: int, taken: list[int], made: list[int], back: Any) -> None:
        recorder = self.recorder
        number = self._plans.get(name)
        if number is None:
            number = self._plans[name] = len(recorder.plans)
            recorder.plans.append(Plan(None, name, (_SLOT,), (), False, None, False, _never_bound))
        recorder.stream.extend((number, *times, 0, back, call, None, 0, torch.is_grad_enabled(), False, taken, made))

    def start(self) -> None:
        self._plans: dict[str, int] = {}
        self._step_began = 0
        super().start()
        self._undo.append(self._patch_backward())

    def _patch_module_call(self) -> Callable[[], None]:
        original: Any = nn.Module._call_impl
        now = time.perf_counter_ns
        recorder, calls, model = self.recorder, self.calls, self.model
        current, find, owners = recorder.current, self._numbers.get, self.owners

        def call_impl(module: Any, *args: Any, **kwargs: Any) -> Any:
            outer = current[0]
            number = find(id(module))
            if number is None or owners[number].reference() is not module:
                number = self.number(module)
            if module is model and outer < 0 and self.on_model_call is not None:
                self.on_model_call(args, kwargs)
            call = current[0] = len(calls) // CALL_ROW
            calls.extend((number, outer))
            taken = _numbers(recorder, (args, kwargs), True) if not module._modules else []
            began = now()
            try:
                result = original(module, *args, **kwargs)
            finally:
                current[0] = outer
            ended = now()
            if call == len(calls) // CALL_ROW - 1:  # it called no other module
                taken = taken or _numbers(recorder, (args, kwargs), True)
                made = _numbers(recorder, result, False)
                self._row(_operation(module), (began, ended), call, taken, made, None)
            if module is model and outer < 0 and self.on_model_result is not None:
                self.on_model_result(result)
            return result

        return replace_call(original, call_impl)

    def _patch_backward(self) -> Callable[[], None]:
        original, now = torch.autograd.backward, time.perf_counter_ns

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            taken = _numbers(self.recorder, tensors if isinstance(tensors, (list, tuple)) else [tensors], True)
            began = now()
            result = original(tensors, *args, **kwargs)
            self._row("torch.autograd.backward", (began, now()), self.recorder.current[0], taken, [], _NO_NODE)
            return result

        torch.autograd.backward = backward

        def undo() -> None:
            torch.autograd.backward = original

        return undo

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        result = super()._step_begins(optimizer, args, kwargs)
        self._step_began = time.perf_counter_ns()
        return result

    def _step_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        call = self.recorder.current[0]
        times = (self._step_began, time.perf_counter_ns())
        self._row(f"torch.optim.{type(optimizer).__name__}", times, call, [], [], None)
        super()._step_ends(optimizer, args, kwargs)


_NO_NODE = 2**62  # a backward number no forward node has


def _never_bound(*environment: Any) -> Any:
    raise AssertionError("module calls are recorded by the watch, not by a plan")


def _numbers(recorder: Recorder, tree: Any, external: bool) -> list[int]:
    number_of = recorder.number_of if external else recorder.number_of_result
    return [number_of(tensor) for _, tensor in named_tensors(tree)]


def _operation(module: nn.Module) -> str:
    kind = type(module)
    return f"nn.{kind.__name__}" if kind.__module__.startswith("torch.nn.") else kind.__name__
