"""Sparse tensors: made of parts that are tensors themselves. How many elements they hold a graph does not say, so
what works on a whole sparse tensor is counted as if it were dense."""

from __future__ import annotations

from torchatlas.operations.formulas.operand_sizes import comparisons, results
from torchatlas.operations.work import OpCall, Work, formula


@formula(
    "_sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_unsafe sparse_coo_tensor",
    "_sparse_compressed_tensor_unsafe sparse_compressed_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor",
    "sparse_bsc_tensor _sparse_csr_tensor_unsafe _sparse_csc_tensor_unsafe _sparse_bsr_tensor_unsafe",
    "_sparse_bsc_tensor_unsafe _sparse_compressed_tensor_with_dims",
)
def of_parts(call: OpCall) -> Work:
    """Indices and values are kept as they are."""
    return Work(bytes_read=0, bytes_written=0, parallelism=0)


@formula("_coalesce")
def coalesce(call: OpCall) -> Work:
    """Sorts by index and adds what meets."""
    x = call.inputs[0]
    return Work(elementwise_flops=round(x.numel * (comparisons(x.numel) + 1)))


@formula("_to_sparse to_sparse _to_sparse_csr to_sparse_csr _to_sparse_csc to_sparse_csc")
def find_nonzeros(call: OpCall) -> Work:
    """A test per element."""
    return Work(elementwise_flops=call.inputs[0].numel)


@formula("_convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo")
def convert_indices(call: OpCall) -> Work:
    return Work(elementwise_flops=max(one.numel for one in (*call.inputs, *results(call))))


@formula("_validate_sparse_coo_tensor_args _validate_compressed_sparse_indices")
def check_indices(call: OpCall) -> Work:
    """Every index is compared with its bounds."""
    return Work(elementwise_flops=2 * call.inputs[0].numel)


@formula(
    "_validate_sparse_compressed_tensor_args _validate_sparse_csr_tensor_args _validate_sparse_csc_tensor_args",
    "_validate_sparse_bsr_tensor_args _validate_sparse_bsc_tensor_args",
)
def check_compressed_indices(call: OpCall) -> Work:
    return Work(elementwise_flops=2 * sum(one.numel for one in call.inputs[:2]))
