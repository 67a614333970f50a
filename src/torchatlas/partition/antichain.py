"""Dependencies -> the most members that can run at once: a largest antichain, none of which depends on another.

By Dilworth's theorem it has as many members as the fewest paths along dependencies that together visit all members.
Such paths are a minimum flow: it enters and leaves anywhere, follows direct dependencies only, and every member carries
at least one unit. A first flow is built in one pass; then units that leave are joined with units that enter elsewhere
as long as that is possible. Neither time nor memory depends on the number of indirect dependencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def widest(before: Sequence[Sequence[int]], counts: Sequence[bool] | None = None) -> list[int]:
    """The members of a largest antichain, in order; of several the last. Members come after what they depend on.

    Those that do not count are in no antichain; dependencies lead through them.

    >>> widest([[], [0], [0], [1, 2]])
    [1, 2]
    >>> widest([[], [0], [0], [1, 2]], [True, False, True, True])
    [3]
    """
    flow = _Flow(before, [1] * len(before) if counts is None else [int(counted) for counted in counts])
    while (level := flow.search()) is not None:
        flow.reduce(level)
    # The antichain is the cut between what residual paths from the end reach and what they do not.
    seen = flow.seen
    return [member for member in range(len(before)) if seen[2 * member + 1] >= 0 > seen[2 * member]]


class _Flow:
    """Units of flow through members. A member has two sides, 2 * member where units come in, 2 * member + 1 behind it.

    Residual edges lead from the end to the beginning: against the flow where it has units to spare, with it always.
    """

    def __init__(self, before: Sequence[Sequence[int]], need: list[int]) -> None:
        count = len(before)
        self.need = need
        self.after: list[list[int]] = [[] for _ in range(count)]
        self.came: list[dict[int, int]] = [{} for _ in range(count)]  # per member the units from each one before it
        self.entered, self.through = [0] * count, [0] * count
        self.left = [0] * count  # units that end here
        self.seen: list[int] = []
        for member, needed in enumerate(before):
            for earlier in needed:
                self.after[earlier].append(member)
        for member, needed in enumerate(before):
            came, units = self.came[member], 0
            # Take all units that no later member can use; only if there are none, one unit that others could use.
            for earlier in sorted(needed, key=lambda earlier: self.after[earlier][-1] != member):
                taken = (
                    self.left[earlier] if self.after[earlier][-1] == member else min(self.left[earlier], int(not units))
                )
                if taken:
                    came[earlier] = taken
                    self.left[earlier] -= taken
                    units += taken
            self.entered[member] = max(need[member] - units, 0)
            self.through[member] = self.left[member] = units + self.entered[member]

    def search(self) -> list[int] | None:
        """The distance of each side from the end, up to the nearest unit that enters; None when there is no path.

        Afterwards `seen` holds these distances, -1 for sides that were not reached.
        """
        seen = self.seen = [-1] * (2 * len(self.need))
        reached = [2 * member + 1 for member, units in enumerate(self.left) if units]
        for side in reached:
            seen[side] = 0
        distance, met = 0, False
        while reached and not met:
            distance += 1
            following = []
            for side in reached:
                met = met or (not side & 1 and self.entered[side >> 1] > 0)
                for neighbour in self.edges(side):
                    if seen[neighbour] < 0:
                        seen[neighbour] = distance
                        following.append(neighbour)
            reached = following
        return seen if met else None

    def edges(self, side: int) -> list[int]:
        """The residual edges from a side: where one unit more, or one fewer, can be passed on to."""
        member = side >> 1
        if not side & 1:
            return [side + 1, *(2 * other + 1 for other in self.came[member])]
        edges = [2 * other for other in self.after[member]]
        if self.through[member] > self.need[member]:
            edges.append(side - 1)
        return edges

    def reduce(self, level: list[int]) -> None:
        """Join units that leave with units that enter, along shortest paths, until none of that length is left."""
        waiting: dict[int, list[int]] = {}  # per side the edges that may still lead to an entering unit
        for member in range(len(self.need)):
            while self.left[member] and (path := self._path(2 * member + 1, level, waiting)):
                self._pass(path)

    def _path(self, start: int, level: list[int], waiting: dict[int, list[int]]) -> list[int]:
        """A path from a side to where a unit enters, each step one further from the end; empty if there is none."""
        path = [start]
        while path:
            side = path[-1]
            if not side & 1 and self.entered[side >> 1]:
                return path
            if side not in waiting:
                waiting[side] = [neighbour for neighbour in self.edges(side) if level[neighbour] == level[side] + 1]
            choices = waiting[side]
            while choices and not self._is_open(side, choices[-1]):
                choices.pop()
            if choices:
                path.append(choices[-1])
            else:
                path.pop()
                if path:
                    waiting[path[-1]].pop()
        return path

    def _is_open(self, side: int, to: int) -> bool:
        member, other = side >> 1, to >> 1
        if not side & 1:
            return member == other or other in self.came[member]
        return member != other or self.through[member] > self.need[member]

    def _pass(self, path: list[int]) -> None:
        self.left[path[0] >> 1] -= 1
        self.entered[path[-1] >> 1] -= 1
        for side, to in pairwise(path):
            member, other = side >> 1, to >> 1
            if member == other:
                self.through[member] += -1 if side & 1 else 1
            elif side & 1:
                self.came[other][member] = self.came[other].get(member, 0) + 1
            elif self.came[member][other] == 1:
                del self.came[member][other]
            else:
                self.came[member][other] -= 1
