"""What many formulas share: elements and bytes of arguments, lengths along dimensions, so much work per element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torchatlas.operations.work import Formula, OpCall, Operand, Work, item_bytes


def tensors(*items: Any) -> list[Operand]:
    """The tensors among arguments, in order; lists are opened, numbers and None left out."""
    operands: list[Operand] = []
    for item in items:
        if isinstance(item, Operand):
            operands.append(item)
        elif isinstance(item, (list, tuple)):
            operands += tensors(*item)
    return operands


def elements(*items: Any) -> int:
    """How many elements the tensors among the arguments have."""
    return sum(one.numel for one in tensors(*items))


def bytes_of(*items: Any) -> int:
    """How many bytes the tensors among the arguments have, each tensor once."""
    return sum(one.bytes for one in tensors(*items))


def bytes_for(count: int, like: Operand) -> int:
    """The bytes of `count` elements of a tensor."""
    return count * item_bytes(like.dtype)


def part_of(source: Operand, count: int) -> int:
    """The bytes of `count` elements taken from a tensor, some perhaps twice: never more than it has."""
    return min(bytes_for(count, source), source.bytes)


def results(call: OpCall) -> tuple[Operand, ...]:
    """The results of a call; the tensors that it wrote if it returns none, as in-place ops on lists do."""
    return call.outputs or call.writes


def is_complex(item: Any) -> bool:
    return isinstance(item, complex) or (isinstance(item, Operand) and item.dtype.startswith("complex"))


def in_place(call: OpCall) -> bool:
    """Whether the operation writes its first argument: its name ends with an underscore."""
    return call.operation.split(".")[1].endswith("_")


def along(tensor: Operand, dim: Any) -> int:
    """How many elements lie along a dimension, or several; None and no dimension mean all of them.

    >>> along(Operand((2, 3, 5), "float32"), -1), along(Operand((2, 3, 5), "float32"), [0, 1])
    (5, 6)
    """
    dims = [dim] if isinstance(dim, int) else dim
    if not dims or not tensor.shape:
        return tensor.numel
    return math.prod(tensor.shape[one] for one in dims)


def rows(tensor: Operand, dim: Any) -> int:
    """How many independent rows a tensor has when each goes along `dim`."""
    length = along(tensor, dim)
    return tensor.numel // length if length else 0


def spread(sizes: Any, count: int) -> list[int]:
    """A size per dimension, where one may stand for all.

    >>> spread(3, 2), spread([2], 2), spread([2, 5], 2)
    ([3, 3], [2, 2], [2, 5])
    """
    listed = [sizes] if isinstance(sizes, int) else list(sizes)
    return listed * count if len(listed) == 1 else listed


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that shapes broadcast to.

    >>> broadcast((3, 1), (4,))
    (3, 4)
    """
    width = max(map(len, shapes), default=0)
    padded = [(1,) * (width - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))


def comparisons(length: int) -> float:
    """How often sorting `length` elements compares each of them: the logarithm to base 2, at least 1."""
    return max(math.log2(length), 1.0) if length > 1 else 0.0


# -- formulas that many operations have --------------------------------------------------------------------------------


def per_result(rate: int) -> Formula:
    """`rate` operations per element of the result; of the first, if there are several."""
    return lambda call: Work(elementwise_flops=rate * results(call)[0].numel)


def per_input(rate: int) -> Formula:
    """`rate` operations per element of the first argument."""
    return lambda call: Work(elementwise_flops=rate * call.inputs[0].numel)


def touches_nothing(call: OpCall) -> Work:
    """Neither reads nor writes: the memory stays as it is."""
    return Work(bytes_read=0, bytes_written=0, parallelism=0)
