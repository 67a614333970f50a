"""Tensors as bytes: which part of a storage they cover, whether it was written, and digests to compare them by."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any

import torch

from torchatlas.capturing.tensors import sparse_parts, storages_of
from torchatlas.torch_private import FakeTensor

DIGEST_BYTES = 16
NO_DIGEST = bytes(DIGEST_BYTES)  # of what is not to be compared: it holds whatever was in memory


def is_view_of_storage(tensor: torch.Tensor) -> bool:
    """True for a tensor that is no more than a view of a storage that holds bytes."""
    if isinstance(tensor, FakeTensor) or tensor.device.type == "meta" or tensor.is_nested or tensor.is_quantized:
        return False
    return tensor.layout is torch.strided and any(not is_void(storage) for storage in storages_of(tensor))


def is_void(storage: Any) -> bool:
    """True for a storage with a size and no memory: forward-mode differentiation makes zeros of that kind."""
    if not storage.nbytes():
        return False
    try:
        return not storage.data_ptr()
    except RuntimeError:  # "an invalid python storage"
        return True


def as_bytes(storage: Any) -> torch.Tensor:
    """A storage as one flat tensor of bytes, sharing its memory."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of its storage that a tensor covers, and one past the last."""
    size, begin = tensor.element_size(), int(tensor.storage_offset()) * tensor.element_size()
    if not tensor.numel():
        return begin, begin
    reach = sum(int(count - 1) * int(step) for count, step in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (reach + 1) * size


def is_bytes(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype is torch.uint8


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def elements(content: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The bytes in a flat tensor that a tensor covers in its storage, as integers of its size."""
    size, shape, stride = tensor.element_size(), tuple(tensor.shape), tensor.stride()
    offset = tensor.storage_offset()
    if size > 8:  # complex128
        shape, stride, offset = (*shape, size // 8), (*(step * size // 8 for step in stride), 1), offset * size // 8
    view = torch.empty(0, dtype=_INTEGERS[min(size, 8)], device=content.device)
    return view.set_(content.untyped_storage(), offset, shape, stride)


def all_filled(filled: torch.Tensor, tensor: torch.Tensor) -> bool:
    return bool((elements(filled, tensor) == -1).all())


def same_bytes(one: torch.Tensor, other: torch.Tensor, begin: int, end: int) -> bool:
    """True if two flat byte tensors are equal between two positions. Compares whole words: four times as fast."""
    begin, words = begin - begin % 8, (end - begin + begin % 8) // 8 * 8
    if not torch.equal(one[begin : begin + words].view(torch.int64), other[begin : begin + words].view(torch.int64)):
        return False
    return torch.equal(one[begin + words : end], other[begin + words : end])


def misalignment(storage: Any) -> int:
    """How far a storage begins after a multiple of 64 bytes: some kernels sum in another order then."""
    return int(storage.data_ptr() % 64) if storage.device.type == "cpu" else 0


def dense_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a strided tensor in order, as bytes."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    whole, begin = as_bytes(plain.untyped_storage()), plain.storage_offset() * plain.element_size()
    return whole[begin : begin + plain.numel() * plain.element_size()]


def digest(content: torch.Tensor, about: str = "") -> bytes:
    made = hashlib.sha256(about.encode())
    if len(content):
        content = content.cpu()  # not .numpy(): a storage that numpy has seen cannot be resized any more
        made.update((ctypes.c_ubyte * len(content)).from_address(content.data_ptr()))
    return made.digest()[:DIGEST_BYTES]


def fingerprint(item: Any) -> bytes:
    """A digest of a tensor's dtype, shape, strides and bytes, or of a number."""
    if not isinstance(item, torch.Tensor):
        return hashlib.sha256(repr(item).encode()).digest()[:DIGEST_BYTES]
    if isinstance(item, FakeTensor) or item.device.type == "meta" or (item.is_nested and not storages_of(item)):
        return hashlib.sha256(f"{item.dtype}".encode()).digest()[:DIGEST_BYTES]
    if item.is_nested:
        parts = [item.values()] if item.layout is torch.jagged else list(item.unbind())
    elif item.layout is not torch.strided:
        parts = sparse_parts(item) or [item.to_dense()]
    elif item.is_quantized:
        parts = [item.int_repr()]
    elif all(is_void(storage) for storage in storages_of(item)):
        return digest(torch.empty(0, dtype=torch.uint8), f"{item.dtype} {tuple(item.shape)} {item.stride()}")
    else:
        return digest(dense_bytes(item), f"{item.dtype} {tuple(item.shape)} {item.stride()}")
    made = hashlib.sha256(f"{item.dtype} {item.layout}".encode())
    for part in parts:
        made.update(fingerprint(part))
    return made.digest()[:DIGEST_BYTES]
