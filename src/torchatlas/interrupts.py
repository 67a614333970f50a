"""Beginnings and ends that Ctrl-C cannot cut in two.

Python calls signal handlers between two instructions of the main thread, and the one for Ctrl-C raises there: between
patching and noting how to undo it, or in the first instruction of an `__exit__`, before anything in it could catch it.
So signals wait while something begins or ends (`signals_deferred`), and an end that was cut off before it could make
them wait has a second chance (`Bracket`). Other threads handle no signals.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what signal wraps in enums, which takes ten times as long
import _thread
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Value = TypeVar("_Value")

# Those that programs handle by raising: Ctrl-C, being asked to end, a time that is up. Ctrl-C first: see `_put_back`.
_HANDLED = [int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM") if hasattr(signal, name)]

_DEADLY = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class signals_deferred:
    """Signals that arrive in here are handled when it is over, by the handlers that were there before.

    Only what Python code handles waits: a signal that ends the process ends it at once. A file descriptor given to
    `signal.set_wakeup_fd` hears of a signal when it arrives, once.
    """

    _waits_in: int | None = None  # the thread in which signals wait by now: those inside of others have nothing to do

    def __enter__(self) -> None:
        self._handlers: dict[int, Callable[[int, Any], Any]] = {}
        self._arrived: dict[int, None] = {}  # each once, as the system delivers them
        self._is_outermost = False
        thread = threading.get_ident()
        if thread == signals_deferred._waits_in or thread != threading.main_thread().ident:
            return
        self._is_outermost = True
        arrived = self._arrived
        self._note = lambda number, frame: arrived.setdefault(number)
        try:
            for number in _HANDLED:
                handler = _signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    _signal.signal(number, self._note)
            signals_deferred._waits_in = thread
        except BaseException:  # the handler of a signal that does not wait yet
            self._put_back()
            raise

    def __exit__(self, *raised: object) -> None:
        if not self._is_outermost:
            return
        signals_deferred._waits_in = None
        try:
            self._put_back()
        except BaseException:
            self._put_back()  # a handler that was back has raised before the others were
            raise
        finally:
            if self._arrived:
                self._deliver()

    def _put_back(self) -> None:
        """Idempotent. The first comes back last, so that Ctrl-C waits for longest."""
        for number, handler in reversed(self._handlers.items()):
            if _signal.getsignal(number) is self._note:  # unless the program has put its own there meanwhile
                _signal.signal(number, handler)

    def _deliver(self) -> None:
        if self._arrived:
            number = next(iter(self._arrived))
            del self._arrived[number]
            try:
                self._handlers[number](number, sys._getframe())
            finally:
                self._deliver()


class Bracket(Generic[_Value]):
    """A context manager whose beginning and end cannot be interrupted, and that ends whenever it has begun.

    Classes define `_begin`, which returns what `as` names and cleans up after itself if it raises, and `_end`, which is
    given what `__exit__` is. Signals wait in both, not between them.
    """

    _begun = False

    def _begin(self) -> _Value:
        raise NotImplementedError

    def _end(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        raise NotImplementedError

    def __enter__(self) -> _Value:
        begun = False
        try:
            with signals_deferred():
                value = self._begin()
                self._begun = begun = True
        except BaseException as error:
            if begun:  # a signal that had to wait came now: the `with` statement has not entered, so it will not leave
                self._leave(type(error), error, error.__traceback__)
            raise
        return value

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        with signals_deferred():
            self._begun = False
            return self._end(kind, error, trace)

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None: ...


class RepeatedBracket(Bracket[_Value]):
    """A bracket for what comes with every op, where no signal can be made to wait.

    `_begin` and `_end` may be interrupted anywhere: the end is then made again, and has to be idempotent.
    """

    def __enter__(self) -> _Value:
        try:
            value = self._begin()
            self._begun = True
        except BaseException:
            self._end(None, None, None)
            raise
        return value

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        result = self._end(kind, error, trace)
        self._begun = False
        return result


class _Exit:
    """`__exit__` as a `with` statement finds it: it ends the bracket, at the latest when the statement drops it.

    A handler may raise in the first instruction of any function of Python, `_leave` too, where nothing catches it. The
    statement then drops its `__exit__`, and with it the only reference to the second chance. A `with` statement looks
    for `__exit__` before it enters; code that looks it up later calls it itself.
    """

    def __get__(self, bracket: Bracket[Any] | None, owner: type[Bracket[Any]]) -> Callable[..., bool | None]:
        if bracket is None:
            return owner._leave
        leave = functools.partial(bracket._leave)
        if not bracket._begun:
            leave.second_chance = _SecondChance(bracket)  # type: ignore[attr-defined]
        return leave


class _SecondChance:
    _bracket: Bracket[Any] | None = None

    def __init__(self, bracket: Bracket[Any]) -> None:
        self._bracket = bracket

    def __del__(self) -> None:
        if self._bracket is not None and self._bracket._begun:
            self._bracket._leave(None, None, None)


if not TYPE_CHECKING:
    Bracket.__exit__ = _Exit()


class whole(Bracket[_Value]):
    """Any context manager as a bracket."""

    def __init__(self, manager: AbstractContextManager[_Value]) -> None:
        self._manager = manager

    def _begin(self) -> _Value:
        return self._manager.__enter__()

    def _end(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._manager.__exit__(kind, error, trace)


def bracketed(function: Callable[_Parameters, Iterator[_Value]]) -> Callable[_Parameters, Bracket[_Value]]:
    """`contextlib.contextmanager` that makes brackets."""
    make = contextmanager(function)

    @functools.wraps(function)
    def bracket(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> Bracket[_Value]:
        return whole(make(*args, **kwargs))

    return bracket


class CheckedSignals(RepeatedBracket["CheckedSignals"]):
    """For code of others that must not be interrupted just anywhere, or that swallows what a signal's handler raises.

    A signal is handled in the next `check()`, which has to be called often; if none comes within a second, at once.
    What the handler raises is raised again by later checks, and at the latest on leaving. In the main thread only.
    """

    _LONGEST_WAIT_S = 1.0
    _PAUSE = 1000  # checks after one that raised: its exception is on its way out, through `finally` blocks

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, Any], Any]] = {}
        self._waiting: dict[int, None] = {}
        self._error: BaseException | None = None
        self._paused = 0
        self._over = threading.Event()
        self._handler = self._arrived  # one object, to be known again

    def _begin(self) -> CheckedSignals:
        if threading.get_ident() == threading.main_thread().ident:
            for number in _HANDLED:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._handler)
        return self

    def check(self) -> None:
        """A moment at which an exception does no harm."""
        if self._paused:
            self._paused -= 1
        elif self._waiting:
            self._handle(next(iter(self._waiting)))
        elif self._error is not None:  # it was swallowed
            self._raise(self._error)

    def _raise(self, error: BaseException) -> None:
        self._paused = self._PAUSE
        raise error

    def _arrived(self, number: int, frame: object) -> None:
        if number in self._waiting or self._over.is_set():
            self._handle(number)
            return
        self._waiting[number] = None
        _thread.start_new_thread(self._remind, (number,))

    def _remind(self, number: int) -> None:
        if not self._over.wait(self._LONGEST_WAIT_S) and number in self._waiting:
            _thread.interrupt_main(signal.Signals(number))

    def _handle(self, number: int) -> None:
        self._waiting.pop(number, None)
        try:
            self._handlers[number](number, sys._getframe())
        except BaseException as error:
            self._error = error
            self._raise(error)

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in reversed(self._handlers.items()):
            if signal.getsignal(number) is self._handler:
                signal.signal(number, handler)
        self._over.set()
        try:
            self._deliver()
        finally:
            swallowed, self._error = self._error, None
        if swallowed is not None and swallowed is not error:
            raise swallowed

    def _deliver(self) -> None:
        if self._waiting:
            try:
                self._handle(next(iter(self._waiting)))
            finally:
                self._deliver()


class Terminated(BaseException):
    """The process was asked to end, and does as soon as it has put things in order."""


class orderly_death(RepeatedBracket[None]):
    """A block in which a signal that would end the process at once first leaves all `with` blocks, then ends it.

    A program that handles the signal itself is left alone: what its handler raises leaves the blocks as well.
    """

    def _begin(self) -> None:
        self._asked_by: int | None = None
        self._handler = self._ask  # one object, to be known again
        for number in _DEADLY if threading.get_ident() == threading.main_thread().ident else ():
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._handler)

    def _ask(self, number: int, frame: object) -> None:
        if self._asked_by is None:  # a second time it is at it already
            self._asked_by = number
            raise Terminated(signal.Signals(number).name)

    def _end(self, *raised: object) -> None:
        for number in _DEADLY:
            if signal.getsignal(number) is self._handler:
                signal.signal(number, signal.SIG_DFL)
        if self._asked_by is not None:
            signal.raise_signal(self._asked_by)
