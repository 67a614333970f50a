"""What operators do that neither their names nor their schemas tell: hidden writes, unset memory, effects outside.

Names are namespace.name, which stands for all overloads, unless an overload is given.
"""

from __future__ import annotations

# -- what is written ---------------------------------------------------------------------------------------------------

# Arguments that are written although no schema and no version counter says so, and the flag that switches the writing
# on. tests/capturing/test_plans.py compares them with what operators do.
HIDDEN_WRITES: dict[str, tuple[tuple[str, ...], str]] = {
    "aten.native_batch_norm": (("running_mean", "running_var"), "training"),
    "aten.cudnn_batch_norm": (("running_mean", "running_var"), "training"),
    "aten.miopen_batch_norm": (("running_mean", "running_var"), "training"),
    "aten.mkldnn_rnn_layer_backward": (("workspace",), "train"),
}
# Operators that write their first argument without reading it.
# fmt: off
OVERWRITES = frozenset({
    "aten.bernoulli_", "aten.cauchy_", "aten.copy_", "aten.exponential_", "aten.fill_", "aten.geometric_",
    "aten.log_normal_", "aten.normal_", "aten.random_", "aten.set_", "aten.uniform_", "aten.zero_",
    "aten._foreach_copy_", "aten._foreach_zero_",
})
# fmt: on
# Collectives: the argument that is filled and the argument that is read. Schemas mark neither.
# tests/capturing/test_processes.py compares them with what two processes really do.
COLLECTIVES = {
    "c10d._allgather_base_": ("output_tensor", "input_tensor"),
    "c10d._reduce_scatter_base_": ("output_tensor", "input_tensor"),
    "c10d.allgather_": ("output_tensors", "input_tensors"),
    "c10d.allgather_coalesced_": ("output_lists", "input_list"),
    "c10d.allgather_into_tensor_coalesced_": ("outputs", "inputs"),
    "c10d.allreduce_": ("tensors", "tensors"),
    "c10d.allreduce_coalesced_": ("tensors", "tensors"),
    "c10d.alltoall_": ("output_tensors", "input_tensors"),
    "c10d.alltoall_base_": ("output", "input"),
    "c10d.broadcast_": ("tensors", "tensors"),
    "c10d.gather_": ("output_tensors", "input_tensors"),
    "c10d.recv_": ("tensors", ""),
    "c10d.recv_any_source_": ("tensors", ""),
    "c10d.reduce_": ("tensors", "tensors"),
    "c10d.reduce_scatter_": ("output_tensors", "input_tensors"),
    "c10d.reduce_scatter_tensor_coalesced_": ("outputs", "inputs"),
    "c10d.scatter_": ("output_tensors", "input_tensors"),
    "c10d.send": ("", "tensors"),
}
_ALSO_READ = {"fsdp.all_gather_copy_in": "all_gather_output"}  # it fills only this rank's part of it


def fills(name: str) -> str:
    """The argument that an operator writes without reading it, though its schema does not say so; "" if none."""
    written, read = COLLECTIVES.get(name, ("", ""))
    return written if written != read else ""


def updates(name: str) -> str:
    """The argument that an operator reads and writes, though its schema does not say so; "" if none."""
    written, read = COLLECTIVES.get(name, ("", ""))
    return written if written and written == read else _ALSO_READ.get(name, "")


# -- when it is written ------------------------------------------------------------------------------------------------


def is_asynchronous(name: str) -> bool:
    """True for operators that return before their results are ready: all collectives but the one that waits."""
    namespace, _, rest = name.partition(".")
    return namespace in ("c10d", "c10d_functional", "_c10d_functional") and rest != "wait_tensor"


# Gloo reduces into buffers of its own. When the program waits, ordinary ops copy this rank's part out of them, and the
# buffers are seen for the first time.
GLOO_BUFFERED = frozenset({"c10d._reduce_scatter_base_", "c10d.reduce_scatter_tensor_coalesced_"})

# -- memory ------------------------------------------------------------------------------------------------------------

# Their results hold whatever was in memory.
# fmt: off
UNINITIALIZED = frozenset({
    "aten._empty_affine_quantized.default", "aten._empty_per_channel_affine_quantized.default",
    "aten.empty.memory_format", "aten.empty_like.default", "aten.empty_permuted.default", "aten.empty_strided.default",
    "aten.empty_quantized.default", "aten.new_empty.default", "aten.new_empty_strided.default",
})
# fmt: on
# What they enlarge holds whatever was in memory.
RESIZES = frozenset({"aten.resize_.default", "aten.resize_as_.default", "aten.empty.out"})
# They return, or write, bytes for their backward: only the real kernel knows how many, and some it never sets.
# fmt: off
WITH_WORKSPACE = frozenset({
    "aten.mkldnn_rnn_layer", "aten.mkldnn_rnn_layer_backward", "aten._cudnn_rnn", "aten.miopen_rnn",
    "aten.cudnn_batch_norm",
})
# fmt: on
# They put another storage under a tensor.
TAKES_STORAGE = frozenset({"aten.set_.source_Storage", "aten.set_.source_Storage_storage_offset"})
# Short names of what is a view if it can be, else a copy. A recorded run shows which; a traced program does not.
MAY_COPY = frozenset({"contiguous", "flatten", "ravel", "reshape", "reshape_as", "to", "type_as", "unflatten"})

# -- outside of the program --------------------------------------------------------------------------------------------

# Short names of what opens files, prints, or hands memory to others: a second run would be seen outside.
# fmt: off
ACTS_OUTSIDE = frozenset({
    "_pin_memory", "_print", "_storage_use_count", "from_file", "load", "pin_memory", "record_stream", "save", "warn",
})
# fmt: on


def is_bookkeeping(name: str) -> bool:
    """True for what fake tensors ask each other and what the profiler marks: not part of the program."""
    return name in ("prim.device", "prim.layout") or name.startswith("profiler.")
