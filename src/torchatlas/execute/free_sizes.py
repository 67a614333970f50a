"""Which sizes of the inputs torch.export can leave free: found by trying, within a time limit.

First all sizes at once, which works for most models. Else only the first dimensions, which are mostly batches; else
none. Then the rest, one dimension at a time: equal sizes of several inputs (ids and mask, say) together. Attempts that
fail may take hours: the budget limits those.

torch.export has no time limit; `Deadline` is one. Export runs in Python, and spends nearly all of its time in the
functions that the model calls and in sympy. So `Deadline` looks at the clock when a torch function is called
(exporting.AnyLength sees those) and when sympy makes an expression. What it raises there does no more harm than an
exception of the model: torch expects those.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from sympy.core.basic import Basic  # type: ignore[import-untyped]

from torchatlas.errors import CaptureError
from torchatlas.escapes import clean
from torchatlas.graph import Graph
from torchatlas.graph.shown import ShownPart
from torchatlas.interrupts import CheckedSignals

BUDGET_S = 45.0  # seconds of computing that finding free sizes may take: the default of atlas.trace(budget_s=)

Size = tuple[int, int]  # which input, which dimension

FOLLOWED = "the model runs itself: other sizes are taken if they lead along the same path"
_FAILED = "torch.export fails with it free"
_TOO_LONG = "not solved for within"


@dataclass(frozen=True, repr=False)
class InputSize(ShownPart):
    """One size of one input tensor of a model: which sizes it takes, or why it takes only this one."""

    input: str  # the name of the input
    dim: int  # which dimension
    size: int | None  # of the example; None: not kept in the file
    symbol: str | None  # None: it is fixed. Sizes with the same symbol are the same
    reason: str = ""  # why it is fixed

    @property
    def free(self) -> bool:
        """Whether it may be another size."""
        return self.symbol is not None

    def __str__(self) -> str:
        size = "?" if self.size is None else self.size
        if self.symbol is not None:
            return f"{self.input}[{self.dim}] = {size}: free, {self.symbol}"
        return f"{self.input}[{self.dim}] = {size}: fixed" + (f", {self.reason}" if self.reason else "")


def input_sizes(graph: Graph) -> tuple[InputSize, ...]:
    """All sizes of the inputs of a traced model's graph."""
    example = graph.metadata.get("sizes", {})
    reasons = {(name, dim): reason for name, dim, reason in graph.metadata.get("fixed_sizes", ())}
    sizes = []
    for node in graph.where(kind="input"):
        for dim, size in enumerate(node.outputs[0].shape):
            if isinstance(size, str):
                sizes.append(InputSize(node.name, dim, example.get(size), clean(size)))
            else:
                sizes.append(InputSize(node.name, dim, size, None, clean(reasons.get((node.name, dim), ""))))
    return tuple(sizes)


def why_fixed(size: int, dynamic_shapes: Any) -> str:
    """Why a size is fixed in a program that torch.export made."""
    if dynamic_shapes is None:
        return "dynamic_shapes=None fixes it"
    if dynamic_shapes != "auto":
        return "dynamic_shapes, the model or an operator of torch fixes it"
    if size == 0:
        return "torch.export fixes a size of 0"
    if size == 1:
        return "1 in the example, and the model does not take it wider"
    return "the model or an operator of torch fixes it"  # export does not tell which


def notes_of(names: Mapping[Size, str], reasons: Mapping[Size, str]) -> list[str]:
    """One note for each reason why sizes could not be freed."""
    by_reason: dict[str, list[str]] = {}
    for size, reason in reasons.items():
        if reason.startswith((_FAILED, _TOO_LONG)):
            by_reason.setdefault(reason, []).append(names[size])
    notes = []
    for reason, fixed in by_reason.items():
        more = ""
        if reason.startswith(_TOO_LONG):
            more = "; a faster machine may free more, and a larger budget_s"
        notes.append(f"{', '.join(fixed)} {'is' if len(fixed) == 1 else 'are'} fixed: {reason}{more}")
    return notes


# Exports with some sizes free, strictly or not, within so many seconds. Raises TimeIsUp, or whatever export raises.
Attempt = Callable[[frozenset[Size], bool, float], Any]


def freest(attempt: Attempt, sizes: Mapping[Size, int], budget_s: float) -> tuple[Any, dict[Size, str]]:
    """The result of the attempt with most free sizes, and for each fixed size why. Raises what the first one raised."""
    search = _Search(attempt, budget_s)
    every = frozenset(sizes)
    for strict in (False, True):  # the former is quicker and takes more
        if search.tried(every, strict=strict, share=2 / 3):
            return search.best, {}
        if search.timed_out:
            break
    first = frozenset(size for size in every if size[1] == 0)
    before = {every}
    for free in (first, frozenset[Size]()):
        if free not in before and search.tried(free):
            break
        before.add(free)
    else:
        raise search.errors[0]
    for group in _groups(every - free, sizes):
        if free | group not in before and search.tried(free | group, also=group):
            free |= group
    return search.best, {size: search.reasons[size] for size in sorted(every - free)}


def _groups(left: Iterable[Size], sizes: Mapping[Size, int]) -> list[frozenset[Size]]:
    """Equal sizes of the same dimension, grouped, in the order of dimensions."""
    groups: dict[tuple[int, int], set[Size]] = {}
    for size in sorted(left, key=lambda size: (size[1], size[0])):
        groups.setdefault((size[1], sizes[size]), set()).add(size)
    return [frozenset(group) for group in groups.values()]


@dataclass
class _Search:
    attempt: Attempt
    budget_s: float
    spent_s: float = 0.0  # on attempts that failed
    timed_out: bool = False  # whether the last attempt did
    best: Any = None
    reasons: dict[Size, str] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)

    def tried(
        self, free: frozenset[Size], *, strict: bool = False, share: float = 1.0, also: Iterable[Size] = ()
    ) -> bool:
        """True if the model can be exported with these sizes free. Else the error is why `also`, or all, are fixed."""
        seconds = self.budget_s * share - self.spent_s if free else math.inf
        self.timed_out = seconds <= 0
        if not self.timed_out:
            began = now()
            try:
                self.best = self.attempt(free, strict, seconds)
                return True
            except TimeIsUp:
                self.timed_out = True
            except CaptureError:
                raise  # it was exported, and cannot be used, with whatever sizes
            except Exception as error:
                self.errors.append(error)
            self.spent_s += min(now() - began, seconds)  # a check that comes late costs the other attempts nothing
        reason = f"{_TOO_LONG} {self.budget_s:g} s" if self.timed_out else f"{_FAILED}: {first_line(self.errors[-1])}"
        self.reasons.update(dict.fromkeys(also or free, reason))
        return False


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without a full stop."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__).rstrip(".")


# -- the time limit ----------------------------------------------------------------------------------------------------


now = time.thread_time  # computing, not waiting: what else runs on the machine shall not decide what is traced


class TimeIsUp(BaseException):
    """Solving for sizes took too long. No Exception: torch and sympy catch those on the way, and go on."""


class Deadline(CheckedSignals):
    """Raises TimeIsUp in its thread after so many seconds of computing; Ctrl-C gets out of it, too."""

    def __init__(self, seconds: float, tick: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._seconds, self._tick = seconds, tick
        self._since, self._thread = now(), threading.get_ident()
        self._mine, self._outer = self.check, _checks.get(self._thread)

    def _begin(self) -> Deadline:
        super()._begin()
        with _patching:
            _checks[self._thread] = self._mine
            Basic.__new__ = _checked_new
        return self

    def check(self) -> None:
        """See CheckedSignals."""
        super().check()
        if not self._paused:
            self._tick()
            if now() - self._since > self._seconds:
                self._raise(TimeIsUp())

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with _patching:
            if _checks.get(self._thread) is self._mine:
                del _checks[self._thread]
                if self._outer is not None:
                    _checks[self._thread] = self._outer
            if not _checks:
                Basic.__new__ = _new
        super()._end(kind, error, trace)


_checks: dict[int, Callable[[], None]] = {}  # by thread: other threads may use sympy, or trace, at the same time
_patching = threading.Lock()
_new: Any = vars(Basic)["__new__"]


def _new_checked(cls: type[Basic], *args: Any) -> Any:
    if (check := _checks.get(threading.get_ident())) is not None:
        check()
    return _new.__func__(cls, *args)


_checked_new: Any = staticmethod(_new_checked)
