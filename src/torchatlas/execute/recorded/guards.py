"""Operators as a recorded run called them -> functions that run them, and notice at once when the path is another.

A recorded run is one path. Numbers that the program read, and results whose size depends on what is in a tensor, have
decided it; where one of them differs, nothing that comes after would be what the model computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchatlas.capturing.replaying import fingerprint
from torchatlas.errors import InputMismatchError

AGAIN = "Partition the model again with these inputs."


@dataclass(frozen=True)
class Expected:
    """What an operator returned when it was recorded."""

    place: str  # the node, its operation and its line
    tensors: tuple[tuple[tuple[int, ...] | None, torch.dtype], ...]  # shape (None: not compared) and dtype
    digests: tuple[bytes, ...]  # of all it returned, in order
    read: frozenset[int] = frozenset()  # which tensors among them the program read: these must be equal to the bit


def guarded(operator: Any, expected: Expected, *, grad: bool, several: bool, device: str) -> Callable[..., Any]:
    """An operator as a function that checks what it returned. Several results come as a flat tuple.

    Autocast is off: its casts were recorded as operators. Where no gradients were wanted none are.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled(device) or (not grad and torch.is_grad_enabled()):
            with torch.autocast(device, enabled=False), torch.set_grad_enabled(grad and torch.is_grad_enabled()):
                out = operator(*args, **kwargs)
        else:
            out = operator(*args, **kwargs)
        leaves: list[Any] = []
        _flatten(out, leaves)
        _check(leaves, expected)
        return tuple(one for one in leaves if isinstance(one, torch.Tensor)) if several else out

    run.__name__ = run.__qualname__ = "".join(char if char.isalnum() else "_" for char in str(operator))
    return run


def _flatten(item: Any, leaves: list[Any]) -> None:
    if isinstance(item, (list, tuple)):
        for part in item:
            _flatten(part, leaves)
    elif item is not None:
        leaves.append(item)


def _check(leaves: list[Any], expected: Expected) -> None:
    """Refuse results that differ from the recorded ones in what decides the path."""
    number = 0
    for index, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            if index < len(expected.digests) and fingerprint(leaf) != expected.digests[index]:
                raise _left(expected, f"reads {leaf!r}, which was another number")
            continue
        if number >= len(expected.tensors):
            raise _left(expected, f"returns more than {number} tensors")
        shape, dtype = expected.tensors[number]
        if shape is not None and leaf.shape != shape:
            raise _left(expected, f"makes a tensor of the shape {list(leaf.shape)}, which was {list(shape)}")
        if leaf.dtype is not dtype:
            raise _left(expected, f"makes a tensor of {leaf.dtype}, which was {dtype}")
        if number in expected.read and fingerprint(leaf) != expected.digests[index]:
            raise _left(expected, "makes other numbers, and the program read these past the operators")
        number += 1


def _left(expected: Expected, what: str) -> InputMismatchError:
    return InputMismatchError(f"These inputs take another path than the recorded run: {expected.place} {what}. {AGAIN}")
