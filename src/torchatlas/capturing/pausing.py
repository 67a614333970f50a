"""Pausing recorders while ops run that are no part of the program.

DTensor finds out what an op returns by running it, whole, on fake tensors. It does so once per kind of call and then
remembers: these ops would be in the first recording and not in the second. DTensor may be loaded while a recording
runs, so the recorder calls `pause_in_dtensor` again when it meets the first wrapper of a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torchatlas.interrupts import bracketed
from torchatlas.native_modules import native_recorders
from torchatlas.torch_private import dispatch_mode_stack, pop_mode, push_mode, sharding_propagator

_UNDO: list[Callable[[], None]] = []


def pause_in_dtensor() -> None:
    """Pause all recorders whenever DTensor runs an op on fake tensors, until `stop_pausing_in_dtensor`."""
    propagator = sharding_propagator()
    if propagator is not None and not _UNDO:
        original = propagator._propagate_tensor_meta_non_cached

        def propagate(self: Any, schema: Any) -> Any:
            with paused():
                return original(self, schema)

        _UNDO.append(lambda: setattr(propagator, "_propagate_tensor_meta_non_cached", original))
        propagator._propagate_tensor_meta_non_cached = propagate


def stop_pausing_in_dtensor() -> None:
    """Idempotent."""
    while _UNDO:
        _UNDO.pop()()


@contextmanager
def looking_away() -> Iterator[None]:
    """What this thread runs here is nothing to any recorder in C++. Entered while signals wait."""
    away = [(module, module.looking_away()) for module in native_recorders]
    for module, count in away:
        module.look_away(count + 1)
    try:
        yield
    finally:
        for module, count in away:
            module.look_away(count)


@bracketed
def paused(only: Any = None) -> Iterator[None]:
    """Take the modes of all recorders of this thread, or only one, off the dispatcher; other modes stay, in order."""

    def leaves(mode: Any) -> bool:
        return hasattr(mode, "records") if only is None else mode is only

    stack = dispatch_mode_stack()
    first = next((i for i, mode in enumerate(stack) if leaves(mode)), len(stack))
    taken = stack[first:]
    others = [mode for mode in taken if not leaves(mode)]
    with looking_away() if only is None else nullcontext():
        _exchange(taken, others)
        try:
            yield
        finally:
            _exchange(others, taken)


@bracketed
def lifted_above(mode: Any) -> Iterator[None]:
    """Take the modes that were entered after this one off the dispatcher; afterwards they are above whatever is on."""
    stack = dispatch_mode_stack()
    above = stack[stack.index(mode) + 1 :] if mode in stack else []
    _exchange(above, [])
    try:
        yield
    finally:
        _exchange([], above)


def _exchange(old: list[Any], new: list[Any]) -> None:
    """Replace the innermost modes of the dispatcher."""
    for _ in old:
        pop_mode()
    for mode in new:
        push_mode(mode)
