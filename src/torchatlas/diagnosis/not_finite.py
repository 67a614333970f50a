"""The first NaN or infinity that reaches the loss or a gradient: the op that made it from finite numbers."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchatlas.autograd.figures import all_finite
from torchatlas.autograd.walk import leaf_of
from torchatlas.capturing.frames import user_line
from torchatlas.capturing.portable import source_row
from torchatlas.capturing.row_schema import Plan
from torchatlas.diagnosis.backward import Pass
from torchatlas.diagnosis.case import Case, short
from torchatlas.diagnosis.diagnosis import Diagnosis, diagnosis
from torchatlas.diagnosis.finding import Finding, Where, at, some
from torchatlas.graph import SourceLine
from torchatlas.graph.names import short_name
from torchatlas.torch_private import current_autograd_node, functorch_depth, unobserved

_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}
_NOT_FILLED = ("empty", "new_empty", "resize")
_MOST_EVENTS = 32
_ANOMALY = "returned nan values"  # of torch.autograd.set_detect_anomaly
_SCALER = "_amp_foreach_non_finite_check_and_unscale_"  # looks for overflows itself, and skips the step


@dataclass(frozen=True)
class Event:
    """An op whose result is not finite."""

    operation: str
    source: SourceLine | None
    node: tuple[str, int] | None  # of autograd, if it ran in backward
    nan: int
    inf: int
    shape: tuple[int, ...]
    took_nan: bool
    took_inf: bool
    inputs: str
    caller: Where | None  # the program's line, if the op's own is in a library
    deliberate: bool  # it was asked for an infinity, for a mask say

    @property
    def origin(self) -> bool:
        return (self.nan > 0 and not self.took_nan) or (
            not self.nan and not self.took_nan and not self.took_inf and not self.deliberate
        )


@diagnosis
class NotFinite(Diagnosis):
    keys = ("not-finite-forward", "not-finite-backward")

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._events: list[Event] = []
        self._leaves: list[torch.Tensor] = []
        self._pending: list[Finding] = []  # until it is known whether a scaler skips the step
        self._loss_is_finite, self._told = True, False

    def op_ran(self, plan: Plan, args: Any, kwargs: Any, out: Any) -> None:
        name = short_name(plan.name)
        if name == _SCALER:
            self._pending = []
        if len(self._events) >= _MOST_EVENTS or self.visit.in_step or name.startswith(_NOT_FILLED) or is_view(plan):
            return
        for tensor in tensors_in(out):
            if plain(tensor) and not finite(tensor):
                self._events.append(_event(name, tensor, args, kwargs, self.visit.caller))
                return

    def before_backward(self, case: Case, found: Pass) -> None:
        self._report_pending()
        self._leaves = []
        bad = [loss for loss in found.losses if plain(loss) and not finite(loss)]
        self._loss_is_finite = not bad
        if bad:
            self._pending.append(self._forward(case, bad[0]))

    def node_runs(self, found: Pass, node: int, gradients: Any) -> None:
        leaf = leaf_of(found.nodes[node])
        if leaf is not None and any(plain(grad) and not finite(grad) for grad in gradients if grad is not None):
            self._leaves.append(leaf)

    def after_backward(self, case: Case, found: Pass, error: BaseException | None) -> None:
        anomaly = error is not None and _ANOMALY in str(error)
        if self._loss_is_finite and (self._leaves or anomaly):
            self._pending.append(self._backward(case, found))
        self._events, self._leaves = [], []

    def at_end(self, complete: bool) -> None:
        self._report_pending()

    def _report_pending(self) -> None:
        """Only the first: parameters are not finite after it, and so is all that follows."""
        if self._pending and not self._told:
            self.visit.report(self._pending[0])
            self._told = True
        self._pending = []

    def _forward(self, case: Case, loss: torch.Tensor) -> Finding:
        origins = [event for event in self._events if event.node is None and event.origin]
        decisive = list(_decisive(origins))
        where = [Where(_told(event), event.source) for event in decisive]
        where += dict.fromkeys(event.caller for event in decisive if event.caller is not None)
        first = next((event for event in self._events if event.node is None), None)
        if not where and first is not None:
            where = [Where(f"first seen at {_told(first)}: it came in with its inputs", first.source)]
        return Finding(
            "not-finite-forward",
            f"the loss is {float(loss.detach().flatten()[0]) if loss.numel() == 1 else 'not finite'}",
            (*where, *case.here()),
            _why(origins),
            "keep the argument in range (clamp, eps inside log, sqrt and divisions, log_softmax instead of "
            "log(softmax), masked rows left out), or look at the data",
        )

    def _backward(self, case: Case, found: Pass) -> Finding:
        origins = [event for event in self._events if event.node is not None and event.origin]
        where = []
        for event in _decisive(origins):
            assert event.node is not None
            op = self.visit.maker_of(event.node[1])
            told = f"{_told(event)}, in {event.node[0]}"
            where.append(Where(told, None) if op is None else at(f"{told}, of", op))
        names = some([self.visit.name(leaf) for leaf in self._leaves])
        what = f"the gradient of {names}" if names else "a gradient, at which anomaly detection stopped,"
        return Finding(
            "not-finite-backward",
            f"the loss is finite, {what} is not",
            (*where, *case.here()),
            "the derivative is infinite there (sqrt, norm or a power at 0, acos at 1), or 0 times infinity",
            "move the argument away from there (eps inside), and give torch.where harmless numbers in the branch "
            "that it does not take: the derivative of both is computed",
        )


def _why(origins: list[Event]) -> str:
    if not origins:
        return "it was in the data, or made before the visit began"
    if origins[0].took_inf:
        return "the op made it of infinities: a row that a mask has emptied, inf - inf, or 0 times infinity"
    return "the op made it of finite numbers"


def _decisive(origins: list[Event]) -> Iterator[Event]:
    """The first, and the first NaN if that came of it."""
    yield from origins[:1]
    if origins and not origins[0].nan:
        yield from [event for event in origins if event.nan][:1]


def _told(event: Event) -> str:
    made = " and ".join(f"{count:,} {name}" for count, name in ((event.nan, "NaN"), (event.inf, "infinite")) if count)
    return f"{event.operation} made {made} of {math.prod(event.shape):,} {event.shape} from {event.inputs}"


def _event(name: str, tensor: torch.Tensor, args: Any, kwargs: Any, caller: Where | None) -> Event:
    running, line = current_autograd_node(), user_line(sys._getframe(1))
    given = [each for each in tensors_in([args, kwargs]) if plain(each) and each is not tensor]
    with unobserved():
        nan, inf = int(tensor.isnan().sum()), int(tensor.isinf().sum())
        took_nan = any(bool(each.isnan().any()) for each in given)
        took_inf = any(bool(each.isinf().any()) for each in given)
        inputs = ", ".join(_range(each) for each in given[:3]) or "no tensor"
    return Event(
        name,
        None if line is None else source_row(*line),
        None if running is None else (short(running), running._sequence_nr()),
        nan,
        inf,
        tuple(tensor.shape),
        took_nan,
        took_inf,
        inputs,
        None if caller is None or line is None or caller.source == source_row(*line) else caller,
        any(isinstance(n, float) and not math.isfinite(n) for n in numbers_in([args, kwargs])) or name == "lift_fresh",
    )


def _range(tensor: torch.Tensor) -> str:
    numbers = tensor[tensor.isfinite()] if not tensor.is_complex() else tensor.abs()
    extremes = f" in [{float(numbers.min()):.4g}, {float(numbers.max()):.4g}]" if numbers.numel() else ""
    others = {
        "NaN": int(tensor.isnan().sum()),
        "inf": 0 if tensor.is_complex() else int(tensor.isposinf().sum()),
        "-inf": 0 if tensor.is_complex() else int(tensor.isneginf().sum()),
    }
    counted = "".join(f" and {count:,} of {name}" for name, count in others.items() if count)
    return f"{tuple(tensor.shape)}{extremes}{counted}"


def finite(tensor: torch.Tensor) -> bool:
    """Whether all numbers are, without a trace."""
    with unobserved():
        return all_finite(tensor)


def is_view(plan: Plan) -> bool:
    """Whether an operator only looks at numbers that are there already."""
    return bool(getattr(plan.operator, "is_view", False))


def plain(tensor: Any) -> bool:
    """Whether it has floating numbers that can be looked at."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.dtype in _FLOATS
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.device.type != "meta"
        and not tensor._is_zerotensor()  # of forward-mode AD: zeros without memory, which nobody may read here
        and functorch_depth() == 0
    )


def tensors_in(item: Any) -> Iterator[torch.Tensor]:
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, (list, tuple)):
        for each in item:
            yield from tensors_in(each)
    elif isinstance(item, dict):
        yield from tensors_in(list(item.values()))


def numbers_in(item: Any) -> Iterator[Any]:
    if isinstance(item, (int, float)):
        yield item
    elif isinstance(item, (list, tuple)):
        for each in item:
            yield from numbers_in(each)
    elif isinstance(item, dict):
        yield from numbers_in(list(item.values()))
