"""order: calls of a training loop in the wrong order: schedulers, clipping, and optimizers that are made anew."""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from torchatlas.capturing.frames import is_users, variables_of
from torchatlas.capturing.op_listening import Wants
from torchatlas.capturing.row_schema import Plan
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.events import Diagnosis, diagnosis
from torchatlas.diagnosis.findings import Finding, Severity, Where
from torchatlas.diagnosis.history import running_line
from torchatlas.graph.names import short_name
from torchatlas.torch_private import unobserved

_UNSCALES = "_amp_foreach_non_finite_check_and_unscale_"
_WRITES = ("mul_", "_foreach_mul_", "clamp_", "_foreach_clamp_min_")  # each clipped gradient goes through one of them
_NO_GRADIENTS = "lift_fresh"  # clip_grad_norm_ without gradients returns torch.tensor(0.0)
_OPS = frozenset((*_WRITES, _NO_GRADIENTS, _UNSCALES))
_CLIP_GRAD = torch.nn.utils.clip_grad.__file__
_FEWEST_TIMES = 2
_FEWEST_MADE, _MOST_STEPS = 8, 10  # optimizers over the same parameters, and steps of each
_MOST_KNOWN = 1_000
Gradients = dict[int, "weakref.ref[torch.Tensor]"]  # by id


@dataclass(frozen=True)
class Clipping:
    """A call of clip_grad_norm_ or clip_grad_value_."""

    limit: float
    gradients: list[torch.Tensor]
    parameters: list[torch.Tensor]  # if it found no gradient


def clipping(plan: Plan, args: Any) -> Clipping | None:
    """The call of torch's clip_grad_norm_ or clip_grad_value_ in which an op runs."""
    name = _relevant(plan.name)
    if name is None or name == _UNSCALES or (frame := _clipping_frame(sys._getframe(1))) is None:
        return None
    variables = variables_of(frame)
    with unobserved():  # it may be a tensor
        limit = float(variables.get("max_norm", variables.get("clip_value", math.inf)))
    if name == _NO_GRADIENTS:
        parameters = [each for each in variables.get("parameters", ()) if isinstance(each, torch.Tensor)]
        return Clipping(limit, [], parameters) if parameters else None
    return Clipping(limit, list(args[0]) if isinstance(args[0], (list, tuple)) else [args[0]], [])


@functools.cache
def _relevant(operation: str) -> str | None:
    """The short name of an op that may clip or unscale gradients."""
    name = short_name(operation)
    return name if name in _OPS else None


def wants_clipping(plan: Plan) -> Wants:
    """What to hear of an operator in order to know of clipping and unscaling."""
    name = _relevant(plan.name)
    if name is None:
        return Wants.NOTHING
    return Wants.OUTSIDE_STEPS if name in _WRITES else Wants.ALWAYS  # optimizers multiply much that is no gradient


def unscales(plan: Plan) -> bool:
    return _relevant(plan.name) == _UNSCALES


def _clipping_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not is_users(frame.f_code.co_filename):
        if frame.f_code.co_filename == _CLIP_GRAD and "clip_grad" in frame.f_code.co_name:
            return frame
        frame = frame.f_back
    return None


@diagnosis
class Order(Diagnosis):
    """Judged at the end: a line that is in the wrong place is so every time."""

    keys = ("order",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._clips = _Clips()
        self._schedules = _Schedules()
        self._remakes: dict[tuple[int, int], _Remakes] = {}  # by the first parameter and how many there are

    def wants(self, plan: Plan) -> Wants:
        return wants_clipping(plan)

    def op_ran(self, plan: Plan, args: Any, kwargs: Any, out: Any) -> None:
        if unscales(plan):
            self._clips.unscaled(args[0], args[2])
        elif (call := clipping(plan, args)) is not None and math.isfinite(call.limit):
            self._clips.clipped(call, running_line("clipping"))

    def before_backward(self, backward: BackwardPass) -> None:
        if backward.accumulates:
            self._clips.backward()

    def before_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        self._clips.step(parameters)
        self._schedules.optimizer_steps(optimizer)
        if parameters:
            self._remakes_of(parameters).before_step(optimizer, parameters, self.history.step_line)

    def after_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        self._clips.stepped(parameters)
        if parameters:
            self._remakes_of(parameters).after_step(optimizer, parameters)

    def scheduler_stepped(self, scheduler: Any) -> None:
        self._schedules.scheduler_steps(scheduler, running_line("scheduler.step()"))

    def at_end(self, complete: bool) -> None:
        if complete:
            self._clips.forget_late()
        for finding in [*self._clips.findings(), *self._schedules.findings(), *self._lost_states()]:
            self.visit.report(finding)

    def _remakes_of(self, parameters: list[torch.Tensor]) -> _Remakes:
        key = id(parameters[0]), len(parameters)
        known = self._remakes.get(key)
        if known is None or known.first() is not parameters[0]:
            if len(self._remakes) > _MOST_KNOWN:
                self._remakes = {key: each for key, each in self._remakes.items() if each.is_fault}
            known = self._remakes[key] = _Remakes(weakref.ref(parameters[0]))
        return known

    def _lost_states(self) -> Iterator[Finding]:
        for each in self._remakes.values():
            if each.is_fault and each.line is not None:
                yield Finding(
                    "order",
                    f"{each.count:,} {each.kind} optimizers were made for the same parameters, one after the other",
                    (each.line,),
                    "each begins with an empty state: the momentum or the moving averages of gradients that the one "
                    "before has gathered are lost",
                    "make the optimizer once, before the loop",
                    severity=Severity.WARNING,
                )


@dataclass(eq=False)
class _Clip:
    """How often clipping at one line was of use, and how often not."""

    calls: int = 0  # the first ones are before it is known what steps use: neither useful nor useless
    useful: int = 0  # a step may have used what it clipped
    useless: int = 0  # the gradients had been used already, or were not there yet
    scaled: int = 0  # a scaler has divided them only afterwards


class _Clips:
    """Clipping is useful between backward and step; after unscale_, if there is a GradScaler."""

    def __init__(self) -> None:
        self._lines: dict[Where, _Clip] = {}
        self._sure = False  # a backward pass has begun since the first clipping: what steps use is known
        self._used: Gradients = {}  # by a step, since the last backward pass
        self._unscaled: Gradients = {}  # since the last backward pass
        self._clipped: dict[int, tuple[weakref.ref[torch.Tensor], Where]] = {}  # and not unscaled so far
        # Clipped after they were used, since the last backward pass; and clipped when there were none yet.
        self._late: deque[tuple[Where, Gradients]] = deque(maxlen=_MOST_KNOWN)
        self._early: deque[tuple[Where, list[weakref.ref[torch.Tensor]]]] = deque(maxlen=_MOST_KNOWN)

    def clipped(self, call: Clipping, line: Where) -> None:
        clip = self._lines.setdefault(line, _Clip())
        clip.calls += 1
        if not call.gradients:
            self._early.append((line, [weakref.ref(parameter) for parameter in call.parameters]))
        elif all(_holds(self._used, gradient) for gradient in call.gradients):
            self._late.append((line, _gradients(call.gradients)))
        else:
            clip.useful += self._sure
            new = [gradient for gradient in call.gradients if not _holds(self._unscaled, gradient)]
            self._clipped |= {key: (held, line) for key, held in _gradients(new).items()}

    def unscaled(self, gradients: Any, inverse_scale: torch.Tensor) -> None:
        before = [self._clipped.pop(id(each)) for each in gradients if id(each) in self._clipped]
        now = set(map(id, gradients))
        lines = {line for held, line in before if id(held()) in now}
        if lines:
            with unobserved():
                scaled = float(inverse_scale) != 1
            for line in lines:
                self._lines[line].scaled += scaled
        if self._lines:
            self._unscaled |= _gradients(gradients)

    def backward(self) -> None:
        self.forget_late()
        self._used, self._unscaled = {}, {}
        self._sure = bool(self._lines)

    def forget_late(self) -> None:
        """No step will use what was clipped after its step."""
        for line in dict.fromkeys(line for line, _ in self._late):
            self._lines[line].useless += 1
        self._late.clear()

    def step(self, parameters: list[torch.Tensor]) -> None:
        if not self._lines:
            return
        mine = {id(each.grad): each for each in parameters if each.grad is not None}
        for line, gradients in self._late:
            self._lines[line].useful += not mine.keys().isdisjoint(gradients)
        trained = {id(each) for each in mine.values()}
        for line, early in self._early:
            self._lines[line].useless += any(id(held()) in trained for held in early)
        self._clipped = {}
        self._early.clear()

    def stepped(self, parameters: list[torch.Tensor]) -> None:
        if self._lines:
            self._used |= _gradients([each.grad for each in parameters if each.grad is not None])

    def findings(self) -> Iterator[Finding]:
        for line, clip in self._lines.items():
            if clip.scaled:
                yield Finding(
                    "order",
                    "gradients were clipped while they were multiplied by the scale of a GradScaler",
                    (line,),
                    "the limit was compared with scaled gradients; after unscaling they are smaller than the limit by "
                    "the scale",
                    "call scaler.unscale_(optimizer) before clipping",
                    clip.scaled,
                )
            elif clip.useless >= _FEWEST_TIMES and not clip.useful:
                yield Finding(
                    "order",
                    "clipping has no effect: no step uses the gradients that it clips",
                    (line,),
                    "it runs before backward or after the step; the gradients of the next step are made after it",
                    "clip between loss.backward() and optimizer.step()",
                    clip.calls,  # where none was of use, those that nothing is known of were not either
                    Severity.WARNING,
                )


def _gradients(gradients: list[torch.Tensor]) -> Gradients:
    return {id(gradient): weakref.ref(gradient) for gradient in gradients}


def _holds(gradients: Gradients, gradient: torch.Tensor) -> bool:
    held = gradients.get(id(gradient))
    return held is not None and held() is gradient


@dataclass(eq=False)
class _Schedule:
    """A scheduler: how many steps its optimizer had taken at each of its own."""

    counter: list[int]  # of its optimizer, which goes on counting
    at: list[int] = field(default_factory=list)  # the first, the second that differs, and the last
    lines: set[Where] = field(default_factory=set)


class _Schedules:
    """Finds schedulers that step before their optimizers: before the first step, and not after the last."""

    def __init__(self) -> None:
        self._steps: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()  # of optimizers
        self._schedules: weakref.WeakKeyDictionary[Any, _Schedule] = weakref.WeakKeyDictionary()  # of schedulers
        self._all: list[_Schedule] = []  # also of schedulers that are gone

    def optimizer_steps(self, optimizer: Any) -> None:
        self._steps.setdefault(optimizer, [0])[0] += 1

    def scheduler_steps(self, scheduler: Any, line: Where) -> None:
        known = self._schedules.get(scheduler)
        if known is None:
            known = self._schedules[scheduler] = _Schedule(self._steps.setdefault(scheduler.optimizer, [0]))
            self._all += [known] if len(self._all) < _MOST_KNOWN else []
        known.lines.add(line)
        now = known.counter[0]
        if len(known.at) < 2 or known.at[1] == known.at[0]:
            known.at = [*known.at[:1], now]
        known.at = [*known.at[:2], now]

    def findings(self) -> Iterator[Finding]:
        for each in self._all:
            first, second, last = (*each.at, 0, 0)[:3]
            if len(each.lines) == 1 and first == 0 and second > 0 and each.counter[0] > last:
                yield Finding(
                    "order",
                    "the scheduler takes its step before the optimizer takes its own",
                    tuple(each.lines),
                    "the first learning rate of the schedule is never used, and all others come one step early",
                    "call scheduler.step() after optimizer.step()",
                    severity=Severity.WARNING,
                )


@dataclass(eq=False)
class _Remakes:
    """The optimizers that took steps with the same parameters, one after the other."""

    first: weakref.ref[torch.Tensor]
    count: int = 0
    kind: str = ""
    line: Where | None = None
    stateful: bool = False
    deliberate: bool = False  # states were loaded, parameters were set to others, or an earlier optimizer goes on
    steps: int = 0  # of the latest
    most_steps: int = 0
    versions: int | None = None  # of the parameters, after the last step
    latest: deque[weakref.ref[Any]] = field(default_factory=lambda: deque(maxlen=_FEWEST_MADE))

    @property
    def is_fault(self) -> bool:
        few = self.most_steps <= _MOST_STEPS
        return self.count >= _FEWEST_MADE and few and self.stateful and not self.deliberate

    def before_step(self, optimizer: Any, parameters: list[torch.Tensor], line: Where) -> None:
        if not self.latest or self.latest[-1]() is not optimizer:
            again = any(each() is optimizer for each in self.latest)
            changed = self.versions is not None and self.versions != _versions(parameters)
            loaded = self.count > 0 and bool(optimizer.state)
            whole = isinstance(optimizer, torch.optim.LBFGS)  # one step of it is a whole optimization
            self.deliberate = self.deliberate or again or changed or loaded or whole
            self.latest.append(weakref.ref(optimizer))
            self.count, self.steps, self.kind = self.count + 1, 0, type(optimizer).__name__
            self.line = line
        self.steps += 1
        self.most_steps = max(self.most_steps, self.steps)

    def after_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        self.versions = _versions(parameters)
        if not self.stateful:
            state = optimizer.state.get(parameters[0], {})
            self.stateful = any(isinstance(each, torch.Tensor) and each.dim() for each in state.values())


def _versions(parameters: list[torch.Tensor]) -> int:
    return sum(parameter._version for parameter in parameters)
