"""Sparse tensors: made of parts that are tensors themselves. A graph does not say how many elements they hold, so
what works on a whole sparse tensor is counted as if it were dense."""

from __future__ import annotations

from torchatlas.operations.formulas.operand_sizes import per_input, results, touches_nothing
from torchatlas.operations.work import OpCall, Work, formula

formula(  # indices and values stay as they are
    "_sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_unsafe sparse_coo_tensor",
    "_sparse_compressed_tensor_unsafe sparse_compressed_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor",
    "sparse_bsc_tensor _sparse_csr_tensor_unsafe _sparse_csc_tensor_unsafe _sparse_bsr_tensor_unsafe",
    "_sparse_bsc_tensor_unsafe _sparse_compressed_tensor_with_dims",
)(touches_nothing)
formula("_to_sparse to_sparse _to_sparse_csr to_sparse_csr _to_sparse_csc to_sparse_csc")(per_input(1))  # a test each
# Every index is compared with its bounds.
formula("_validate_sparse_coo_tensor_args _validate_compressed_sparse_indices")(per_input(2))


@formula("_convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo")
def convert_indices(call: OpCall) -> Work:
    return Work(elementwise_flops=max(one.numel for one in (*call.inputs, *results(call))))


@formula(
    "_validate_sparse_compressed_tensor_args _validate_sparse_csr_tensor_args _validate_sparse_csc_tensor_args",
    "_validate_sparse_bsr_tensor_args _validate_sparse_bsc_tensor_args",
)
def check_compressed_indices(call: OpCall) -> Work:
    return Work(elementwise_flops=2 * sum(one.numel for one in call.inputs[:2]))
