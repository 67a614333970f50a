"""The extension module of the recorder in C++, once it is loaded: for code that has to pause it.

In a process that was forked it lets go of what other threads had: before anybody ends a recording there.
"""

from __future__ import annotations

import os
from typing import Any

native_recorders: list[Any] = []  # empty, or the one module; capturing/native/build.py loads it


def _after_fork() -> None:
    for module in native_recorders:
        module.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
