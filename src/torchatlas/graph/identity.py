"""When two graphs are the same: by structure (==, hash) or in every column (identical)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from torchatlas.graph.columns import COLUMNS, KINDS, Array
from torchatlas.graph.nouns import NodeKind

if TYPE_CHECKING:
    from torchatlas.graph.graph import Graph


def structural_hash(graph: Graph) -> str:
    """A hex digest of operations, arguments, shapes, dtypes, edges and scopes.

    Times, storage numbers, file paths and threads do not enter, nor does the order in which tables were filled:
    every row counts by its content.
    """
    columns, tables = graph.columns, graph.tables
    digest = hashlib.sha256()
    operations = _fingerprints(operation.name for operation in tables.operations)
    calls = _fingerprints(
        (tables.modules[module].path, int(index))
        for module, index in zip(columns["call_module"], columns["call_index"], strict=True)
    )
    layouts = _fingerprints((layout.shape, layout.stride, layout.dtype, layout.kind) for layout in tables.layouts)
    parts: list[Array] = [
        columns["node_kind"],
        _mapped(operations, columns["node_operation"]),
        _mapped(_fingerprints(tables.arguments), columns["node_arguments"]),
        _mapped(calls, columns["node_call"]),
        columns["node_phase"],
        columns["input_ptr"],
        columns["output_ptr"],
        _mapped(layouts, columns["value_layout"])[columns["input_value"]],
        _mapped(layouts, columns["value_layout"])[columns["output_value"]],
        columns["input_written"],
        columns["edge_source"],
        columns["edge_target"],
        columns["edge_output_index"],
        columns["edge_input_index"],
        columns["edge_kind"],
    ]
    named = np.flatnonzero(columns["node_kind"] != KINDS.index(NodeKind.OP))
    parts.append(_fingerprints(graph.index.name(int(node)) for node in named))
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


def first_difference(one: Graph, other: Graph) -> str | None:
    """Where two graphs differ in any column, table or note; None when they are identical."""
    for name in COLUMNS:
        a, b = one.columns[name], other.columns[name]
        if len(a) != len(b):
            return f"{name}: {len(a)} rows and {len(b)} rows"
        if (differs := np.flatnonzero(a != b)).size:
            row = int(differs[0])
            return f"{name}[{row}]: {a[row]} and {b[row]}"
    for field in type(one.tables).__slots__:
        if getattr(one.tables, field) != getattr(other.tables, field):
            return f"table {field}"
    for field in ("source", "notes", "metadata", "timing"):
        if getattr(one, field) != getattr(other, field):
            return f"{field}: {getattr(one, field)!r} and {getattr(other, field)!r}"
    if one.recorded.keys() != other.recorded.keys():
        return "recorded values: different keys"
    for key, array in one.recorded.items():
        same = other.recorded[key]
        if (array.dtype, array.shape) != (same.dtype, same.shape) or array.tobytes() != same.tobytes():
            return f"recorded value {key}"
    return None


def _fingerprints(rows: Any) -> Array:
    """Eight bytes per row that depend on nothing but its content."""
    return np.array(
        [int.from_bytes(hashlib.blake2b(repr(row).encode(), digest_size=8).digest(), "little") for row in rows],
        np.uint64,
    )


def _mapped(fingerprints: Array, column: Array) -> Array:
    """The fingerprint each entry of a column points to; 0 for none."""
    return np.append(fingerprints, np.uint64(0))[column]
