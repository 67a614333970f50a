"""Units joined into groups, one pair at a time, so that groups never depend on each other in a circle."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from torchatlas.graph.columns import Array
from torchatlas.partition.row import Row
from torchatlas.partition.units import Units


class Groups:
    """A partition that grows. Groups are numbered by any of their units; `row` keeps them sorted by dependency."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self.group = list(range(len(units)))
        self.members: dict[int, list[int]] = {unit: [unit] for unit in range(len(units))}
        self.row = Row(len(units))
        self._before = [set(found) - {unit} for unit, found in enumerate(units.before)]  # by group, kept up to date
        self._after = [set(found) - {unit} for unit, found in enumerate(units.after)]

    def before(self, group: int) -> set[int]:
        return set(self._before[group])

    def after(self, group: int) -> set[int]:
        return set(self._after[group])

    def _between(self, first: int, second: int) -> tuple[set[int], bool] | None:
        """Of the groups between two: all that must come after `first`, or (True) all that must before `second`.

        None when some group is both: joining the two would close a circle. Either end alone would tell; both are
        looked from in turns, step by step, so that what is much only on one side costs nothing.
        """
        place = self.row.place
        low, high = place[first], place[second]
        later, earlier = set[int](), set[int]()
        ahead = _walk(self._after, first, second, later, earlier, lambda group: place[group] < high)
        back = _walk(self._before, second, first, earlier, later, lambda group: place[group] > low)
        while True:
            for steps, found, come_before in ((back, earlier, True), (ahead, later, False)):
                closes_circle = next(steps, None)
                if closes_circle is None:
                    return found, come_before
                if closes_circle:
                    return None

    def join(self, one: int, other: int) -> int | None:
        """Make one group of two. Returns its number, or None, and changes nothing, where that would close a circle."""
        if one == other:
            return one
        first, second = sorted((one, other), key=self.row.place.__getitem__)
        found = self._between(first, second)
        if found is None:
            return None
        where = self._make_way(first, second, *found)
        kept, gone = sorted((first, second), key=self._size, reverse=True)  # the smaller is renumbered: n log n in all
        if where != kept:
            self.row.move_before(kept, where)
        self.row.remove(gone)
        for unit in self.members[gone]:
            self.group[unit] = kept
        self.members[kept] += self.members.pop(gone)
        _contract(self._before, self._after, kept, gone)
        _contract(self._after, self._before, kept, gone)
        return kept

    def _size(self, group: int) -> int:
        return len(self.members[group]) + len(self._before[group]) + len(self._after[group])

    def _make_way(self, first: int, second: int, chosen: set[int], come_before: bool) -> int:
        """Move what the second needs before the first, or what waits for the first behind the second.

        Returns the one of the two whose place in the row is then right for both.
        """
        in_row = sorted(chosen, key=self.row.place.__getitem__)
        if come_before:
            for group in in_row:
                self.row.move_before(group, first)
            return first
        for group in reversed(in_row):
            self.row.move_behind(group, second)
        return second

    def in_order(self) -> list[list[int]]:
        """The units of each group, groups sorted by dependency, early ones first where there is a choice."""
        return sorted_groups(self.units, self.members.values())


def _walk(
    near: list[set[int]], start: int, goal: int, found: set[int], met: set[int], is_between: Callable[[int], bool]
) -> Iterator[bool]:
    """Collect, nearest first, what can be reached and is between; yields True where that leads to the goal, or to what
    does."""
    waiting = deque([start])
    while waiting:
        one = waiting.popleft()
        for other in near[one]:
            if other not in found and is_between(other):
                found.add(other)
                waiting.append(other)
            yield other in met or (other == goal and one != start)


def _contract(near: list[set[int]], back: list[set[int]], kept: int, gone: int) -> None:
    """Let `kept` have the neighbours of `gone` on one side, and be theirs."""
    for group in near[gone]:
        back[group].discard(gone)
        if group != kept:
            back[group].add(kept)
    near[kept] |= near[gone]
    near[kept] -= {kept, gone}
    near[gone] = set()


def sorted_groups(units: Units, groups: Iterable[list[int]]) -> list[list[int]]:
    """Groups so that each comes after what it depends on; of several that could be next, the one that began first."""
    members = [sorted(group) for group in groups if group]
    of_unit = {unit: number for number, group in enumerate(members) for unit in group}
    before = [
        {of_unit[b] for unit in group for b in units.before[unit] if b in of_unit} - {n}
        for n, group in enumerate(members)
    ]
    after: list[list[int]] = [[] for _ in members]
    for number, needed in enumerate(before):
        for one in needed:
            after[one].append(number)
    missing = [len(needed) for needed in before]
    ready = [(members[number][0], number) for number, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        _, number = heapq.heappop(ready)
        found.append(members[number])
        for one in after[number]:
            missing[one] -= 1
            if not missing[one]:
                heapq.heappush(ready, (members[one][0], one))
    if len(found) < len(members):
        raise CircleError([members[number] for number, count in enumerate(missing) if count])
    return found


class CircleError(Exception):
    """Groups that depend on each other in a circle."""

    def __init__(self, groups: list[list[int]]) -> None:
        super().__init__(groups)
        self.groups = groups


def of_nodes(units: Units, groups: list[list[int]]) -> Array:
    """Per node of the graph the number of its group; -1 for what is in none."""
    found = np.full(len(units.graph), -1, np.int64)
    for number, group in enumerate(groups):
        for unit in group:
            found[units.ops[unit]] = number
    return found
