"""The cost of stages -> the cuts whose most expensive stage is cheapest, in linear memory.

Places are where a stage may begin, and the end; stage (a, b) goes from place a up to place b. A layer is for one number
of stages: `best[b]` is what the dearest of them costs if the last ends at place b and they are cut as well as possible.
A measure turns one layer into the next without looking at every pair of places:

Balance  work between the places, and what handing over at either of them costs: cost(a, b) = up[b] - down[a]. Of two
         places to begin at, one that is behind in `best` and in `down` is never needed; the rest are a sorted list.
Memory   a stage inside another never needs more, so that the best place to begin only moves on as the end does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import Protocol

import numpy as np

from torchatlas.graph.columns import Array

INFINITE = float("inf")


class Measure(Protocol):
    """What stages cost."""

    def cost(self, begin: int, end: int) -> float:
        """The cost of one stage, allowed or not."""

    def column(self, end: int) -> Array:
        """The cost of the stages that begin at each place before `end`, and end there; of forbidden ones infinite."""

    def extended(self, best: list[float]) -> list[float]:
        """The next layer, for one stage more than `best` is for."""


def best_cuts(measure: Measure, places: int, stages: int) -> list[int] | None:
    """The places 0 = c0 < c1 < ... < ck = the last of them, at which to cut; None if the measure forbids all."""
    layers = [[-INFINITE] + [INFINITE] * (places - 1)]  # without a stage, only the beginning is reached
    for _ in range(stages):
        layers.append(measure.extended(layers[-1]))
    if layers.pop()[-1] == INFINITE:
        return None
    cuts = [places - 1]
    while layers:  # of equal beginnings the first, so that the stages before it are cut as well as can be, too
        end = cuts[-1]
        cuts.append(int(np.maximum(layers.pop()[:end], measure.column(end)).argmin()))
    return cuts[::-1]


class Balance:
    """Work, and what handing over adds. `earliest[b]`: the first place where a stage that ends at b may begin."""

    def __init__(self, total: Array, crossing: Array, earliest: list[int] | None = None) -> None:
        self.total, self.crossing = total, crossing
        self.earliest = [0] * len(total) if earliest is None else earliest
        self._up, self._down = (total + crossing).tolist(), (total - crossing).tolist()

    def cost(self, begin: int, end: int) -> float:
        return float(self.total[end] - self.total[begin] + self.crossing[begin] + self.crossing[end])

    def column(self, end: int) -> Array:
        costs: Array = self.total[end] - self.total[:end] + self.crossing[:end] + self.crossing[end]
        costs[: self.earliest[end]] = INFINITE
        return costs

    def extended(self, best: list[float]) -> list[float]:
        """A stage may begin from `earliest[end]` up to `end`; both bounds only move forward. Around a pivot between
        them, the right part of this range grows as the end goes up, the left part as it comes down again."""
        up, down, earliest, last = self._up, self._down, self.earliest, len(best) - 1
        layer, pivot = [INFINITE] * len(best), 0
        while pivot < last:
            right, end = _Front(), pivot
            while end < last and earliest[end + 1] <= pivot:
                right.add(best[end], down[end])
                end += 1
                layer[end] = right.least(up[end])
            left, begin = _Front(), pivot
            for place in range(end, pivot, -1):
                while begin > earliest[place]:
                    begin -= 1
                    left.add(best[begin], down[begin])
                layer[place] = min(layer[place], left.least(up[place]))
            pivot = max(end, pivot + 1)
        return layer


class _Front:
    """The Pareto front of beginnings: none is better than another both in `best` and in `down`."""

    def __init__(self) -> None:
        self._best: list[float] = []  # both grow along the list
        self._down: list[float] = []
        self._meets: list[float] = []  # their sum: how far `up` must be for the last stage to be the dearest

    def add(self, best: float, down: float) -> None:
        at = bisect_right(self._best, best)
        if best == INFINITE or (at and self._down[at - 1] >= down):
            return
        if at and self._best[at - 1] == best:
            at -= 1
        end = bisect_right(self._down, down, at)
        self._best[at:end] = [best]
        self._down[at:end] = [down]
        self._meets[at:end] = [best + down]

    def least(self, up: float) -> float:
        """What the dearest stage costs if the last one ends at a place with this `up` and begins at the best place."""
        at = bisect_left(self._meets, up)
        before = up - self._down[at - 1] if at else INFINITE
        return min(before, max(self._best[at], up - self._down[at])) if at < len(self._best) else before


class Memory:
    """Bytes that a stage holds: its weights once, and the most of anything else that is alive at once.

    `alive` is the latter, from each place up to the next; `reads` has a row (place before it, weight) per read of one.
    """

    def __init__(self, alive: Array, reads: Array, weight_bytes: Array) -> None:
        self.alive = alive
        pairs = np.unique(reads[:, ::-1], axis=0)  # sorted by weight, then by place
        same = pairs[1:, 0] == pairs[:-1, 0]
        previous, following = np.full(len(pairs), -1, np.int64), np.full(len(pairs), len(alive), np.int64)
        previous[1:][same], following[:-1][same] = pairs[:-1, 1][same], pairs[1:, 1][same]
        self._place, self._bytes, self._following = pairs[:, 1], weight_bytes[pairs[:, 0]], following
        self.read: list[list[tuple[int, int, int]]] = [[] for _ in range(len(alive))]
        rows = (column.tolist() for column in (self._place, self._bytes, previous, following))
        for place, size, before, after in zip(*rows, strict=True):
            self.read[place].append((size, before, after))

    def cost(self, begin: int, end: int) -> int:
        return int(self.column(end)[begin])

    def column(self, end: int) -> Array:
        peak = np.maximum.accumulate(self.alive[:end][::-1])
        last = (self._place < end) & (self._following >= end)  # a weight counts where it is read last
        weights = np.zeros(end, np.int64)
        np.add.at(weights, self._place[last], self._bytes[last])
        return (peak + np.cumsum(weights[::-1]))[::-1]

    def extended(self, best: list[float]) -> list[float]:
        """The later a stage begins, the dearer are those before it and the less it holds: best where the two meet."""
        layer, first = [INFINITE] * len(best), next(at for at, cost in enumerate(best) if cost < INFINITE)
        met, before = _Window(self, first), _Window(self, first)  # `before` begins one place earlier, if it can
        for end in range(first + 1, len(best)):
            met.grow()
            before.grow()
            while met.begin < end and best[met.begin] < met.bytes:
                met.shrink()
            while before.begin < met.begin - 1:
                before.shrink()
            layer[end] = best[met.begin] if met.begin < end else INFINITE
            if before.begin < met.begin:
                layer[end] = min(layer[end], before.bytes)
        return layer

    def earliest(self, limit: int) -> list[int]:
        """Per place where a stage ends the first place where it may begin and hold at most `limit` bytes."""
        beginnings, window = [0], _Window(self, 0)
        for _ in range(len(self.alive)):
            window.grow()
            while window.bytes > limit:
                window.shrink()
            beginnings.append(window.begin)
        return beginnings


class _Window:
    """A stage whose two ends only move forward, and the bytes that it holds."""

    def __init__(self, memory: Memory, begin: int) -> None:
        self._alive, self._read = memory.alive.tolist(), memory.read
        self.begin = self.end = begin
        self._weights = 0
        self._peaks: deque[int] = deque()  # places, each with fewer bytes alive than the one before

    @property
    def bytes(self) -> int:
        return self._weights + (self._alive[self._peaks[0]] if self._peaks else 0)

    def grow(self) -> None:
        for size, before, _ in self._read[self.end]:
            self._weights += size if before < self.begin else 0
        while self._peaks and self._alive[self._peaks[-1]] <= self._alive[self.end]:
            self._peaks.pop()
        self._peaks.append(self.end)
        self.end += 1

    def shrink(self) -> None:
        for size, _, after in self._read[self.begin]:
            self._weights -= size if after >= self.end else 0
        if self._peaks[0] == self.begin:
            self._peaks.popleft()
        self.begin += 1
