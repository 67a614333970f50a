"""What a program calls an object: the variables and attributes that hold it, or a container with it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

_OURS = Path(__file__).parents[1]
_Containers = (list, tuple, set, dict)


def names_of(item: Any) -> Iterator[str]:
    """Variables first: of the functions that run, and of modules; then attributes, as Class.attribute."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith("<frozen") and _OURS not in Path(file).parents:
            yield from (name for name, value in frame.f_locals.items() if _holds(value, item))
        frame = frame.f_back
    for holder in gc.get_referrers(item):
        yield from _attributes(holder, item)
        if isinstance(holder, _Containers):
            for outer in gc.get_referrers(holder):
                yield from _attributes(outer, holder)


def _holds(value: Any, item: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return value is item or (isinstance(value, _Containers) and any(each is item for each in value))


def _attributes(attributes: object, item: Any) -> Iterator[str]:
    """The attributes of an object that are an item, if these are the attributes of one."""
    owners = [attributes, *(gc.get_referrers(attributes) if isinstance(attributes, dict) else ())]
    for owner in owners:  # Python keeps the attributes of many objects without a dictionary
        own: dict[str, Any] | None = getattr(owner, "__dict__", None)
        if own is not None and not isinstance(owner, (ModuleType, FunctionType)):
            yield from (f"{type(owner).__name__}.{name}" for name, value in own.items() if value is item)
