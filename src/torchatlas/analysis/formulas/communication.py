"""Collectives: bytes only. What goes in is read, what comes out is written; the network is another analysis.

Sums made on the way are not counted: who makes them, and how many, depends on the algorithm.
"""

from __future__ import annotations

from torchatlas.analysis.formulas.measures import bytes_of, elements, tensors
from torchatlas.analysis.formulas.work import OpCall, Work, formula

# c10d names what it fills; the argument it reads is the other one. Where both are one, it is read and written.
_FILLS = {
    "_allgather_base_": ("output_tensor", "input_tensor"),
    "_reduce_scatter_base_": ("output_tensor", "input_tensor"),
    "allgather_": ("output_tensors", "input_tensors"),
    "allgather_coalesced_": ("output_lists", "input_list"),
    "allgather_into_tensor_coalesced_": ("outputs", "inputs"),
    "allreduce_": ("tensors", "tensors"),
    "allreduce_coalesced_": ("tensors", "tensors"),
    "alltoall_": ("output_tensors", "input_tensors"),
    "alltoall_base_": ("output", "input"),
    "broadcast_": ("tensors", "tensors"),
    "gather_": ("output_tensors", "input_tensors"),
    "recv_": ("tensors", ""),
    "recv_any_source_": ("tensors", ""),
    "reduce_": ("tensors", "tensors"),
    "reduce_scatter_": ("output_tensors", "input_tensors"),
    "reduce_scatter_tensor_coalesced_": ("outputs", "inputs"),
    "scatter_": ("output_tensors", "input_tensors"),
    "send": ("", "tensors"),
}


@formula(*(f"c10d.{name}" for name in _FILLS))
def collective(call: OpCall) -> Work:
    filled, taken = _FILLS[call.operation.split(".")[1]]
    results = tensors(call.get(filled))
    read, wrote = bytes_of(call.get(taken)), bytes_of(results)
    return Work(bytes_read=read, bytes_written=wrote, parallelism=elements(results))


_FUNCTIONAL = """
all_gather_into_tensor all_gather_into_tensor_coalesced all_gather_into_tensor_out all_reduce all_reduce_coalesced
all_to_all_single batch_p2p_ops broadcast irecv isend reduce_scatter_tensor reduce_scatter_tensor_coalesced
reduce_scatter_tensor_out
"""


@formula(
    *(f"_c10d_functional.{name}" for name in _FUNCTIONAL.split()),
    *(f"c10d_functional.{name}" for name in _FUNCTIONAL.split() if not name.endswith("_out")),
    *(f"_c10d_functional_autograd.{name}" for name in _FUNCTIONAL.split() if name.endswith(("_tensor", "_single"))),
    "_dtensor.shard_dim_alltoall",
)
def functional_collective(call: OpCall) -> Work:
    """What it is given in, its results out."""
    return Work()


@formula(
    *(f"c10d.{name}" for name in ("barrier", "monitored_barrier_", "check_for_nan")),
    *(f"_c10d_functional.{name}" for name in ("wait_tensor", "_wrap_tensor_autograd")),
    "c10d_functional.wait_tensor",
)
def waiting(call: OpCall) -> Work:
    """Hands on, or waits: no payload."""
    return Work(bytes_read=0, bytes_written=0, parallelism=0)
