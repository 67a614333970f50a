"""A unit -> the kernel that computes it: its kind (operations/kernel_kinds.py), and over what it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from torchatlas.graph import GraphNode
from torchatlas.graph.names import short_name
from torchatlas.operations.kernel_kinds import WHY_ALONE, KernelKind, kernel_kind
from torchatlas.operations.work import Operand, item_bytes
from torchatlas.partition.traffic import Ledger
from torchatlas.partition.unit_graph import Units


@dataclass(frozen=True, slots=True)
class UnitKernel:
    """One unit as a kernel. `space` is how many elements its loop runs over."""

    kind: KernelKind
    space: int = 0
    rows: int | None = None  # how many sums or norms a ROWS kernel computes
    axes: str = ""  # the axes that it reduces: kernels fuse only if they are equal
    why: str = ""  # the reason if it is ALONE
    item_bytes: int = 0  # of one element of its result


def kernels_of(units: Units, ledger: Ledger) -> list[UnitKernel]:
    """The kernel of every unit; equal calls are worked out once."""
    columns, known = units.graph.columns, dict[Any, UnitKernel]()

    def of_op(op: int) -> UnitKernel:
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


def _together(parts: list[UnitKernel]) -> UnitKernel:
    """The kernel of a node of torch.fx that runs several operations."""
    if not parts:
        return UnitKernel(KernelKind.FREE)
    if len(parts) == 1:
        return parts[0]
    if all(part.kind is KernelKind.LOOP and part.space == parts[0].space for part in parts):
        return parts[0]
    return UnitKernel(KernelKind.ALONE, why=f"runs {len(parts)} kernels of its own")


def _kernel(node: GraphNode, ledger: Ledger) -> UnitKernel:
    kind = kernel_kind(node.operation, node.operation_type)
    if not ledger.is_known[node.id]:
        return UnitKernel(KernelKind.ALONE, why="has no cost formula")
    if kind is KernelKind.ALONE:
        return UnitKernel(kind, why=WHY_ALONE[node.operation_type])
    made = ledger.graph.index.outputs(node.id)
    made = made[made >= 0]
    if not len(made) or not (space := _operand(ledger, int(made[0])).numel):
        return UnitKernel(KernelKind.ALONE, why="makes no elements")
    if kind is KernelKind.ROWS:
        kernel = _rows(node, ledger, space)
    elif kind is KernelKind.FREE or (kind is KernelKind.START and not node.inputs):
        kernel = UnitKernel(KernelKind.LOOP, space)  # a view that had to copy; a new tensor, which reads nothing
    else:
        kernel = UnitKernel(kind, space)
    return replace(kernel, item_bytes=item_bytes(node.outputs[0].dtype))


def _rows(node: GraphNode, ledger: Ledger, space: int) -> UnitKernel:
    """A reduction: over how many rows, along which axes. A batch norm with fixed statistics is a plain loop."""
    if not node.inputs:
        return UnitKernel(KernelKind.ALONE, why="reduces nothing")
    name, attributes, shape = short_name(node.operation), node.attributes, node.inputs[0].shape
    if "batch_norm" in name:
        if name.endswith("no_training") or attributes.get("training") is False:
            return UnitKernel(KernelKind.LOOP, space)
        return _reduced(ledger, node, {*range(len(shape))} - {1})
    if isinstance(normalized := attributes.get("normalized_shape"), (list, tuple)):
        last = len(normalized)
        return _reduced(ledger, node, set(range(len(shape) - last, len(shape))))
    groups = attributes.get("group", attributes.get("num_groups"))
    if isinstance(groups, int) and shape:
        sizes = _sizes(ledger, node)
        return UnitKernel(KernelKind.ROWS, math.prod(sizes), sizes[0] * groups, "last")
    dim = attributes.get("dim", attributes.get("axis"))
    if dim is None or dim == []:
        return _reduced(ledger, node, set(range(len(shape))))
    dims = [dim] if isinstance(dim, int) else list(dim) if isinstance(dim, (list, tuple)) else []
    if not dims or not all(isinstance(axis, int) for axis in dims):
        return UnitKernel(KernelKind.ALONE, why="reduces in a way that is not followed")
    return _reduced(ledger, node, {axis % max(len(shape), 1) for axis in dims})


def _reduced(ledger: Ledger, node: GraphNode, dims: set[int]) -> UnitKernel:
    sizes = _sizes(ledger, node)
    space, length = math.prod(sizes), math.prod(size for dim, size in enumerate(sizes) if dim in dims)
    trailing = dims == set(range(len(sizes) - len(dims), len(sizes)))
    axes = "last" if trailing else f"{sorted(dims)} of {sizes}"
    return UnitKernel(KernelKind.ROWS, space, space // length if length else 0, axes)


def _sizes(ledger: Ledger, node: GraphNode) -> tuple[int, ...]:
    return _operand(ledger, node.inputs[0].id).shape


def _operand(ledger: Ledger, value: int) -> Operand:
    return ledger.operands[int(ledger.graph.columns["value_layout"][value])]
