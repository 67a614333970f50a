"""Gather and scatter: only what is chosen is read, only what is touched is written, plus the indices."""

from __future__ import annotations

import math
from typing import Any

from torchatlas.operations.formulas.operand_sizes import (
    along,
    broadcast,
    bytes_for,
    bytes_of,
    in_place,
    part_of,
    results,
)
from torchatlas.operations.work import OpCall, Operand, Work, formula

# -- gather ------------------------------------------------------------------------------------------------------------


def _gathered(call: OpCall, *indices: Any, flops: int = 0) -> Work:
    source, chosen = call.inputs[0], results(call)[0]
    return Work(elementwise_flops=flops, bytes_read=part_of(source, chosen.numel) + bytes_of(*indices))


@formula("index _unsafe_index take_along_dim index_select gather take")
def gather(call: OpCall) -> Work:
    return _gathered(call, call.get("indices", call.get("index")))


@formula("masked_select")
def masked_select(call: OpCall) -> Work:
    """A test per element of the mask."""
    mask: Operand = call["mask"]
    return _gathered(call, mask, flops=math.prod(broadcast(call["self"].shape, mask.shape)))


@formula("_unsafe_masked_index")
def masked_index(call: OpCall) -> Work:
    return _gathered(call, call["mask"], call["indices"], flops=results(call)[0].numel)


@formula(
    "select_copy slice_copy narrow_copy diagonal_copy as_strided_copy split_copy split_with_sizes_copy unbind_copy",
    "diag linalg_diagonal",
)
def part(call: OpCall) -> Work:
    """Reads the part it copies."""
    copied = sum(one.numel for one in results(call))
    return Work(bytes_read=part_of(call.inputs[0], copied))


# -- scatter -----------------------------------------------------------------------------------------------------------


def _scattered(call: OpCall, touched: int, values: Any, *indices: Any, flops: int = 0, adds: bool = False) -> Work:
    """`values` go to `touched` elements. In place only these are written, and read if they are added to; out of place
    everything is copied first."""
    target, read = call.inputs[0], bytes_of(values, *indices)
    if not in_place(call):
        return Work(elementwise_flops=flops, bytes_read=target.bytes + read)
    moved = part_of(target, touched)
    return Work(0, flops, read + (moved if adds else 0), moved, touched)


@formula("scatter scatter_add scatter_reduce")
def scatter(call: OpCall) -> Work:
    positions: Operand = call["index"]
    adds = call.get("reduce") is not None or "scatter_add" in call.operation
    flops = positions.numel * adds + _divisions(call)
    return _scattered(call, positions.numel, _like(positions, call.get("src")), positions, flops=flops, adds=adds)


@formula("index_add index_reduce")
def index_add(call: OpCall) -> Work:
    source = call["source"]
    flops = source.numel * (1 if call.get("alpha", 1) == 1 else 2) + _divisions(call)
    return _scattered(call, source.numel, source, call["index"], flops=flops, adds=True)


@formula("index_copy")
def index_copy(call: OpCall) -> Work:
    return _scattered(call, call["source"].numel, call["source"], call["index"])


@formula("index_fill")
def index_fill(call: OpCall) -> Work:
    target: Operand = call["self"]
    per_index = target.numel // max(along(target, call["dim"]), 1)
    return _scattered(call, call["index"].numel * per_index, call["value"], call["index"])


@formula("put")
def put(call: OpCall) -> Work:
    positions, adds = call["index"], call["accumulate"]
    return _scattered(call, positions.numel, call["source"], positions, flops=positions.numel * adds, adds=adds)


@formula("index_put _index_put_impl _unsafe_index_put")
def index_put(call: OpCall) -> Work:
    target, adds = call["self"], call.get("accumulate", False)
    touched = _indexed(target, call["indices"], call["values"])
    return _scattered(call, touched, call["values"], call["indices"], flops=touched * adds, adds=adds)


@formula("_unsafe_masked_index_put_accumulate")
def masked_index_put(call: OpCall) -> Work:
    """A choice and a sum per value."""
    values: Operand = call["values"]
    return _scattered(call, values.numel, values, call["mask"], call["indices"], flops=2 * values.numel, adds=True)


@formula("masked_scatter")
def masked_scatter(call: OpCall) -> Work:
    """A test per element; at most as many values are taken as the target has elements."""
    target, source = call["self"], call["source"]
    size = math.prod(broadcast(target.shape, call["mask"].shape))
    touched = min(size, source.numel)
    return _scattered(call, touched, _like(target, source), call["mask"], flops=size)


@formula("masked_scatter_backward")
def masked_scatter_backward(call: OpCall) -> Work:
    return _gathered(call, call["mask"], flops=call["mask"].numel)


@formula("fill_diagonal")
def fill_diagonal(call: OpCall) -> Work:
    target = call.inputs[0]
    diagonal = min(target.shape, default=1)
    return Work(0, 0, 0, bytes_for(diagonal, target), diagonal)


def _like(positions: Operand, values: Any) -> Any:
    """The values that are used: as many as there are positions."""
    if not isinstance(values, Operand) or values.numel <= positions.numel:
        return values
    return Operand(positions.shape, values.dtype)


def _divisions(call: OpCall) -> int:
    """A mean divides every element of the result."""
    return results(call)[0].numel if call.get("reduce") == "mean" else 0


def _indexed(target: Operand, indices: list[Operand | None], values: Operand) -> int:
    """How many elements `target[indices]` has. How many a mask selects is not known: as many as there are values, or
    all of them if there is one value."""
    used = [one for one in indices if one is not None]
    if any(one.dtype in ("bool", "uint8") for one in used):
        return values.numel if values.numel > 1 else target.numel
    left = [size for size, one in zip(target.shape, indices, strict=False) if one is None]
    return math.prod(broadcast(*(one.shape for one in used))) * math.prod(left + list(target.shape[len(indices) :]))
