"""Pausing Python's garbage collector, and finding objects with it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TypeVar

from torchatlas.interrupts import bracketed

_Kind = TypeVar("_Kind")


@bracketed
def collection_paused() -> Iterator[None]:
    """For work that makes many small objects and no cycles: collecting meanwhile could double its time.

    A collection looks at every object there is, and torch alone brings 300,000. What was made meanwhile counts as old
    afterwards: as young it would all be looked at right away, to find that it is still in use.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():  # else somebody keeps objects out of the collector's sight on purpose
                gc.freeze()
                gc.unfreeze()  # puts them with the oldest
            gc.enable()


def instances_of(kind: type[_Kind]) -> list[_Kind]:
    """All objects of a class or its subclasses that the collector knows.

    A program may hold millions of objects, so each is asked for nothing but its class.
    """
    kinds = {kind}
    pending: list[type] = [kind]
    while pending:
        new: set[type] = set(type.__subclasses__(pending.pop())) - kinds
        kinds |= new
        pending += new
    return [item for item in gc.get_objects() if type(item) in kinds]
