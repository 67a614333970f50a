"""What a tensor of any kind says of itself: shape, layout, storages, and the plain tensors inside a wrapper subclass.

Ops on a wrapper (DTensor, a jagged tensor, your own) reach the recorder as ops on the tensors it holds. So these parts
have memory, names and gradients; the wrapper itself has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from torchatlas.torch_private import UninitializedTensor, is_wrapper, no_dispatch_modes

# The parts of a compressed sparse tensor, its values last
COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})  # by far the most: these need not be asked


def shape_of(tensor: Any) -> Any:
    """The shape, with "*" for a size that differs inside a nested tensor. A lazy parameter has none yet."""
    if isinstance(tensor, UninitializedTensor):
        return torch.Size()
    return tensor.shape if not tensor.is_nested else tuple(_size(tensor, dim) for dim in range(tensor.dim()))


def _size(tensor: Any, dim: int) -> int | str:
    try:
        size = tensor.size(dim)
    except RuntimeError:
        return "*"
    return size if isinstance(size, int) else "*"  # of a jagged one it is a symbol


def layout_name(tensor: Any) -> str:
    """What stands in place of the strides where there are none."""
    return "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.").removeprefix("_")


def storages_of(tensor: Any) -> list[Any]:
    """The storages of a tensor, of a sparse one that of its values last; none when it does not tell."""
    if tensor.is_nested or tensor.layout is torch.strided:
        try:
            return [tensor.untyped_storage()]
        except (RuntimeError, NotImplementedError):  # of torch.func: a tensor around a tensor
            return []
    with no_dispatch_modes(), torch.no_grad():  # asking must not look like an op of the program
        return [part.untyped_storage() for part in sparse_parts(tensor)]


def sparse_parts(tensor: Any) -> list[Any]:
    """The tensors that a sparse one consists of, its values last; none for all others."""
    names = ("_indices", "_values") if tensor.layout is torch.sparse_coo else COMPRESSED.get(tensor.layout, ())
    return [getattr(tensor, name)() for name in names]


def parts(tensor: Any) -> Iterable[tuple[str, Any]]:
    """The plain tensors inside a tensor, each with a suffix for its name: "" for a plain one and for a single part."""
    return (("", tensor),) if type(tensor) in PLAIN else _parts(tensor, "")


def _parts(tensor: Any, suffix: str) -> Iterator[tuple[str, Any]]:
    if not is_wrapper(tensor):
        yield suffix, tensor
        return
    named = [(name, getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0]]
    tensors = [(name, part) for name, part in named if isinstance(part, torch.Tensor)]  # else a mesh, say
    for name, part in tensors:
        yield from _parts(part, suffix if len(tensors) == 1 else f"{suffix}.{name}")
