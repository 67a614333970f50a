"""Hostile calls: valid ones with some arguments exchanged for what a file could put in their place."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch.utils import _pytree as pytree

# Numbers at which arithmetic of 32 and 64 bits, and of addresses, goes wrong; and small ones that are valid elsewhere.
NUMBERS = (-1, 0, 1, 2, 3, 7, 100, 65537, 2**31 - 1, 2**31, 2**40, 2**46, 2**62, 2**63 - 1, -2, -(2**40), -(2**63))
FLOATS = (0.0, -1.0, 2.0, 1e30, -1e30, 1e308, float("inf"), -float("inf"), float("nan"))
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64),
    *(torch.complex32, torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int32, torch.int64, torch.quint8),
)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64)
LAYOUTS = (torch.strided, torch.sparse_coo, torch.sparse_csr)
FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d, torch.preserve_format)
INSTEAD_OF_NONE = (
    *(True, 0, 1, -1, 2**46, 0.5, [], [0], [1, 1], [2.0, 0.5]),
    *(torch.float16, torch.quint8, torch.sparse_coo, torch.device("meta"), torch.channels_last),
)


def mutated(args: list[Any], kwargs: dict[str, Any], choose: random.Random) -> tuple[list[Any], dict[str, Any]]:
    """A call with one to four of its arguments changed, and perhaps lists of other lengths."""
    leaves, structure = pytree.tree_flatten((args, kwargs), is_leaf=lambda item: item is None)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] or [torch.zeros(2)]
    for _ in range(choose.choice((1, 1, 1, 2, 2, 3, 4)) if leaves else 0):
        place = choose.randrange(len(leaves))
        leaves[place] = _changed(leaves[place], tensors, choose)
    args, kwargs = pytree.tree_unflatten(leaves, structure)
    return [_other_length(one, choose) for one in args], {
        key: _other_length(one, choose) for key, one in kwargs.items()
    }


def _other_length(item: Any, choose: random.Random) -> Any:
    if isinstance(item, list) and item and choose.random() < 0.15:
        return choose.choice(([], item[:-1], [*item, item[-1]], item * 3))
    return item


def _changed(item: Any, tensors: list[torch.Tensor], choose: random.Random) -> Any:
    if isinstance(item, torch.Tensor):
        return _changed_tensor(item, tensors, choose)
    if isinstance(item, bool):
        return not item
    if isinstance(item, int):
        return choose.choice((*NUMBERS, *_edges(choose.choice(tensors), choose)))
    if isinstance(item, float):
        return choose.choice(FLOATS)
    if isinstance(item, str):
        return choose.choice(("", "x", "none", "sum", "mean", "add", "multiply", item * 50))
    for kind, choices in ((torch.dtype, DTYPES), (torch.layout, LAYOUTS), (torch.memory_format, FORMATS)):
        if isinstance(item, kind):
            return choose.choice(choices)
    if isinstance(item, torch.device):
        return torch.device(choose.choice(("cpu", "meta")))
    if item is None:
        tensor = _changed_tensor(choose.choice(tensors), tensors, choose)
        return choose.choice((*INSTEAD_OF_NONE, tensor, tensor, torch.zeros(0), torch.full((3,), 2**40)))
    return item


def _edges(tensor: torch.Tensor, choose: random.Random) -> tuple[int, ...]:
    """Indices at and right behind both ends of a dimension."""
    size = choose.choice([*tensor.shape, tensor.dim(), tensor.numel()])
    return size - 1, size, size + 1, -size, -size - 1


def _changed_tensor(tensor: torch.Tensor, tensors: list[torch.Tensor], choose: random.Random) -> Any:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return tensor
    try:
        if tensor.dtype in INTEGERS and choose.random() < 0.6:
            return _with_number(tensor, choose.choice((*NUMBERS, *_edges(choose.choice(tensors), choose))), choose)
        if tensor.dtype is torch.bool and choose.random() < 0.4:
            return torch.randint(0, 256, tensor.shape, dtype=torch.uint8).view(torch.bool)  # neither 0 nor 1
        return choose.choice(TENSOR_CHANGES)(tensor, tensors, choose)
    except RuntimeError:  # torch has no such tensor of this dtype
        return tensor


def _with_number(tensor: torch.Tensor, number: int, choose: random.Random) -> torch.Tensor:
    """An integer tensor that has a number once or everywhere."""
    limits, tensor = torch.iinfo(tensor.dtype), tensor.contiguous().clone()
    number = max(limits.min, min(limits.max, number))
    if choose.random() < 0.5 or not tensor.numel():
        return tensor.fill_(number)
    tensor.view(-1)[choose.randrange(tensor.numel())] = number
    return tensor


# -- one change of a tensor each; what does not apply returns the tensor -----------------------------------------------


def _shorter(tensor: torch.Tensor, _: Any, choose: random.Random) -> Any:
    if not tensor.dim():
        return tensor
    at = choose.randrange(tensor.dim())
    return tensor.narrow(at, 0, choose.randrange(tensor.size(at) + 1)).clone()


def _longer(tensor: torch.Tensor, _: Any, choose: random.Random) -> Any:
    return torch.cat([tensor] * choose.choice((2, 3, 5)), choose.randrange(tensor.dim())) if tensor.dim() else tensor


def _flat(tensor: torch.Tensor, _: Any, choose: random.Random) -> Any:
    return tensor.reshape(-1).clone()


def _more_dimensions(tensor: torch.Tensor, _: Any, choose: random.Random) -> Any:
    return tensor.unsqueeze(choose.randrange(tensor.dim() + 1)).clone()


def _fewer_dimensions(tensor: torch.Tensor, _: Any, choose: random.Random) -> Any:
    return tensor.select(-1, 0).clone() if tensor.dim() and tensor.numel() else tensor


def _other_dtype(tensor: torch.Tensor, _: Any, choose: random.Random) -> Any:
    dtype = choose.choice(DTYPES)
    return tensor if dtype is torch.quint8 else tensor.to(dtype)


def _transposed(tensor: torch.Tensor, _: Any, choose: random.Random) -> Any:
    return tensor.transpose(-1, choose.randrange(tensor.dim())) if tensor.dim() else tensor


def _empty(tensor: torch.Tensor, _: Any, choose: random.Random) -> Any:
    shape = [*tensor.shape]
    if shape and choose.random() < 0.5:
        shape[choose.randrange(len(shape))] = 0
    else:
        shape = [0]
    return torch.zeros(shape, dtype=tensor.dtype)


def _without_dimensions(tensor: torch.Tensor, _: Any, choose: random.Random) -> Any:
    return torch.ones((), dtype=tensor.dtype)


def _one_element(tensor: torch.Tensor, _: Any, choose: random.Random) -> Any:
    return tensor.reshape(-1)[:1].clone()


def _another_argument(tensor: torch.Tensor, tensors: list[torch.Tensor], choose: random.Random) -> Any:
    """The same tensor twice, which an operator may write to and read from."""
    return choose.choice(tensors)


def _absent(tensor: torch.Tensor, _: Any, choose: random.Random) -> Any:
    return None


def _extreme(tensor: torch.Tensor, _: Any, choose: random.Random) -> Any:
    return torch.full_like(tensor, choose.choice(FLOATS)) if tensor.dtype.is_floating_point else tensor


def _expanded(tensor: torch.Tensor, _: Any, choose: random.Random) -> Any:
    if not tensor.numel() or not tensor.dim():
        return tensor
    return tensor.narrow(choose.randrange(tensor.dim()), 0, 1).clone().expand(tensor.shape)


def _window(tensor: torch.Tensor, _: Any, choose: random.Random) -> Any:
    """A view of the same shape whose rows overlap or have gaps, and that reaches to the end of its memory."""
    steps = [choose.choice((0, 1, 1, 2, 5)) for _ in tensor.shape]
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, steps, strict=True)) + 1
    if not tensor.numel():
        return tensor
    values = tensor.reshape(-1).repeat(reach // tensor.numel() + 1)[:reach].clone()
    return values.as_strided(tensor.shape, steps)


def _lazy(tensor: torch.Tensor, _: Any, choose: random.Random) -> Any:
    """A view that stands for the conjugate or the negative of its memory."""
    return tensor.conj() if tensor.dtype.is_complex else torch._neg_view(tensor)


def _elsewhere(tensor: torch.Tensor, _: Any, choose: random.Random) -> Any:
    """A tensor without memory, or of a sparse layout."""
    return tensor.to("meta") if choose.random() < 0.5 else tensor.to_sparse()


TENSOR_CHANGES = (
    *(_shorter, _longer, _flat, _more_dimensions, _fewer_dimensions, _other_dtype, _transposed, _empty, _window),
    *(_without_dimensions, _one_element, _another_argument, _absent, _extreme, _expanded, _lazy, _elsewhere),
)


def described(item: Any) -> str:
    """Arguments in short form: the dtype, shape and first numbers of tensors."""
    if isinstance(item, torch.Tensor):
        text = f"{str(item.dtype).removeprefix('torch.')}{list(item.shape)}"
        if item.layout is not torch.strided or item.is_meta:
            return f"{text} {'meta' if item.is_meta else item.layout}"
        if not item.is_contiguous():
            text += f" strides {list(item.stride())}"
        if item.dtype in (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64) and item.numel():
            numbers = item.view(torch.uint8) if item.dtype is torch.bool else item
            text += f" = {numbers.flatten()[:6].tolist()}"
        return text
    if isinstance(item, list | tuple):
        return f"[{', '.join(map(described, item))}]"
    if isinstance(item, dict):
        return ", ".join(f"{key}={described(one)}" for key, one in item.items())
    return repr(item)
