"""Where canaries are filed, under the names of the symbols they watch."""

from __future__ import annotations

from collections.abc import Callable

from torchatlas.registry import Registry

CANARIES: Registry[Callable[[], None]] = Registry("canary")
