"""Graph -> when each node could run at the earliest (levels), and the chain that nothing can shorten (longest path).

Nodes are in execution order, so every edge leads from a lower id to a higher one: no sorting of nodes, no search for
cycles. What remains is one sweep, `finish[t] = max(finish[s]) + weight[t]`, done in the way that suits the shape:
runs of nodes that follow one another are folded into one, wide graphs are swept a level at a time with numpy, deep
and narrow ones an edge at a time. Folding and the choice change the time it takes, never the answer.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from torchatlas.errors import InvalidInputError, NotAvailableError
from torchatlas.graph import EdgeKind, Graph
from torchatlas.graph.columns import EDGE_KINDS, Array

_SMALL = 20_000  # edges: below this, the plain loop is done before numpy has warmed up
_WIDE = 100  # nodes per level from which a level at a time is quicker than an edge at a time; measured


def levels(graph: Graph, kinds: Iterable[EdgeKind | str] = (EdgeKind.DATA, EdgeKind.ORDER)) -> Array:
    """For every node the number of edges on the longest way to it: 0 where nothing comes before.

    Nodes of one level do not depend on each other. `kinds` chooses the edges that count.
    """
    source, target = _edges(graph, kinds)
    found: Array = _finish(np.ones(len(graph), np.int64), source, target) - 1
    return found.astype(np.int32)


def longest_path(
    graph: Graph,
    weight: str | Array | None = None,
    *,
    kinds: Iterable[EdgeKind | str] = (EdgeKind.DATA, EdgeKind.ORDER),
) -> tuple[list[int], int | float]:
    """The heaviest chain of dependent nodes: their ids in order, and its length.

    Without `weight` the length is counted in edges, as `levels` does. "time_ns" (or another node column) and an array
    with one number per node sum the numbers of the nodes on the way; a node whose time is unknown adds nothing, so
    that the length is then "at least". Of equal chains, the one through the lowest ids from its end on is taken.
    """
    if not len(graph):
        return [], 0
    weights = _weights(graph, weight)
    source, target = _edges(graph, kinds)
    finish = _finish(weights, source, target)
    before = _before(weights, source, target, finish)
    node = int(finish.argmax())
    length = finish[node].item()
    path = [node]
    while (node := before[node]) >= 0:
        path.append(node)
    return path[::-1], length - 1 if weight is None else length


def _edges(graph: Graph, kinds: Iterable[EdgeKind | str]) -> tuple[Array, Array]:
    """Sources and targets of the edges of these kinds."""
    chosen = {EDGE_KINDS.index(EdgeKind(kind)) for kind in kinds}
    columns = graph.columns
    if len(chosen) == len(EDGE_KINDS):
        return columns["edge_source"], columns["edge_target"]
    keep = np.isin(columns["edge_kind"], list(chosen))
    return columns["edge_source"][keep], columns["edge_target"][keep]


def _weights(graph: Graph, weight: str | Array | None) -> Array:
    """One number per node, none negative; whole numbers as int64, others as float64."""
    if weight is None:
        return np.ones(len(graph), np.int64)
    if isinstance(weight, str):
        column = graph.columns.get(f"node_{weight}")
        if column is None or not (column >= 0).any():
            known = [name[5:] for name in graph.columns if name.startswith("node_") and name.endswith(("_ns", "_bytes"))]
            raise NotAvailableError(f"No node of this graph has a {weight!r}; columns of numbers: {', '.join(known)}.")
        return np.maximum(column, 0).astype(np.int64)
    given = np.asarray(weight)
    if given.shape != (len(graph),) or given.dtype.kind not in "biuf":
        raise InvalidInputError(f"weight needs {len(graph)} numbers, one per node; got {given.dtype} {given.shape}.")
    if not np.isfinite(given).all() or (given < 0).any():
        raise InvalidInputError("weight holds a negative or infinite number; the longest path is defined without.")
    return given.astype(np.float64 if given.dtype.kind == "f" else np.int64)


def _before(weights: Array, source: Array, target: Array, finish: Array) -> list[int]:
    """For every node the lowest one whose end it waits for; -1 where a path may begin."""
    tight = np.flatnonzero(finish[source] + weights[target] == finish[target])
    lowest = np.full(len(weights), len(weights), np.int64)
    np.minimum.at(lowest, target[tight], source[tight].astype(np.int64))
    lowest[lowest == len(weights)] = -1
    return lowest.tolist()  # type: ignore[no-any-return]


# -- the sweep -------------------------------------------------------------------------------------------------------


def _finish(weights: Array, source: Array, target: Array) -> Array:
    """Per node the weight of the heaviest path that ends with it."""
    if weights.dtype.kind == "i" and len(source) >= _SMALL:
        linked = np.zeros(len(weights), bool)
        linked[target[source == target - 1]] = True
        run = np.cumsum(~linked, dtype=np.int32)
        outside = np.flatnonzero(run[source] != run[target])
        if len(outside) < 0.7 * len(source):
            return _finish_folded(weights, linked, source[outside], target[outside])
    return _sweep(weights, source, target, weights[target])


def _finish_folded(weights: Array, linked: Array, source: Array, target: Array) -> Array:
    """The same, by way of a smaller graph. `linked` nodes have an edge from the node just before them.

    In a run of linked nodes each ends after all the earlier ones, so edges inside it say nothing new (the caller has
    left them out), and only nodes with an edge to another run need to be looked at one by one.
    """
    keep = ~linked
    keep[source] = True
    keep[target] = True
    kept = np.flatnonzero(keep)
    small = np.cumsum(keep, dtype=np.int64) - 1  # old id -> new id of the nearest kept node at or before it
    total = np.cumsum(weights)
    later = np.flatnonzero(linked[kept])  # kept nodes inside a run: joined to the kept node before
    ends = [np.append(later - 1, small[source]), np.append(later, small[target])]
    cost = np.append(total[kept[later]] - total[kept[later - 1]], weights[target])
    finish = _sweep(weights[kept], *ends, cost)
    return finish[small] + total - total[kept][small]  # type: ignore[no-any-return]


def _sweep(weights: Array, source: Array, target: Array, cost: Array) -> Array:
    """finish[t] = max(weights[t], finish[s] + cost of the edge), for all edges s -> t."""
    finish = weights.copy()
    if not len(source):
        return finish
    if len(source) >= _SMALL and _width(source, target, len(weights)) >= _WIDE:
        order = np.argsort(source, kind="stable")
        source, target, cost = source[order], target[order], cost[order]
        rest = _by_level(finish, source, target, cost)
        source, target, cost = source[rest], target[rest], cost[rest]
    elif (target[1:] < target[:-1]).any():
        order = np.argsort(target, kind="stable")
        source, target, cost = source[order], target[order], cost[order]
    return _by_edge(finish, source, target, cost) if len(source) else finish


def _width(source: Array, target: Array, nodes: int) -> float:
    """Nodes per level, guessed from one window of the graph: its own levels, counted by the plain loop."""
    size = max(nodes // 100, 1000)
    first = nodes // 2
    inside = (source >= first) & (target < first + size)
    near = np.flatnonzero(inside)
    near = near[np.argsort(target[near], kind="stable")]
    ones = np.ones(size, np.int64)
    depth = _by_edge(ones, source[near] - first, target[near] - first, np.ones(len(near), np.int64)).max()
    return float(size / depth)


def _by_edge(finish: Array, source: Array, target: Array, cost: Array) -> Array:
    """One edge after the other; every edge into a node comes before all that leave it."""
    found = finish.tolist()
    if (cost == cost[:1]).all():  # the common case, and one list less to walk
        step = cost[0].item() if len(cost) else 0
        for s, t in zip(source.tolist(), target.tolist(), strict=True):
            end = found[s] + step
            if end > found[t]:
                found[t] = end
    else:
        for s, t, step in zip(source.tolist(), target.tolist(), cost.tolist(), strict=True):
            end = found[s] + step
            if end > found[t]:
                found[t] = end
    return np.array(found, finish.dtype)


def _by_level(finish: Array, source: Array, target: Array, cost: Array) -> Array:
    """All nodes whose predecessors are done, at once, and again; fills `finish`.

    Edges are sorted by source. Returns the positions of edges that are left when levels turn out too narrow for this.
    """
    nodes = len(finish)
    count = np.bincount(source, minlength=nodes)
    begin = np.cumsum(count) - count
    waits = np.bincount(target, minlength=nodes)
    ready = np.flatnonzero(waits == 0)
    allowed, seen, done = nodes // _WIDE + 10, 0, np.zeros(nodes, bool)
    while len(ready):
        seen += 1
        if seen > allowed:
            return np.flatnonzero(~done[source])
        done[ready] = True
        ready = ready[count[ready] > 0]
        many = count[ready]
        last = np.cumsum(many)
        edges = np.repeat(begin[ready] - last + many, many) + np.arange(last[-1] if len(last) else 0)
        reached = target[edges]
        np.maximum.at(finish, reached, np.repeat(finish[ready], many) + cost[edges])
        np.subtract.at(waits, reached, 1)
        reached = reached[waits[reached] == 0]
        ready = np.unique(reached)
    return np.zeros(0, np.int64)
