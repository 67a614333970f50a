"""Activations and their backward: tables of operations per element, worked out from the definitions; and softmax.

A choice between two branches is a comparison and a selection; max(x, 0) and the like are one operation.
"""

from __future__ import annotations

from torchatlas.operations.formulas.operand_sizes import per_input, per_result, rows
from torchatlas.operations.formulas.pointwise import Arguments, file_rate, rate_of
from torchatlas.operations.work import OpCall, Work, formula

# Per element of the result. x is the input, g the gradient that arrives, y the result of forward, s(x) the sigmoid.
_RATES = {
    "relu": 1,  # max(x, 0)
    "tanh": 1,
    "tanh_backward": 3,  # g (1 - y y)
    "sigmoid_backward": 3,  # g y (1 - y)
    "threshold": 2,  # x > t ? x : v
    "threshold_backward": 2,  # x > t ? g : 0
    "leaky_relu": 3,  # x > 0 ? x : a x
    "leaky_relu_backward": 3,
    "prelu": 3,
    "_prelu_kernel": 3,
    "_prelu_kernel_backward": 5,  # x > 0: g or a g, 0 or x g
    "rrelu_with_noise_backward": 3,
    "relu6": 2,  # min(max(x, 0), 6)
    "hardtanh": 2,
    "hardtanh_backward": 4,  # low < x and x < high ? g : 0
    "hardsigmoid": 4,  # min(max(x + 3, 0), 6) / 6
    "hardsigmoid_backward": 5,  # -3 < x and x < 3 ? g / 6 : 0
    "hardswish": 5,  # x min(max(x + 3, 0), 6) / 6
    "hardswish_backward": 7,  # x < -3 ? 0 : x <= 3 ? g (x / 3 + 1/2) : g
    "hardshrink": 3,  # |x| > l ? x : 0
    "hardshrink_backward": 3,
    "softshrink": 6,  # x > l ? x - l : x < -l ? x + l : 0
    "softshrink_backward": 3,  # |x| > l ? g : 0
    "softplus": 6,  # b x > t ? x : log1p(exp(b x)) / b
    "softplus_backward": 7,  # z = exp(b x); b x > t ? g : g z / (z + 1)
    "log_sigmoid": 5,  # log(1 / (1 + exp(-x)))
    "log_sigmoid_backward": 3,  # g / (1 + exp(x))
    "silu": 5,  # x s(x)
    "silu_backward": 9,  # g s (1 + x (1 - s))
    "mish": 4,  # x tanh(log1p(exp(x)))
    "mish_backward": 13,  # t = tanh(log1p(exp(x))); g (t + x s (1 - t t))
    "selu": 6,  # an elu with a scale
    "celu": 6,  # an elu with x / a
    "glu": 5,  # a s(b)
    "glu_backward": 4,  # per element of both halves: s; g s; g s a (1 - s)
    "glu_jvp": 10,  # da s + a s (1 - s) db
    "glu_backward_jvp": 10,
    "infinitely_differentiable_gelu_backward": 11,
}
for _name, _rate in _RATES.items():
    file_rate(_name, _rate)
file_rate("log_sigmoid_forward", 5, backward_only=(1,))  # the exponential


@rate_of("gelu")
def gelu(arguments: Arguments) -> int:
    if arguments.get("approximate", "none") == "tanh":
        return 9  # x / 2 (1 + tanh(c (x + d x x x)))
    return 5  # x / 2 (1 + erf(x / sqrt 2))


@rate_of("gelu_backward")
def gelu_backward(arguments: Arguments) -> int:
    if arguments.get("approximate", "none") == "tanh":
        return 18  # t = tanh(c (x + d x x x)); g ((1 + t) / 2 + x / 2 (1 - t t) c (1 + 3 d x x))
    return 11  # g ((1 + erf(x / sqrt 2)) / 2 + x exp(-x x / 2) / sqrt(2 pi))


@rate_of("elu")
def elu(arguments: Arguments) -> int:
    return 5 + _scales(arguments)  # x > 0 ? x : a (exp(x) - 1)


@rate_of("elu_backward")
def elu_backward(arguments: Arguments) -> int:
    return (4 if arguments["is_result"] else 5) + _scales(arguments)  # x > 0 ? g : g (y + a), or g a exp(x)


@rate_of("rrelu rrelu_with_noise rrelu_with_noise_functional")
def rrelu(arguments: Arguments) -> int:
    return 4 if arguments.get("training") else 3  # in training the slope is drawn


def _scales(arguments: Arguments) -> int:
    return sum(arguments.get(name, 1) != 1 for name in ("scale", "input_scale"))


# -- softmax: per element and per row ----------------------------------------------------------------------------------


# Maximum, subtract, exp, sum, divide.
formula("_softmax softmax special_softmax _sparse_softmax _nested_tensor_softmax_with_shape")(per_input(5))
formula("_masked_softmax")(per_input(6))  # a choice by the mask first
formula("_safe_softmax")(per_input(8))  # a comparison and an "and" per element find rows of -inf, which become zeros
# y (g - sum(y g)), or g - exp(y) sum(g).
formula("_softmax_backward_data _sparse_softmax_backward_data")(per_result(4))
formula("_log_softmax_backward_data _sparse_log_softmax_backward_data")(per_result(4))
formula("_masked_softmax_backward")(per_result(5))


@formula("_log_softmax log_softmax special_log_softmax _sparse_log_softmax")
def log_softmax(call: OpCall) -> Work:
    """Maximum, subtract, exp, sum, subtract; and the logarithm of each row's sum."""
    x = call.inputs[0]
    return Work(elementwise_flops=5 * x.numel + rows(x, call["dim"]))
