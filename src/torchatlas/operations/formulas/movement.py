"""Copies, new tensors and paddings: what is read and what is written, where it is not simply everything.

Converting between dtypes counts as moving, not as arithmetic.
"""

from __future__ import annotations

from torchatlas.operations.formulas.operand_sizes import bytes_of, elements, part_of, results
from torchatlas.operations.work import OpCall, Work, formula

_RESERVES = """
empty empty_like empty_permuted empty_quantized empty_strided new_empty new_empty_strided resize resize_as
resize_as_sparse sparse_resize sparse_resize_and_clear _efficientzerotensor _empty_affine_quantized
_empty_per_channel_affine_quantized _resize_output
"""


@formula(
    "prims.empty prims.empty_strided prims.empty_permuted prims.resize inductor.resize_storage_bytes",
    "inductor._alloc_from_pool",
    _RESERVES,
)
def reserve(call: OpCall) -> Work:
    """Memory, as it is: nothing is read or written."""
    return Work(bytes_read=0, bytes_written=0, parallelism=0)


@formula("as_strided_ detach_ requires_grad_ set_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_ _coalesced_")
def look_otherwise(call: OpCall) -> Work:
    """The tensor is written to in name only: its shape and strides change, not its memory."""
    return Work(bytes_read=0, bytes_written=0, parallelism=0)


@formula(
    "zeros_like ones_like full_like new_zeros new_ones new_full _new_zeros_with_same_feature_meta zero prims.full_like",
)
def set_all(call: OpCall) -> Work:
    """Writes; the tensor it is given lends its shape."""
    return Work(bytes_read=bytes_of(call.get("fill_value")))


@formula("fill")
def fill(call: OpCall) -> Work:
    return Work(bytes_read=bytes_of(call["value"]))


@formula("_foreach_zero")
def set_lists(call: OpCall) -> Work:
    return Work(bytes_read=0)


@formula("copy copy_sparse_to_sparse _copy_from _copy_from_and_resize")
def copy(call: OpCall) -> Work:
    """Reads the source; what was in the target does not matter."""
    return Work(bytes_read=bytes_of(call.get("src", call.inputs[0])))


@formula("_foreach_copy")
def copy_lists(call: OpCall) -> Work:
    return Work(bytes_read=bytes_of(call["src"]))


@formula("fsdp.copy_")
def copy_into(call: OpCall) -> Work:
    return Work(bytes_read=bytes_of(call["data"]))


@formula("fsdp.all_gather_copy_in")
def copy_into_shard(call: OpCall) -> Work:
    """The tensors into this process's part of the buffer."""
    moved = bytes_of(call["all_gather_inputs"])
    return Work(0, 0, moved, moved, elements(call["all_gather_inputs"]))


@formula("arange range linspace")
def steps(call: OpCall) -> Work:
    """start + i step."""
    return Work(elementwise_flops=2 * results(call)[0].numel)


@formula("logspace")
def powers(call: OpCall) -> Work:
    return Work(elementwise_flops=3 * results(call)[0].numel)


_WINDOWS = {"bartlett": 4, "hann": 4, "hamming": 4, "blackman": 7, "kaiser": 8}  # from the definitions


@formula(*(f"aten.{name}_window" for name in _WINDOWS))
def window(call: OpCall) -> Work:
    rate = next(rate for name, rate in _WINDOWS.items() if name in call.operation)
    return Work(elementwise_flops=rate * results(call)[0].numel)


@formula("vander linalg_vander")
def vander(call: OpCall) -> Work:
    """Each column is the one before times x."""
    return Work(elementwise_flops=results(call)[0].numel)


@formula("repeat_interleave")
def repeat_interleave(call: OpCall) -> Work:
    """The counts are summed up to know where each element goes."""
    return Work(elementwise_flops=elements(call["repeats"]))


# -- what adds on the way back -----------------------------------------------------------------------------------------


@formula(*(f"aten.{kind}_pad{count}d_backward" for kind in ("reflection", "replication") for count in (1, 2, 3)))
def pad_backward(call: OpCall) -> Work:
    """Adds what was repeated; the input only lends its shape."""
    return Work(elementwise_flops=call["grad_output"].numel, bytes_read=call["grad_output"].bytes)


@formula("unfold_backward col2im")
def overlap_add(call: OpCall) -> Work:
    """Windows that overlap are summed."""
    return Work(elementwise_flops=call.inputs[0].numel)


@formula("im2col")
def im2col(call: OpCall) -> Work:
    """What no window reaches is not read."""
    x = call.inputs[0]
    return Work(bytes_read=part_of(x, results(call)[0].numel))


@formula("to_dense_backward to_mkldnn_backward masked_select_backward gather_backward index_select_backward")
def moved_back(call: OpCall) -> Work:
    """The gradient goes where it came from; the input lends its shape."""
    return Work(bytes_read=bytes_of(*call.inputs) - bytes_of(call.get("self", call.get("input"))))
