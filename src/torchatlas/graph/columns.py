"""What a Graph is made of: its columns (one numpy array each) and its tables (rows that many nodes share).

A column's dtype is fixed here and nowhere else; files, builders and checks read this list.
-1 means "none" in every signed column: unknown is never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from torchatlas.graph.nouns import EdgeKind, NodeKind, OperationType, Phase, Role, SourceLine

Array = npt.NDArray[Any]

# Enums are stored as their position in these tuples. Append only: files hold the words, memory holds the positions.
KINDS = tuple(NodeKind)
PHASES = tuple(Phase)
ROLES = tuple(Role)
EDGE_KINDS = tuple(EdgeKind)

WITHIN = " > "  # between operators that call each other; no name of an operator holds it

# name -> (dtype, what the length is counted in)
COLUMNS: dict[str, tuple[str, str]] = {
    "node_kind": ("u1", "node"),
    "node_operation": ("i4", "node"),  # -> operations
    "node_phase": ("u1", "node"),
    "node_call": ("i4", "node"),  # -> call_*: the module call it ran in
    "node_source": ("i4", "node"),  # -> sources
    "node_arguments": ("i4", "node"),  # -> arguments
    "node_name": ("i4", "node"),  # -> names, for inputs and outputs; ops are named by scope, operation and counter
    "node_start_ns": ("i8", "node"),
    "node_time_ns": ("i8", "node"),  # of several runs the median
    "node_time_spread_ns": ("i8", "node"),  # of several runs, see timing.py; -1 of one
    "node_memory_bytes": ("i8", "node"),
    "node_sequence_nr": ("i8", "node"),
    "node_iteration": ("i4", "node"),
    "node_thread": ("i2", "node"),  # -> threads
    "node_forward": ("i4", "node"),  # the forward node a backward node belongs to
    "node_composites": ("i4", "node"),  # -> names: the composite operators that called it, joined by WITHIN
    "input_ptr": ("i8", "node+1"),  # inputs of node i are input_ptr[i]:input_ptr[i+1]
    "output_ptr": ("i8", "node+1"),
    "input_value": ("i4", "input"),
    "input_written": ("u1", "input"),
    "output_value": ("i4", "output"),
    "value_storage": ("i4", "value"),
    "value_layout": ("i4", "value"),  # -> layouts
    "value_offset": ("i8", "value"),
    "value_version": ("i4", "value"),
    "value_producer": ("i4", "value"),
    "value_output_index": ("i4", "value"),
    "value_view_of": ("i4", "value"),
    "value_role": ("u1", "value"),
    "value_parameter": ("i4", "value"),  # -> names
    "storage_bytes": ("i8", "storage"),
    "storage_device": ("i2", "storage"),  # -> devices
    "storage_born": ("i4", "storage"),
    "storage_died": ("i4", "storage"),
    "storage_role": ("u1", "storage"),
    "edge_source": ("i4", "edge"),
    "edge_target": ("i4", "edge"),
    "edge_output_index": ("i4", "edge"),
    "edge_input_index": ("i4", "edge"),
    "edge_value": ("i4", "edge"),
    "edge_kind": ("u1", "edge"),
    "call_module": ("i4", "call"),  # -> modules
    "call_parent": ("i4", "call"),
    "call_index": ("i4", "call"),  # counts the calls of that module
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One formal argument of an operation, from its schema. `default` is encoded like an argument."""

    name: str
    keyword_only: bool = False
    default: str | None = None  # JSON text; None when the argument is required


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the operation table."""

    name: str  # e.g. aten.convolution.default
    type: OperationType = OperationType.UNKNOWN
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies in memory. Symbolic sizes are strings ("s0"); strides are None where the layout has none."""

    shape: tuple[int | str, ...]
    stride: tuple[int | str, ...] | None
    dtype: str  # float32, as in torch.float32
    device: str
    kind: str = "strided"


@dataclass(frozen=True, slots=True)
class Module:
    """One module of the program. `optimizer` rows are optimizers, whose steps are calls like a module's."""

    path: str
    type: str
    kind: str = "module"  # module | optimizer


@dataclass(slots=True)
class Tables:
    """Rows that columns point into."""

    operations: list[Operation] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)  # JSON text, see arguments.py
    sources: list[SourceLine] = field(default_factory=list)
    modules: list[Module] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)


def empty_columns() -> dict[str, Array]:
    """The columns of a graph with no nodes."""
    return {name: np.zeros(1 if unit == "node+1" else 0, dtype) for name, (dtype, unit) in COLUMNS.items()}


def lengths(columns: dict[str, Array]) -> dict[str, int]:
    """How many nodes, values, edges ... the columns describe."""
    counts: dict[str, int] = {}
    for name, (_, unit) in COLUMNS.items():
        if unit != "node+1":
            counts.setdefault(unit, len(columns[name]))
    return counts


# Which column points into what: the one list that validation and re-numbering share.
POINTERS: dict[str, str] = {
    "node_operation": "operations",
    "node_call": "call",
    "node_source": "sources",
    "node_arguments": "arguments",
    "node_name": "names",
    "node_thread": "threads",
    "node_forward": "node",
    "node_composites": "names",
    "input_value": "value",
    "output_value": "value",
    "value_storage": "storage",
    "value_layout": "layouts",
    "value_producer": "node",
    "value_view_of": "value",
    "value_parameter": "names",
    "storage_device": "devices",
    "storage_born": "node",
    "storage_died": "node",
    "edge_source": "node",
    "edge_target": "node",
    "edge_value": "value",
    "call_module": "modules",
    "call_parent": "call",
}
ENUMS: dict[str, int] = {
    "node_kind": len(KINDS),
    "node_phase": len(PHASES),
    "value_role": len(ROLES),
    "storage_role": len(ROLES),
    "edge_kind": len(EDGE_KINDS),
    "input_written": 2,  # a truth value
}
