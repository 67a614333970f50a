"""Where canaries are filed, under the names of the symbols they watch; and what they need of a test framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchatlas.registry import Registry

CANARIES: Registry[Callable[[], None]] = Registry("canary")


def refusal(call: Callable[[], Any]) -> str:
    """The message with which torch refuses a call; empty if it does not."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""
