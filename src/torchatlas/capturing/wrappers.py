"""Tensor subclasses that wrap other tensors: DTensor, jagged tensors, your own.

Ops on a wrapper come to the recorder as ops on what it holds, so it is its parts that have memory, names and gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from torchatlas.torch_private import is_wrapper

_PLAIN = (torch.Tensor, torch.nn.Parameter)  # by far the most: these need not be asked


def parts(tensor: Any) -> Iterable[tuple[str, Any]]:
    """The plain tensors of a tensor, with what tells them apart: "" for a plain one and for a single part."""
    return (("", tensor),) if type(tensor) in _PLAIN else _parts(tensor, "")


def _parts(tensor: Any, suffix: str) -> Iterator[tuple[str, Any]]:
    if not is_wrapper(tensor):
        yield suffix, tensor
        return
    named = [(name, getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0]]
    tensors = [(name, part) for name, part in named if isinstance(part, torch.Tensor)]  # else a mesh, say
    for name, part in tensors:
        yield from _parts(part, suffix if len(tensors) == 1 else f"{suffix}.{name}")
