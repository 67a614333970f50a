"""The heaviest path to every node of a graph whose edges lead from lower to higher numbers, and what is critical.

All of it is one recurrence, `finish[t] = max(finish[s]) + weight[t]`, computed an edge at a time.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from torchatlas.graph.columns import Array


def finish_times(weights: Array, source: Array, target: Array) -> Array:
    """Per node the weight of the heaviest path that ends with it."""
    if (target[1:] < target[:-1]).any():
        source, target = _by_target(source, target)
    finish = weights.tolist()
    for s, t, weight in zip(_plain(source), _plain(target), _plain(weights[target]), strict=True):
        end = finish[s] + weight
        if end > finish[t]:
            finish[t] = end
    return np.fromiter(finish, weights.dtype, len(finish))


def _by_target(source: Array, target: Array) -> tuple[Array, Array]:
    """Sort the edges by target: both ends in one number, which numpy sorts several times faster than an index."""
    both = np.sort((target.astype(np.int64) << 32) | source)
    return (both & 0xFFFFFFFF).astype(np.int32), (both >> 32).astype(np.int32)


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
