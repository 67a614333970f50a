"""nothing-changes: training in which no parameter changes: no steps, no learning rate, no gradients, or updates of
copies."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from torchatlas.capturing.op_listening import Wants
from torchatlas.capturing.row_schema import Plan
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.events import Diagnosis, diagnosis, is_power_of_two
from torchatlas.diagnosis.faults.order import Clipping, clipping, unscales, wants_clipping
from torchatlas.diagnosis.findings import Finding, Where, some
from torchatlas.diagnosis.history import running_line
from torchatlas.diagnosis.parameter_changes import SAME, EarlierNumbers
from torchatlas.diagnosis.unstepped_leaves import FEWEST_PASSES, UnsteppedLeaves
from torchatlas.torch_private import unobserved

_IDLE = 1e-6  # of the highest learning rate: so small a one counts as none
_SMALL_RATE, _SMALL_LIMIT = 1e-8, 1e-4  # at most, to be the reason
_FEWEST_STEPS, _FEWEST_IDLE = 3, 5
_FEWEST_SKIPPED = 10  # steps: a scaler may begin too high, and then halves its scale each time
_MOST_RUNS = 100


@dataclass(eq=False)
class _Run:
    """The steps of one optimizer."""

    line: Where  # of the first
    before: EarlierNumbers | None  # of its parameters; None as soon as they have changed
    loose: bool  # none of them belongs to a known model
    steps: int = 0
    highest: float = 0.0  # learning rate
    frozen: bool = True  # nothing has required a gradient, or had one
    empty: bool = True  # nothing has had a gradient
    idle: int = 0  # steps since the learning rate has become almost 0
    before_idle: EarlierNumbers | None = None
    schedulers: dict[Where, None] = field(default_factory=dict)  # of its learning rate: where they step
    clips: dict[Where, float] = field(default_factory=dict)  # that made gradients smaller, and the limit


@diagnosis
class NothingChanges(Diagnosis):
    """Looks at the parameters before the first step and after the 1st, 2nd, 4th, 8th ..., until they have changed."""

    keys = ("nothing-changes",)
    needs_the_end = keys

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._run_of: weakref.WeakKeyDictionary[Any, _Run] = weakref.WeakKeyDictionary()  # by optimizer
        self._runs: list[_Run] = []  # also of optimizers that are gone
        self._changed = False  # something has
        self._clips: dict[Where, float] = {}  # since the last step
        self._skips = _Skips()
        self._unstepped = UnsteppedLeaves(visit.history)
        self._of_no_step: Finding | None = None  # as of the recording before

    # -- what happens --------------------------------------------------------------------------------------------------

    def wants(self, plan: Plan) -> Wants:
        return wants_clipping(plan)

    def op_ran(self, plan: Plan, args: Any, kwargs: Any, out: Any) -> None:
        if self._changed:
            return
        if unscales(plan):
            self._skips.checked(args[1], running_line("step of the scaler"))
        elif (call := clipping(plan, args)) is not None and _made_small(call, plan, args):
            self._clips[running_line("clipping")] = call.limit

    def before_backward(self, backward: BackwardPass) -> None:
        if backward.accumulates and not self._changed:
            self._unstepped.pass_begins(backward)

    def after_backward(self, backward: BackwardPass, error: BaseException | None) -> None:
        if backward.accumulates and not self._changed:
            self._unstepped.pass_ends(backward.line)

    def before_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        run = self._run(optimizer, parameters)
        run.steps += 1
        if run.empty:
            run.empty = all(each.grad is None for each in parameters)
            run.frozen = run.frozen and run.empty and not any(each.requires_grad for each in parameters)
        rate = max((_rate(group) for group in optimizer.param_groups), default=0.0)
        run.highest = max(run.highest, rate)
        run.idle = run.idle + 1 if rate <= _IDLE * run.highest and run.highest else 0
        if run.idle == 1:
            run.before_idle = EarlierNumbers(parameters)
        run.clips |= self._clips
        self._clips = {}
        if not self._changed:
            self._unstepped.step(parameters)

    def after_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        run = self._run(optimizer, parameters)
        if run.before is not None and is_power_of_two(run.steps):
            self._look(run)
        looks = run.before_idle is not None and run.idle and is_power_of_two(run.idle)
        if looks and run.before_idle is not None and run.before_idle.has_changed(10 * SAME):
            run.before_idle = None

    def _look(self, run: _Run) -> None:
        if run.before is not None and run.before.has_changed():
            run.before, self._changed = None, True

    def scheduler_stepped(self, scheduler: Any) -> None:
        run = self._run_of.get(scheduler.optimizer)
        if run is not None:
            run.schedulers.setdefault(running_line("scheduler.step()"))

    def _run(self, optimizer: Any, parameters: list[torch.Tensor]) -> _Run:
        run = self._run_of.get(optimizer)
        if run is None:
            loose = all(each.grad is None for each in parameters) and not any(
                self.history.leaf(each).of_module for each in parameters
            )
            before = EarlierNumbers([] if self._changed else parameters)
            known = len(before.references) == len(parameters)
            run = self._run_of[optimizer] = _Run(self.history.step_line, before if known else None, loose)
            self._runs += [run] if len(self._runs) < _MOST_RUNS else []
            self._changed = self._changed or not known  # as far as anybody can tell
        return run

    # -- what is reported ----------------------------------------------------------------------------------------------

    def recording_ends(self) -> None:
        self._of_no_step = None if self._changed or self._runs else self._unstepped.finding()

    def at_end(self, complete: bool) -> None:
        if not complete:
            return
        for run in self._runs:
            self._look(run)
        findings = list(self._decayed())
        if not findings and not self._changed:
            cause = self._skips.finding() if self._skips.times else self._of_steps()
            if not self._runs and not self._skips.times:
                known = self._unstepped.is_stale and self._unstepped.are_same(FEWEST_PASSES)
                cause = self._of_no_step if known else self._unstepped.finding()
            findings = [] if cause is None else [cause]
        for finding in findings[:1]:
            self.visit.report(finding)

    def _decayed(self) -> Iterator[Finding]:
        for run in self._runs:
            if (
                run.before_idle is not None
                and run.before_idle.references
                and run.idle >= _FEWEST_IDLE
                and 2 * run.idle > run.steps
            ):
                yield _finding(
                    f"no parameter changes any more in the last {run.idle:,} of {run.steps:,} steps",
                    (*run.schedulers, run.line),
                    f"the learning rate has decayed from {run.highest:.3g} to almost 0",
                    "decay it more slowly: a scheduler counts its own steps, so one that was meant for epochs must "
                    "not step with each batch",
                )

    def _of_steps(self) -> Finding | None:
        """The reason why steps that were taken changed nothing."""
        runs = self._runs
        steps = sum(run.steps for run in runs)
        if not runs or steps < 2:
            return None
        lines = tuple(dict.fromkeys(run.line for run in runs))[:3]
        graded = self._unstepped.names()
        if all(run.empty and run.loose for run in runs) and graded and self._unstepped.are_same(2):
            return _finding(
                f"{steps:,} steps were taken with parameters of no model, and none with those of the model that is "
                f"trained: {some(graded)}",
                lines,
                "the model was replaced after the optimizer was made (a copy, a new or a loaded one): the optimizer "
                "holds the parameters of the old one, which get no gradient",
                "make the optimizer from model.parameters() after the model is complete",
                explains=("optimizer-misses", "no-gradient"),
            )
        if all(run.frozen for run in runs) and not graded:
            return _finding(
                f"{steps:,} steps were taken, and nothing that the optimizer holds requires a gradient",
                lines,
                "requires_grad is False for all of its parameters: no backward pass makes a gradient for them",
                "call requires_grad_(True) for those that are to be trained, before the forward pass",
                explains=("no-gradient",),
            )
        if steps < _FEWEST_STEPS or any(run.empty for run in runs):
            return None
        if all(run.highest == 0 for run in runs):
            return _finding(
                f"no parameter changed in {steps:,} steps",
                (*lines, *(line for run in runs[:3] for line in run.schedulers)),
                "the learning rate was 0 at each of them",
                "give the optimizer a learning rate above 0; if a scheduler sets it, look at what it computes "
                "(a division of integers, a warm-up that is stepped once an epoch)",
            )
        if all(run.highest <= _SMALL_RATE for run in runs):
            return _finding(
                f"no parameter changed in {steps:,} steps by more than rounding does",
                lines,
                f"the learning rate was {max(run.highest for run in runs):.3g} at most",
                "give the optimizer a larger learning rate",
            )
        clips = {line: limit for run in runs for line, limit in run.clips.items()}
        if clips and all(run.clips for run in runs):
            return _finding(
                f"no parameter changed in {steps:,} steps by more than rounding does",
                (*clips, *lines),
                f"gradients were clipped to {max(clips.values()):.3g}",
                "clip to a larger number: 1.0 is common for a norm",
            )
        return None


def _made_small(clip: Clipping, plan: Plan, args: Any) -> bool:
    """True if clipping has made gradients very small; False if they were smaller than the limit before."""
    if clip.limit > _SMALL_LIMIT:
        return False
    with unobserved():
        if "mul" in plan.name and clip.gradients:
            return float(args[1]) < 0.5
        return any(float(each.abs().max()) > 0.5 * clip.limit for each in clip.gradients if each.numel())


def _rate(group: dict[str, Any]) -> float:
    """The learning rate of a group; 1 if the optimizer finds its own."""
    rate = group.get("lr")
    with unobserved():
        return 1.0 if rate is None else float(rate)


def _finding(what: str, where: tuple[Where, ...], why: str, fix: str, explains: tuple[str, ...] = ()) -> Finding:
    return Finding("nothing-changes", what, where, why, fix, explains=explains)


class _Skips:
    """A GradScaler looks for infinities before each step, and leaves out those that have some."""

    def __init__(self) -> None:
        self.infinite = self.times = 0
        self.line: Where | None = None

    def checked(self, found_inf: torch.Tensor, line: Where) -> None:
        with unobserved():
            self.times += 1
            self.infinite += bool(float(found_inf))
        self.line = self.line or line

    def finding(self) -> Finding | None:
        if self.line is None or self.infinite < max(self.times, _FEWEST_SKIPPED):
            return None
        return _finding(
            f"the scaler left out all of {self.times:,} steps",
            (self.line,),
            "the scaled gradients were infinite or NaN each time",
            "look for infinities and NaN in the loss without the scaler; use bfloat16, or a smaller init_scale",
        )
