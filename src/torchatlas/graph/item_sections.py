"""Nodes, edges, values, storages and modules of a graph -> what a notebook shows of one, and of a list of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from torchatlas.graph.columns import WITHIN
from torchatlas.graph.shown import fact
from torchatlas.sections import Facts, Lines, Section, Table
from torchatlas.units import format_bytes, format_count, format_ns

if TYPE_CHECKING:
    from torchatlas.graph.graph import Graph
    from torchatlas.graph.objects import GraphNode, Storage, Value
    from torchatlas.graph.scopes import Scope
    from torchatlas.graph.timing import Timing

_MOST_ROWS = 20
_MOST_MODULES = 60
_FEW_NAMES = 3


def tensor_text(item: Value) -> str:
    """The dtype and the shape of a value."""
    return f"{item.dtype}[{', '.join(map(str, item.shape))}]"


def rows_sections(graph: Graph, what: str, items: Sequence[Any]) -> Iterator[Section]:
    """The first of many items, a row each."""
    yield Lines([f"{len(items):,} {what}"])
    if shown := items[:_MOST_ROWS]:
        left = len(items) - len(shown)
        rows, headings = [item._cells() for item in shown], shown[0]._HEADINGS
        if headings[-1] == ">time":
            headings = [*headings[:-1], *([] if graph.timing is None else [f">time ({_runs(graph.timing)})"])]
        below = f"{left:,} more" if left else ""
        yield Table(headings, [row[: len(headings)] for row in rows], below=below)


def node_sections(node: GraphNode) -> Iterator[Section]:
    """An operation: what it is, when and where it ran, what it took and made, and its arguments."""
    yield Lines([f"{node.name}: {node.operation}" if node.kind == "op" else f"{node.name}: {node.kind}"])
    graph, source = node._graph, node.source
    measured = graph.measured(np.array([node.id], np.int64))
    known: dict[str, Any] = {
        "category": node.operation_type,
        "phase": node.phase,
        "module": _module(node.scope),
        "iteration": node.iteration or None,
        "time": measured,
        "alive after it": None if node.memory_bytes is None else format_bytes(node.memory_bytes),
        "made at": source,
        "line": None if source is None else source.text.strip() or None,
        "forward": node.forward_node,
        "backward": _few(node.backward_nodes) or None,
        "called by": WITHIN.join(node.composites or ()) or None,
    }
    yield Facts([(name, fact(item)) for name, item in known.items() if item is not None])
    rows = [*_tensors("input", node.inputs), *_tensors("output", node.outputs)]
    if rows:
        yield Table(["", "tensor", "device", "role", "from, or to", ">storage"], rows)
    if attributes := node.attributes:
        yield Table(["argument", "value"], [[name, str(item)] for name, item in attributes.items()])


def _tensors(side: str, values: Sequence[Value]) -> Iterator[list[str]]:
    for number, value in enumerate(islice(values, _MOST_ROWS)):
        named = f"{value.role} {value.parameter}" if value.parameter else str(value.role)
        other = _maker(value) if side == "input" else _few(value.consumers)
        size = None if value.storage is None else value.storage.bytes
        yield [f"{side} {number}", tensor_text(value), value.device, named, other, format_bytes(size)]
    if len(values) > _MOST_ROWS:
        yield [f"{len(values) - _MOST_ROWS:,} more {side}s", "", "", "", "", ""]


def value_sections(value: Value) -> Iterator[Section]:
    """One state of a tensor: what it is, the node that made it and the nodes that take it."""
    yield Lines([f"value {value.id}: {tensor_text(value)}"])
    size = None if value.storage is None else value.storage.bytes
    known: dict[str, Any] = {
        "role": value.role,
        "name": value.parameter,
        "device": value.device,
        "stride": None if value.stride is None else f"({', '.join(map(str, value.stride))})",
        "made by": _maker(value),
        "view of": None if value.view_of is None else f"value {value.view_of.id}: {tensor_text(value.view_of)}",
        "taken by": _few(value.consumers) or "nobody",
        "storage": None if value.storage is None else f"{value.storage.id}, {fact(size, 'bytes')}",
        "written before": f"{value.version:,} times" if value.version else None,
    }
    yield Facts([(name, fact(item)) for name, item in known.items() if item is not None])


def storage_sections(storage: Storage) -> Iterator[Section]:
    """One allocation."""
    yield Lines([f"storage {storage.id}: {fact(storage.bytes, 'bytes')}"])
    born, died = storage.born, storage.died
    yield Facts(
        [
            ("role", str(storage.role)),
            ("device", fact(storage.device)),
            ("born in", "(there before)" if born is None else born.name),
            ("died after", "(outlived the recording)" if died is None else died.name),
        ]
    )


# -- modules -----------------------------------------------------------------------------------------------------------


def scope_sections(scope: Scope) -> Iterator[Section]:
    """One module and those directly inside it."""
    yield Lines([f"{_module(scope)}: {scope.operations:,} operations, {format_count(scope.parameters)} parameters"])
    phases = ", ".join(f"{phase} {count:,}" for phase, count in scope.operations_by_phase.items())
    known: dict[str, Any] = {
        "calls": scope.calls,
        "operations": phases or "none",
        "its own": f"{scope.own_operations:,} operations",
        "time": scope.measured,
        "not timed": f"{scope.untimed:,} operations" if scope.untimed and scope.measured is not None else None,
        "parameters": f"{fact(scope.parameters, 'parameters')}, {format_bytes(scope.parameter_bytes)}",
    }
    yield Facts([(name, fact(item)) for name, item in known.items() if item is not None])
    if scope.children:
        left = len(scope.children) - _MOST_MODULES
        below = f"{left:,} more modules" if left > 0 else ""
        yield _modules(scope._graph, [(0, child) for child in scope.children[:_MOST_MODULES]], below)


def tree_sections(scopes: Mapping[str, Scope]) -> Iterator[Section]:
    """All modules as a tree, as many levels as fit into _MOST_MODULES rows."""
    root = scopes[""]
    yield Lines(
        [f"{len(scopes) - 1:,} modules, {root.operations:,} operations, {format_count(root.parameters)} parameters"]
    )
    shown = [(0, root)]
    for depth in range(1, _MOST_MODULES):
        deeper = list(islice(_down_to(root, depth), _MOST_MODULES + 1))
        if len(deeper) == len(shown) or (len(deeper) > _MOST_MODULES and depth > 1):
            break
        shown = deeper[:_MOST_MODULES]
    left = len(scopes) - len(shown)
    yield _modules(root._graph, shown, f"{left:,} more modules inside" if left else "")


def _down_to(scope: Scope, depth: int, at: int = 0) -> Iterator[tuple[int, Scope]]:
    yield at, scope
    if at < depth:
        for child in scope.children:
            yield from _down_to(child, depth, at + 1)


def _modules(graph: Graph | None, listed: Iterable[tuple[int, Scope]], below: str) -> Table:
    timing = None if graph is None else graph.timing
    rows = [
        [
            "  " * depth + (scope.name or "(all)"),
            scope.type,
            f"{scope.calls:,}",
            f"{scope.operations:,}",
            *([] if timing is None else ["" if scope.time_ns is None else _time(scope)]),
            format_count(scope.parameters) if scope.parameters else "",
        ]
        for depth, scope in listed
    ]
    times = [] if timing is None else [f">time ({_runs(timing)})"]
    return Table(["module", "type", ">calls", ">ops", *times, ">params"], rows, below=below)


def _runs(timing: Timing) -> str:
    return "one run" if timing.runs == 1 else f"median of {timing.runs:,}"


def _time(scope: Scope) -> str:
    return f"≥ {format_ns(scope.time_ns)}" if scope.untimed else format_ns(scope.time_ns)


def _module(scope: Scope) -> str:
    name = scope.path or "(all)"
    return f"{name} ({scope.type})" if scope.type else name


def _maker(value: Value) -> str:
    if value.producer is None:
        return "(there before)"
    node, output = value.producer
    return f"{node.name}, output {output}" if output else node.name


def _few(nodes: Sequence[GraphNode]) -> str:
    more = f" and {len(nodes) - _FEW_NAMES:,} more" if len(nodes) > _FEW_NAMES else ""
    return ", ".join(node.name for node in nodes[:_FEW_NAMES]) + more
