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
    "torch.nn.functional.conv2d torch.nn.functional.conv3d prim.mkldnn_convolution",
)
def convolution(call: OpCall) -> Work:
    data, weight = call.inputs[:2]
    result = call.outputs[0]
    moving = data if call.get("transposed", False) else result
    return Work(multiply_adds(moving, weight), _afterwards(call))


@formula(
    "conv_transpose1d conv_transpose2d conv_transpose3d slow_conv_transpose2d slow_conv_transpose3d",
    "cudnn_convolution_transpose miopen_convolution_transpose _mps_convolution_transpose torch.conv_transpose1d",
    "torch.conv_transpose2d torch.conv_transpose3d torch.nn.functional.conv_transpose1d",
    "torch.nn.functional.conv_transpose2d torch.nn.functional.conv_transpose3d",
)
def transposed_convolution(call: OpCall) -> Work:
    data, weight = call.inputs[:2]
    return Work(multiply_adds(data, weight), _afterwards(call))


@formula("convolution_backward convolution_backward_overrideable _slow_conv2d_backward")
def convolution_backward(call: OpCall) -> Work:
    """Towards the input and towards the weight: each as much as forward.

    torch 2.13 counts the weight's as if there were one group (corrected after it: pytorch pull request 183405).
    """
    gradient, data, weight = call.inputs[:3]
    wanted = call.get("output_mask") or [True, True, True]
    moving = data if call.get("transposed", False) else gradient
    forward = multiply_adds(moving, weight)
    return Work(forward * (wanted[0] + wanted[1]), gradient.numel if wanted[2] else 0)


@formula("mps_convolution_backward mps_convolution_transpose_backward")
def mps_convolution_backward(call: OpCall) -> Work:
    data, gradient, weight = call.inputs[:3]
    wanted = call["output_mask"]
    moving = data if "transpose" in call.operation else gradient
    return Work(multiply_adds(moving, weight) * (wanted[0] + wanted[1]), gradient.numel if wanted[2:] == [True] else 0)


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
    "mkldnn._convolution_pointwise",
)
def reordered_convolution(call: OpCall) -> Work:
    """The weight's axes may be grouped or in another order, but it has as many elements."""
    weight, result = call.get("W") or call["qw"], call.outputs[0]
    return Work(result.numel * weight.numel // max(result.shape[1], 1), result.numel)


@formula("mkldnn._convolution_transpose_pointwise")
def reordered_transposed_convolution(call: OpCall) -> Work:
    data, weight = call["X"], call["W"]
    return Work(data.numel * weight.numel // max(data.shape[1], 1), call.outputs[0].numel)


@formula("torchvision.deform_conv2d")
def deformable_convolution(call: OpCall) -> Work:
    """Samples the input between its points (8 operations each), then convolves."""
    data, weight = call.inputs[:2]
    result = call.outputs[0]
    samples = result.numel // max(result.shape[1], 1) * math.prod(weight.shape[2:])
    return Work(multiply_adds(result, weight), 8 * samples * data.shape[1] + _afterwards(call))


def _afterwards(call: OpCall) -> int:
    """What is done to the result: a bias and another tensor are added, negative numbers dropped."""
    steps = sum(call.get(name) is not None for name in ("bias", "z")) + ("_relu" in call.operation)
    return steps * call.outputs[0].numel
