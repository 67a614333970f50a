"""Public names that are imported when first used, so that `import torchatlas` takes milliseconds and no torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torchatlas.registry import did_you_mean


def lazy_names(module: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module whose public names live elsewhere.

    `homes` maps a module of torchatlas to the names that come from it, separated by spaces: {"analysis.cost": "cost"}.
    """
    home_of = {name: f"torchatlas.{home}" for home, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in home_of:
            hint = did_you_mean(name, names())
            raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}")
        value = getattr(importlib.import_module(home_of[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    def names() -> list[str]:
        return sorted(sys.modules[module].__all__)

    return get, names
