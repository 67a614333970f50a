"""Sorting, choosing and searching: comparisons. Sorting n elements takes n log2 n of them."""

from __future__ import annotations

import math

from torchatlas.operations.formulas.operand_sizes import along, bytes_of, comparisons, elements, per_input, results
from torchatlas.operations.work import OpCall, Operand, Work, formula


@formula("sort argsort mode msort")
def sort(call: OpCall) -> Work:
    x = call.inputs[0]
    flops = round(x.numel * comparisons(along(x, call.get("dim", 0))))
    return Work(elementwise_flops=flops, parallelism=results(call)[0].numel)


@formula("topk")
def topk(call: OpCall) -> Work:
    """Every element is looked at once; the chosen ones are sorted if asked for."""
    x, chosen = call.inputs[0], results(call)[0]
    order = chosen.numel * comparisons(along(chosen, call["dim"])) if call.get("sorted", True) else 0
    return Work(elementwise_flops=x.numel + round(order), parallelism=chosen.numel)


@formula("quantile nanquantile")
def quantile(call: OpCall) -> Work:
    """Sort, then interpolate between two elements."""
    x = call.inputs[0]
    length = along(x, call.get("dim"))
    return Work(elementwise_flops=round(x.numel * comparisons(length)) + 3 * results(call)[0].numel)


@formula("_unique _unique2 unique_dim _coalesce")
def unique(call: OpCall) -> Work:
    """Sort elements, or slices by comparing whole slices; then compare neighbours, or add equal ones (_coalesce)."""
    x = call.inputs[0]
    return Work(elementwise_flops=round(x.numel * (comparisons(along(x, call.get("dim"))) + 1)))


formula("unique_consecutive unique_dim_consecutive")(per_input(1))  # compare neighbours
formula("aten.where.default nonzero nonzero_numpy nonzero_static argwhere")(per_input(1))  # a test per element


@formula("searchsorted bucketize")
def bisection(call: OpCall) -> Work:
    """Each wanted value halves the row it is looked for in, and reads what it is compared with."""
    ordered: Operand = call.get("sorted_sequence") or call["boundaries"]
    wanted = call["self"]
    steps = math.ceil(math.log2(along(ordered, -1) + 1))
    searched = (elements(wanted) or 1) * steps
    read = min(searched * ordered.bytes // max(ordered.numel, 1), ordered.bytes)
    return Work(elementwise_flops=searched, bytes_read=read + bytes_of(wanted))


@formula("torchvision.nms torchvision.qnms")
def non_maximum_suppression(call: OpCall) -> Work:
    """Areas, a sort by score, and at most every pair: the overlap (4 extremes, 2 differences, 2 bounds, a product),
    its share of both areas (3) and a comparison."""
    boxes = call.inputs[0].shape[0]
    order = boxes * comparisons(boxes)
    return Work(elementwise_flops=3 * boxes + round(order) + 13 * boxes * (boxes - 1) // 2)
