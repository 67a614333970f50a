"""Attention under its many names: the multiply-adds of the products that a fused kernel does inside.

Forward: queries with keys, scores with values. Backward computes the scores once more, then one product each towards
scores, values, queries and keys. A causal or other mask halves nothing: torch.utils.flop_counter, the published tables
and attention by hand all count the full square.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchatlas.operations.work import OpCall, Operand, Work, formula

SOFTMAX = 5  # per score: largest, difference, exponential, sum, quotient
SOFTMAX_BACKWARD = 4  # per score: product, sum, difference, product
NORM, NORM_PER_ROW, GELU = 7, 4, 5  # as norm.py and activation.py count them by themselves


@dataclass(frozen=True, slots=True)
class Scores:
    """The number of attention scores, and the lengths of the keys that make them and of the values that they weigh."""

    count: int
    width: int
    value_width: int

    def forward(self, masked: bool = False) -> Work:
        steps = SOFTMAX + 1 + masked  # scaled, a mask added
        return Work(self.count * (self.width + self.value_width), self.count * steps)

    def backward(self) -> Work:
        steps = SOFTMAX + SOFTMAX_BACKWARD + 1
        return Work(self.count * (3 * self.width + 2 * self.value_width), self.count * steps)


def scores(queries: tuple[int, ...], key: Operand, value: Operand) -> Scores:
    """Of heads before lengths, [..., heads, length, width]. Groups of query heads may share one head of keys."""
    return Scores(math.prod(queries[:-1]) * key.shape[-2], key.shape[-1], value.shape[-1])


@formula(
    "scaled_dot_product_attention _scaled_dot_product_attention_math _scaled_dot_product_attention_math_for_mps",
    "_cudnn_attention_forward _triton_scaled_dot_attention higher_order.flex_attention",
    "torch.nn.functional.scaled_dot_product_attention torch._C._nn.scaled_dot_product_attention",
)
@formula("_scaled_dot_product_flash_attention_for_cpu", backward_only=(1,))
@formula(
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    backward_only=(1, 2, 3, 4, 5, 6, 7, 8),
)
def attention(call: OpCall) -> Work:
    key, value = call.inputs[1:3]
    masked = call.get("attn_mask", call.get("attn_bias")) is not None
    return scores(call.outputs[0].shape, key, value).forward(masked)


@formula(
    "_scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward",
    "_scaled_dot_product_fused_attention_overrideable_backward _cudnn_attention_backward",
    "higher_order.flex_attention_backward",
)
def attention_backward(call: OpCall) -> Work:
    first = 0 if call.operation.startswith("higher_order.") else 1  # in ATen the gradient comes first
    query, key, value = call.inputs[first : first + 3]
    return scores(query.shape, key, value).backward()


@formula("_flash_attention_forward_no_dropout_inplace")
@formula("_flash_attention_forward _efficient_attention_forward", backward_only=(1, 2, 3, 4, 5, 6, 7, 8))
def attention_by_length(call: OpCall) -> Work:
    return _by_length(call).forward(call.get("bias") is not None)


@formula("_flash_attention_backward _efficient_attention_backward")
def attention_by_length_backward(call: OpCall) -> Work:
    return _by_length(call).backward()


def _by_length(call: OpCall) -> Scores:
    """Of lengths before heads, [..., length, heads, width]; sequences laid end to end count as the longest of them.

    So torch counts those too where it cannot read the lengths; a graph does not hold them. (Of the others torch 2.13
    takes lengths for heads.)
    """
    query, key, value = call["query"], call["key"], call["value"]
    lengths = call.get("cum_seq_q") or call.get("cu_seqlens_q")
    if lengths is None:
        count = query.numel // max(query.shape[-1], 1) * key.shape[-3]
    else:
        longest, longest_key = call.get("max_q") or call["max_seqlen_q"], call.get("max_k") or call["max_seqlen_k"]
        count = (lengths.numel - 1) * query.shape[-2] * longest * longest_key
    return Scores(count, key.shape[-1], value.shape[-1])


@formula("_native_multi_head_attention _triton_multi_head_attention")
def multi_head_attention(call: OpCall) -> Work:
    """Projections of queries, keys and values, attention, the projection of its result."""
    return _multi_head(call["query"], call["key"], call["value"], call["num_head"], call.get("mask") is not None)


def _multi_head(query: Operand, key: Operand, value: Operand, heads: int, masked: bool) -> Work:
    (batch, length, width), taken = query.shape, key.shape[1]
    inner = Scores(batch * heads * length * taken, width // heads, width // heads).forward(masked)
    projected = query.numel + key.numel + value.numel + query.numel  # the last is the result's
    return Work(inner.macs + projected * width, inner.elementwise_flops + projected)


@formula("_transformer_encoder_layer_fwd")
def encoder_layer(call: OpCall) -> Work:
    """A whole layer: attention, two projections with an activation between, two sums, two normalisations."""
    source, hidden = call["src"], call["ffn_weight_1"].shape[0]
    attended = _multi_head(source, source, source, call["num_heads"], call.get("mask") is not None)
    positions = source.numel // source.shape[-1]
    activation = GELU if call["use_gelu"] else 1
    inside = positions * hidden * (1 + activation) + source.numel  # with the biases
    normalised = 2 * (source.numel + NORM * source.numel + NORM_PER_ROW * positions)  # with the sums before
    return Work(attended.macs + 2 * source.numel * hidden, attended.elementwise_flops + inside + normalised)


@formula("_transform_bias_rescale_qkv")
def split_heads(call: OpCall) -> Work:
    """Adds the bias to all three and scales the queries."""
    return Work(elementwise_flops=sum(one.numel for one in call.outputs) + call.outputs[0].numel)
