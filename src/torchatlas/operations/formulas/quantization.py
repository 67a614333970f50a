"""Between floats and integers: divide, round, add the zero point, two bounds; back: subtract the zero point, multiply.

Arithmetic on quantised tensors is that of floats between the two.
"""

from __future__ import annotations

from torchatlas.operations.formulas.operand_sizes import elements, per_input, per_result, results
from torchatlas.operations.work import Formula, OpCall, Work, formula

QUANTIZE, DEQUANTIZE, INSIDE = 5, 2, 3  # INSIDE: was the value within both bounds?
_DECOMPOSED = "quantized_decomposed."


@formula(
    "quantize_per_channel quantize_per_tensor",
    *(f"{_DECOMPOSED}quantize_per_{what}" for what in ("channel", "channel_group", "tensor", "token")),
)
def quantize(call: OpCall) -> Work:
    return Work(elementwise_flops=QUANTIZE * elements(*results(call)))


@formula(
    "dequantize",
    *(f"{_DECOMPOSED}dequantize_per_{what}" for what in ("channel", "channel_group", "tensor", "token")),
)
def dequantize(call: OpCall) -> Work:
    return Work(elementwise_flops=DEQUANTIZE * elements(*results(call)))


formula("quantize_per_tensor_dynamic")(per_result(2 + QUANTIZE))  # the smallest and the largest element first
formula(  # the smallest and the largest element
    "_choose_qparams_per_tensor choose_qparams_optimized",
    *(f"{_DECOMPOSED}choose_qparams{what}" for what in ("", "_per_token", "_per_token_asymmetric", "_symmetric")),
)(per_input(2))

# -- fake quantisation -------------------------------------------------------------------------------------------------

formula(
    "fake_quantize_per_channel_affine fake_quantize_per_tensor_affine quantized_decomposed.fake_quant_per_channel",
    "_fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_tensor_affine",
)(per_result(QUANTIZE + DEQUANTIZE))
formula(
    "fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    backward_only=(1,),
)(per_result(QUANTIZE + DEQUANTIZE + INSIDE))
formula(  # the gradient where the mask is set
    "fake_quantize_per_channel_affine_cachemask_backward fake_quantize_per_tensor_affine_cachemask_backward"
)(per_result(1))
# Quantise again; gradients of the value (a choice), of the scale (a difference, a product, a choice, a sum) and of the
# zero point (a product, a choice, a sum).
formula("_fake_quantize_learnable_per_channel_affine_backward _fake_quantize_learnable_per_tensor_affine_backward")(
    per_input(QUANTIZE + DEQUANTIZE + INSIDE + 8)
)
# The smallest and the largest element, then fake quantisation with a mask.
_OBSERVED = per_input(2 + QUANTIZE + DEQUANTIZE + INSIDE)
formula("_fused_moving_avg_obs_fq_helper_functional fused_moving_avg_obs_fake_quant")(_OBSERVED)
formula("_fused_moving_avg_obs_fq_helper", backward_only=(1,))(_OBSERVED)

# -- arithmetic --------------------------------------------------------------------------------------------------------

# What happens between the two, per element of the result, and how many quantised tensors go in.
_ARITHMETIC = {
    "add mul": (1, 2),
    "add_relu mul_relu": (2, 2),
    "add_scalar mul_scalar": (1, 1),
    "add_scalar_relu mul_scalar_relu clamp relu6 threshold": (2, 1),
    "leaky_relu prelu": (3, 1),
    "sigmoid batch_norm batch_norm1d batch_norm2d batch_norm3d": (4, 1),
    "elu hardswish softmax batch_norm_relu batch_norm1d_relu batch_norm2d_relu batch_norm3d_relu": (5, 1),
    "celu": (6, 1),
    "group_norm instance_norm layer_norm": (7, 1),
    "cat": (0, 1),
    "cat_relu": (1, 1),
}


def _arithmetic(flops: int, taken: int) -> Formula:
    return per_result(taken * DEQUANTIZE + flops + QUANTIZE)


for _names, (_flops, _taken) in _ARITHMETIC.items():
    formula(*(f"quantized.{name}" for name in _names.split()))(_arithmetic(_flops, _taken))
formula("_quantized.add", "onednn.qadd", "onednn.qmul")(_arithmetic(1, 2))
formula("onednn.qadd_relu")(_arithmetic(2, 2))
formula("aten.quantized_batch_norm", "onednn.qbatch_norm2d")(_arithmetic(4, 1))
