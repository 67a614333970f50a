"""Graph -> a table with one row per node: a pandas.DataFrame, a `.csv` or a `.parquet` file."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from torchatlas.escapes import cell, encodable
from torchatlas.export.csv_rows import write_rows
from torchatlas.files import replacing
from torchatlas.graph import Graph, Layout
from torchatlas.graph.columns import KINDS, PHASES, Array
from torchatlas.graph.formats import VIEWS, WRITERS, imported

_NUMBERS = ("iteration", "start_ns", "time_ns", "time_spread_ns", "memory_bytes", "sequence_nr", "forward")
_WHOLE = {"id", "call_index", "line", "forward_node", *_NUMBERS}


def node_columns(graph: Graph) -> dict[str, Array]:
    """The columns of the table by name, as arrays of text and numbers; None where unknown."""
    columns, tables, index = graph.columns, graph.tables, graph.index
    operation, call = columns["node_operation"], columns["node_call"]
    sources = columns["node_source"]
    inputs, outputs = (_values_text(graph, side) for side in ("input", "output"))
    call_index = np.append(columns["call_index"], -1)[call]
    table = {
        "id": np.arange(len(graph)),
        "name": _objects(index.names()),
        "kind": _objects(KINDS)[columns["node_kind"]],
        "operation": _objects([row.name for row in tables.operations])[operation],
        "operation_type": _objects([row.type for row in tables.operations])[operation],
        "phase": _objects(PHASES)[columns["node_phase"]],
        "scope": _objects(index.paths)[index.path_of_call[call]],
        "call_index": _optional(call_index),
        "inputs": inputs,
        "outputs": outputs,
        "file": _objects([row.file for row in tables.sources], absent=True)[sources],
        "line": _objects([row.line for row in tables.sources], absent=True)[sources],
        "function": _objects([row.function for row in tables.sources], absent=True)[sources],
        "thread": _objects(tables.threads, absent=True)[columns["node_thread"]],
        "composites": _objects(tables.names, absent=True)[columns["node_composites"]],
    }
    table |= {name: _optional(columns[f"node_{name}"]) for name in _NUMBERS}
    table["forward_node"] = table.pop("forward")
    return table


def _objects(items: Any, absent: bool = False) -> Array:
    """Text as plain str (not enum members), numbers as they are; with `absent`, position -1 is None."""
    plain = [encodable(str(item)) if isinstance(item, str) else item for item in items]
    objects = np.empty(len(plain) + absent, object)
    objects[: len(plain)] = plain
    return objects


def _optional(column: Array) -> Array:
    """Numbers as objects, None for -1."""
    objects = column.astype(object)
    objects[column < 0] = None
    return objects


def _values_text(graph: Graph, side: str) -> Array:
    """Per node its inputs or outputs as text: "float32[8, 3], int64[]"."""
    columns = graph.columns
    texts = [*(_layout_text(layout) for layout in graph.tables.layouts), "None"]
    values = columns[f"{side}_value"]
    layouts = np.append(columns["value_layout"], -1)[values].tolist()  # value -1, a missing output: the last, "None"
    shown = [texts[layout] for layout in layouts]
    texts_of_nodes = np.empty(len(graph), object)
    texts_of_nodes[:] = [", ".join(shown[low:high]) for low, high in pairwise(columns[f"{side}_ptr"].tolist())]
    return texts_of_nodes


def _layout_text(layout: Layout) -> str:
    return f"{layout.dtype}[{', '.join(map(str, layout.shape))}]"


@VIEWS.add("pandas")
def to_pandas(graph: Graph) -> Any:
    """A DataFrame with one row per node. Numbers that may be unknown are nullable integers: <NA>, never -1 or nan."""
    pandas = imported("pandas", "to_pandas needs")
    repeated = {"kind", "operation", "operation_type", "phase", "scope", "file", "function", "thread", "composites"}
    data: dict[str, Any] = {}
    for name, column in node_columns(graph).items():
        dtype = "Int64" if name in _WHOLE else "category" if name in repeated else "string"
        data[name] = pandas.array(column, dtype=dtype) if dtype != "category" else pandas.Categorical(column)
    return pandas.DataFrame(data)


@WRITERS.add(".csv")
def save_csv(graph: Graph, path: Path) -> None:
    """The nodes as comma-separated values; what is unknown is empty, and no text is a formula: see `cell`."""
    columns = node_columns(graph)
    texts = [name not in _WHOLE for name in columns]
    with replacing(path) as file:
        write_rows(file, list(columns), (_cells(row, texts) for row in zip(*columns.values(), strict=True)))


def _cells(row: tuple[Any, ...], texts: list[bool]) -> list[Any]:
    return [cell(item) if text and item is not None else item for item, text in zip(row, texts, strict=True)]


@WRITERS.add(".parquet")
def save_parquet(graph: Graph, path: Path) -> None:
    """The nodes as a Parquet file; what is unknown is null."""
    imported("pyarrow", ".parquet files need", "parquet")  # pandas would try other engines and explain less
    table = to_pandas(graph)
    with replacing(path) as file:
        table.to_parquet(file, engine="pyarrow", index=False)
