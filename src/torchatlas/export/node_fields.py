"""Graph -> typed fields of its nodes and edges, for files of other tools: text or whole numbers, None if unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.escapes import encodable
from torchatlas.export.node_table import node_columns
from torchatlas.graph import EdgeKind, Graph
from torchatlas.graph.columns import EDGE_KINDS, Array, Layout

if TYPE_CHECKING:
    from torchatlas.analysis.node_work import Counts

_LEVELS = 3  # of the module tree that have a field of their own, so that a tool can group and colour by them
_NUMBERS = {"call_index", "line", "iteration", "start_ns", "time_ns", "time_spread_ns", "memory_bytes", "sequence_nr"}


@dataclass(frozen=True)
class Field:
    """One attribute of all nodes, or of all edges."""

    name: str
    is_number: bool
    items: Sequence[Any]  # str or int; None where it is unknown


def work_of(graph: Graph) -> tuple[Counts | None, str]:
    """The work of every node; or None, and why not: a symbolic size, say, whose example was not kept."""
    from torchatlas.analysis.node_work import count  # all formulas: not before they are needed

    try:
        return count(graph), ""
    except (AnalysisError, InvalidInputError) as error:
        return None, encodable(f"FLOPs and bytes are left out: {error}")


def node_fields(graph: Graph) -> tuple[list[Field], str]:
    """The columns of `graph.to_pandas()`, with the work of each node and the modules around it.

    The text says what had to be left out.
    """
    table, columns = node_columns(graph), graph.columns
    paths = [encodable(path).split(".") if path else [] for path in graph.index.paths]
    of_node = graph.index.path_of_call[columns["node_call"]].tolist()
    fields = []
    for name, items in table.items():
        if name == "scope":
            fields.append(Field("module", False, items.tolist()))
            for depth in range(1, _LEVELS + 1):
                level = [".".join(path[:depth]) if len(path) >= depth else None for path in paths]
                fields.append(Field(f"module_{depth}", False, [level[path] for path in of_node]))
        elif name == "forward_node":
            names = [*table["name"].tolist(), None]
            fields.append(Field(name, False, [names[node] for node in columns["node_forward"].tolist()]))
        elif name != "id":
            fields.append(Field(name, name in _NUMBERS, items.tolist()))
    first = _first_outputs(graph)
    layouts = graph.tables.layouts
    for name, texts in {"shape": list(map(_shape, layouts)), "dtype": [layout.dtype for layout in layouts]}.items():
        fields.append(Field(name, False, [None if row < 0 else texts[row] for row in first]))
    work, missing = work_of(graph)
    if work is not None:
        for name in ("flops", "elementwise_flops", "bytes_read", "bytes_written"):
            fields.append(Field(name, True, _known(np.where(work.is_op, getattr(work, name), -1))))
    return fields, missing


def edge_fields(graph: Graph) -> list[Field]:
    """The fields of each edge: its kind, its slots, and the tensor that flows along it."""
    columns, layouts = graph.columns, graph.tables.layouts
    kinds = [str(kind) for kind in EDGE_KINDS]
    row = np.append(columns["value_layout"], -1)[columns["edge_value"]].tolist()
    shapes, dtypes, sizes = list(map(_shape, layouts)), [layout.dtype for layout in layouts], list(map(_bytes, layouts))
    return [
        Field("kind", False, [kinds[kind] for kind in columns["edge_kind"].tolist()]),
        Field("output_index", True, _known(columns["edge_output_index"])),
        Field("input_index", True, _known(columns["edge_input_index"])),
        Field("shape", False, [None if at < 0 else shapes[at] for at in row]),
        Field("dtype", False, [None if at < 0 else dtypes[at] for at in row]),
        Field("bytes", True, [None if at < 0 else sizes[at] for at in row]),
    ]


def edges_by_target(graph: Graph, *, data: bool) -> list[Array]:
    """Per node the edges that enter it, of data or of order: rows of source, output index, input index."""
    columns = graph.columns
    chosen = np.flatnonzero((columns["edge_kind"] == EDGE_KINDS.index(EdgeKind.DATA)) == data)
    chosen = chosen[np.argsort(columns["edge_target"][chosen], kind="stable")]
    rows = np.stack([columns[f"edge_{name}"][chosen] for name in ("source", "output_index", "input_index")], axis=1)
    ends = np.cumsum(np.bincount(columns["edge_target"][chosen], minlength=len(graph)))
    return np.split(rows, ends[:-1]) if len(graph) else []


def _first_outputs(graph: Graph) -> list[int]:
    """Per node the layout of its first output; -1 where it has none."""
    ptr, values = graph.columns["output_ptr"], np.append(graph.columns["output_value"], -1)
    first = np.where(np.diff(ptr) > 0, values[ptr[:-1]], -1)
    return np.append(graph.columns["value_layout"], -1)[first].tolist()  # type: ignore[no-any-return]


def _known(column: Array) -> list[int | None]:
    return [None if number < 0 else number for number in column.tolist()]


def _shape(layout: Layout) -> str:
    return f"[{', '.join(map(str, layout.shape))}]"


def _bytes(layout: Layout) -> int | None:
    """Bytes of its elements; None where a size is symbolic or the dtype unknown."""
    from torchatlas.operations.work import item_bytes

    if not all(isinstance(size, int) for size in layout.shape):
        return None
    try:
        return int(np.prod([int(size) for size in layout.shape], dtype=object)) * item_bytes(layout.dtype)
    except InvalidInputError:
        return None
