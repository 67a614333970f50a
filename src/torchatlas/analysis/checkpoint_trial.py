"""A training step and the modules that are checkpointed in it -> its peak; one more or one fewer costs log n steps.

Live bytes after each node are the sum of all changes up to it. A tree of sums holds the changes; its root knows the
largest sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from torchatlas.analysis.checkpoint_candidates import Candidate, TrainingStep
from torchatlas.graph.columns import Array

_NONE = -(2**62)  # less than any live bytes


class Trial:
    """A step with some candidates checkpointed."""

    def __init__(self, step: TrainingStep, chosen: Iterable[Candidate] = ()) -> None:
        self.step, self.chosen, self.key = step, set[Candidate](), 0  # equal sets have equal keys
        self._size: list[int] = step.storages.bytes.tolist()
        self._plain_end: list[int] = step.storages.end.tolist()
        self._end = self._plain_end.copy()
        self._original_end: dict[int, int] = {}  # of storages that are made twice
        self._held_until: dict[int, list[int]] = {}  # storages that are arguments of candidates
        self._again: dict[int, list[int]] = {}  # per node before which forward runs again, what that adds to live bytes
        self._leaves = 1 << (len(step.live) - 1).bit_length()
        self._sum, self._most = _tree(np.diff(step.live, prepend=0), self._leaves)
        self._most_again = [_NONE] * len(self._sum)
        self.choose(chosen)

    def peak(self) -> int:
        return max(self._most[1], self._most_again[1])

    def peak_node(self) -> int:
        """The node of the peak, or the one before which a module that runs again reaches it. Of equal peaks the first
        node counts; of modules that run again the last, which is the first module of the model."""
        again = self._most_again[1] > self._most[1]
        most, at = self._most_again if again else self._most, 1
        while at < self._leaves:
            left, right = most[2 * at], self._sum[2 * at] + most[2 * at + 1]
            at = 2 * at + int(right > left or (again and right == left))
        return at - self._leaves

    def choose(self, chosen: Iterable[Candidate]) -> None:
        """Checkpoint exactly these."""
        wanted = set(chosen)
        for one in self.chosen - wanted:
            self.remove(one)
        for one in wanted - self.chosen:
            self.add(one)

    def add(self, one: Candidate) -> None:
        self.chosen.add(one)
        for storage, end in zip(one.copied.tolist(), one.original_end.tolist(), strict=True):
            self._original_end[storage] = end
        for storage in one.arguments.tolist():
            self._held_until.setdefault(storage, []).append(one.backward_end)
        self._again.setdefault(one.resume, []).append(self._added_again(one))
        self._change(one, 1)

    def remove(self, one: Candidate) -> None:
        self.chosen.remove(one)
        for storage in one.copied.tolist():
            del self._original_end[storage]
        for storage in one.arguments.tolist():
            self._held_until[storage].remove(one.backward_end)
        self._again[one.resume].remove(self._added_again(one))
        self._change(one, -1)

    def _added_again(self, one: Candidate) -> int:
        copied = int(self.step.storages.bytes[one.copied].sum())
        return one.recompute_bytes - copied - int(self.step.born_bytes[one.resume])

    def _change(self, one: Candidate, sign: int) -> None:
        self.key ^= hash((one.first, one.last))
        changes = Counter[int]({one.resume: 0})
        copied = one.copied.tolist()
        for storage in copied:  # the second copies
            changes[one.resume] += sign * self._size[storage]
            changes[self._plain_end[storage] + 1] -= sign * self._size[storage]
        for storage in (*copied, *one.arguments.tolist()):
            own = self._original_end.get(storage, self._plain_end[storage])
            end = max([own, *self._held_until.get(storage, ())])
            changes[self._end[storage] + 1] += self._size[storage]
            changes[end + 1] -= self._size[storage]
            self._end[storage] = end
        self._update(changes)

    def _update(self, changes: Counter[int]) -> None:
        total, most, again = self._sum, self._most, self._most_again
        above = set[int]()
        for node, change in changes.items():
            if node < len(self.step.live):
                leaf = self._leaves + node
                total[leaf] += change
                most[leaf] = total[leaf]
                again[leaf] = total[leaf] + max(self._again.get(node, ()), default=_NONE)
                above.add(leaf >> 1)
        while above and 0 not in above:
            for at in above:
                left, right, before = 2 * at, 2 * at + 1, total[2 * at]
                total[at] = before + total[right]
                most[at] = max(most[left], before + most[right])
                again[at] = max(again[left], before + again[right])
            above = {at >> 1 for at in above}


def _tree(changes: Array, leaves: int) -> tuple[list[int], list[int]]:
    """Sums of changes, and the most that the sum up to some node reaches, for all nodes of a binary tree."""
    total, most = np.zeros(2 * leaves, np.int64), np.full(2 * leaves, _NONE, np.int64)
    total[leaves : leaves + len(changes)] = most[leaves : leaves + len(changes)] = changes
    below = leaves
    while below > 1:
        left, right = slice(below, 2 * below, 2), slice(below + 1, 2 * below, 2)
        total[below // 2 : below] = total[left] + total[right]
        most[below // 2 : below] = np.maximum(most[left], total[left] + most[right])
        below //= 2
    return total.tolist(), most.tolist()
