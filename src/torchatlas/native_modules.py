"""The extension module of the recorder in C++, once it is loaded: for code that has to pause it."""

from __future__ import annotations

from typing import Any

native_recorders: list[Any] = []  # empty, or the one module; capturing/native/build.py loads it
