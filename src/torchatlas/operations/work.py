"""What a formula sees and what it answers: one call of an operation -> its work.

    @formula("mm addmm torch.mm")
    def matrix_product(call: OpCall) -> Work: ...

A formula is filed under namespace and name, without the overload; in-place and `out=` twins need none of their own.
Where there is none, the operation's category decides if its meaning leaves no doubt: a view moves nothing, a copy
moves bytes, what is pointwise takes one operation per element. Everything else is uncosted, and said to be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchatlas.errors import InvalidInputError
from torchatlas.escapes import clean
from torchatlas.graph import OperationType
from torchatlas.graph.arguments import Call, TensorRef
from torchatlas.graph.attributes import arguments_by_name
from torchatlas.graph.columns import Layout, Operation
from torchatlas.operations.categories import without_overload
from torchatlas.registry import Registry

_ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "qint8": 1, "quint8": 1, "quint4x2": 1, "quint2x4": 1, "int16": 2, "uint16": 2,
    "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4, "float32": 4, "qint32": 4, "complex32": 4, "int64": 8,
    "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip


def item_bytes(dtype: str) -> int:
    """Bytes of one element.

    >>> item_bytes("bfloat16"), item_bytes("float8_e4m3fn"), item_bytes("int4")
    (2, 1, 1)
    """
    known = _ITEM_BYTES.get(dtype)
    if known is None and (dtype.startswith(("float8", "float4")) or dtype.strip("uint") in "1234567"):
        return 1  # what is smaller than a byte takes one, or is packed by the program itself
    if known is None:
        raise InvalidInputError(f"How many bytes an element of {dtype!r} has is not known.")
    return known


class Operand:
    """A tensor as a formula sees it: its shape, dtype and size, not its values."""

    __slots__ = ("bytes", "dtype", "kind", "numel", "shape")

    def __init__(self, shape: Sequence[int], dtype: str, stride: Sequence[int] | None = None, kind: str = "strided"):
        self.shape, self.dtype, self.kind = tuple(shape), dtype, kind
        self.numel = math.prod(shape)
        # A dimension of stride 0 repeats the same memory: reading it all reads it once.
        spread = shape if stride is None else [n for n, step in zip(shape, stride, strict=True) if step]
        self.bytes = math.prod(spread) * item_bytes(dtype) if self.numel else 0

    @classmethod
    def of(cls, layout: Layout, sizes: dict[str, int]) -> Operand:
        """The operand of a layout, its symbolic sizes replaced."""
        shape = [_known(size, sizes) for size in layout.shape]
        stride = None if layout.stride is None else [_known(step, sizes) for step in layout.stride]
        return cls(shape, layout.dtype, stride, layout.kind)

    def __repr__(self) -> str:
        return clean(f"{self.dtype}{list(self.shape)}")


class OpCall:
    """One call of an operation: its arguments by name, tensors as operands. A formula takes one.

    Args:
        operation: What is known of the operator.
        call: The arguments, tensors as references into `inputs`.
        inputs: The tensors taken.
        outputs: The tensors made.
        written: The tensors written in place.
    Example:
        >>> import torchatlas as atlas
        >>> def scan(call: atlas.OpCall) -> atlas.Work:
        ...     steps = call["x"].shape[0]
        ...     return atlas.Work(macs=steps * call.get("width", 1))
    """

    __slots__ = ("_arguments", "inputs", "operation", "outputs", "reads", "writes")

    def __init__(
        self,
        operation: Operation,
        call: Call,
        inputs: Sequence[Operand],
        outputs: Sequence[Operand],
        written: Sequence[Operand] | None = None,
    ) -> None:
        self.operation, self.inputs, self.outputs = operation.name, tuple(inputs), tuple(outputs)
        self._arguments = {name: self._filled(item) for name, item in arguments_by_name(operation, call).items()}
        self.writes = tuple(outputs if written is None else written)  # what it puts into memory: a view puts nothing
        self.reads = self._read(operation, call) if self.writes or not outputs else ()

    def __getitem__(self, name: str) -> Any:
        """An argument under its schema name: a number, an Operand, a list of either, None."""
        try:
            return self._arguments[name]
        except KeyError:
            known = ", ".join(self._arguments)
            raise InvalidInputError(f"{self.operation} has no argument {name!r}; it has: {known}.") from None

    def get(self, name: str, default: Any = None) -> Any:
        """An argument, or a default when the operation has none of that name.

        Args:
            name: The name in the operator's schema.
            default: What to return instead.
        Returns:
            A number, an Operand (a tensor's shape, dtype and size), a list of either, or None.
        """
        return self._arguments.get(name, default)

    @property
    def names(self) -> list[str]:
        """The names of all arguments."""
        return list(self._arguments)

    def _read(self, operation: Operation, call: Call) -> tuple[Operand, ...]:
        """Every input but those of `out=`, which are written without being looked at.

        A schema names them in many ways (out, out0, values, grad_input): what marks them is that they are tensors,
        by keyword, and not optional.
        """
        names = {"out"} | {one.name for one in operation.parameters if one.keyword_only and one.default is None}
        targets = {index for name in names for index in _input_indices((call.kwargs or {}).get(name))}
        return tuple(one for index, one in enumerate(self.inputs) if index not in targets)

    def _filled(self, item: Any) -> Any:
        if isinstance(item, TensorRef):
            return self.inputs[item.index]
        if isinstance(item, (list, tuple)):
            return [self._filled(part) for part in item]
        return item

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={item!r}" for name, item in self._arguments.items())
        return clean(f"{self.operation}({parts}) -> {', '.join(map(repr, self.outputs)) or None}")


@dataclass(frozen=True, slots=True)
class Work:
    """What one call takes. A formula returns one.

    Args:
        macs: Multiply-adds of matmul-like work.
        elementwise_flops: All other arithmetic.
        bytes_read: What must be read if nothing stays in a cache; None means every tensor argument once.
        bytes_written: What must be written; None means every result once.
        parallelism: How many results could be computed at the same time; None means every element of the results.
    Example:
        >>> import torchatlas as atlas
        >>> atlas.Work(macs=64).flops
        128
    """

    macs: int = 0
    elementwise_flops: int = 0
    bytes_read: int | None = None
    bytes_written: int | None = None
    parallelism: int | None = None

    @property
    def flops(self) -> int:
        """Of matmul-like work: two per multiply-add."""
        return 2 * self.macs


Formula = Callable[[OpCall], Work]
FORMULAS: Registry[Formula] = Registry("cost formula")
_BACKWARD_ONLY: dict[str, tuple[int, ...]] = {}


def formula(*names: str, backward_only: tuple[int, ...] = ()) -> Callable[[Formula], Formula]:
    """File the decorated function as the cost of these operations: names with blanks between, of ATen unless dotted.

    `backward_only` are the positions of results that only backward needs: indices of pools, statistics of norms, masks,
    workspaces. torch's kernels write them in inference too. A result that the program itself takes, such as the indices
    of `MaxPool2d(return_indices=True)`, counts as an output all the same: autograd_bytes.py looks at its readers.
    """
    full = [name if "." in name else f"aten.{name}" for text in names for name in text.split()]
    if backward_only:
        _BACKWARD_ONLY.update(dict.fromkeys(full, backward_only))
    return FORMULAS.add(*full)


def results_for_backward(operation: str) -> tuple[int, ...]:
    """The positions of an operator's results that only its backward needs; most operators have none."""
    return _BACKWARD_ONLY.get(without_overload(operation), ())


def formula_for(operation: Operation) -> Formula | None:
    """The formula of an operation, or that of its category; None when its cost is not known."""
    name = without_overload(operation.name)
    for spelling in (operation.name, name, name.rstrip("_")):  # aten.add_.Tensor, aten.add_, aten.add
        if spelling in FORMULAS:
            return FORMULAS[spelling]
    return _BY_CATEGORY.get(operation.type)


def _input_indices(item: Any) -> Iterator[int]:
    """The indices of the inputs that an argument refers to."""
    if isinstance(item, TensorRef):
        yield item.index
    elif isinstance(item, (list, tuple)):
        for part in item:
            yield from _input_indices(part)


def _known(size: int | str, sizes: dict[str, int]) -> int:
    return size if isinstance(size, int) else sizes[size]


# -- by category -------------------------------------------------------------------------------------------------------


def moves_nothing(call: OpCall) -> Work:
    """Another look at the same memory; where torch had to copy after all, the copy counts."""
    return Work(bytes_read=sum(one.bytes for one in call.writes), parallelism=sum(one.numel for one in call.writes))


def moves_everything(call: OpCall) -> Work:
    """Reads all arguments, writes all results, computes nothing."""
    return Work()


def one_per_element(call: OpCall) -> Work:
    """One operation per element of the results."""
    return Work(elementwise_flops=sum(one.numel for one in call.outputs) or sum(one.numel for one in call.writes))


def one_per_input(call: OpCall) -> Work:
    """One operation per element of the largest argument: what a reduction does."""
    return Work(elementwise_flops=max((one.numel for one in call.inputs), default=0))


_BY_CATEGORY: dict[OperationType, Formula] = {
    OperationType.VIEW: moves_nothing,
    OperationType.MOVEMENT: moves_everything,
    OperationType.POINTWISE: one_per_element,
    OperationType.REDUCTION: one_per_input,
    OperationType.RANDOM: one_per_element,
}
