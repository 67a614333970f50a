"""Units joined into groups, one pair at a time, so that groups never depend on each other in a circle."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from torchatlas.graph.columns import Array
from torchatlas.partition.units import Units


class Groups:
    """A partition that grows. Groups are numbered by any of their units; `order` keeps them sorted by dependency."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self.group = list(range(len(units)))
        self.members: dict[int, list[int]] = {unit: [unit] for unit in range(len(units))}
        self.rank = [0] * len(units)  # of each unit among the members of its group
        self.place = list(range(len(units)))  # of each group in `order`
        self.order: list[int] = list(range(len(units)))  # -1 where a group was joined to another
        self._before = [set(found) - {unit} for unit, found in enumerate(units.before)]  # by group, kept up to date
        self._after = [set(found) - {unit} for unit, found in enumerate(units.after)]

    def before(self, group: int) -> set[int]:
        return set(self._before[group])

    def after(self, group: int) -> set[int]:
        return set(self._after[group])

    def _between(self, first: int, second: int) -> tuple[set[int], bool] | None:
        """Of the groups between two: all that must come after `first`, or (True) all that must before `second`.

        None when some group is both: joining the two would close a circle. Looks from both ends, layer by layer where
        less is to be seen, so that what lies far from both costs nothing.
        """
        low, high = self.place[first], self.place[second]
        later = {group for group in self._after[first] if self.place[group] < high}
        earlier = {group for group in self._before[second] if self.place[group] > low}
        ahead, behind = list(later), list(earlier)
        if not later.isdisjoint(earlier):
            return None
        while True:
            if not ahead:
                return later, False
            if not behind:
                return earlier, True
            if len(ahead) <= len(behind):
                found = {other for group in ahead for other in self._after[group] if self.place[other] < high}
                ahead = list(found - later)
                later |= found
                if not earlier.isdisjoint(found):
                    return None
            else:
                found = {other for group in behind for other in self._before[group] if self.place[other] > low}
                behind = list(found - earlier)
                earlier |= found
                if not later.isdisjoint(found):
                    return None

    def join(self, one: int, other: int) -> int | None:
        """Make one group of two. Returns its number, or None, and changes nothing, where that would close a circle."""
        if one == other:
            return one
        first, second = sorted((one, other), key=self.place.__getitem__)
        low, high = self.place[first], self.place[second]
        if all(self.place[group] < low for group in self._before[second] if group != first):
            self.order[high] = -1  # nobody in between is needed by the second: it can go where the first is
        elif all(self.place[group] > high for group in self._after[first] if group != second):
            self.order[low], self.order[high], self.place[first] = -1, first, high  # nor waits for the first
        else:
            found = self._between(first, second)
            if found is None:
                return None
            self._sort_again(first, low, high, *found)
        size = len(self.members[first])
        for unit in self.members[second]:
            self.group[unit] = first
            self.rank[unit] += size
        self.members[first] += self.members.pop(second)
        _contract(self._before, self._after, first, second)
        _contract(self._after, self._before, first, second)
        return first

    def _sort_again(self, first: int, low: int, high: int, chosen: set[int], come_before: bool) -> None:
        """Put some of what lies between two groups before or behind the first, and the rest on its other side."""
        between = [group for group in self.order[low + 1 : high] if group >= 0]
        early = [group for group in between if (group in chosen) == come_before]
        late = [group for group in between if (group in chosen) != come_before]
        sorted_again = [*early, first, *late]
        for place, group in enumerate(sorted_again, low):
            self.order[place], self.place[group] = group, place
        for place in range(low + len(sorted_again), high + 1):
            self.order[place] = -1

    def in_order(self) -> list[list[int]]:
        """The units of each group, groups sorted by dependency, early ones first where there is a choice."""
        return sorted_groups(self.units, [self.members[group] for group in self.order if group >= 0])


def _contract(near: list[set[int]], back: list[set[int]], first: int, second: int) -> None:
    """Let `first` have the neighbours of `second` on one side, and be theirs."""
    for group in near[second]:
        back[group].discard(second)
        if group != first:
            back[group].add(first)
    near[first] |= near[second]
    near[first] -= {first, second}
    near[second] = set()


def sorted_groups(units: Units, groups: Iterable[list[int]]) -> list[list[int]]:
    """Groups so that each comes after what it depends on; of several that could be next, the one that began first."""
    import heapq

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
