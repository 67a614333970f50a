"""Losses: so much per element of the prediction, then the reduction over all of them."""

from __future__ import annotations

from torchatlas.operations.formulas.operand_sizes import bytes_for, bytes_of, elements, results, rows
from torchatlas.operations.work import OpCall, Operand, Work, formula

_MEAN, _SUM = 1, 2  # as ATen numbers reductions

# Per element, before the reduction. d is the difference to the target t, g the gradient that arrives.
_FORWARD = {
    "l1_loss": 2,  # |d|
    "mse_loss": 2,  # d d
    "smooth_l1_loss": 8,  # |d| < b ? d d / 2 / b : |d| - b / 2
    "huber_loss": 8,  # |d| < b ? d d / 2 : b (|d| - b / 2)
    "soft_margin_loss": 4,  # log1p(exp(-t x))
    "binary_cross_entropy": 8,  # -(t log x + (1 - t) log(1 - x))
    "hinge_embedding_loss": 6,  # t == 1 ? x : max(0, m - x), and t == -1
    "margin_ranking_loss": 5,  # max(0, -t (x - y) + m)
}
_BACKWARD = {
    "mse_loss_backward": 3,  # 2 d g
    "smooth_l1_loss_backward": 8,  # d <= -b ? -g : d >= b ? g : d g / b
    "huber_loss_backward": 8,
    "soft_margin_loss_backward": 8,  # z = exp(-t x); -t z / (1 + z) g
    "binary_cross_entropy_backward": 6,  # g (x - t) / max((1 - x) x, e)
}


def _reduced(count: int, reduction: int) -> int:
    """A sum over all, and one division for the mean."""
    return count * (reduction in (_MEAN, _SUM)) + (reduction == _MEAN)


def _weighted(call: OpCall) -> int:
    return call.get("weight") is not None


def _loss(call: OpCall, per_element: int) -> Work:
    size = max(one.numel for one in call.inputs)
    return Work(elementwise_flops=(per_element + _weighted(call)) * size + _reduced(size, call["reduction"]))


@formula(*_FORWARD)
def loss(call: OpCall) -> Work:
    return _loss(call, _FORWARD[_name(call)])


@formula(*_BACKWARD)
def loss_backward(call: OpCall) -> Work:
    return Work(elementwise_flops=(_BACKWARD[_name(call)] + _weighted(call)) * results(call)[0].numel)


def _name(call: OpCall) -> str:
    return call.operation.split(".")[1]


@formula("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(call: OpCall) -> Work:
    """(1 - t) x - log_sigmoid(x); a weight of the positives adds (1 + (p - 1) t) before the logarithm."""
    return _loss(call, 8 + 4 * (call.get("pos_weight") is not None))


@formula("kl_div")
def kl_div(call: OpCall) -> Work:
    """t (log t - x), or exp(t) (t - x) if the target is a logarithm already."""
    return _loss(call, 3)


@formula("poisson_nll_loss")
def poisson_nll_loss(call: OpCall) -> Work:
    """exp(x) - t x, or x - t log(x + e); with Stirling's term t log t - t + log(2 pi t) / 2 where t > 1."""
    return _loss(call, (3 if call["log_input"] else 4) + (9 if call["full"] else 0))


@formula("triplet_margin_loss")
def triplet_margin_loss(call: OpCall) -> Work:
    """Two distances (three with swap: difference, epsilon, power, sum), then max(0, a - b + m)."""
    x: Operand = call["anchor"]
    triplets = rows(x, -1)
    distances = 3 if call["swap"] else 2
    per_triplet = distances + 3 + call["swap"]
    flops = 4 * distances * x.numel + per_triplet * triplets + _reduced(triplets, call["reduction"])
    return Work(elementwise_flops=flops)


@formula("cosine_embedding_loss")
def cosine_embedding_loss(call: OpCall) -> Work:
    """Three sums of products; per pair a product, root, division, 1 - c, max(0, c - m) and two choices."""
    x: Operand = call["input1"]
    pairs = rows(x, -1)
    return Work(elementwise_flops=6 * x.numel + 11 * pairs + _reduced(pairs, call["reduction"]))


# -- one class of many -------------------------------------------------------------------------------------------------


@formula("nll_loss nll_loss2d nll_loss_nd")
@formula("nll_loss_forward nll_loss2d_forward", backward_only=(1,))
def nll_loss(call: OpCall) -> Work:
    """Looks up one element per target: tests whether to ignore it, negates, weighs; only these are read."""
    x, target = call["self"], call["target"]
    flops = (2 + _weighted(call)) * target.numel + _reduced(target.numel, call["reduction"])
    chosen = sum(bytes_for(target.numel, one) for one in (x, call.get("weight")) if one is not None)
    return Work(elementwise_flops=flops, bytes_read=chosen + target.bytes)


@formula("nll_loss_backward nll_loss2d_backward")
def nll_loss_backward(call: OpCall) -> Work:
    """Zeros, and one number per target: tested, negated, weighed, divided. The prediction only lends its shape."""
    target, weight = call["target"], call.get("weight")
    flops = (2 + _weighted(call) + (call["reduction"] == _MEAN)) * target.numel
    weights = bytes_for(target.numel, weight) if weight is not None else 0
    read = bytes_of(call["grad_output"], target, call["total_weight"]) + weights
    return Work(elementwise_flops=flops, bytes_read=read)


@formula("cross_entropy_loss")
def cross_entropy_loss(call: OpCall) -> Work:
    """A log_softmax, then one element per target, or a sum of products with probabilities."""
    x, target = call["self"], call["target"]
    rows_ = rows(x, 1 if len(x.shape) > 1 else 0)
    softmax = 5 * x.numel + rows_
    if target.shape == x.shape and not target.dtype.startswith(("int", "uint")):
        return Work(elementwise_flops=softmax + (2 + _weighted(call)) * x.numel + _reduced(rows_, call["reduction"]))
    smoothing = x.numel + 3 * rows_ if call.get("label_smoothing", 0) else 0
    picked = (2 + _weighted(call)) * target.numel + _reduced(target.numel, call["reduction"])
    return Work(elementwise_flops=softmax + picked + smoothing)


@formula("torch_nn._linear_cross_entropy_batch_chunked torch_nn._linear_cross_entropy_batch_chunked_no_reduction")
def linear_cross_entropy(call: OpCall) -> Work:
    """A product with the weight and a cross entropy, for some samples at a time. Gradients that are wanted are made at
    once: softmax minus the target, weighed, per score; a product each for input and weight, a sum for the bias."""
    x, target, classes = call["input"], call["target"], call["linear_weight"].shape[0]
    asked = (call.get(f"compute_{one}_grad", False) for one in ("input", "linear_weight", "linear_bias"))
    to_input, to_weight, to_bias = map(bool, asked)
    scores = x.numel // max(x.shape[-1], 1) * classes
    biased = call.get("linear_bias") is not None
    per_score = 5 + biased + 2 * (to_input or to_weight or to_bias) + to_bias
    return Work(x.numel * classes * (1 + to_input + to_weight), per_score * scores + 4 * target.numel)


@formula("multi_margin_loss")
def multi_margin_loss(call: OpCall) -> Work:
    """max(0, m - x[t] + x)^p over all classes, summed and divided by their number."""
    x: Operand = call["self"]
    samples = elements(call["target"]) or 1
    per_element = 4 + _weighted(call) + (call["p"] != 1)
    return Work(elementwise_flops=per_element * x.numel + samples + _reduced(samples, call["reduction"]))


@formula("multi_margin_loss_backward")
def multi_margin_loss_backward(call: OpCall) -> Work:
    per_element = 5 + _weighted(call) + 2 * (call["p"] != 1)
    return Work(elementwise_flops=per_element * call["self"].numel)


@formula("multilabel_margin_loss multilabel_margin_loss_backward")
@formula("multilabel_margin_loss_forward", backward_only=(1,))
def multilabel_margin_loss(call: OpCall) -> Work:
    """max(0, 1 - x[t] + x) over pairs of a target and another class: as many as the shape allows."""
    x: Operand = call["self"]
    classes = x.shape[-1] if x.shape else 1
    return Work(elementwise_flops=4 * x.numel * classes)


# -- alignments --------------------------------------------------------------------------------------------------------


def _states(call: OpCall) -> int:
    """Steps of the recursion: every time, sample, and label with blanks around it, as if nothing were padding."""
    scores, targets = call["log_probs"].shape, call["targets"].shape
    samples = scores[1] if len(scores) == 3 else 1
    labels = targets[1] if len(targets) == 2 else targets[0] / max(samples, 1)  # or one after the other
    return int(scores[0] * samples * (2 * labels + 1))


@formula("ctc_loss")
@formula("_ctc_loss", backward_only=(1,))
def ctc_loss(call: OpCall) -> Work:
    """Per state the logarithm of a sum of three exponentials (12 operations) plus the log probability."""
    return Work(elementwise_flops=13 * _states(call))


@formula("_ctc_loss_backward miopen_ctc_loss")
@formula("_cudnn_ctc_loss", backward_only=(1,))
def ctc_loss_backward(call: OpCall) -> Work:
    """The recursion from behind, its sum with the one from the front (5), and exp, subtract, multiply per class."""
    return Work(elementwise_flops=18 * _states(call) + 3 * call["log_probs"].numel)
