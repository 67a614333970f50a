"""Ops that are no part of the program: DTensor finds out what an op returns by running it, whole, on fake tensors.

It does so once per kind of call and then remembers, so they would be in the first recording and not in the second.
DTensor may be loaded while a recording runs; the recorder calls `hide` when it meets the first wrapper of a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchatlas.interrupts import bracketed
from torchatlas.torch_private import dispatch_mode_stack, pop_mode, push_mode, sharding_propagator

_UNDO: list[Callable[[], None]] = []


def hide() -> None:
    """Have recorders look away while DTensor does so, until `show` is called."""
    propagator = sharding_propagator()
    if propagator is not None and not _UNDO:
        original = propagator._propagate_tensor_meta_non_cached

        def propagate(self: Any, schema: Any) -> Any:
            with unwatched():
                return original(self, schema)

        _UNDO.append(lambda: setattr(propagator, "_propagate_tensor_meta_non_cached", original))
        propagator._propagate_tensor_meta_non_cached = propagate


def show() -> None:
    """Idempotent."""
    while _UNDO:
        _UNDO.pop()()


@bracketed
def unwatched(only: Any = None) -> Iterator[None]:
    """Take the recorders of this thread, or only one, off the dispatcher; all other modes stay, in their order."""

    def leaves(mode: Any) -> bool:
        return hasattr(mode, "records") if only is None else mode is only

    stack = dispatch_mode_stack()
    first = next((i for i, mode in enumerate(stack) if leaves(mode)), len(stack))
    taken = stack[first:]
    others = [mode for mode in taken if not leaves(mode)]
    _exchange(taken, others)
    try:
        yield
    finally:
        _exchange(others, taken)


def _exchange(old: list[Any], new: list[Any]) -> None:
    """Put other modes in the place of the last ones."""
    for _ in old:
        pop_mode()
    for mode in new:
        push_mode(mode)
