"""An operation -> what kind of kernel computes it, which decides what can be fused with it. Rules, not a list of names.

PRODUCT  a convolution, matrix product or attention: may go on with what follows element by element (an epilogue)
LOOP     element by element: fuses with anything that runs over the same elements
ROWS     sums, norms, softmax: fuses with loops over the same rows, as long as its rows fit on the chip
START    reads elements at other places (pooling, cat, embedding): may go on with a loop, but begins a kernel
FREE     another look at the same memory: goes with whatever it looks at
ALONE    never fused, and says why
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from torchatlas.analysis.formulas import Operand
from torchatlas.analysis.formulas.work import item_bytes
from torchatlas.graph import GraphNode, OperationType
from torchatlas.graph.names import short_name
from torchatlas.partition.traffic import Ledger
from torchatlas.partition.unit_graph import Units


class KernelKind(StrEnum):
    """What kind of loop nest a unit is."""

    PRODUCT = "product"
    LOOP = "loop"
    ROWS = "rows"
    START = "start"
    FREE = "free"
    ALONE = "alone"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One unit as a kernel. `space` is how many elements its loop runs over."""

    kind: KernelKind
    space: int = 0
    rows: int | None = None  # how many sums or norms a ROWS kernel computes
    axes: str = ""  # over what: kernels fuse only if it is the same
    why: str = ""  # it is ALONE
    item_bytes: int = 0  # of one element that it makes


_HEAVY = (OperationType.CONVOLUTION, OperationType.MATMUL, OperationType.ATTENTION)
_ALONE = {
    OperationType.COMMUNICATION: "talks to other devices",
    OperationType.CUSTOM: "is a custom operation",
    OperationType.UNKNOWN: "is an unknown operation",
    OperationType.MODULE: "is a module whose operations were not recorded",
    OperationType.OPTIMIZER: "updates parameters",
    OperationType.RECURRENT: "loops over time inside",
    OperationType.LOSS: "reduces to a loss",
}
_STARTS = (OperationType.POOLING, OperationType.EMBEDDING)
_SAME_PLACE = (
    "clone",
    "copy",
    "to_copy",
    "contiguous",
    "fill",
    "reshape",
    "unsafe_view",
    "lift_fresh",
    "lift_fresh_copy",
)


def kernels_of(units: Units, ledger: Ledger) -> list[Kernel]:
    """The kernel of every unit; equal calls are worked out once."""
    columns, known = units.graph.columns, dict[Any, Kernel]()

    def of_op(op: int) -> Kernel:
        index = units.graph.index
        layouts = columns["value_layout"]
        made = index.outputs(op)
        key = (
            int(columns["node_operation"][op]),
            int(columns["node_arguments"][op]),
            tuple(layouts[index.inputs(op)].tolist()),
            tuple(layouts[made[made >= 0]].tolist()),
        )
        if key not in known:
            known[key] = _kernel(units.graph.nodes[op], ledger)
        return known[key]

    return [_together([of_op(op) for op in ops if not ledger.is_idle[op]]) for ops in units.ops]


def _together(parts: list[Kernel]) -> Kernel:
    """The kernel of a node of torch.fx that runs several operations."""
    if not parts:
        return Kernel(KernelKind.FREE)
    if len(parts) == 1:
        return parts[0]
    if all(part.kind is KernelKind.LOOP and part.space == parts[0].space for part in parts):
        return parts[0]
    return Kernel(KernelKind.ALONE, why=f"runs {len(parts)} kernels of its own")


def _kernel(node: GraphNode, ledger: Ledger) -> Kernel:
    kind, name = node.operation_type, short_name(node.operation).strip("_")
    if not ledger.is_known[node.id]:
        return Kernel(KernelKind.ALONE, why="has no cost formula")
    if kind in _ALONE:
        return Kernel(KernelKind.ALONE, why=_ALONE[kind])
    made = ledger.graph.index.outputs(node.id)
    made = made[made >= 0]
    if not len(made) or not (space := _operand(ledger, int(made[0])).numel):
        return Kernel(KernelKind.ALONE, why="makes no elements")
    return replace(_of_kind(node, kind, name, ledger, space), item_bytes=item_bytes(node.outputs[0].dtype))


def _of_kind(node: GraphNode, kind: OperationType, name: str, ledger: Ledger, space: int) -> Kernel:
    if kind in _HEAVY:
        return Kernel(KernelKind.PRODUCT, space)
    if kind in _STARTS or (kind is OperationType.MOVEMENT and name not in _SAME_PLACE and node.inputs):
        return Kernel(KernelKind.START, space)
    if kind is OperationType.NORM or kind is OperationType.REDUCTION or "softmax" in name:
        return _rows(node, name, ledger, space)
    return Kernel(KernelKind.LOOP, space)


def _rows(node: GraphNode, name: str, ledger: Ledger, space: int) -> Kernel:
    """A reduction: over how many rows, along which axes. A batch norm with fixed statistics is a plain loop."""
    if not node.inputs:
        return Kernel(KernelKind.ALONE, why="reduces nothing")
    attributes, shape = node.attributes, node.inputs[0].shape
    if "batch_norm" in name:
        if name.endswith("no_training") or attributes.get("training") is False:
            return Kernel(KernelKind.LOOP, space)
        return _reduced(ledger, node, {*range(len(shape))} - {1})
    if isinstance(normalized := attributes.get("normalized_shape"), (list, tuple)):
        last = len(normalized)
        return _reduced(ledger, node, set(range(len(shape) - last, len(shape))))
    groups = attributes.get("group", attributes.get("num_groups"))
    if isinstance(groups, int) and shape:
        sizes = _sizes(ledger, node)
        return Kernel(KernelKind.ROWS, math.prod(sizes), sizes[0] * groups, "last")
    dim = attributes.get("dim", attributes.get("axis"))
    if dim is None or dim == []:
        return _reduced(ledger, node, set(range(len(shape))))
    dims = [dim] if isinstance(dim, int) else list(dim) if isinstance(dim, (list, tuple)) else []
    if not dims or not all(isinstance(one, int) for one in dims):
        return Kernel(KernelKind.ALONE, why="reduces in a way that is not followed")
    return _reduced(ledger, node, {one % max(len(shape), 1) for one in dims})


def _reduced(ledger: Ledger, node: GraphNode, dims: set[int]) -> Kernel:
    sizes = _sizes(ledger, node)
    space, length = math.prod(sizes), math.prod(size for dim, size in enumerate(sizes) if dim in dims)
    trailing = dims == set(range(len(sizes) - len(dims), len(sizes)))
    axes = "last" if trailing else f"{sorted(dims)} of {sizes}"
    return Kernel(KernelKind.ROWS, space, space // length if length else 0, axes)


def _sizes(ledger: Ledger, node: GraphNode) -> tuple[int, ...]:
    return _operand(ledger, node.inputs[0].id).shape


def _operand(ledger: Ledger, value: int) -> Operand:
    return ledger.operands[int(ledger.graph.columns["value_layout"][value])]
