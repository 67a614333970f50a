"""Units joined into groups, one pair at a time, so that groups never depend on each other in a circle."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from torchatlas.graph.columns import Array
from torchatlas.partition.unit_graph import Units

_GAP = 2**256  # between neighbours at first: as many moves to one spot as halve it, until all are numbered again


class Groups:
    """Groups that grow. A group is numbered by one of its units; `order` keeps groups sorted by dependency."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self.group = list(range(len(units)))
        self.members: dict[int, list[int]] = {unit: [unit] for unit in range(len(units))}
        self.order = MovableOrder(len(units))
        # By group, kept up to date.
        self._before = [set(neighbours) - {unit} for unit, neighbours in enumerate(units.before)]
        self._after = [set(neighbours) - {unit} for unit, neighbours in enumerate(units.after)]

    def before(self, group: int) -> set[int]:
        return set(self._before[group])

    def only_producer(self, unit: int) -> int | None:
        """The group that the group of a unit depends on, if it is only one."""
        before = self._before[self.group[unit]]
        return next(iter(before)) if len(before) == 1 else None

    def only_user(self, unit: int) -> int | None:
        """The group that depends on the group of a unit, if it is only one. What nothing is connected with, such as an
        empty tensor that no op reads, belongs to the unit after it."""
        before, after = self._before[self.group[unit]], self._after[self.group[unit]]
        if not before and not after and unit + 1 < len(self.units):
            return self.group[unit + 1]
        return next(iter(after)) if len(after) == 1 else None

    def _between(self, first: int, second: int) -> tuple[set[int], bool] | None:
        """Of the groups between two in the order, those that depend on `first`, or (True) those that `second` needs.

        None when some group is both: joining the two would close a circle. Either set will do, so two searches take
        turns and the smaller set decides the time.
        """
        place = self.order.place
        low, high = place[first], place[second]
        later, earlier = set[int](), set[int]()
        ahead = _walk(self._after, first, second, later, earlier, lambda group: place[group] < high)
        back = _walk(self._before, second, first, earlier, later, lambda group: place[group] > low)
        while True:
            for steps, collected, come_before in ((back, earlier, True), (ahead, later, False)):
                closes_circle = next(steps, None)
                if closes_circle is None:
                    return collected, come_before
                if closes_circle:
                    return None

    def join(self, one: int, other: int) -> int | None:
        """Make one group of two. Returns its number, or None, and changes nothing, where that would close a circle."""
        if one == other:
            return one
        first, second = sorted((one, other), key=self.order.place.__getitem__)
        between = self._between(first, second)
        if between is None:
            return None
        where = self._make_way(first, second, *between)
        kept, gone = sorted((first, second), key=self._size, reverse=True)  # the smaller is renumbered: n log n in all
        if where != kept:
            self.order.move_before(kept, where)
        self.order.remove(gone)
        for unit in self.members[gone]:
            self.group[unit] = kept
        self.members[kept] += self.members.pop(gone)
        _contract(self._before, self._after, kept, gone)
        _contract(self._after, self._before, kept, gone)
        return kept

    def _size(self, group: int) -> int:
        return len(self.members[group]) + len(self._before[group]) + len(self._after[group])

    def _make_way(self, first: int, second: int, chosen: set[int], come_before: bool) -> int:
        """Move what `second` depends on before `first`, or what depends on `first` behind `second`.

        Returns the one of the two whose place is then right for both.
        """
        listed = sorted(chosen, key=self.order.place.__getitem__)
        if come_before:
            for group in listed:
                self.order.move_before(group, first)
            return first
        for group in reversed(listed):
            self.order.move_behind(group, second)
        return second

    def in_order(self) -> list[list[int]]:
        """The units of each group, groups sorted by dependency, early ones first where there is a choice."""
        return sorted_groups(self.units, self.members.values())


class MovableOrder:
    """The numbers 0 to count - 1 in an order that can be changed. `place[one] < place[other]` where one comes first.

    A place is a number between those of the neighbours. Where two leave none in between, all are numbered again.
    """

    def __init__(self, count: int) -> None:
        head, tail = count, count + 1  # stay outside of all others
        self.place = [number * _GAP for number in range(count)] + [-_GAP, count * _GAP]
        self._left = [head, *range(count - 1), -1, count - 1 if count else head]
        self._right = [*range(1, count), tail, 0 if count else tail, -1] if count else [tail, -1]
        self._head, self._tail = head, tail

    def remove(self, item: int) -> None:
        left, right = self._left[item], self._right[item]
        self._right[left], self._left[right] = right, left

    def move_before(self, item: int, neighbour: int) -> None:
        self.remove(item)
        self._insert(item, self._left[neighbour], neighbour)

    def move_behind(self, item: int, neighbour: int) -> None:
        self.remove(item)
        self._insert(item, neighbour, self._right[neighbour])

    def _insert(self, item: int, left: int, right: int) -> None:
        place = self.place
        if left == self._head and right != self._tail:
            place[left] = place[right] - 2 * _GAP
        if right == self._tail:
            place[right] = place[left] + 2 * _GAP
        if place[right] - place[left] < 2:
            self._make_room()
        self._left[item], self._right[item] = left, right
        self._right[left] = self._left[right] = item
        place[item] = (place[left] + place[right]) // 2

    def _make_room(self) -> None:
        """Give all the first distance again."""
        item, at = self._right[self._head], 0
        while item != self._tail:
            self.place[item] = at
            item, at = self._right[item], at + _GAP
        self.place[self._head], self.place[self._tail] = -_GAP, at


def _walk(
    near: list[set[int]], start: int, goal: int, reached: set[int], met: set[int], is_between: Callable[[int], bool]
) -> Iterator[bool]:
    """Collect in `reached` what can be reached and is between, nearest first.

    Yields True where a step leads to the goal or to what the other search has met.
    """
    waiting = deque([start])
    while waiting:
        group = waiting.popleft()
        for neighbour in near[group]:
            if neighbour not in reached and is_between(neighbour):
                reached.add(neighbour)
                waiting.append(neighbour)
            yield neighbour in met or (neighbour == goal and group != start)


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
        for other in needed:
            after[other].append(number)
    missing = [len(needed) for needed in before]
    ready = [(members[number][0], number) for number, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, number = heapq.heappop(ready)
        ordered.append(members[number])
        for other in after[number]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, (members[other][0], other))
    if len(ordered) < len(members):
        raise CircleError([members[number] for number, count in enumerate(missing) if count])
    return ordered


class CircleError(Exception):
    """Groups that depend on each other in a circle."""

    def __init__(self, groups: list[list[int]]) -> None:
        super().__init__(groups)
        self.groups = groups


def of_nodes(units: Units, groups: list[list[int]]) -> Array:
    """Per node of the graph the number of its group; -1 for what is in none."""
    numbers = np.full(len(units.graph), -1, np.int64)
    for number, group in enumerate(groups):
        for unit in group:
            numbers[units.ops[unit]] = number
    return numbers
