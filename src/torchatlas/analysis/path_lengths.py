"""The heaviest path to every node of a graph whose edges lead from lower to higher numbers, and what is critical.

All of it is one recurrence, `finish[t] = max(finish[s]) + weight[t]`. How it is computed depends on the shape: chains
are folded into one node, wide graphs are computed a block at a time with numpy, deep and narrow ones an edge at a time.
The choice changes the time that takes, never the answer.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any

import numpy as np

from torchatlas.graph.columns import Array

_BLOCK = 16  # nodes per block from which numpy is quicker than the plain loop; measured


def finish_times(weights: Array, source: Array, target: Array) -> Array:
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
    """Sort the edges by target: both ends in one number, which numpy sorts several times faster than an index."""
    both = np.sort((target.astype(np.int64) << 32) | source)
    return (both & 0xFFFFFFFF).astype(np.int32), (both >> 32).astype(np.int32)


def _folded(weights: Array, linked: Array, source: Array, target: Array) -> Array:
    """`finish_times` of a smaller graph. `linked` nodes have an edge from the node just before them.

    In a chain of linked nodes each ends after all the earlier ones. So edges inside a chain add nothing (the caller
    has left them out), and only the first node of a chain and those with an edge to another chain are computed.
    """
    computed = ~linked
    computed[source] = True
    computed[target] = True
    computed_nodes = np.flatnonzero(computed)
    small = np.cumsum(computed, dtype=np.int32) - 1  # old id -> new id of the nearest computed node at or before it
    total = np.cumsum(weights)
    joined = np.flatnonzero(linked[computed_nodes])  # those inside a chain, each joined to the one before it
    starts, ends = np.append(joined - 1, small[source]), np.append(joined, small[target])
    cost = np.append(total[computed_nodes[joined]] - total[computed_nodes[joined - 1]], weights[target])
    order = np.argsort(ends, kind="stable")
    finish = _edge_by_edge(weights[computed_nodes], starts[order], ends[order], cost[order])
    return (finish - total[computed_nodes])[small] + total  # type: ignore[no-any-return]


def _edge_by_edge(weights: Array, source: Array, target: Array, cost: Array) -> Array:
    """finish[t] = max(weights[t], finish[s] + cost of the edge). Edges are sorted by target."""
    finish = weights.tolist()
    for s, t, step in zip(_plain(source), _plain(target), _plain(cost), strict=True):
        end = finish[s] + step
        if end > finish[t]:
            finish[t] = end
    return np.fromiter(finish, weights.dtype, len(finish))


def _node_by_node(weights: Array, source: Array, target: Array) -> Array:
    """`_edge_by_edge` for whole numbers, where the cost of an edge is the weight of its target.

    It reads one list, of each node's predecessors and then ~weight, which is negative: that takes a quarter less time
    than reading two or three.
    """
    walk = np.empty(len(source) + len(weights), np.int64)
    position = np.arange(len(source)) + target
    walk[position] = source
    marks = np.ones(len(walk), bool)
    marks[position] = False
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
    """Where to cut the nodes that have predecessors so that no edge lies inside a block; None when blocks are small.

    `starts` are the positions of the first edge into each of those nodes; cuts are positions in `starts`.
    """
    latest = np.maximum.reduceat(source, starts)
    count = len(starts)
    first = np.full(nodes, count, np.int64)  # the first of them whose latest predecessor is this node ...
    first[latest[::-1]] = np.arange(count)[::-1]
    first = np.minimum.accumulate(first[::-1])[::-1]  # ... or any later node
    after = first[target[starts]]  # if a block begins here, the next one must begin there
    cuts, most = [0], count // _BLOCK + 2
    while cuts[-1] < count:
        if len(cuts) > most:
            return None
        cuts.append(int(after[cuts[-1]]))
    return cuts


def _block_by_block(weights: Array, source: Array, target: Array, starts: Array, cuts: list[int]) -> Array:
    """`_edge_by_edge` with all nodes between two cuts at once."""
    finish = weights.copy()
    heads = target[starts]
    edges = [*starts[cuts[:-1]].tolist(), len(source)]
    for block, (begin, end) in enumerate(pairwise(cuts)):
        low, high = edges[block], edges[block + 1]
        latest = np.maximum.reduceat(finish[source[low:high]], starts[begin:end] - low)
        finish[heads[begin:end]] += latest
    return finish


def heaviest_path(weights: Array, source: Array, target: Array) -> tuple[list[int], Array]:
    """The nodes of the heaviest path in order, and `finish_times`. Of equal paths, the one whose edges come first."""
    finish = finish_times(weights, source, target)
    if not len(weights):
        return [], finish
    tight = np.flatnonzero(finish[source] + weights[target] == finish[target])[::-1]
    before = np.full(len(weights), -1, np.int32)  # the predecessor that each node waits for
    before[target[tight]] = source[tight]  # the last assignment stays: that of the first edge, as they are reversed
    waited, node, path = _plain(before), int(finish.argmax()), list[int]()
    while node >= 0:
        path.append(node)
        node = waited[node]
    return path[::-1], finish


def slack_and_remaining(weights: Array, source: Array, target: Array, finish: Array) -> tuple[Array, Array]:
    """Per node how much later it could end without making the whole longer, and the heaviest path from it on."""
    last = len(weights) - 1
    remaining = finish_times(weights[::-1].copy(), last - target[::-1], last - source[::-1])[::-1]
    return np.maximum(finish.max(initial=0) - finish - remaining + weights, 0), remaining


def _plain(column: Array) -> array[Any]:
    """The numbers of a column, to be read one by one from Python: quicker than a list, which makes them all at once."""
    return array(column.dtype.char, column.tobytes())
