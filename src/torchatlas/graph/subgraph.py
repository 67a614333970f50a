"""A part of a graph as a graph of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchatlas.graph.columns import COLUMNS, POINTERS, Array

if TYPE_CHECKING:
    from torchatlas.graph.graph import Graph

# What autograd graphs keep of every node, or edge, in one array; all else is kept by "node:output".
_OF_ALL = {"topological_nr": "node", "input_nr": "edge"}
# Metadata that a part does not have: they name storages, nodes and recorded values of the whole.
_OF_WHOLE = ("resized", "program")


def induced(graph: Graph, nodes: Array) -> Graph:
    """The given nodes (sorted ids) with the edges among them, renumbered.

    Values that other nodes produced stay, without a producer: they are what the part takes from outside.
    """
    from torchatlas.graph.graph import Graph

    columns = graph.columns
    inputs, outputs = members(columns["input_ptr"], nodes), members(columns["output_ptr"], nodes)
    used = np.zeros(len(columns["value_storage"]), bool)
    used[columns["input_value"][inputs]] = True
    used[columns["output_value"][outputs]] = True
    base = columns["value_view_of"]
    for value in np.flatnonzero(used)[::-1]:  # views come after what they view: one pass backwards closes the set
        if base[value] >= 0:
            used[base[value]] = True
    values = np.flatnonzero(used)
    storages = np.unique(columns["value_storage"][values])
    storages = storages[storages >= 0]
    inside = np.zeros(len(graph), bool)
    inside[nodes] = True
    edges = np.flatnonzero(inside[columns["edge_source"]] & inside[columns["edge_target"]])
    rows = {"node": nodes, "input": inputs, "output": outputs, "value": values, "storage": storages, "edge": edges}
    rows["call"] = np.arange(len(columns["call_module"]))
    part = {name: columns[name][rows[unit]] for name, (_, unit) in COLUMNS.items() if unit != "node+1"}
    for name in ("input_ptr", "output_ptr"):
        part[name] = np.append(0, np.cumsum(np.diff(columns[name])[nodes])).astype(np.int64)
    for name, target in POINTERS.items():
        if target in ("node", "value", "storage"):
            size = len(graph) if target == "node" else len(columns[f"{target}_role"])
            part[name] = _renumbered(part[name], rows[target], size)
    recorded = {}
    new_id = {int(node): position for position, node in enumerate(nodes)}
    for key, array in graph.recorded.items():
        node, _, rest = key.partition(":")
        if key in _OF_ALL:
            recorded[key] = array[rows[_OF_ALL[key]]]
        elif node.isdecimal() and int(node) in new_id:  # what belongs to no node belongs to the whole
            recorded[f"{new_id[int(node)]}:{rest}"] = array
    part = {name: np.ascontiguousarray(part[name], dtype) for name, (dtype, _) in COLUMNS.items()}
    notes = [*graph.notes, f"part of a graph of {len(graph)} nodes"]
    metadata = {key: item for key, item in graph.metadata.items() if key not in _OF_WHOLE}
    if "fx_nodes" in metadata:
        ran = metadata["fx_nodes"].items()
        metadata["fx_nodes"] = {name: [new_id[node] for node in mine if node in new_id] for name, mine in ran}
    if "device_times" in metadata:
        times = metadata["device_times"]
        mine = {str(new_id[int(node)]): ns for node, ns in times["by_node"].items() if int(node) in new_id}
        metadata["device_times"] = {**times, "by_node": mine}
    timing = None if graph.timing is None else graph.timing.of_part()
    return Graph(
        part, graph.tables, source=graph.source, notes=notes, metadata=metadata, recorded=recorded, timing=timing
    )


def members(ptr: Array, nodes: Array) -> Array:
    """Positions that belong to the given nodes, in order."""
    starts, counts = ptr[nodes], ptr[nodes + 1] - ptr[nodes]
    shift = np.repeat(starts - np.append(0, np.cumsum(counts)[:-1]), counts) if len(nodes) else np.zeros(0, np.int64)
    return np.arange(int(counts.sum())) + shift


def _renumbered(column: Array, kept: Array, size: int) -> Array:
    """A pointer column after only `kept` rows of its target stay; pointers to the others become -1."""
    new = np.full(size + 1, -1, np.int64)
    new[kept] = np.arange(len(kept))
    return new[column]
