"""Which node is next: those that have all their gradients, the youngest first. Mirrors ReadyQueue of engine.h."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torchatlas.autograd.engine.buffer import InputBuffer


class NodeTask(NamedTuple):
    """A node with all that came for it."""

    node: Any
    buffer: InputBuffer
    sequence_nr: int


class ReadyQueue:
    """A heap of tasks, the highest sequence number on top.

    A node's number says when its forward op ran, so backward undoes the forward pass from its end. AccumulateGrad has
    the highest number there is, 2**64 - 1: it runs as soon as it can, which frees its gradient buffer early and lets
    what waits for finished gradients (DDP's communication, an optimizer in a hook) begin.

    Numbers can be equal: all AccumulateGrads have the same one. Which of them then comes first is not the one that was
    pushed first; it follows from how the heap moves its items. So this is std::push_heap and std::pop_heap of libstdc++
    to the letter: Python's heapq sifts in another way, and would take the eight leaves of an nn.LSTM in another order.

    torch has one such queue for the thread that calls backward and one for each device; here there is one for all.
    """

    def __init__(self) -> None:
        self._heap: list[NodeTask] = []

    def __len__(self) -> int:
        """How many tasks wait."""
        return len(self._heap)

    def __iter__(self) -> Iterator[Any]:
        """The nodes in it, in the order in which they would leave it if no more came."""
        rest = ReadyQueue()
        rest._heap = list(self._heap)
        while rest:
            yield rest.pop().node

    def push(self, task: NodeTask) -> None:
        """Add a task whose node has all its gradients.

        Args:
            task: The task.
        """
        self._heap.append(task)
        self._rise(len(self._heap) - 1, task)

    def pop(self) -> NodeTask:
        """Take the task on top."""
        heap = self._heap
        first, moved = heap[0], heap.pop()
        if not heap:
            return first
        # Walk the hole at the top down to a leaf, always to the larger child, to the right one of two equal ones. Then
        # put the last item there and let it rise.
        hole, size = 0, len(heap)
        while (right := 2 * hole + 2) < size:
            child = right - 1 if heap[right].sequence_nr < heap[right - 1].sequence_nr else right
            heap[hole] = heap[child]
            hole = child
        if right == size:  # a left child only
            heap[hole] = heap[right - 1]
            hole = right - 1
        self._rise(hole, moved)
        return first

    def _rise(self, hole: int, task: NodeTask) -> None:
        heap = self._heap
        while hole and heap[(hole - 1) // 2].sequence_nr < task.sequence_nr:  # an equal one stays above
            heap[hole] = heap[(hole - 1) // 2]
            hole = (hole - 1) // 2
        heap[hole] = task
