"""Freeing deep graphs that Python has looked at.

torch frees a graph without recursion, unless Python has touched its nodes: then each node frees the next one inside of
its own destructor, and at 50,000 nodes in a row the stack is gone. So whoever walks a deep graph, or records a backward
pass through it (each op asks which node runs), cuts it into slabs by depth. The nodes of a slab are held by those
before it that lead into it: when the last of these is freed, recursion ends there, and the slab is let go of a little
later, from its beginning to its end, each node alone. Whatever part of a graph lives on, as the program may hold a
tensor in the middle of it, keeps what is behind it safe as well.
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import os
import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

_DEEP = 2_000  # nodes in a row that can be freed by recursion on the smallest of stacks
_MAYBE_DEEP = 10_000  # nodes of which a graph can consist at the most before it is walked
_OF_LEAVES = 1 << 62  # the nodes of leaves have a larger number
_KEY = "torchatlas keeps what is behind this node"
_PATIENCE = 0.05  # seconds that the destructor of a node has to finish


class DeepPasses:
    """Told of the backward passes of one thread; makes a graph that may be deep safe to free before its pass runs.

    Sequence numbers bound the size of a graph without a walk: nodes are numbered as they are made, and those from
    before a pass that kept nothing are in no later graph.
    """

    def __init__(self) -> None:
        self._first = 0  # the number of the first node that a graph can have

    def begins(self, roots: list[Any], keeps_graph: bool) -> None:
        numbers = [number for root in roots if (number := root._sequence_nr()) < _OF_LEAVES]
        if not numbers:
            return
        if max(numbers) - self._first > _MAYBE_DEEP:
            nodes_behind(roots)  # counts them, and makes them safe if they are many
        if not keeps_graph:
            self._first = max(self._first, *numbers)


Edges = tuple[tuple[Any, int], ...]  # `next_functions` of a node: other nodes or None, and which of their inputs


def edges_behind(roots: Iterable[Any]) -> tuple[dict[Any, Edges], dict[Any, int]]:
    """All nodes of autograd behind some roots, which come first, with their edges; and how many edges lead to each.

    A caller that keeps a node of a large graph beyond this call has to call `make_safe` as well.
    """
    following: dict[Any, Edges] = {}
    incoming: dict[Any, int] = dict.fromkeys(roots, 0)
    reached = list(incoming)
    for node in reached:
        following[node] = edges = node.next_functions
        for target, _ in edges:
            if target is None:
                continue
            if target in incoming:
                incoming[target] += 1
            else:
                incoming[target] = 1
                reached.append(target)
    return following, incoming


def nodes_behind(roots: Iterable[Any]) -> dict[Any, Edges]:
    """All nodes of autograd behind some roots, which come first, with their edges. The graph can still be freed."""
    roots = list(roots)
    following, _ = edges_behind(roots)
    if len(following) > _MAYBE_DEEP:
        make_safe(roots)
    return following


def make_safe(roots: list[Any]) -> None:
    """Walk the graph behind some roots, each node after those that lead to it, and make it safe to free."""
    following, waiting = edges_behind(roots)
    order = [node for node in following if not waiting[node]]
    source, came = list[int](), list[Any]()
    for position, node in enumerate(order):
        for target, _ in following[node]:
            if target is None:
                continue
            source.append(position)
            came.append(target)
            waiting[target] -= 1
            if not waiting[target]:
                order.append(target)
    number = {node: position for position, node in enumerate(order)}
    keep_until_freed(roots, order, source, [number[target] for target in came])


def keep_until_freed(roots: Iterable[Any], nodes: list[Any], source: list[int], target: list[int]) -> None:
    """Make a graph safe to free. Nodes come before those that they lead to, and edges in the order of their sources."""
    if len(nodes) <= _DEEP or all(_KEY in root.metadata for root in roots):
        return
    depth = [0] * len(nodes)
    for one, other in zip(source, target, strict=True):
        if depth[other] <= depth[one]:
            depth[other] = depth[one] + 1
    if max(depth) < _DEEP:
        return
    come, to = np.array(source), np.array(target)
    slab = np.array(depth) // _DEEP
    slab[np.bincount(come, minlength=len(nodes)) == 0] = 0  # leaves free no other node
    order = np.argsort(slab, kind="stable")
    inside = np.split(order, np.searchsorted(slab[order], np.arange(1, slab.max() + 1)))
    slabs = [
        _Slab([nodes[at] for at in positions.tolist()]) if number else None for number, positions in enumerate(inside)
    ]
    for edge in np.flatnonzero(slab[to] > slab[come]).tolist():
        # The dictionary of a node's metadata dies with the node, and what is in it as well.
        nodes[source[edge]].metadata.setdefault(_KEY, []).append(slabs[slab[target[edge]]])
    for root in roots:
        root.metadata.setdefault(_KEY, [])


class _Slab:
    """The nodes of a slab, the last first: a list frees its items from the end."""

    def __init__(self, nodes: list[Any]) -> None:
        self.nodes = nodes[::-1]

    def __del__(self) -> None:
        """A node is being destroyed, and still holds what follows it: let go when that is over."""
        nodes, self.nodes = self.nodes, []
        if _ending or sys.is_finalizing():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(nodes))  # the process ends: it is never freed
            return
        _waiting.append((_thread.get_ident(), nodes))
        if _at_work.acquire(blocking=False):
            # A plain thread, whose start is not waited for: waiting would let it run now, inside of the destructor.
            _thread.start_new_thread(_let_go, ())


_waiting: deque[tuple[int, list[Any]]] = deque()  # by the threads whose destructors found them
_at_work = _thread.allocate_lock()
_ending = False


def _let_go() -> None:
    here = _thread.get_ident()
    while True:
        while _waiting:
            thread, nodes = _waiting.popleft()
            if thread != here:  # else it was found here, and that destructor is over
                time.sleep(_PATIENCE)
            nodes.clear()
        _at_work.release()
        if not _waiting or not _at_work.acquire(blocking=False):  # nodes may have come before it was released
            return


@atexit.register
def _wait() -> None:
    """At the end of the process, wait for the thread that frees nodes: stopped in the middle, it would crash."""
    global _ending
    _ending = True
    _at_work.acquire()


def _anew() -> None:
    """After a fork: the thread that frees nodes is not in the new process, so its lock is made anew."""
    global _at_work
    _at_work = _thread.allocate_lock()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_anew)
