"""Copies, new tensors and paddings: what is read and what is written, where it is not simply everything.

Converting between dtypes counts as moving, not as arithmetic.
"""

from __future__ import annotations

from torchatlas.operations.formulas.operand_sizes import (
    bytes_of,
    elements,
    part_of,
    per_input,
    per_result,
    results,
    touches_nothing,
)
from torchatlas.operations.work import OpCall, Work, formula

# -- new tensors -------------------------------------------------------------------------------------------------------

formula(  # they reserve memory and leave it as it is
    "empty empty_like empty_permuted empty_quantized empty_strided new_empty new_empty_strided resize resize_as",
    "resize_as_sparse sparse_resize sparse_resize_and_clear _efficientzerotensor _empty_affine_quantized",
    "_empty_per_channel_affine_quantized _resize_output prims.empty prims.empty_strided prims.empty_permuted",
    "prims.resize inductor.resize_storage_bytes inductor._alloc_from_pool",
)(touches_nothing)
# The tensor is written to in name only: its shape and strides change, not its memory.
formula("as_strided_ detach_ requires_grad_ set_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_ _coalesced_")(
    touches_nothing
)


formula("arange range linspace")(per_result(2))  # start + i step
formula("logspace")(per_result(3))
formula("bartlett_window hann_window hamming_window")(per_result(4))  # windows: from their definitions
formula("blackman_window")(per_result(7))
formula("kaiser_window")(per_result(8))
formula("vander linalg_vander")(per_result(1))  # each column is the one before times x


@formula(
    "zeros_like ones_like full_like new_zeros new_ones new_full _new_zeros_with_same_feature_meta zero _foreach_zero",
    "fill prims.full_like",
)
def set_all(call: OpCall) -> Work:
    """Writes one number everywhere; the tensor it takes lends its shape."""
    return Work(bytes_read=bytes_of(call.get("fill_value"), call.get("value")))


# -- copies ------------------------------------------------------------------------------------------------------------


@formula("copy copy_sparse_to_sparse _copy_from _copy_from_and_resize _foreach_copy fsdp.copy_")
def copy(call: OpCall) -> Work:
    """Reads the source; what was in the target does not matter."""
    return Work(bytes_read=bytes_of(call.get("src", call.get("data", call.inputs[0]))))


@formula("fsdp.all_gather_copy_in")
def copy_into_shard(call: OpCall) -> Work:
    """Copies the tensors into this process's part of the buffer."""
    moved = bytes_of(call["all_gather_inputs"])
    return Work(0, 0, moved, moved, elements(call["all_gather_inputs"]))


@formula("repeat_interleave")
def repeat_interleave(call: OpCall) -> Work:
    """The counts are summed up to know where each element goes."""
    return Work(elementwise_flops=elements(call["repeats"]))


# -- windows and paddings, and their backward --------------------------------------------------------------------------

formula("unfold_backward col2im")(per_input(1))  # windows that overlap are summed


@formula(*(f"aten.{kind}_pad{count}d_backward" for kind in ("reflection", "replication") for count in (1, 2, 3)))
def pad_backward(call: OpCall) -> Work:
    """Adds what was repeated; the input only lends its shape."""
    return Work(elementwise_flops=call["grad_output"].numel, bytes_read=call["grad_output"].bytes)


@formula("im2col")
def im2col(call: OpCall) -> Work:
    """What no window reaches is not read."""
    x = call.inputs[0]
    return Work(bytes_read=part_of(x, results(call)[0].numel))


@formula("to_dense_backward to_mkldnn_backward masked_select_backward gather_backward index_select_backward")
def moved_back(call: OpCall) -> Work:
    """The gradient goes where it came from; the input lends its shape."""
    return Work(bytes_read=bytes_of(*call.inputs) - bytes_of(call.get("self", call.get("input"))))
