"""Two lists of ops, a graph's (ours) and a profiler's (theirs) -> pairs: by autograd's sequence numbers, then by order.

Every process counts sequence numbers from zero, so those of two runs differ by a constant: the difference that most ops
agree on. Ops without a number (no gradient, an optimizer) lie between ops that have one, and are aligned there by name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

_MOST_VOTES = 200_000
_WINDOW = 64  # ops to look ahead for where two lists agree again
_MOST_LOST = 2_000  # disagreements within a gap; lists with more are not of one program


@dataclass(frozen=True, slots=True)
class Op:
    """An op, with what identifies it: its name, and the number of autograd's node that it made or runs in."""

    name: str
    sequence: int | None = None
    is_backward: bool = False  # it runs in that node


def align(ours: Sequence[Op], theirs: Sequence[Op]) -> tuple[dict[int, int], set[int]]:
    """Positions of ours -> positions of theirs; and which of ours were paired by their number."""
    pairs = _by_sequence(ours, theirs)
    numbered = set(pairs)
    anchors = [(-1, -1), *_increasing(sorted(pairs.items())), (len(ours), len(theirs))]
    taken = set(pairs.values())
    for (low, left), (high, right) in pairwise(anchors):
        mine = [at for at in range(low + 1, high) if at not in pairs]
        free = [at for at in range(left + 1, right) if at not in taken]
        for one, other in _by_order([ours[at].name for at in mine], [theirs[at].name for at in free]):
            pairs[mine[one]] = free[other]
    return pairs, numbered


def _by_sequence(ours: Sequence[Op], theirs: Sequence[Op]) -> dict[int, int]:
    offset = _offset(ours, theirs)
    if offset is None:
        return {}
    slots: dict[tuple[str, int, bool], list[int]] = defaultdict(list)
    for at, op in enumerate(theirs):
        if op.sequence is not None:
            slots[op.name, op.sequence - offset, op.is_backward].append(at)
    used: Counter[tuple[str, int, bool]] = Counter()
    pairs: dict[int, int] = {}
    for at, op in enumerate(ours):
        if op.sequence is not None:
            key = (op.name, op.sequence, op.is_backward)
            if used[key] < len(slots.get(key, ())):
                pairs[at] = slots[key][used[key]]
                used[key] += 1
    return pairs


def _offset(ours: Sequence[Op], theirs: Sequence[Op]) -> int | None:
    """By how much their numbers are ahead of ours, by majority; of equal votes the largest, as it is a later step."""
    numbers: tuple[dict[str, list[int]], dict[str, list[int]]] = (defaultdict(list), defaultdict(list))
    for side, ops in zip(numbers, (ours, theirs), strict=True):
        for op in ops:
            if op.sequence is not None and not op.is_backward:
                side[op.name].append(op.sequence)
    both = sorted(numbers[0].keys() & numbers[1].keys(), key=lambda name: len(numbers[0][name]) * len(numbers[1][name]))
    votes: Counter[int] = Counter()
    for name in both:  # rare names first: they are surest
        if votes and votes.total() + len(numbers[0][name]) * len(numbers[1][name]) > _MOST_VOTES:
            break
        ahead = [n - m for m in numbers[0][name][:1000] for n in numbers[1][name][:1000]]
        votes.update(ahead)
    return max(votes, key=lambda one: (votes[one], one)) if votes else None


def _increasing(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest increasing subsequence of the pairs: threads may have run in another order."""
    ends: list[int] = []  # the smallest second of an increasing part of each length
    last: list[int] = []  # its position in pairs
    before: list[int] = []
    for at, (_, second) in enumerate(pairs):
        length = bisect_left(ends, second)
        before.append(last[length - 1] if length else -1)
        ends[length : length + 1], last[length : length + 1] = [second], [at]
    increasing, at = [], last[-1] if last else -1
    while at >= 0:
        increasing.append(pairs[at])
        at = before[at]
    return increasing[::-1]


def _by_order(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    """Walk both lists in step; where they differ, look ahead for runs of names that both have."""
    pairs: list[tuple[int, int]] = []
    one = other = lost = 0
    while one < len(ours) and other < len(theirs) and lost < _MOST_LOST:
        if ours[one] == theirs[other]:
            pairs.append((one, other))
            one, other = one + 1, other + 1
            continue
        lost += 1
        blocks = _agreements(ours[one : one + _WINDOW], theirs[other : other + _WINDOW])
        if not blocks:
            one += 1  # this op of ours is not among the next of theirs
            continue
        for mine, their, length in blocks:
            pairs += [(one + mine + at, other + their + at) for at in range(length)]
        one, other = pairs[-1][0] + 1, pairs[-1][1] + 1
    return pairs


def _agreements(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int, int]]:
    """Runs of equal names in two windows, in order. Runs that begin late are left to the next window, which sees more
    of them."""
    matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
    blocks = [(block.a, block.b, block.size) for block in matcher.get_matching_blocks() if block.size]
    if len(ours) < _WINDOW and len(theirs) < _WINDOW:
        return blocks
    return [block for block in blocks if max(block[:2]) < _WINDOW // 2] or blocks[:1]
