"""Graph -> networkx.MultiDiGraph, for algorithms that are not here."""

from __future__ import annotations

from typing import Any

from torchatlas.export.node_table import node_columns
from torchatlas.graph import Graph
from torchatlas.graph.columns import EDGE_KINDS
from torchatlas.graph.formats import VIEWS, imported


@VIEWS.add("networkx")
def to_networkx(graph: Graph) -> Any:
    """Nodes are ids, with name, kind, operation, operation_type, phase, scope and so on as attributes.

    Edges carry kind, value, output_index and input_index. What is unknown is left out; everything is text or a number,
    so that networkx can write the result to any of its file formats.
    """
    networkx = imported("networkx", "to_networkx needs")
    multigraph = networkx.MultiDiGraph(source=graph.source)
    table = {name: column.tolist() for name, column in node_columns(graph).items()}
    for row in zip(*table.values(), strict=True):
        attributes = {name: item for name, item in zip(table, row, strict=True) if item is not None}
        multigraph.add_node(attributes.pop("id"), **attributes)
    names = ("source", "target", "value", "output_index", "input_index")
    ends = [graph.columns[f"edge_{name}"].tolist() for name in names]
    kinds = [str(EDGE_KINDS[kind]) for kind in graph.columns["edge_kind"].tolist()]
    for source, target, *numbers, kind in zip(*ends, kinds, strict=True):
        known = {name: number for name, number in zip(names[2:], numbers, strict=True) if number >= 0}
        multigraph.add_edge(source, target, kind=kind, **known)
    return multigraph
