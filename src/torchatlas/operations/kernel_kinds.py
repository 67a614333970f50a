"""An operator -> what kind of kernel computes it, which decides what can be fused with it. Rules, not a list of names.

PRODUCT  a convolution, matrix product or attention: may go on with what follows element by element (an epilogue)
LOOP     element by element: fuses with anything that runs over the same elements
ROWS     sums, norms, softmax: fuses with loops over the same rows, as long as its rows fit on the chip
START    reads elements at other positions (pooling, cat, embedding): may go on with a loop, but begins a kernel
FREE     another look at the same memory: goes with whatever it looks at
ALONE    never fused, and WHY_ALONE says why
"""

from __future__ import annotations

from enum import StrEnum

from torchatlas.graph.names import short_name
from torchatlas.graph.nouns import OperationType


class KernelKind(StrEnum):
    """What kind of loop nest an operator is."""

    PRODUCT = "product"
    LOOP = "loop"
    ROWS = "rows"
    START = "start"
    FREE = "free"
    ALONE = "alone"


WHY_ALONE = {
    OperationType.COMMUNICATION: "talks to other devices",
    OperationType.CUSTOM: "is a custom operation",
    OperationType.UNKNOWN: "is an unknown operation",
    OperationType.MODULE: "is a module whose operations were not recorded",
    OperationType.OPTIMIZER: "updates parameters",
    OperationType.RECURRENT: "loops over time inside",
    OperationType.LOSS: "reduces to a loss",
}
_BY_CATEGORY = {
    OperationType.CONVOLUTION: KernelKind.PRODUCT,
    OperationType.MATMUL: KernelKind.PRODUCT,
    OperationType.ATTENTION: KernelKind.PRODUCT,
    OperationType.NORM: KernelKind.ROWS,
    OperationType.REDUCTION: KernelKind.ROWS,
    OperationType.POOLING: KernelKind.START,
    OperationType.EMBEDDING: KernelKind.START,
    OperationType.MOVEMENT: KernelKind.START,
    OperationType.VIEW: KernelKind.FREE,
    **dict.fromkeys(WHY_ALONE, KernelKind.ALONE),
}
# Movements that leave every element where it is.
_IN_ORDER = frozenset(
    {"clone", "contiguous", "copy", "fill", "lift_fresh", "lift_fresh_copy", "reshape", "to_copy", "unsafe_view"}
)


def kernel_kind(operation: str, category: OperationType) -> KernelKind:
    """The kind of kernel that computes an operator of a category.

    >>> kernel_kind("aten._softmax.default", OperationType.ACTIVATION).value
    'rows'
    """
    name, kind = short_name(operation).strip("_"), _BY_CATEGORY.get(category, KernelKind.LOOP)
    if kind is KernelKind.LOOP and "softmax" in name:  # an activation that sums over rows
        return KernelKind.ROWS
    if category is OperationType.MOVEMENT and name in _IN_ORDER:
        return KernelKind.LOOP
    return kind
