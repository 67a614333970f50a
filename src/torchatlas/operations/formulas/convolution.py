"""Convolutions of every kind: multiply-adds, as torch.utils.flop_counter counts them.

Each element of the result is multiplied with the kernel once per input channel of its group, padding included. In a
transposed convolution it is each element of the input. Stride, dilation and padding are in the shapes already. The size
of a packed kernel (quantized.conv2d) cannot be known from outside: those stay uncosted.
"""

from __future__ import annotations

import math

from torchatlas.operations.work import OpCall, Operand, Work, formula


def multiply_adds(moving: Operand, weight: Operand) -> int:
    """`moving` is the result, or the input if transposed: each of its elements is multiplied with weight[0]."""
    return moving.numel * math.prod(weight.shape[1:])


@formula(
    "convolution _convolution convolution_overrideable _convolution_mode conv1d conv2d conv3d _conv_depthwise2d",
    "conv_depthwise3d cudnn_convolution cudnn_convolution_relu cudnn_convolution_add_relu miopen_convolution",
    "miopen_depthwise_convolution miopen_convolution_relu miopen_convolution_add_relu mkldnn_convolution",
    "_mps_convolution _nnpack_spatial_convolution thnn_conv2d _slow_conv2d_forward slow_conv3d slow_conv3d_forward",
    "slow_conv_dilated2d slow_conv_dilated3d torch.conv1d torch.conv2d torch.conv3d torch.nn.functional.conv1d",
    "torch.nn.functional.conv2d torch.nn.functional.conv3d prim.mkldnn_convolution conv_transpose1d conv_transpose2d",
    "conv_transpose3d slow_conv_transpose2d slow_conv_transpose3d cudnn_convolution_transpose",
    "miopen_convolution_transpose _mps_convolution_transpose torch.conv_transpose1d torch.conv_transpose2d",
    "torch.conv_transpose3d torch.nn.functional.conv_transpose1d torch.nn.functional.conv_transpose2d",
    "torch.nn.functional.conv_transpose3d",
)
def convolution(call: OpCall) -> Work:
    data, weight = call.inputs[:2]
    moving = data if _is_transposed(call) else call.outputs[0]
    return Work(multiply_adds(moving, weight), _afterwards(call))


@formula(
    "convolution_backward convolution_backward_overrideable _slow_conv2d_backward mps_convolution_backward",
    "mps_convolution_transpose_backward",
)
def convolution_backward(call: OpCall) -> Work:
    """Towards the input and towards the weight: each as much as forward.

    torch 2.13 counts the weight's as if there were one group (corrected after it: pytorch pull request 183405).
    """
    gradient, weight, data = call["grad_output"], call["weight"], call.get("input") or call["self"]
    to_input, to_weight, to_bias = [*(call.get("output_mask") or [True, True, True]), False][:3]
    forward = multiply_adds(data if _is_transposed(call) else gradient, weight)
    return Work(forward * (to_input + to_weight), gradient.numel if to_bias else 0)


@formula("_convolution_double_backward")
def convolution_double_backward(call: OpCall) -> Work:
    """Each gradient that came in (ggI, ggW) is convolved twice. torch does so whatever the mask asks for."""
    data, weight, gradient = call["self"], call["weight"], call["gO"]
    came_in = sum(call.get(name) is not None for name in ("ggI", "ggW"))
    return Work(2 * came_in * multiply_adds(data if call["transposed"] else gradient, weight))


@formula("conv_tbc")
def time_batch_channel(call: OpCall) -> Work:
    weight, result = call.inputs[1], call.outputs[0]
    return Work(result.numel * math.prod(weight.shape[:2]), result.numel)


@formula("conv_tbc_backward")
def time_batch_channel_backward(call: OpCall) -> Work:
    gradient, weight = call["self"], call["weight"]
    return Work(2 * gradient.numel * math.prod(weight.shape[:2]), gradient.numel)


@formula(
    "onednn.qconv_pointwise onednn.qconv1d_pointwise onednn.qconv2d_pointwise onednn.qconv3d_pointwise",
    "mkldnn._convolution_pointwise mkldnn._convolution_transpose_pointwise",
)
def reordered_convolution(call: OpCall) -> Work:
    """The weight's axes may be grouped or in another order, but it has as many elements."""
    weight, result = call.get("W") or call["qw"], call.outputs[0]
    moving = call["X"] if _is_transposed(call) else result
    return Work(moving.numel * weight.numel // max(moving.shape[1], 1), result.numel)


@formula("torchvision.deform_conv2d")
def deformable_convolution(call: OpCall) -> Work:
    """Samples the input between its points (8 operations each), then convolves."""
    data, weight = call.inputs[:2]
    result = call.outputs[0]
    samples = result.numel // max(result.shape[1], 1) * math.prod(weight.shape[2:])
    return Work(multiply_adds(result, weight), 8 * samples * data.shape[1] + _afterwards(call))


def _is_transposed(call: OpCall) -> bool:
    return bool(call.get("transposed", "transpose" in call.operation))


def _afterwards(call: OpCall) -> int:
    """What is done to the result: a bias and another tensor are added, negative numbers dropped."""
    steps = sum(call.get(name) is not None for name in ("bias", "z")) + ("_relu" in call.operation)
    return steps * call.outputs[0].numel
