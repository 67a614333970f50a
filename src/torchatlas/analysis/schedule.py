"""Graph -> when each node could run at the earliest (levels), and the chain that nothing can shorten (longest path).

Nodes are in execution order, so every edge leads from a lower id to a higher one: no sorting of nodes, no search for
cycles. What remains is one sweep, `finish[t] = max(finish[s]) + weight[t]`, done in the way that suits the shape:
nodes that follow one another are folded into one, wide graphs are swept a block at a time with numpy, deep and narrow
ones an edge at a time. The choice changes the time it takes, never the answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from torchatlas.errors import InvalidInputError, NotAvailableError
from torchatlas.graph import EdgeKind, Graph
from torchatlas.graph.columns import EDGE_KINDS, Array

_BLOCK = 16  # nodes per block from which numpy is quicker than the plain loop; measured


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
    that the length is then "at least". Of equal chains, the one whose edges come first in the graph is taken.
    """
    if not len(graph):
        return [], 0
    weights = _weights(graph, weight)
    source, target = _edges(graph, kinds)
    finish = _finish(weights, source, target)
    before = _before(weights, source, target, finish)
    node = int(finish.argmax())
    length = finish[node].item()
    path = []
    while node >= 0:
        path.append(node)
        node = before[node]
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
            known = [
                name[5:] for name in graph.columns if name.startswith("node_") and name.endswith(("_ns", "_bytes"))
            ]
            raise NotAvailableError(f"No node of this graph has a {weight!r}; columns of numbers: {', '.join(known)}.")
        return np.maximum(column, 0).astype(np.int64)
    given = np.asarray(weight)
    if given.shape != (len(graph),) or given.dtype.kind not in "biuf":
        raise InvalidInputError(f"weight needs {len(graph)} numbers, one per node; got {given.dtype} {given.shape}.")
    if not np.isfinite(given).all() or (given < 0).any():
        raise InvalidInputError("weight holds a negative or infinite number; the longest path is defined without.")
    return given.astype(np.float64 if given.dtype.kind == "f" else np.int64)


def _before(weights: Array, source: Array, target: Array, finish: Array) -> array[int]:
    """For every node one whose end it waits for; -1 where a path may begin."""
    tight = np.flatnonzero(finish[source] + weights[target] == finish[target])[::-1]
    found = np.full(len(weights), -1, np.int32)
    found[target[tight]] = source[tight]  # of several, the last assignment stays: the first edge, as they are reversed
    return _plain(found)


def _plain(column: Array) -> array[Any]:
    """The same numbers to be read one by one from Python: quicker than through a list, which makes them all at once."""
    return array(column.dtype.char, column.tobytes())


# -- the sweep -------------------------------------------------------------------------------------------------------


def _finish(weights: Array, source: Array, target: Array) -> Array:
    """Per node the weight of the heaviest path that ends with it."""
    if not len(source):
        return weights
    distance = target - source
    if weights.dtype.kind == "i" and np.count_nonzero(distance == 1) > 0.3 * len(source):
        # Only whole numbers: folding adds in another order, which floating point would notice.
        linked = np.zeros(len(weights), bool)
        linked[target[distance == 1]] = True
        run = np.cumsum(~linked, dtype=np.int32)
        outside = np.flatnonzero(run[source] != run[target])
        if len(outside) < 0.5 * len(source):
            return _folded(weights, linked, source[outside], target[outside])
    if (target[1:] < target[:-1]).any():
        source, target = _by_target(source, target)
    if np.count_nonzero(distance < _BLOCK) < 0.5 * len(source):
        starts = np.flatnonzero(np.append(True, target[1:] != target[:-1]))
        cuts = _blocks(len(weights), source, target, starts)
        if cuts is not None:
            return _block_by_block(weights, source, target, starts, cuts)
    if weights.dtype.kind == "i":
        return _node_by_node(weights, source, target)
    return _edge_by_edge(weights, source, target, weights[target])


def _by_target(source: Array, target: Array) -> tuple[Array, Array]:
    """The edges sorted by target: both ends in one number, which numpy sorts several times faster than by index."""
    both = np.sort((target.astype(np.int64) << 32) | source)
    return (both & 0xFFFFFFFF).astype(np.int32), (both >> 32).astype(np.int32)


def _folded(weights: Array, linked: Array, source: Array, target: Array) -> Array:
    """The same as `_finish`, on a smaller graph. `linked` nodes have an edge from the node just before them.

    In a run of linked nodes each ends after all the earlier ones, so edges inside a run say nothing new (the caller
    has left them out), and only nodes with an edge to another run need to be looked at one by one.
    """
    keep = ~linked
    keep[source] = True
    keep[target] = True
    kept = np.flatnonzero(keep)
    small = np.cumsum(keep, dtype=np.int32) - 1  # old id -> new id of the nearest kept node at or before it
    total = np.cumsum(weights)
    joined = np.flatnonzero(linked[kept])  # kept nodes inside a run, each joined to the kept node before it
    starts, ends = np.append(joined - 1, small[source]), np.append(joined, small[target])
    cost = np.append(total[kept[joined]] - total[kept[joined - 1]], weights[target])
    order = np.argsort(ends, kind="stable")
    finish = _edge_by_edge(weights[kept], starts[order], ends[order], cost[order])
    return (finish - total[kept])[small] + total  # type: ignore[no-any-return]


def _edge_by_edge(weights: Array, source: Array, target: Array, cost: Array) -> Array:
    """finish[t] = max(weights[t], finish[s] + cost of the edge). Edges are sorted by target."""
    finish = weights.tolist()
    for s, t, step in zip(_plain(source), _plain(target), _plain(cost), strict=True):
        end = finish[s] + step
        if end > finish[t]:
            finish[t] = end
    return np.fromiter(finish, weights.dtype, len(finish))


def _node_by_node(weights: Array, source: Array, target: Array) -> Array:
    """The same for whole numbers, where the cost of an edge is the weight of its target.

    One list is walked, of each node's predecessors and then ~weight, which is negative: a quarter less time than
    walking two or three.
    """
    walk = np.empty(len(source) + len(weights), np.int64)
    place = np.arange(len(source)) + target
    walk[place] = source
    marks = np.ones(len(walk), bool)
    marks[place] = False
    walk[marks] = ~weights
    finish: list[int] = []
    best = 0
    for entry in _plain(walk):
        if entry < 0:
            finish.append(best + ~entry)
            best = 0
        else:
            end = finish[entry]
            if end > best:
                best = end
    return np.fromiter(finish, weights.dtype, len(finish))


def _blocks(nodes: int, source: Array, target: Array, starts: Array) -> list[int] | None:
    """Where to cut the nodes that have predecessors so that no edge stays inside a piece; None when pieces are small.

    `starts` are the positions of the first edge into each of those nodes; cuts are positions in `starts`.
    """
    latest = np.maximum.reduceat(source, starts)
    count = len(starts)
    first = np.full(nodes, count, np.int64)  # the first of them whose latest predecessor is this node ...
    first[latest[::-1]] = np.arange(count)[::-1]
    first = np.minimum.accumulate(first[::-1])[::-1]  # ... or any later node
    after = first[target[starts]]  # if a piece begins here, the next one must begin there
    cuts, most = [0], count // _BLOCK + 2
    while cuts[-1] < count:
        if len(cuts) > most:
            return None
        cuts.append(int(after[cuts[-1]]))
    return cuts


def _block_by_block(weights: Array, source: Array, target: Array, starts: Array, cuts: list[int]) -> Array:
    """The same as `_edge_by_edge`, all nodes between two cuts at once."""
    finish = weights.copy()
    heads = target[starts]
    edges = [*starts[cuts[:-1]].tolist(), len(source)]
    for block, (begin, end) in enumerate(pairwise(cuts)):
        low, high = edges[block], edges[block + 1]
        latest = np.maximum.reduceat(finish[source[low:high]], starts[begin:end] - low)
        finish[heads[begin:end]] += latest
    return finish
