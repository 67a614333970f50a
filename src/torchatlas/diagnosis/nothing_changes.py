"""Training in which no parameter changes, and why: no steps, no learning rate, no gradients, or updates of copies."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from torchatlas.autograd.walk import leaf_of
from torchatlas.capturing.row_schema import Plan
from torchatlas.diagnosis.backward import Pass
from torchatlas.diagnosis.case import Case
from torchatlas.diagnosis.cuts import Cuts
from torchatlas.diagnosis.diagnosis import Diagnosis, diagnosis
from torchatlas.diagnosis.finding import Finding, Where, some
from torchatlas.diagnosis.leaves import Leaf, running_variables
from torchatlas.diagnosis.not_finite import plain
from torchatlas.diagnosis.order import Clipping, clipping, unscales
from torchatlas.graph import Graph, GraphNode
from torchatlas.graph.names import short_name
from torchatlas.torch_private import unobserved

_SAME = 1e-7  # relative change of all parameters that is none: about what a step of float32 is
_IDLE = 1e-6  # of the highest learning rate: so small a one counts as none
_SMALL_RATE, _SMALL_LIMIT = 1e-8, 1e-4  # at most, to be the reason
_FEWEST_STEPS, _FEWEST_IDLE, _FEWEST_PASSES = 3, 5, 3
_FEWEST_SKIPPED = 10  # steps: a scaler may begin too high, and then halves its scale each time
_FEWEST_RESETS = 2  # without them gradients may be gathered for a step that has not come yet
_SAMPLE = 64  # numbers of a tensor that are remembered
_MOST_RUNS = 100
_SAME_TENSOR = ("alias", "detach")
# fmt: off
_ARITHMETIC = frozenset({
    "_to_copy", "add", "add_", "addcdiv", "addcdiv_", "addcmul", "addcmul_", "alias", "clone", "detach", "div", "div_",
    "lerp", "lerp_", "mul", "mul_", "neg", "neg_", "rsub", "sub", "sub_",
})
# fmt: on


class Numbers:
    """What some tensors held: a few numbers of each, and the sums over all. No copy, and no tensor is kept alive."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self.references = [weakref.ref(tensor) for tensor in tensors if plain(tensor)]
        self._then = self._look()

    def _look(self) -> list[tuple[torch.Tensor, float, float] | None]:
        with unobserved():
            return [None if (tensor := each()) is None else _summary(tensor) for each in self.references]

    def change(self) -> float | None:
        """By how much they have changed since, relative to all of them together; None if no tensor is left."""
        moved = size = shifted = total = 0.0
        pairs = [(a, b) for a, b in zip(self._then, self._look(), strict=True) if a is not None and b is not None]
        with unobserved():
            for (sample, sum_, sum_of_sizes), (sample_now, sum_now, _) in pairs:
                if sample.shape != sample_now.shape:
                    return math.inf
                moved += float((sample_now - sample).square().sum())
                size += float(sample.square().sum())
                shifted, total = shifted + abs(sum_now - sum_), total + sum_of_sizes
        if not pairs:
            return None
        if not math.isfinite(moved + shifted):
            return math.inf
        return max(_share(math.sqrt(moved), math.sqrt(size)), _share(shifted, total))


def _summary(tensor: torch.Tensor) -> tuple[torch.Tensor, float, float]:
    """A few numbers, the sum of all, and the sum of their sizes."""
    numbers = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    sample = numbers.flatten()[:: max(numbers.numel() // _SAMPLE, 1)].clone().cpu().double()
    wide = torch.float64 if numbers.device.type != "mps" else torch.float32
    return sample, float(numbers.sum(dtype=wide)), float(torch.linalg.vector_norm(numbers, 1, dtype=wide))


def _share(part: float, whole: float) -> float:
    return 0.0 if not part else math.inf if not whole else part / whole


@dataclass(eq=False)
class _Run:
    """The steps of one optimizer."""

    reference: weakref.ref[Any]
    line: Where  # of the first
    numbers: Numbers | None  # of its parameters before them; None as soon as they have changed
    loose: bool  # none of them belongs to a model that there is
    steps: int = 0
    highest: float = 0.0  # learning rate
    frozen: bool = True  # nothing has required a gradient, or had one
    empty: bool = True  # nothing has had a gradient
    idle: int = 0  # steps since the learning rate has become almost 0
    idle_numbers: Numbers | None = None
    schedulers: dict[Where, None] = field(default_factory=dict)  # of its learning rate: where they step
    clips: dict[Where, float] = field(default_factory=dict)  # that made gradients smaller, and the limit


@diagnosis
class NothingChanges(Diagnosis):
    """Looks at the parameters before the first step and after the 1st, 2nd, 4th, 8th ..., until they have changed."""

    keys = ("nothing-changes",)
    whole = keys

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._runs: dict[int, _Run] = {}  # by optimizer
        self._over: list[_Run] = []
        self._changed = False  # something has
        self._clips: dict[Where, float] = {}  # since the last step
        self._skips = _Skips()
        self._unstepped = _Unstepped(visit)
        self._of_no_step: Finding | None = None  # as of the recording before

    # -- what happens --------------------------------------------------------------------------------------------------

    def op_ran(self, plan: Plan, args: Any, kwargs: Any, out: Any) -> None:
        if self._changed:
            return
        if unscales(plan):
            self._skips.checked(args[1], self.visit.line("step of the scaler"))
        elif (found := clipping(plan, args)) is not None and _made_small(found, plan, args):
            self._clips[self.visit.line("clipping")] = found.limit

    def before_backward(self, case: Case, found: Pass) -> None:
        if found.accumulates and not self._changed:
            self._unstepped.pass_begins(found)

    def after_backward(self, case: Case, found: Pass, error: BaseException | None) -> None:
        if found.accumulates and not self._changed:
            self._unstepped.pass_ends(case.line)

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
            run.idle_numbers = Numbers(parameters)
        run.clips |= self._clips
        self._clips = {}
        if not self._changed:
            self._unstepped.step(parameters)

    def after_step(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        run = self._run(optimizer, parameters)
        if run.numbers is not None and is_power_of_two(run.steps):
            self._look(run)
        if (
            run.idle_numbers is not None
            and run.idle
            and is_power_of_two(run.idle)
            and _has_changed(run.idle_numbers, 10 * _SAME)
        ):
            run.idle_numbers = None

    def _look(self, run: _Run) -> None:
        if run.numbers is not None and _has_changed(run.numbers):
            run.numbers, self._changed = None, True

    def scheduler_stepped(self, scheduler: Any) -> None:
        run = self._runs.get(id(scheduler.optimizer))
        if run is not None:
            run.schedulers.setdefault(self.visit.line("scheduler.step()"))

    def _run(self, optimizer: Any, parameters: list[torch.Tensor]) -> _Run:
        run = self._runs.get(id(optimizer))
        if run is None or run.reference() is not optimizer:
            if run is not None and len(self._over) < _MOST_RUNS:
                self._over.append(run)
            loose = all(each.grad is None for each in parameters) and not any(
                self.visit.leaf(each).of_module for each in parameters
            )
            numbers = Numbers([] if self._changed or len(self._runs) > _MOST_RUNS else parameters)
            known = len(numbers.references) == len(parameters)
            run = _Run(weakref.ref(optimizer), self.visit.line("step"), numbers if known else None, loose)
            self._changed = self._changed or not known  # as far as anybody can tell
            self._runs[id(optimizer)] = run
        return run

    # -- what is told --------------------------------------------------------------------------------------------------

    def recording_ends(self) -> None:
        self._of_no_step = None if self._changed or self._runs else self._unstepped.finding()

    def at_end(self, complete: bool) -> None:
        if not complete:
            return
        runs = [*self._over, *self._runs.values()]
        for run in runs:
            self._look(run)
        found = list(self._decayed(runs))
        if not found and not self._changed:
            cause = self._skips.finding() if self._skips.times else self._of_steps(runs)
            if not runs and not self._skips.times:
                known = self._unstepped.is_stale and self._unstepped.are_same(_FEWEST_PASSES)
                cause = self._of_no_step if known else self._unstepped.finding()
            found = [] if cause is None else [cause]
        for finding in found[:1]:
            self.visit.report(finding)

    def _decayed(self, runs: list[_Run]) -> Iterator[Finding]:
        for run in runs:
            if (
                run.idle_numbers is not None
                and run.idle_numbers.references
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

    def _of_steps(self, runs: list[_Run]) -> Finding | None:
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
                "make the optimizer from model.parameters() after the model is there",
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
    """Whether clipping has made gradients very small: not if they were smaller than the limit before."""
    if clip.limit > _SMALL_LIMIT:
        return False
    with unobserved():
        if "mul" in plan.name and clip.gradients:
            return float(args[1]) < 0.5
        return any(float(each.abs().max()) > 0.5 * clip.limit for each in clip.gradients if each.numel())


def _has_changed(numbers: Numbers, same: float = _SAME) -> bool:
    """As far as anybody can tell: not if nothing is left to look at."""
    change = numbers.change()
    return change is not None and change > same


def _rate(group: dict[str, Any]) -> float:
    """The learning rate of a group; 1 if the optimizer finds its own."""
    rate = group.get("lr")
    with unobserved():
        return 1.0 if rate is None else float(rate)


def is_power_of_two(count: int) -> bool:
    """1, 2, 4, 8 ..."""
    return count & (count - 1) == 0


def _finding(what: str, where: tuple[Where, ...], why: str, fix: str, explains: tuple[str, ...] = ()) -> Finding:
    return Finding("nothing-changes", what, where, why, fix, explains=explains)


class _Skips:
    """A GradScaler looks for infinities before each step, and leaves out those that have some."""

    def __init__(self) -> None:
        self.infinite = self.times = 0
        self.line: Where | None = None

    def checked(self, found: torch.Tensor, line: Where) -> None:
        with unobserved():
            self.times += 1
            self.infinite += bool(float(found))
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


class _Unstepped:
    """Leaves that got gradients of the first backward passes, and with which no optimizer has taken a step."""

    def __init__(self, visit: Any) -> None:
        self._visit = visit
        self._passes = self._resets = 0
        self._leaves: dict[int, weakref.ref[torch.Tensor]] = {}  # by id
        self._parameters: dict[int, Leaf] = {}  # what is known of those that are parameters, by id
        self._numbers: Numbers | None = None
        self._same_at = 0  # the pass before which they were last seen to be as they were; -1 once they are not
        self._storages: dict[tuple[int, int], str] = {}  # of a leaf and its gradient, lately: what the leaf is called
        self._recording = 0  # in which they have these numbers
        self._line: Where | None = None  # of backward
        self._held: tuple[str, list[str]] | None = None  # an optimizer that holds them, and which
        self._inputs = False  # gradients were asked for of something else, too: data, say
        self._stepped: set[int] = set()

    def names(self) -> list[str]:
        """Of the parameters among them."""
        return _names(leaf for key, leaf in self._parameters.items() if key not in self._stepped)

    def pass_begins(self, found: Pass) -> None:
        self._passes += 1
        first = next((leaf for each in self._leaves.values() if (leaf := each()) is not None), None)
        if first is not None and self._resets < _FEWEST_RESETS:
            self._resets += first.grad is None or is_zero(first.grad)
        if self._passes <= 2:
            leaves = [leaf for node in found.nodes if (leaf := leaf_of(node)) is not None]
            self._leaves |= {id(leaf): weakref.ref(leaf) for leaf in leaves}
            mine = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]
            self._parameters |= {id(leaf): self._visit.leaf(leaf) for leaf in mine}
            if self._numbers is None:
                self._numbers = Numbers(leaves)
        if is_power_of_two(self._passes):
            self._look()

    def _look(self) -> None:
        change = None if self._numbers is None or self._same_at < 0 else self._numbers.change()
        if change is not None:
            self._same_at = -1 if change > 0 else self._passes

    def are_same(self, passes: int) -> bool:
        """Whether they were seen to be as they were at first, after at least so many passes."""
        self._look()
        return self._same_at >= passes

    def pass_ends(self, line: Where | None) -> None:
        self._line = self._line or line
        if self._visit.steps or not (self.is_stale or is_power_of_two(self._passes)):
            return
        leaves = [leaf for each in self._leaves.values() if (leaf := each()) is not None and leaf.grad is not None]
        storage_of = self._visit.storage_of
        pairs = [(storage_of(leaf), storage_of(leaf.grad), leaf) for leaf in leaves]
        self._storages = {(a, b): self._visit.name(leaf) for a, b, leaf in pairs if a is not None and b is not None}
        self._recording = self._visit.recordings
        if self._held is None and self._passes > 1:
            self._held = self._find_optimizer(leaves)

    def _find_optimizer(self, leaves: list[torch.Tensor]) -> tuple[str, list[str]] | None:
        for item in gc.get_objects():
            if not issubclass(type(item), torch.optim.Optimizer) or "param_groups" not in vars(item):
                continue
            mine = {id(each) for group in item.param_groups for each in group["params"]}
            held = [leaf for leaf in leaves if id(leaf) in mine]
            if held:
                self._inputs = any(not isinstance(leaf, nn.Parameter) and id(leaf) not in mine for leaf in leaves)
                return _called(item), _names(map(self._visit.leaf, held))
        return None

    @property
    def is_stale(self) -> bool:
        """Whether the recording has been forgotten in which they were looked at."""
        return bool(self._recording != self._visit.recordings)

    def step(self, parameters: list[torch.Tensor]) -> None:
        self._stepped |= {id(each) for each in parameters if id(each) in self._leaves}

    def finding(self) -> Finding | None:
        if not self.are_same(_FEWEST_PASSES):
            return None
        if self._held is not None and self._line is not None:
            if self._inputs or self._resets < _FEWEST_RESETS or self._are_read():
                return None
            optimizer, names = self._held
            return _finding(
                f"{some(names)} got gradients in {self._passes:,} backward passes, and no step was ever taken",
                (self._line,),
                f"{optimizer} holds them, and its step() is never called",
                "call optimizer.step() after loss.backward(), with parentheses",
            )
        return self._by_hand()

    def _are_read(self) -> bool:
        """Whether gradients were taken for something else than their norms: then they may be what it is all for."""
        if self.is_stale:
            return True
        graph = self._visit.graph
        cuts = Cuts(graph)
        waiting = [node for _, gradient in self._storages for node in cuts.users(gradient)]
        while waiting:
            node = graph.nodes[waiting.pop()]
            name = short_name(node.operation)
            if name in _SAME_TENSOR:
                waiting += graph.index.successors(node.id).tolist()
            elif "norm" not in name:
                return True
        return False

    def _by_hand(self) -> Finding | None:
        """Something was made of parameters and their gradients, and nothing took it."""
        if self.is_stale or not self._storages:
            return None
        updates = dict(_updates(self._visit.graph, self._storages))
        if not updates:
            return None
        last = max(updates.values(), key=lambda op: op.id)
        return _finding(
            f"{some(list(updates))} never changed: the updates went elsewhere",
            (Where(f"computed by {last.name}", last.source),),
            "the new numbers were given to a variable, or written to a copy; the parameters hold the old ones",
            "write to the parameters in place: with torch.no_grad(): p -= lr * p.grad",
        )


def _updates(graph: Graph, storages: dict[tuple[int, int], str]) -> Iterator[tuple[str, GraphNode]]:
    """The last op of what was computed from each parameter and its gradient together, if that is plain arithmetic."""
    cuts = Cuts(graph)
    for (parameter, gradient), name in storages.items():
        both = _after(graph, cuts.users(gradient)) & _after(graph, cuts.users(parameter))
        ops = [graph.nodes[node] for node in sorted(both)]
        if ops and all(short_name(op.operation) in _ARITHMETIC for op in ops):
            yield name, ops[-1]


def _after(graph: Graph, nodes: Iterable[int]) -> set[int]:
    """These ops and all that took what came of them."""
    seen, waiting = set(nodes), list(nodes)
    while waiting:
        after = set(graph.index.successors(waiting.pop()).tolist()) - seen
        seen |= after
        waiting += after
    return seen


def _names(leaves: Iterable[Leaf]) -> list[str]:
    return [leaf.name for leaf in sorted(leaves, key=lambda leaf: leaf.number)]


def _called(optimizer: Any) -> str:
    """What the program calls it."""
    for variables in running_variables():
        for name, value in variables.items():
            if value is optimizer:
                return f"{name} ({type(optimizer).__name__})"
    return f"an optimizer ({type(optimizer).__name__})"


def is_zero(tensor: torch.Tensor) -> bool:
    """Whether all of its numbers are; not what cannot be asked (sparse, nested, meta ...)."""
    if not plain(tensor):
        return False
    with unobserved():
        return not bool(tensor.any())
