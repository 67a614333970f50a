"""The ops of a program that diagnoses want to hear of -> calls of their `op_ran`, with either recorder."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torchatlas.capturing.op_listening import OpClock, Wants
from torchatlas.capturing.row_schema import Plan
from torchatlas.diagnosis.events import Diagnosis
from torchatlas.diagnosis.numeric_checks import has_numbers, is_finite, tensors_in
from torchatlas.torch_private import next_sequence_nr

if TYPE_CHECKING:
    from torchatlas.diagnosis.visit import Visit


_ALWAYS, _NOT_FINITE = int(Wants.ALWAYS), int(Wants.NOT_FINITE)
_FIRST_WITHOUT_GRADIENTS, _SHARED_WRITE = int(Wants.FIRST_WITHOUT_GRADIENTS), int(Wants.SHARED_WRITE)
_OUTSIDE_STEPS = int(Wants.OUTSIDE_STEPS)


class OpEvents:
    """The listener of a visit: see OpListener."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._listeners: dict[Plan, list[tuple[Diagnosis, int]]] = {}  # plain numbers: flags take a microsecond
        self._number = -1  # autograd's, when an op without gradients was last told of

    def wants(self, plan: Plan) -> Wants:
        wanted = list[tuple[Diagnosis, Wants]]()
        for each in list(self._visit.diagnoses):
            try:
                wanted.append((each, each.wants(plan)))
            except Exception as error:
                self._visit.failed(error, each)
        self._listeners[plan] = [(each, int(wants)) for each, wants in wanted if wants]
        return functools.reduce(operator.or_, (wants for _, wants in wanted), Wants.NOTHING)

    def told(self, plan: Plan, why: int, args: Any, kwargs: Any, out: Any) -> None:
        for each, wants in self._listeners.get(plan, ()):
            if wants & why:
                try:
                    each.op_ran(plan, args, kwargs, out)
                except Exception as error:
                    self._visit.failed(error, each)

    def without(self, gone: list[Diagnosis]) -> None:
        """Tell some diagnoses of nothing any more: they have failed, or the visit is over."""
        for plan, listeners in self._listeners.items():
            self._listeners[plan] = [entry for entry in listeners if entry[0] not in gone]

    def around(self, plan: Plan, run: Callable[[Any, Any], Any], clock: OpClock) -> Callable[[Any, Any], Any]:
        wants = int(self.wants(plan))

        def observed(args: Any, kwargs: Any) -> Any:
            out = run(args, kwargs)
            clock.count()
            try:
                why = self._reasons(wants, out)
            except Exception as error:
                self._visit.failed(error)
                return out
            if why:
                self.told(plan, why, args, kwargs, out)
            return out

        return observed

    def _reasons(self, wants: int, out: Any) -> int:
        """Why an op is told of: what the native recorder finds out by itself."""
        why = wants & (_ALWAYS | _SHARED_WRITE)
        if wants & _NOT_FINITE and not all(is_finite(each) for each in tensors_in(out) if has_numbers(each)):
            why |= _NOT_FINITE
        if wants & _FIRST_WITHOUT_GRADIENTS and not torch.is_grad_enabled():
            number, before = next_sequence_nr(), self._number
            self._number = number
            why |= _FIRST_WITHOUT_GRADIENTS if number != before else 0
        if wants & _OUTSIDE_STEPS and not self._visit.history.in_step:
            why |= _OUTSIDE_STEPS
        return why
