"""Reductions and scans: so many operations per element that goes in, and per element that comes out.

Reducing n elements counts n operations, not n - 1.
"""

from __future__ import annotations

import math

from torchatlas.operations.formulas.operand_sizes import (
    bytes_of,
    elements,
    is_complex,
    per_input,
    per_result,
    results,
    rows,
)
from torchatlas.operations.work import Formula, OpCall, Operand, Work, formula, moves_everything

# (per element in, per element out): names. max and min of two tensors are pointwise, further down.
_REDUCTIONS = {
    (1, 0): "all amax amin any argmax argmin hash_tensor kthvalue max median min sum sum_to_size _is_all_true"
    " _is_any_true _sparse_csr_prod _sparse_csr_sum _sparse_sum bincount",
    (1, 1): "mean",
    (2, 0): "aminmax _aminmax count_nonzero equal nanmedian nansum",  # min and max; test and add; compare and "and"
    (2, 1): "nanmean frobenius_norm",
    (4, 2): "logsumexp special_logsumexp var var_mean",  # var: sum, subtract, square, sum; two divisions
    (4, 3): "std std_mean",
    (4, 0): "histc",  # subtract, divide, floor, add
    (7, 0): "allclose",
}


def _reduction(per_input: int, per_output: int) -> Formula:
    def reduction(call: OpCall) -> Work:
        x = call.inputs[0]
        number = 2 if is_complex(x) else 1
        made = results(call)
        out = made[0].numel if made else 1  # equal and allclose answer with a number
        return Work(elementwise_flops=number * (per_input * x.numel + per_output * out), parallelism=out)

    return reduction


for (_in, _out), _names in _REDUCTIONS.items():
    formula(_names)(_reduction(_in, _out))
formula("prims.var")(_reduction(4, 2))


@formula("prod prims.prod")
def prod(call: OpCall) -> Work:
    x = call.inputs[0]
    return Work(elementwise_flops=(6 if is_complex(x) else 1) * x.numel)


formula("aten.max.other aten.min.other aten.max.out aten.min.out")(per_result(1))


@formula("_foreach_max")
def largest_of_each(call: OpCall) -> Work:
    return Work(elementwise_flops=elements(call["self"]))


# -- scans: each row is one chain --------------------------------------------------------------------------------------


@formula("cumsum cumprod cummax cummin _cummax_helper _cummin_helper logcumsumexp _logcumsumexp cumprod_backward")
def scan(call: OpCall) -> Work:
    """One operation per step; of exponentials two of them, a sum and a logarithm; backward of a product multiplies,
    adds and divides: sum(g y) from behind, over x."""
    x, rate = call.inputs[0], 4 if "exp" in call.operation else 3 if "backward" in call.operation else 1
    return Work(elementwise_flops=rate * x.numel, parallelism=rows(x, call["dim"]))


@formula("cummaxmin_backward")
def cummaxmin_backward(call: OpCall) -> Work:
    """Adds each gradient where the extreme was; the input only lends its shape."""
    return Work(elementwise_flops=call["grad"].numel, bytes_read=bytes_of(call["grad"], call["indices"]))


# Puts each gradient where the value came from, zeros elsewhere.
formula("value_selecting_reduction_backward trace_backward")(moves_everything)


@formula("trace")
def trace(call: OpCall) -> Work:
    x: Operand = call["self"]
    diagonal = min(x.shape, default=1)
    return Work(elementwise_flops=diagonal, bytes_read=diagonal * x.bytes // max(x.numel, 1))


@formula("trapezoid trapz cumulative_trapezoid")
def trapezoid(call: OpCall) -> Work:
    """Half of the sum of two neighbours times their distance, summed."""
    return Work(elementwise_flops=(5 if call.get("x") is not None else 4) * call["y"].numel)


# -- histograms and segments -------------------------------------------------------------------------------------------


@formula("histogram _histogramdd_from_bin_cts _histogramdd_from_bin_tensors histogramdd")
def histogram(call: OpCall) -> Work:
    """Each element finds its bin by bisection, or by a subtraction, a division and a rounding; then it is added."""
    x: Operand = call["self"]
    edges = [one for one in call.inputs[1:] if len(one.shape) == 1]
    steps = max((math.ceil(math.log2(one.numel + 1)) for one in edges), default=3)
    return Work(elementwise_flops=(steps + 1) * x.numel)


formula("_histogramdd_bin_edges")(per_input(2))  # the smallest and the largest element


@formula("segment_reduce")
def segment_reduce(call: OpCall) -> Work:
    mean = call["reduce"] == "mean"
    return Work(elementwise_flops=call["data"].numel + mean * results(call)[0].numel)


@formula("_segment_reduce_backward")
def segment_reduce_backward(call: OpCall) -> Work:
    """A comparison or a product per element, and a selection."""
    return Work(elementwise_flops=2 * call["data"].numel)


@formula("_sparse_sum_backward _nested_sum_backward")
def sum_backward(call: OpCall) -> Work:
    """Repeats the gradient."""
    return Work(bytes_read=bytes_of(call["grad"]))
