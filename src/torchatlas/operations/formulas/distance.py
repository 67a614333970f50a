"""Norms of tensors and distances between rows: (sum |x|^p)^(1/p)."""

from __future__ import annotations

import math
from typing import Any

from torchatlas.operations.formulas.operand_sizes import elements, is_complex, results, tensors
from torchatlas.operations.work import FORMULAS, OpCall, Operand, Work, formula


def _power_rate(p: Any) -> tuple[int, int]:
    """(per element, per result) of (sum |x|^p)^(1/p)."""
    if p is None or p == 2:
        return 2, 1  # square, add; root
    if p in (0, 1) or math.isinf(p):
        return 2, 0  # absolute value or test; add or compare
    return 3, 1


def _powers(x: Operand, p: Any) -> int:
    """What raising all elements and adding them takes. |x|^2 of a complex number: two squares, a sum; |x|: a root."""
    more = (2 if p is None or p == 2 else 3) if is_complex(x) else 0
    return (_power_rate(p)[0] + more) * x.numel


@formula("linalg_vector_norm norm native_norm linalg__powsum _foreach_norm _foreach_powsum")
def vector_norm(call: OpCall) -> Work:
    """Of one tensor, or of each of a list; a sum of powers (powsum) takes no root."""
    p = call.get("ord", call.get("p", 2))
    roots = 0 if "powsum" in call.operation else _power_rate(p)[1] * elements(*results(call))
    return Work(elementwise_flops=sum(_powers(one, p) for one in tensors(call["self"])) + roots)


@formula("linalg_norm linalg_matrix_norm nuclear_norm")
def matrix_norm(call: OpCall) -> Work:
    """Of all elements, or the largest sum of a row or column; the nuclear and the spectral one need singular values."""
    x, order = call.inputs[0], call.get("ord", "nuc")
    vector = call.operation.startswith("aten.linalg_norm") and (order is None or len(_dims(call)) == 1)
    if vector or order == "fro":
        per_element, per_result = _power_rate(order if vector else 2)
        return Work(elementwise_flops=per_element * x.numel + per_result * results(call)[0].numel)
    if order in ("nuc", 2, -2):
        return FORMULAS["aten.linalg_svdvals"](call)
    return Work(elementwise_flops=2 * x.numel + results(call)[0].numel)


def _dims(call: OpCall) -> list[int]:
    dim = call.get("dim")
    if dim is None:
        return list(range(len(call.inputs[0].shape)))
    return [dim] if isinstance(dim, int) else list(dim)


def _distance(call: OpCall, pairs: int, width: int) -> Work:
    per_element, per_result = _power_rate(call["p"])
    return Work(elementwise_flops=pairs * ((1 + per_element) * width + per_result))  # 1: the difference


@formula("dist")
def dist(call: OpCall) -> Work:
    return _distance(call, 1, max(one.numel for one in call.inputs))


@formula("pairwise_distance")
def pairwise_distance(call: OpCall) -> Work:
    """The norm of x - y + epsilon, along the last dimension."""
    per_element, per_result = _power_rate(call["p"])
    size = max(one.numel for one in call.inputs)
    return Work(elementwise_flops=(2 + per_element) * size + per_result * results(call)[0].numel)


@formula("cosine_similarity")
def cosine_similarity(call: OpCall) -> Work:
    """Three sums of products; per result two roots, two bounds, a product and a division."""
    size = max(one.numel for one in call.inputs)
    return Work(elementwise_flops=6 * size + 6 * results(call)[0].numel)


@formula("_cdist_forward")
def cdist(call: OpCall) -> Work:
    """Every row of x1 against every row of x2."""
    return _distance(call, results(call)[0].numel, call["x1"].shape[-1])


@formula("_pdist_forward pdist")
def pdist(call: OpCall) -> Work:
    return _distance(call, results(call)[0].numel, call["self"].shape[-1])


@formula("_cdist_backward _pdist_backward")
def distance_backward(call: OpCall) -> Work:
    """Per pair and coordinate: difference, g times difference over distance (to powers unless p is 2), add."""
    width = results(call)[0].shape[-1]
    per_element = 4 if call["p"] in (1, 2) else 8
    return Work(elementwise_flops=per_element * call.inputs[0].numel * width)  # the gradient, of two names


@formula("cov corrcoef")
def covariance(call: OpCall) -> Work:
    """Subtract the means, then a product of the matrix with itself."""
    x: Operand = call["self"]
    variables = x.shape[0] if len(x.shape) > 1 else 1
    scaled = (3 if call.operation.startswith("aten.corrcoef") else 1) * variables**2
    return Work(variables * x.numel, 2 * x.numel + scaled)
