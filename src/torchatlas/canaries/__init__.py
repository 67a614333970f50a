"""A canary for every private symbol of torch that the package uses: a few lines that fail if torch changed it.

The tests run them, and so does `torchatlas selftest` on the installation of a user. They are assertions, and change
the state of the process (torch.compile is reset, a process group begins and ends): run them in one of their own.
"""

from __future__ import annotations

from torchatlas.canaries import autograd, compiler, dispatch  # noqa: F401  # each files its canaries
from torchatlas.canaries.canary_registry import CANARIES

__all__ = ["CANARIES"]
