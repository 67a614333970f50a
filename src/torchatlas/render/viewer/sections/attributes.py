"""Graph -> the attributes of every node, as JSON text; equal ones once."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from torchatlas.escapes import encodable
from torchatlas.graph import Graph, OperationType
from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import MOST_NODES, Subject

_LONGEST = 2_000  # characters of one attribute


@section("attributes")
def attributes(subject: Subject) -> Members:
    """What GraphNode.attributes says."""
    graph = subject.graph
    if len(graph) > MOST_NODES:
        subject.left_out.append(
            f"The attributes of ops are not in this page, as it has more than {MOST_NODES:,} nodes: "
            "graph[name].attributes says them, and graph.subgraph(scope=...) makes a smaller page."
        )
        return {}
    rows: dict[str, int] = {}
    return {"attributes.json": {"node": _rows(graph, rows), "rows": list(rows)}}


def _rows(graph: Graph, rows: dict[str, int]) -> list[int]:
    """The row of every node. Nodes of equal calls on equal layouts are looked at once."""
    columns, nodes = graph.columns, graph.nodes
    layout = columns["value_layout"]
    taken, first = layout[columns["input_value"]].tolist(), columns["input_ptr"].tolist()
    remote = [row.type is OperationType.COMMUNICATION for row in graph.tables.operations]
    calls = zip(columns["node_operation"].tolist(), columns["node_arguments"].tolist(), strict=True)
    known: dict[tuple[Any, ...], int] = {}
    row_of_node: list[int] = []
    for node, (operation, call) in enumerate(calls):
        # what a collective hands over depends on what it makes and writes as well
        key = (operation, call, node if remote[operation] else -1, *taken[first[node] : first[node + 1]])
        row = known.get(key)
        if row is None:
            text = _text(nodes[node].attributes)
            row = known[key] = rows.setdefault(text, len(rows))
        row_of_node.append(row)
    return row_of_node


def _text(named: dict[str, Any]) -> str:
    return msgspec.json.encode({encodable(name): _plain(item) for name, item in named.items()}).decode()


def _plain(item: Any) -> Any:
    """Numbers, lists and other things that JSON has stay themselves; everything else becomes text."""
    if item is None or isinstance(item, (bool, int)):
        return item if not isinstance(item, int) or abs(item) < 2**53 else str(item)
    if isinstance(item, float):
        return item if math.isfinite(item) else str(item)
    if isinstance(item, (list, tuple)):
        return [_plain(part) for part in item]
    if isinstance(item, dict):
        return {encodable(str(key)): _plain(part) for key, part in item.items()}
    text = encodable(str(item))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
