"""Recording module calls only: no dispatch mode, almost no cost.

Every call of a module that calls no other module becomes one node, backward and each optimizer step one node each.
What runs between modules is not seen: a value it makes has no producer.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from torch import nn

from torchatlas.capturing.module_calls import Watch
from torchatlas.capturing.patches import Cell
from torchatlas.capturing.recorder import Recorder
from torchatlas.capturing.recording import Recording, Weakly
from torchatlas.capturing.row_schema import OpRow, Plan, Slot
from torchatlas.capturing.tensors import parts
from torchatlas.inputs import named_tensors
from torchatlas.torch_private import compiled_inside, never_compiled

NOTE = "only module calls were recorded: functions between modules are not in the graph, nor are edges through them"

_SLOT = Slot("inputs", 0, many=True, written=False, overwritten=False)


class ModulesOnlyRecording(Recording):
    """A Recording without the dispatcher."""

    def __init__(self, model: nn.Module | None = None, *, track_timing: bool = True, track_memory: bool = True) -> None:
        super().__init__(model, track_timing=track_timing, track_memory=track_memory, only_inputs=True)
        self._watch = ModulesOnlyWatch(
            self._recorder, model, on_model_call=Weakly(self, "arrived"), on_model_result=Weakly(self, "left")
        )
        self._unseen = True

    def _begin(self) -> Recording:
        self._recorder.thread, self._recorder.began_ns = threading.current_thread().name, time.perf_counter_ns()
        self._watch.start()
        self._state = "running"
        self._began_ns = time.perf_counter_ns()
        return self

    def _stop(self, error: BaseException | None) -> None:
        self._ended_ns = time.perf_counter_ns()
        self._close(error)

    def _close(self, error: BaseException | None) -> None:
        self._recorder.end = len(self._recorder.rows)
        self._watch.stop()
        self._state = "done"

    def _notes(self, graph: Any) -> list[str]:
        return [NOTE]


class ModulesOnlyWatch(Watch):
    """Writes one row per module call, backward pass and optimizer step."""

    @never_compiled
    def _row(
        self, name: str, times: tuple[int, int], call: int, taken: list[int], made: list[int], back: int | None
    ) -> None:
        number = self._plans.get(name)
        if number is None:
            number = self._plans[name] = self.recorder.add_plan(Plan(None, name, (_SLOT,)))
        row = OpRow(
            plan=number,
            start_ns=times[0],
            end_ns=times[1],
            next_sequence_nr=0,
            backward_nr=back,
            call=call,
            code=None,
            instruction=0,
            grad_mode=int(torch.is_grad_enabled()),
            needs_grad=False,
        )
        self.recorder.rows.extend((*row, taken, made))

    def start(self, predecessor: Watch | None = None) -> None:
        plans = enumerate(self.recorder.plans)  # the recorder may have served before
        self._plans = {plan.name: number for number, plan in plans if plan.operator is None}
        self._step_began = 0
        self._last_call: dict[int, int] = {}  # by thread
        super().start(predecessor)

    @compiled_inside
    def module_called(self, inner: Any, cell: Cell, module: Any, args: Any, kwargs: Any) -> Any:
        taken: list[int] = [] if module._modules else _numbers(self.recorder, (args, kwargs), True)

        @compiled_inside
        def timed(module: Any, *args: Any, **kwargs: Any) -> Any:
            call, began = cell[0], time.perf_counter_ns()
            result = inner(module, *args, **kwargs)
            ended = time.perf_counter_ns()
            if call == self._last_call[threading.get_ident()]:  # it called no other module
                made = _numbers(self.recorder, result, False)
                known = taken or _numbers(self.recorder, (args, kwargs), True)
                self._row(_operation(module), (began, ended), call, known, made, None)
            return result

        return super().module_called(timed, cell, module, args, kwargs)

    def graph_called(self, inner: Any, cell: Cell, graph: Any, args: Any, kwargs: Any) -> Any:
        return inner(graph, *args, **kwargs)

    @compiled_inside
    def backward_called(self, inner: Any, cell: Cell, tensors: Any, args: Any, kwargs: Any) -> Any:
        taken = _numbers(self.recorder, tensors if isinstance(tensors, (list, tuple)) else [tensors], True)
        began = time.perf_counter_ns()
        result = inner(tensors, *args, **kwargs)
        self._row("torch.autograd.backward", (began, time.perf_counter_ns()), cell[0], taken, [], _NO_NODE)
        return result

    def step_begins(self, cell: Cell, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        result = super().step_begins(cell, optimizer, args, kwargs)
        self._step_began = time.perf_counter_ns()
        return result

    def step_ends(self, cell: Cell, optimizer: Any) -> None:
        times = (self._step_began, time.perf_counter_ns())
        self._row(f"torch.optim.{type(optimizer).__name__}", times, cell[0], [], [], None)
        super().step_ends(cell, optimizer)

    def join_thread(self, cell: Cell, thread: threading.Thread) -> tuple[Cell, Any]:
        """Module calls in threads are recorded too; there is no dispatch mode to enter."""
        return super().join_thread(cell, thread)[0], None

    @never_compiled
    def _call(self, owner: int, outer: int) -> int:
        call = self._last_call[threading.get_ident()] = super()._call(owner, outer)
        return call


_NO_NODE = 2**62  # a backward number no forward node has


@never_compiled
def _numbers(recorder: Recorder, tree: Any, external: bool) -> list[int]:
    number_of = recorder.numbers.number_of if external else recorder.numbers.number_of_result
    return [number_of(part) for _, tensor in named_tensors(tree) for _, part in parts(tensor)]


def _operation(module: nn.Module) -> str:
    kind = type(module)
    return f"nn.{kind.__name__}" if kind.__module__.startswith("torch.nn.") else kind.__name__
