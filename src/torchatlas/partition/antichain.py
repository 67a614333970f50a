"""Who must come before whom -> the most that can run at once: the largest set of which none depends on another.

By Dilworth it has as many members as the fewest chains that cover everything, and those come from a largest matching
between the ends of dependencies, direct or not. Sets are Python's whole numbers, one bit per member.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def reachable(before: Sequence[Sequence[int]]) -> list[int]:
    """Per member the set of those that depend on it, directly or not. Members come after what they depend on."""
    found = [0] * len(before)
    for member in range(len(before) - 1, -1, -1):
        mine = found[member] | (1 << member)
        for one in before[member]:
            found[one] |= mine
    return found


def widest(before: Sequence[Sequence[int]]) -> list[int]:
    """The members of a largest antichain, in order.

    >>> widest([[], [0], [0], [1, 2]])
    [1, 2]
    """
    later = reachable(before)
    follows, precedes = _matching(later, before)
    # Koenig: what alternating ways from unmatched beginnings reach. The antichain is what is reached as a beginning
    # and not as an end.
    begun, ended = 0, 0
    waiting = [member for member, one in enumerate(follows) if one < 0]
    for member in waiting:
        begun |= 1 << member
    while waiting:
        new = later[waiting.pop()] & ~ended
        ended |= new
        for end in _bits(new):
            member = precedes[end]
            if not begun >> member & 1:
                begun |= 1 << member
                waiting.append(member)
    return list(_bits(begun & ~ended))


def _matching(later: list[int], before: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """A largest matching of members with members that depend on them: who follows each, who precedes each; -1 none."""
    follows, precedes = [-1] * len(later), [-1] * len(later)
    for member, needed in enumerate(before):  # most of it: along direct dependencies
        for one in reversed(needed):
            if follows[one] < 0:
                follows[one], precedes[member] = member, one
                break
    everyone = (1 << len(later)) - 1
    for start in range(len(later)):
        if follows[start] < 0:
            _augment(start, later, follows, precedes, everyone)
    return follows, precedes


def _augment(start: int, later: list[int], follows: list[int], precedes: list[int], unseen: int) -> None:
    """Give `start` a follower, if others can change theirs for it."""
    way = [start]  # beginnings; each later one gives its follower to the one before it
    taken: list[int] = []  # the ends between them
    while way:
        choices = later[way[-1]] & unseen
        if not choices:
            way.pop()
            if taken:
                taken.pop()
            continue
        free = choices & -choices
        end = free.bit_length() - 1
        unseen ^= free
        taken.append(end)
        if precedes[end] < 0:
            for beginning, one in zip(way, taken, strict=True):
                follows[beginning], precedes[one] = one, beginning
            return
        way.append(precedes[end])


def _bits(number: int) -> Iterator[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
