"""Collectives: bytes only. What goes in is read, what comes out is written; the network is another analysis.

Sums made on the way are not counted: which process makes them, and how many, depends on the algorithm.
"""

from __future__ import annotations

from torchatlas.graph.attributes import WITHOUT_PAYLOAD
from torchatlas.operations.behaviour import COLLECTIVES
from torchatlas.operations.formulas.operand_sizes import bytes_of, elements, tensors, touches_nothing
from torchatlas.operations.work import OpCall, Work, formula


@formula(*COLLECTIVES)
def collective(call: OpCall) -> Work:
    written, read = COLLECTIVES[call.operation.rpartition(".")[0]]
    results = tensors(call.get(written))
    return Work(bytes_read=bytes_of(call.get(read)), bytes_written=bytes_of(results), parallelism=elements(results))


_FUNCTIONAL = """
all_gather_into_tensor all_gather_into_tensor_coalesced all_gather_into_tensor_out all_reduce all_reduce_coalesced
all_to_all_single batch_p2p_ops broadcast irecv isend reduce_scatter_tensor reduce_scatter_tensor_coalesced
reduce_scatter_tensor_out
"""


@formula(
    "_dtensor.shard_dim_alltoall",
    *(f"_c10d_functional.{name}" for name in _FUNCTIONAL.split()),
    *(f"c10d_functional.{name}" for name in _FUNCTIONAL.split() if not name.endswith("_out")),
    *(f"_c10d_functional_autograd.{name}" for name in _FUNCTIONAL.split() if name.endswith(("_tensor", "_single"))),
)
def functional_collective(call: OpCall) -> Work:
    """Reads its arguments and writes its results."""
    return Work()


formula(*WITHOUT_PAYLOAD)(touches_nothing)
