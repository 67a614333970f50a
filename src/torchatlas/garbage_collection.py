"""Pausing Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from torchatlas.interrupts import bracketed


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
