"""Freeing deep graphs that Python has looked at.

torch frees a graph without recursion, unless Python has touched its nodes: then each node frees the next one inside of
its own destructor, and at 50,000 nodes in a row the stack is gone. So whoever walks a large graph keeps its nodes until
the root is gone, and lets go of them from the root to the leaves: each is freed alone.
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import sys
import time
from typing import Any

LARGE = 5_000  # nodes; a shallower graph can be freed by recursion
_KEY = "torchatlas keeps what is behind this node"
_PATIENCE = 0.05  # seconds that the destructor of the root has to finish


def keep_until_freed(root: Any, nodes: list[Any]) -> None:
    """Hold the nodes behind a root as long as the root lives. `nodes` are in the order of gradients, without it."""
    # The dictionary of a node's metadata dies with the node, and what is in it as well.
    root.metadata.setdefault(_KEY, []).append(_Kept(nodes))


class _Kept:
    """Nodes, the last first: a list lets go of its items from the end."""

    def __init__(self, nodes: list[Any]) -> None:
        self.nodes = nodes[::-1]

    def __del__(self) -> None:
        """The root is being destroyed, and still holds what follows it: let go when that is over."""
        nodes, self.nodes = self.nodes, []
        if _ending or sys.is_finalizing():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(nodes))  # the process ends: nobody frees it
            return
        # A plain thread, whose beginning nobody waits for: waiting would let it run now, inside of the destructor.
        busy = _thread.allocate_lock()
        busy.acquire()
        _freeing.append(busy)
        _thread.start_new_thread(_let_go, (nodes, busy))


_freeing: list[Any] = []  # one lock for each thread that is at it
_ending = False


def _let_go(nodes: list[Any], busy: Any) -> None:
    time.sleep(_PATIENCE)
    nodes.clear()
    _freeing.remove(busy)
    busy.release()


@atexit.register
def _wait() -> None:
    """A thread that is stopped in the middle of freeing would take the process with it."""
    global _ending
    _ending = True
    for busy in list(_freeing):
        busy.acquire()
