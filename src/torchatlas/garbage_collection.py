"""Pausing Python's garbage collector, and finding objects with it."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import TypeVar

from torchatlas.interrupts import bracketed

_Kind = TypeVar("_Kind")
_MANY = 10_000  # objects; to look at fewer takes less than to ask whether the program has frozen objects, if it has


@bracketed
def collection_paused() -> Iterator[None]:
    """For work that makes many small objects and no cycles: collecting meanwhile could double its time.

    A collection looks at every object there is, and torch alone brings 300,000. If many objects were made meanwhile,
    they count as old afterwards: as young they would be looked at right away, to find that they are still in use.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            # If the program keeps objects out of the collector's sight on purpose, they stay there.
            if gc.get_count()[0] > _MANY and not gc.get_freeze_count():
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
    objects = gc.get_objects()
    return list(itertools.compress(objects, map(kinds.__contains__, map(type, objects))))
