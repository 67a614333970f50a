"""Python's garbage collector, left alone while nothing could be collected."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """For work that makes many small objects and no cycles: collecting meanwhile could double its time.

    A collection looks at every object there is, and torch alone brings 300,000.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
