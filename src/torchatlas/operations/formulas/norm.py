"""Normalisation: statistics, then subtract and scale. Counted per element, and per row the statistics are taken of.

mean: a sum; variance: subtract, square, sum; normalise: multiply (the difference is at hand); then weight and bias.
Per row: two divisions, add epsilon, reciprocal root.
"""

from __future__ import annotations

import math

from torchatlas.operations.formulas.operand_sizes import along, results
from torchatlas.operations.work import OpCall, Operand, Work, formula

STATISTICS, PER_ROW = 5, 4
RUNNING = 7  # per channel: two running averages of three operations each, and the variance made unbiased


def _affine(call: OpCall) -> int:
    return sum(call.get(name) is not None for name in ("weight", "bias"))


def _per_channel(call: OpCall) -> int:
    return PER_ROW + (RUNNING if call.get("running_mean") is not None else 0)


def _rows_of_last(call: OpCall) -> int:
    """How often the last dimensions are normalised; from the input, for as arguments their sizes may be symbols."""
    x: Operand = call["input"]
    return math.prod(x.shape[: len(x.shape) - len(call["normalized_shape"])])


# -- forward -----------------------------------------------------------------------------------------------------------


def _standardised(call: OpCall, rows: int, per_row: int = PER_ROW) -> Work:
    """Mean, variance and scaling of all elements, which are in so many rows."""
    return Work(elementwise_flops=(STATISTICS + _affine(call)) * call["input"].numel + per_row * rows)


@formula("layer_norm")
@formula("native_layer_norm", backward_only=(1, 2))
def layer_norm(call: OpCall) -> Work:
    return _standardised(call, _rows_of_last(call))


@formula("group_norm")
@formula("native_group_norm", backward_only=(1, 2))
def group_norm(call: OpCall) -> Work:
    return _standardised(call, call["input"].shape[0] * call.get("group", call.get("num_groups")))


@formula("rms_norm")
@formula("_fused_rms_norm", backward_only=(1,))
def rms_norm(call: OpCall) -> Work:
    """Square, sum, multiply; per row divide, add epsilon, reciprocal root. There is no mean to subtract."""
    x: Operand = call["input"]
    return Work(elementwise_flops=(3 + _affine(call)) * x.numel + 3 * _rows_of_last(call))


@formula("batch_norm _batch_norm_impl_index")
@formula(
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional miopen_batch_norm",
    backward_only=(1, 2),
)
@formula("_batch_norm_with_update _batch_norm_with_update_functional cudnn_batch_norm", backward_only=(1, 2, 3))
def batch_norm(call: OpCall) -> Work:
    if not call.get("training", True):
        return batch_norm_inference(call)
    return _standardised(call, call["input"].shape[1], _per_channel(call))


@formula("_native_batch_norm_legit_no_training", backward_only=(1, 2))
@formula("_batch_norm_no_update", backward_only=(1, 2, 3))
def batch_norm_inference(call: OpCall) -> Work:
    """Subtract, multiply, weight and bias; per channel add epsilon, reciprocal root."""
    x: Operand = call["input"]
    return Work(elementwise_flops=(2 + _affine(call)) * x.numel + 2 * x.shape[1])


@formula("instance_norm")
def instance_norm(call: OpCall) -> Work:
    if not call["use_input_stats"]:
        return batch_norm_inference(call)
    return _standardised(call, math.prod(call["input"].shape[:2]))


# -- backward: n is the normalised x, made again; g the gradient, w the weight -----------------------------------------


def _backward(call: OpCall, per_row: int, centred: bool = True) -> Work:
    """dx = r (g w - mean(g w) - n mean(g w n)), dw = sum(g n), db = sum(g), as far as they are asked for."""
    x: Operand = call["input"]
    wanted = [*call["output_mask"], False][:3]
    weighted = call.get("weight") is not None
    normalised = (2 if centred else 1) if wanted[0] or wanted[1] else 0
    to_input = weighted + (7 if centred else 5) if wanted[0] else 0
    per_element = normalised + to_input + 2 * wanted[1] + wanted[2]
    return Work(elementwise_flops=per_element * x.numel + (per_row if wanted[0] else 0))


@formula("native_layer_norm_backward")
def layer_norm_backward(call: OpCall) -> Work:
    return _backward(call, per_row=2 * _rows_of_last(call))


@formula("native_group_norm_backward")
def group_norm_backward(call: OpCall) -> Work:
    return _backward(call, per_row=2 * call["input"].shape[0] * call["group"])


@formula("_fused_rms_norm_backward")
def rms_norm_backward(call: OpCall) -> Work:
    return _backward(call, per_row=_rows_of_last(call), centred=False)


@formula(
    "native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward",
    "_batch_norm_impl_index_backward",
)
def batch_norm_backward(call: OpCall) -> Work:
    """One weight per row: the sums that dx needs are dw and db themselves. With fixed statistics dx = g w r."""
    x: Operand = call["input"]
    wanted = call.get("output_mask", [True, True, True])
    training = call.get("train", call.get("update", True))
    if wanted[0] and training:
        return Work(elementwise_flops=9 * x.numel + 3 * x.shape[1])
    per_element = wanted[0] + 4 * wanted[1] + wanted[2]
    return Work(elementwise_flops=per_element * x.numel + wanted[0] * x.shape[1])


# -- in pieces, for statistics over several processes ------------------------------------------------------------------


@formula("batch_norm_stats batch_norm_update_stats")
def batch_norm_stats(call: OpCall) -> Work:
    x: Operand = call["input"]
    return Work(elementwise_flops=4 * x.numel + _per_channel(call) * x.shape[1])


@formula("batch_norm_elemt")
def batch_norm_elemt(call: OpCall) -> Work:
    x: Operand = call["input"]
    return Work(elementwise_flops=(2 + _affine(call)) * x.numel)


@formula("batch_norm_gather_stats batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats(call: OpCall) -> Work:
    """Means and variances of several parts into one: about eight operations per part and channel."""
    return Work(elementwise_flops=8 * call["mean"].numel + _per_channel(call) * call["mean"].shape[-1])


@formula("batch_norm_backward_reduce")
def batch_norm_backward_reduce(call: OpCall) -> Work:
    """sum(g), and sum(g (x - mean)): subtract, multiply, add."""
    return Work(elementwise_flops=4 * call["input"].numel)


@formula("batch_norm_backward_elemt")
def batch_norm_backward_elemt(call: OpCall) -> Work:
    """(g - a - (x - mean) b) c with three numbers per channel."""
    return Work(elementwise_flops=5 * call["input"].numel)


# -- of weights --------------------------------------------------------------------------------------------------------


@formula("_weight_norm")
@formula("_weight_norm_interface", backward_only=(1,))
def weight_norm(call: OpCall) -> Work:
    """v g / |v|: square, sum, multiply; per row a root and a division."""
    v: Operand = call["v"]
    return Work(elementwise_flops=3 * v.numel + 2 * call["g"].numel)


@formula("_weight_norm_interface_backward _weight_norm_differentiable_backward")
def weight_norm_backward(call: OpCall) -> Work:
    """s = sum(gw v); dg = s / |v|, dv = g / |v| (gw - v s / |v|^2): per row two more divisions and a product."""
    v: Operand = call["saved_v"]
    return Work(elementwise_flops=5 * v.numel + 4 * call["saved_g"].numel)


@formula("norm_except_dim")
def norm_except_dim(call: OpCall) -> Work:
    v: Operand = call["v"]
    return Work(elementwise_flops=2 * v.numel + results(call)[0].numel)


@formula("renorm")
def renorm(call: OpCall) -> Work:
    """The norm of each slice, and a product; per slice compare, divide, select and the root."""
    x: Operand = call["self"]
    return Work(elementwise_flops=3 * x.numel + 4 * along(x, call["dim"]))
