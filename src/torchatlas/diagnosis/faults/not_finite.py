"""not-finite-forward, not-finite-backward: the op that made the first NaN or infinity that reaches the loss or a
gradient."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchatlas.autograd.gradient_statistics import all_finite
from torchatlas.capturing.frames import user_line
from torchatlas.capturing.op_listening import Wants
from torchatlas.capturing.row_schema import Plan
from torchatlas.capturing.table_rows import source_row
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.events import Diagnosis, diagnosis
from torchatlas.diagnosis.findings import Finding, Where, at, some
from torchatlas.diagnosis.loss_graph import short
from torchatlas.diagnosis.numeric_checks import has_numbers, is_finite, scalars_in, tensors_in
from torchatlas.graph import SourceLine
from torchatlas.graph.names import short_name
from torchatlas.torch_private import current_autograd_node, unobserved

_NOT_FILLED = ("empty", "new_empty", "resize")
_MOST_EVENTS = 32
_ANOMALY = "returned nan values"  # of torch.autograd.set_detect_anomaly
_SCALER = "_amp_foreach_non_finite_check_and_unscale_"  # looks for overflows itself, and skips the step


@dataclass(frozen=True)
class NotFiniteOp:
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
        self._events: list[NotFiniteOp] = []
        self._leaves: list[torch.Tensor] = []
        self._pending: list[Finding] = []  # until it is known whether a scaler skips the step
        self._loss_is_finite, self._reported = True, False

    def wants(self, plan: Plan) -> Wants:
        name = short_name(plan.name)
        if name == _SCALER:
            return Wants.ALWAYS
        return Wants.NOTHING if name.startswith(_NOT_FILLED) or _is_view(plan) else Wants.NOT_FINITE

    def op_ran(self, plan: Plan, args: Any, kwargs: Any, out: Any) -> None:
        name = short_name(plan.name)
        if name == _SCALER:
            self._pending = []
        if len(self._events) >= _MOST_EVENTS or self.history.in_step:
            return
        for tensor in tensors_in(out):
            if has_numbers(tensor) and not is_finite(tensor):
                self._events.append(_event(name, tensor, args, kwargs, self.history.caller))
                return

    def before_backward(self, backward: BackwardPass) -> None:
        self._report_pending()
        self._leaves = []
        bad = [loss for loss in backward.losses if has_numbers(loss) and not is_finite(loss)]
        self._loss_is_finite = not bad
        if bad:
            self._pending.append(self._in_forward(backward, bad[0]))

    def nodes_wanted(self, backward: BackwardPass) -> Iterable[int]:
        """The leaves whose gradients cannot be looked at after the pass."""
        if not backward.accumulates:
            return backward.leaves
        return [node for node, leaf in backward.leaves.items() if leaf._post_accumulate_grad_hooks]

    def node_runs(self, backward: BackwardPass, node: int, gradients: Any) -> None:
        if any(has_numbers(grad) and not is_finite(grad) for grad in gradients):
            self._leaves.append(backward.leaves[node])

    def after_backward(self, backward: BackwardPass, error: BaseException | None) -> None:
        anomaly = error is not None and _ANOMALY in str(error)
        if backward.accumulates and self._loss_is_finite:
            self._leaves += _with_odd_gradients(backward.leaves.values())
        if self._loss_is_finite and (self._leaves or anomaly):
            self._pending.append(self._in_backward(backward))
        self._events, self._leaves = [], []

    def at_end(self, complete: bool) -> None:
        self._report_pending()

    def _report_pending(self) -> None:
        """Report only the first: parameters are not finite after it, nor is anything that follows."""
        if self._pending and not self._reported:
            self.visit.report(self._pending[0])
            self._reported = True
        self._pending = []

    def _in_forward(self, backward: BackwardPass, loss: torch.Tensor) -> Finding:
        origins = [event for event in self._events if event.node is None and event.origin]
        decisive = list(_decisive(origins))
        where = [Where(_described(event), event.source) for event in decisive]
        where += dict.fromkeys(event.caller for event in decisive if event.caller is not None)
        first = next((event for event in self._events if event.node is None), None)
        if not where and first is not None:
            where = [Where(f"first seen at {_described(first)}: it came in with its inputs", first.source)]
        return Finding(
            "not-finite-forward",
            f"the loss is {float(loss.detach().flatten()[0]) if loss.numel() == 1 else 'not finite'}",
            (*where, *backward.lines),
            _why(origins),
            "keep the argument in range (clamp, eps inside log, sqrt and divisions, log_softmax instead of "
            "log(softmax), masked rows left out), or look at the data; if weights have grown from step to step, lower "
            "the learning rate or clip gradients",
        )

    def _in_backward(self, backward: BackwardPass) -> Finding:
        origins = [event for event in self._events if event.node is not None and event.origin]
        where = []
        for event in _decisive(origins):
            assert event.node is not None
            op = self.history.maker_of(event.node[1])
            made = f"{_described(event)}, in {event.node[0]}"
            where.append(Where(made, None) if op is None else at(f"{made}, of", op))
        names = some([self.history.name(leaf) for leaf in self._leaves])
        what = f"the gradient of {names}" if names else "a gradient, at which anomaly detection stopped,"
        return Finding(
            "not-finite-backward",
            f"the loss is finite, {what} is not",
            (*where, *backward.lines),
            "the derivative is infinite there (sqrt, norm or a power at 0, acos at 1), or 0 times infinity",
            "move the argument away from there (eps inside), and give torch.where harmless numbers in the branch "
            "that it does not take: the derivative of both is computed",
        )


def _with_odd_gradients(leaves: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves whose gradients are not finite. One `unobserved` for all: it costs as much as a small one."""
    with unobserved():
        gradients = ((leaf, leaf.grad) for leaf in leaves)
        return [leaf for leaf, grad in gradients if grad is not None and has_numbers(grad) and not all_finite(grad)]


def _why(origins: list[NotFiniteOp]) -> str:
    if not origins:
        return "it was in the data, or made before the visit began"
    if origins[0].took_inf:
        return "the op made it from infinities: a row that a mask has emptied, inf - inf, or 0 times infinity"
    return "the op made it from finite numbers"


def _decisive(origins: list[NotFiniteOp]) -> Iterator[NotFiniteOp]:
    """The first op, and the first that made a NaN if the first made infinities only."""
    yield from origins[:1]
    if origins and not origins[0].nan:
        yield from [event for event in origins if event.nan][:1]


def _described(event: NotFiniteOp) -> str:
    count = math.prod(event.shape)
    if count == 1:
        return f"{event.operation} made {'NaN' if event.nan else 'infinity'} from {event.inputs}"
    made = " and ".join(f"{some:,} {name}" for some, name in ((event.nan, "NaN"), (event.inf, "infinite")) if some)
    return f"{event.operation} made {made} among {count:,} numbers {event.shape} from {event.inputs}"


def _event(name: str, tensor: torch.Tensor, args: Any, kwargs: Any, caller: Where | None) -> NotFiniteOp:
    running, line = current_autograd_node(), user_line(sys._getframe(1))
    arguments = [each for each in tensors_in([args, kwargs]) if has_numbers(each) and each is not tensor]
    with unobserved():
        nan, inf = int(tensor.isnan().sum()), int(tensor.isinf().sum())
        took_nan = any(bool(each.isnan().any()) for each in arguments)
        took_inf = any(bool(each.isinf().any()) for each in arguments)
        inputs = ", ".join(_range(each) for each in arguments[:3]) or "no tensor"
    return NotFiniteOp(
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
        any(isinstance(n, float) and not math.isfinite(n) for n in scalars_in([args, kwargs])) or name == "lift_fresh",
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


def _is_view(plan: Plan) -> bool:
    """True for operators that only look at numbers that are there already."""
    return bool(getattr(plan.operator, "is_view", False))
