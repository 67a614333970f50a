"""Which unit reads what of which -> the same for groups of units, kept up to date as groups are joined.

Of all reads between two groups only those are kept that decide whether the two can be one kernel, at most five: how
many there were does not matter, and neither does the size of the groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Read:
    """One unit reads a value that another made."""

    maker: int
    reader: int
    slot: int  # the how-manieth thing that its reader reads
    numel: int
    bytes: int
    saved_bytes: int  # if both are one kernel: the read, and the write if nobody else reads it


class GroupReads:
    """Groups are numbered by one of their units; at first each unit is a group."""

    def __init__(self, taken: list[list[Read]], begins_kernel: list[bool]) -> None:
        """`taken` is what each unit reads; `begins_kernel` says which units cannot go on with what they read."""
        self._begins_kernel = begins_kernel
        self._of: list[dict[int, list[Read]]] = []  # per group what it reads of each other one
        self._by: list[set[int]] = [set() for _ in taken]  # per group those that read of it
        for unit, reads in enumerate(taken):
            found: dict[int, list[Read]] = {}
            for read in reads:
                found.setdefault(read.maker, []).append(read)
                self._by[read.maker].add(unit)
            self._of.append({maker: self._deciding(mine) for maker, mine in found.items()})

    def between(self, producer: int, consumer: int) -> list[Read]:
        """The reads that decide, in the order of their readers."""
        return self._of[consumer].get(producer, [])

    def join(self, kept: int, gone: int) -> None:
        """Let the first have what the second reads, and what is read of it."""
        for producer, reads in self._of[gone].items():
            self._by[producer].discard(gone)
            self._add(producer, kept, reads)
        for consumer in self._by[gone]:
            self._add(kept, consumer, self._of[consumer].pop(gone))
        self._of[gone], self._by[gone] = {}, set()

    def _add(self, producer: int, consumer: int, reads: list[Read]) -> None:
        if producer == consumer:
            return
        known = self._of[consumer].get(producer)
        if known is not None:
            reads = self._deciding(sorted([*known, *reads], key=lambda read: (read.reader, read.slot)))
        self._of[consumer][producer] = reads
        self._by[producer].add(consumer)

    def _deciding(self, reads: Iterable[Read]) -> list[Read]:
        """The first by a unit that begins a kernel, the first that saves bytes, and the first of each of three sizes.

        Two sizes can fit one kernel, that of its loop and that of its rows: a third cannot.
        """
        found, sizes, begins, saves = list[Read](), set[int](), False, False
        for read in reads:
            is_new = len(sizes) < 3 and read.numel not in sizes
            is_begin = not begins and self._begins_kernel[read.reader]
            if is_new or is_begin or (not saves and read.saved_bytes):
                found.append(read)
                sizes.add(read.numel)
                begins, saves = begins or is_begin, saves or read.saved_bytes > 0
        return found
