"""Fused optimizer steps and gradient scaling: per parameter, from the update rule. Numbers per tensor do not count.

Gradients are written only when the step unscales them, although the schema says they may be.
"""

from __future__ import annotations

from typing import Any

from torchatlas.operations.formulas.operand_sizes import bytes_of, elements
from torchatlas.operations.work import OpCall, Work, formula


def _step(call: OpCall, per_element: int, *states: Any, fresh: Any = None) -> Work:
    """Read parameters, gradients and states, write parameters and states; what is `fresh` is only written."""
    parameters, gradients = call["self"], call["grads"]
    scaled = call.get("grad_scale") is not None
    per_element += scaled + bool(call.get("maximize"))
    counters = bytes_of(call.get("state_steps"), call.get("grad_scale"), call.get("found_inf"), call.get("lr"))
    written = bytes_of(parameters, *states, fresh) + (bytes_of(gradients) if scaled else 0)
    read = bytes_of(parameters, gradients, *states) + counters
    size = elements(parameters)
    return Work(0, per_element * size, read, written, size)


@formula("_fused_adam _fused_adamw")
def adam(call: OpCall) -> Work:
    """m += (1 - a) (g - m); v = b v + (1 - b) g g; p -= s m / (sqrt(v) / c + e).

    Weight decay is added to the gradient (2), or scales the parameter in AdamW (1); amsgrad keeps a maximum (1).
    """
    decay = 0
    if call["weight_decay"]:
        decay = 1 if call.operation.startswith("aten._fused_adamw") else 2
    amsgrad = bool(call["amsgrad"])
    return _step(call, 13 + decay + amsgrad, call["exp_avgs"], call["exp_avg_sqs"], call["max_exp_avg_sqs"])


@formula("_fused_sgd")
def sgd(call: OpCall) -> Work:
    """g += w p; b = m b + (1 - d) g; with Nesterov g += m b, else g = b; p -= l g. The first b is g itself."""
    per_element = 2 + 2 * bool(call["weight_decay"])
    buffers = call["momentum_buffer_list"] if call["momentum"] else []
    if call["momentum"]:
        first = call["is_first_step"]
        per_element += (0 if first else 2 + bool(call["dampening"])) + 2 * bool(call["nesterov"])
        if first:
            return _step(call, per_element, fresh=buffers)
    return _step(call, per_element, buffers)


@formula("_fused_adagrad")
def adagrad(call: OpCall) -> Work:
    """g += w p; s += g g; p -= l g / (sqrt(s) + e)."""
    return _step(call, 7 + 2 * bool(call["weight_decay"]), call["state_sums"])


@formula("_amp_foreach_non_finite_check_and_unscale")
def unscale(call: OpCall) -> Work:
    """Is it finite? Then times the inverse scale."""
    gradients = call["self"]
    return Work(elementwise_flops=2 * elements(gradients))


@formula("_amp_update_scale")
def update_scale(call: OpCall) -> Work:
    """One number: was there an infinity, count, is it time to grow, multiply, select."""
    return Work(elementwise_flops=5)
