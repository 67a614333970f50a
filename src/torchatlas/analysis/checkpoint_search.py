"""A training step and a memory limit -> the set of modules to checkpoint that recomputes least.

The search is exact where few enough sets have to be tried. Of equal blocks it takes the earliest, since what they free
stays free for longest, and tries every number of them with every number of the others. Where there are more sets,
several greedy searches compete, and `least_work` is a lower bound for all sets.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from torchatlas.analysis.checkpoint_candidates import Candidate, TrainingStep, outer_paths
from torchatlas.analysis.checkpoint_trial import Trial
from torchatlas.graph.columns import Array

MOST_SETS = 4096  # sets to try: all of them, or the most promising
LEAST_SHARE = 0.002  # kinds of modules that save less of the peak than this, all together, are not tried


class Search:
    """Looks for the set of least work whose peak is within the limit. Sets are tuples in order of execution."""

    def __init__(
        self, step: TrainingStep, limit: int, by: str, exclude: frozenset[str], refused: frozenset[str]
    ) -> None:
        self.step, self.limit, self.by = step, limit, by
        self.tried, self.exact = 0, True
        self._peaks: dict[int, int] = {}
        self._trial = Trial(step)
        around = {outer for path in exclude for outer in outer_paths(path)}
        kinds: dict[Any, list[Candidate]] = {}
        for one in step.candidates:
            inside = exclude.intersection([*outer_paths(one.path), one.path])
            if one.path not in refused and one.path not in around and not inside:
                kinds.setdefault(one.is_like(), []).append(one)
        least = LEAST_SHARE * step.peak_bytes
        self.groups = [group for group in kinds.values() if sum(one.saved_bytes for one in group) >= least]
        self.candidates = sorted((one for group in self.groups for one in group), key=lambda one: one.first)
        self._number = {one: number for number, one in enumerate(self.candidates)}
        self._works = np.array([self._work(one) for one in self.candidates], float)
        self._first = np.array([one.first for one in self.candidates], np.int64)
        self._last = np.array([one.last for one in self.candidates], np.int64)
        self._freeing = _Freeing(step, self.candidates)

    def best(self) -> tuple[Candidate, ...] | None:
        """The set to take: empty where the plain step fits; None where nothing does."""
        sizes = [len(group) + 1 for group in self.groups]
        self.exact = int(np.prod(sizes, dtype=object)) <= MOST_SETS
        if self.step.peak_bytes <= self.limit:
            self.exact = True
            return ()
        return self._cheapest() if self.exact else self._competed()

    def smallest(self) -> tuple[Candidate, ...]:
        """The set with the smallest peak and, among equals, the least work: of all sets, or of the most promising."""
        if self.exact:
            sets = self._all_sets()
            return _in_order(min(sets, key=lambda one: (self.peak(one.candidates()), one.work)).candidates())
        best: tuple[int, float, tuple[Candidate, ...]] = (self.peak(()), 0.0, ())
        for group in self.groups:
            work, count, least = 0.0, 0, best[:2]
            self._trial.choose(())
            for number, one in enumerate(group, 1):
                self._trial.add(one)
                work += self._work(one)
                if (self._predicted(), work) < least:
                    count, least = number, (self._predicted(), work)
            if count:
                best = (*least, tuple(group[:count]))
        for power in (0.0, 1.0):
            chosen = self._greedy(power, all_the_way=True)
            if chosen is not None and (self.peak(chosen), self.work(chosen)) < best[:2]:
                best = (self.peak(chosen), self.work(chosen), chosen)
        return best[2]

    def work(self, chosen: Sequence[Candidate]) -> float:
        return sum(self._work(one) for one in chosen)

    def _work(self, one: Candidate) -> float:
        return one.seconds if self.by == "time" else one.work

    def peak(self, chosen: Sequence[Candidate]) -> int:
        self._trial.choose(chosen)
        return self._predicted()

    def _predicted(self) -> int:
        """The peak of what is being tried. Sets are counted once."""
        key = self._trial.key
        if key not in self._peaks:
            self.tried += 1
            self._peaks[key] = self._trial.peak()
        return self._peaks[key]

    def _tried_enough(self) -> bool:
        return self.tried > MOST_SETS

    def _needed(self) -> tuple[Array, int]:
        """What each candidate frees at the peak of the plain step, and what a set must free there to fit at all."""
        node = int(self.step.live.argmax())
        return self._freeing.at(node), int(self.step.live[node]) - self.limit

    # -- all sets ------------------------------------------------------------------------------------------------------

    def _all_sets(self) -> list[_Counted]:
        """Every combination of how many to take of each group: the earliest that no module already taken contains."""
        freed, _ = self._needed()
        sets = [_Counted(None, [], 0, 0.0, 0, 0)]
        for group in sorted(self.groups, key=_longest_first):  # inner ones have to give way
            before, sets = sets, []
            for outer in before:
                chosen = outer.candidates()
                free = [one for one in group if not any(one.meets(other) for other in chosen)]
                work, gone = outer.work, outer.freed
                for count in range(len(free) + 1):
                    if count:
                        work, gone = (
                            work + self._work(free[count - 1]),
                            gone + int(freed[self._number[free[count - 1]]]),
                        )
                    sets.append(_Counted(outer, free, count, work, gone, outer.size + count))
        return sets

    def _cheapest(self) -> tuple[Candidate, ...] | None:
        """Of all sets the first in order of work, and of size among equals, that fits."""
        _, need = self._needed()
        for one in sorted(self._all_sets(), key=lambda one: (one.work, one.size)):
            if one.freed >= need and self.peak(one.candidates()) <= self.limit:
                return _in_order(one.candidates())
        return None

    # -- some sets -----------------------------------------------------------------------------------------------------

    def _competed(self) -> tuple[Candidate, ...] | None:
        """The cheapest of several attempts: greedy sets, and the fewest needed of one or two kinds; each is pruned."""
        attempts = [self._greedy(power) for power in (0.0, 0.5, 1.0, 2.0)]
        attempts += [self._of_one(group) for group in self.groups]
        within = [self._spared(one) for one in attempts if one is not None]
        best = min(within, key=self.work, default=None)
        by_value = sorted(self.groups, key=lambda group: -sum(one.saved_bytes for one in group))
        for pair in combinations(by_value[:8], 2):
            if self._tried_enough():
                break
            longer, shorter = sorted(pair, key=_longest_first)
            better = self._of_two(longer, shorter, float("inf") if best is None else self.work(best))
            if better is not None:
                best = self._spared(better)
        while best is not None and (better := self._exchanged(best)) is not None:
            best = self._spared(better)
        return best

    def _of_one(self, group: list[Candidate]) -> tuple[Candidate, ...] | None:
        """As many of one kind as are needed, the earliest first."""
        freed, need = self._needed()
        self._trial.choose(())
        for count, one in enumerate(group, 1):
            self._trial.add(one)
            need -= int(freed[self._number[one]])
            if need <= 0 and self._predicted() <= self.limit:
                return tuple(group[:count])
        return None

    def _of_two(self, longer: list[Candidate], shorter: list[Candidate], below: float) -> tuple[Candidate, ...] | None:
        """The cheapest set of some of one kind and some of another that fits, if its work is below `below`.

        A heap starts, for each count of the longer ones, with the fewest shorter ones that free enough; then each gets
        one more at a time. Sets that cannot fit are never made.
        """
        freed, need = self._needed()
        of_shorter = [self._number[one] for one in shorter]
        starts = [one.first for one in longer]
        within = np.searchsorted(starts, [one.first for one in shorter], "right") - 1  # the longer one it may be in
        meets = [at >= 0 and longer[at].meets(one) for at, one in zip(within.tolist(), shorter, strict=True)]
        inside = np.where(meets, within, len(longer))

        def chosen(count: int, last: int) -> tuple[Candidate, ...]:
            free = [one for one, outer in zip(shorter[: last + 1], inside.tolist(), strict=False) if outer >= count]
            return _in_order([*longer[:count], *free])

        waiting: list[tuple[float, int, int, int]] = []  # work, how many, of them the longer, the last of the shorter
        work, left = 0.0, need
        for count in range(len(longer) + 1):
            if count:
                work += self._work(longer[count - 1])
                left -= int(freed[self._number[longer[count - 1]]])
            if work >= below:
                break
            free = np.flatnonzero(inside >= count)
            mine = np.array(of_shorter)[free]
            gained = np.concatenate([[0], np.cumsum(freed[mine])])
            fewest = int(np.searchsorted(gained, left))
            if fewest < len(gained):
                last = int(free[fewest - 1]) if fewest else -1
                waiting.append((work + float(self._works[mine[:fewest]].sum()), count + fewest, count, last))
        heapq.heapify(waiting)
        while waiting and not self._tried_enough():
            work, total, count, last = heapq.heappop(waiting)
            if work >= below:
                return None
            if self.peak(cheapest := chosen(count, last)) <= self.limit:
                return cheapest
            following = next((at for at in range(last + 1, len(shorter)) if inside[at] >= count), None)
            if following is not None:
                heapq.heappush(waiting, (work + self._work(shorter[following]), total + 1, count, following))
        return None

    def _exchanged(self, chosen: tuple[Candidate, ...]) -> tuple[Candidate, ...] | None:
        """Exchange one of a set for one or two that take less together; None if that never helps."""
        freed, need = self._needed()
        over = int(freed[[self._number[one] for one in chosen]].sum()) - need
        meets = self._meeting(chosen)
        for one in sorted(chosen, key=lambda one: -self._work(one)):
            if self._tried_enough():
                return None
            mine, work = self._number[one], self._work(one)
            least = freed[mine] - over
            free = np.flatnonzero((self._works < work) & (meets == self._meeting((one,))))
            exchanges: list[tuple[float, list[int]]] = [
                (self._works[number], [number]) for number in free[freed[free] >= least].tolist()
            ]
            exchanges += [
                (total, pair)
                for pair in self._pairs(free.tolist())
                if (total := self._works[pair].sum()) < work and freed[pair].sum() >= least
            ]
            self._trial.choose(chosen)
            self._trial.remove(one)
            for _, numbers in sorted(exchanges, key=lambda exchange: (exchange[0], len(exchange[1]))):
                if self._tried_enough():
                    return None
                new = [self.candidates[number] for number in numbers]
                for other in new:
                    self._trial.add(other)
                fits = self._predicted() <= self.limit
                for other in new:
                    self._trial.remove(other)
                if fits:
                    return _in_order([*(other for other in chosen if other is not one), *new])
        return None

    def _pairs(self, free: list[int]) -> list[list[int]]:
        """All pairs that are not nested; an empty list where there are too many."""
        pairs: list[list[int]] = []
        if len(free) * (len(free) - 1) // 2 - self._freeing.nested >= MOST_SETS:
            return pairs
        for one, other in combinations(free, 2):
            if not self.candidates[one].meets(self.candidates[other]):
                pairs.append([one, other])
                if len(pairs) >= MOST_SETS:
                    return []
        return pairs

    def _meeting(self, chosen: tuple[Candidate, ...]) -> Array:
        """For each candidate, how many members of a set are that candidate, inside it or around it."""
        begun = np.searchsorted([one.first for one in chosen], self._last, "right")
        return begun - np.searchsorted([one.last for one in chosen], self._first, "left")

    def _greedy(self, power: float, *, all_the_way: bool = False) -> tuple[Candidate, ...] | None:
        """Take, again and again, what frees most at the current peak per work (to a power), until the step fits."""
        trial, freeing = self._trial, self._freeing
        trial.choose(())
        taken = np.zeros(len(self.candidates), bool)  # these
        covered = np.zeros(len(self.candidates), bool)  # and these are inside of them
        peak_node, value = -1, np.zeros(0)
        while True:
            if trial.peak() <= self.limit and not all_the_way:
                return _in_order(trial.chosen)
            if trial.peak_node() != peak_node:
                peak_node = trial.peak_node()
                freed = freeing.at(peak_node)
                value = np.zeros(0)
            if not len(value):
                gain, price = freed - freeing.inside(freed * taken), self._works - freeing.inside(self._works * taken)
                value = np.where(taken | covered, 0.0, gain / np.maximum(price, 1e-30) ** power)
            best = int(value.argmax()) if len(value) else 0
            if not len(value) or value[best] <= 0:
                return _in_order(trial.chosen) if all_the_way else None
            inner = freeing.inner[best]
            for one in inner:
                if taken[one]:
                    trial.remove(self.candidates[one])
            taken[inner], covered[inner], taken[best] = False, True, True
            trial.add(self.candidates[best])
            value[[best, *inner]] = 0.0
            if freeing.outer[best]:
                value = np.zeros(0)  # what holds it gains less by it from now on

    def _spared(self, chosen: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """The set without what is not needed; the most expensive are tried first."""
        trial = self._trial
        trial.choose(chosen)
        for one in sorted(chosen, key=lambda one: -self._work(one)):
            trial.remove(one)
            if self._predicted() > self.limit:
                trial.add(one)
        return _in_order(trial.chosen)

    def least_work(self) -> float:
        """A lower bound of the work of any set: at each node enough must be freed, at the best price per byte."""
        over = np.flatnonzero(self.step.live > self.limit)
        most = 0.0
        for node in {int(self.step.live.argmax()), *over[:: max(1, len(over) // 32)].tolist()}:
            freed = self._freeing.at(node)
            freeing = np.flatnonzero(freed)
            rate, freed = self._works[freeing] / freed[freeing], freed[freeing]
            order = np.lexsort((freed, rate))
            need = int(self.step.live[node]) - self.limit
            bought = np.diff(np.minimum(np.cumsum(freed[order]), need), prepend=0)
            most = max(most, float((rate[order] * bought).sum()))
        return most


@dataclass(frozen=True, eq=False, slots=True)
class _Counted:
    """The first `count` free candidates of one group, linked to what was taken of the groups before it."""

    before: _Counted | None
    free: list[Candidate]  # the same list for all counts
    count: int
    work: float  # of all
    freed: int  # by all, at the peak of the plain step
    size: int

    def candidates(self) -> list[Candidate]:
        return [*(self.before.candidates() if self.before else ()), *self.free[: self.count]]


class _Freeing:
    """Candidates in order of execution -> how much each frees at a node, and which are nested in which."""

    def __init__(self, step: TrainingStep, candidates: list[Candidate]) -> None:
        count = [len(one.copied) for one in candidates]
        self._owner = np.repeat(np.arange(len(candidates)), count)
        self._resume = np.array([one.resume for one in candidates], np.int64)
        copied = np.concatenate([np.zeros(0, np.int64), *(one.copied for one in candidates)])
        self._bytes = step.storages.bytes[copied]
        self._original_end = np.concatenate([np.zeros(0, np.int64), *(one.original_end for one in candidates)])
        self.outer: list[list[int]] = []
        self.inner: list[list[int]] = [[] for _ in candidates]
        around: list[int] = []
        for number in sorted(range(len(candidates)), key=lambda at: (candidates[at].first, -candidates[at].last)):
            while around and not candidates[around[-1]].contains(candidates[number]):
                around.pop()
            for one in around:
                self.inner[one].append(number)
            around.append(number)
        self.outer = [[] for _ in candidates]
        for number, inner in enumerate(self.inner):
            for one in inner:
                self.outer[one].append(number)
        self._inner_of = np.repeat(np.arange(len(candidates)), [len(inner) for inner in self.inner])
        self._inner = np.array([one for inner in self.inner for one in inner], np.int64)
        self.nested = len(self._inner)  # nested pairs

    def at(self, node: int) -> Array:
        """The most bytes that checkpointing each candidate frees right after a node."""
        gone = self._original_end < node
        freed_bytes = np.zeros(len(self._resume), np.int64)
        np.add.at(freed_bytes, self._owner[gone], self._bytes[gone])
        freed_bytes[self._resume <= node] = 0
        return freed_bytes

    def inside(self, amount: Array) -> Array:
        """Per candidate the sum of the amounts of those inside it."""
        sums = np.zeros_like(amount)
        np.add.at(sums, self._inner_of, amount[self._inner])
        return sums


def _in_order(chosen: Iterable[Candidate]) -> tuple[Candidate, ...]:
    return tuple(sorted(chosen, key=lambda one: one.first))


def _longest_first(group: list[Candidate]) -> int:
    return group[0].first - group[0].last
