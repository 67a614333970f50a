"""A time limit for torch.export, which has none: it can spend hours on how the sizes of a model depend on each other.

Export runs in Python, and nearly all of its time passes in the functions that the model calls and in sympy. So the
clock is looked at when a torch function is called (`AnyLength` sees those) and when sympy makes an expression. An
exception that is raised there is as harmless as one of the model's own: torch expects those.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from sympy.core.basic import Basic  # type: ignore[import-untyped]

from torchatlas.interrupts import CheckedSignals

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
