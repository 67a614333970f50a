"""Units and their kernels -> groups that one kernel each can compute, by the bytes that need not move.

An intermediate result that stays on the chip saves its write and each of its reads. Joining stops where the rules of
kernels.py end, where the rows of a reduction do not fit on the chip, and where groups would depend on each other in a
circle; `Fusion.why_not` says which it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torchatlas.graph.names import short_name
from torchatlas.operations.kernel_kinds import KernelKind
from torchatlas.partition.acyclic_groups import Groups
from torchatlas.partition.kernels import UnitKernel, kernels_of
from torchatlas.partition.traffic import Ledger
from torchatlas.partition.unit_graph import Units
from torchatlas.units import format_bytes


@dataclass(slots=True)
class _State:
    """A group seen as one kernel: the loop that it runs, and what that loop holds."""

    space: int
    rows: int | None
    axes: str
    products: int
    alone: int | None  # the unit that is never fused
    element_bytes: int  # per element of its loop, of all that it makes there

    @property
    def row_bytes(self) -> int:
        """One row of all that it makes, and of what its reductions take: what must be on the chip at once."""
        return self.element_bytes * (self.space // self.rows) if self.rows else 0


@dataclass(frozen=True, slots=True)
class _Read:
    """One unit reads a value that another made."""

    maker: int
    reader: int
    slot: int  # its place among the reads of its reader
    numel: int
    bytes: int
    saved_bytes: int  # if both are one kernel: the read, and the write if it is the only reader


class Fusion:
    """Greedy: unit by unit in execution order, each joined first to the producer that saves most."""

    def __init__(self, units: Units, ledger: Ledger, on_chip_bytes: int) -> None:
        self.units, self.ledger, self.on_chip_bytes = units, ledger, on_chip_bytes
        self.kernels = kernels_of(units, ledger)
        self.groups = Groups(units)
        self.states = [_state(unit, kernel) for unit, kernel in enumerate(self.kernels)]
        self._attention()
        for unit, kernel in enumerate(self.kernels):
            if kernel.kind is KernelKind.FREE:
                self._ride(unit)
            elif kernel.kind is not KernelKind.ALONE:
                self._grow(unit)
        self._lead()

    # -- joining -----------------------------------------------------------------------------------------------------

    def _grow(self, unit: int) -> None:
        """Join a unit with the groups of its producers, the one that saves most first."""
        saved: dict[int, int] = {}  # by the first unit found of each group: groups change their number as they join
        first: dict[int, int] = {}
        for read in self._taken[unit]:
            maker = first.setdefault(self.groups.group[read.maker], read.maker)
            saved[maker] = saved.get(maker, 0) + read.saved_bytes
        for maker in sorted(saved, key=lambda maker: (-saved[maker], maker)):
            group, mine = self.groups.group[maker], self.groups.group[unit]
            if group != mine and saved[maker] and self._objection(group, mine) is None:
                self._join(group, mine, _joined(self.states[group], self.states[mine]))

    def _join(self, one: int, other: int, state: _State) -> bool:
        """Make one group of two, unless that closes a circle."""
        joined = self.groups.join(one, other)
        if joined is None:
            return False
        self.states[joined] = state
        if one != other:
            self._reads.join(joined, other if joined == one else one)
        return True

    def _ride(self, unit: int) -> None:
        """Join a view with what it is a view of."""
        producer = self.groups.only_producer(unit)
        if producer is not None:
            self._join(producer, self.groups.group[unit], self.states[producer])

    def _lead(self) -> None:
        """Join what depends on nothing and is used once (a view of a weight, a new tensor) with its user."""
        for unit in range(len(self.units) - 1, -1, -1):
            group = self.groups.group[unit]
            if self.kernels[unit].kind is KernelKind.FREE and self.groups.members[group] == [unit]:
                user = self.groups.only_user(unit)
                if user is not None:
                    self._join(user, group, self.states[user])

    def _attention(self) -> None:
        """Scores, softmax, weighted sum: a product, loops and a softmax over its rows, and a product of the result.

        Row by row the scores never leave the chip, if the keys and values of one head fit on it.
        """
        for unit, kernel in enumerate(self.kernels):
            chain = self._chain_into(unit) if kernel.kind is KernelKind.PRODUCT else []
            if not chain or self._head_bytes(chain[-1], unit) > self.on_chip_bytes:
                continue
            whole = _State(kernel.space, None, "", 2, None, 0)
            for part in chain:
                if not self._join(self.groups.group[part], self.groups.group[unit], whole):
                    break

    def _chain_into(self, product: int) -> list[int]:
        """From a product back over its first operand to another one, through one softmax; empty if there is none."""
        at = self._first_operand[product]
        if at is None or not self._leads_to_scores[at]:
            return []
        chain = [at]
        while self.kernels[at].kind is not KernelKind.PRODUCT:
            at = self._first_operand[at]
            assert at is not None
            chain.append(at)
        return chain

    @cached_property
    def _leads_to_scores(self) -> list[bool]:
        """Per unit whether it and its first operands are loops and one softmax, and then a product."""
        to_product, to_scores = list[bool](), list[bool]()  # without a softmax, and with one
        for unit, kernel in enumerate(self.kernels):
            first = self._first_operand[unit]
            plain, scores = (False, False) if first is None else (to_product[first], to_scores[first])
            if kernel.kind is KernelKind.PRODUCT:
                plain, scores = True, False
            elif kernel.kind is KernelKind.ROWS and kernel.axes == "last" and self._is_softmax(unit):
                plain, scores = False, plain
            elif kernel.kind not in (KernelKind.LOOP, KernelKind.FREE):
                plain = scores = False
            to_product.append(plain)
            to_scores.append(scores)
        return to_scores

    def _is_softmax(self, unit: int) -> bool:
        """True for a softmax, but not for a norm, which two linear layers can have between them."""
        nodes = self.units.graph.nodes
        return any("softmax" in short_name(nodes[op].operation) for op in self.units.ops[unit])

    @cached_property
    def _first_operand(self) -> list[int | None]:
        """Per unit the maker of its first operand (for loops the largest), if that has the size of its own loop."""
        makers: list[int | None] = []
        for kernel, taken in zip(self.kernels, self._taken, strict=True):
            is_product = kernel.kind is KernelKind.PRODUCT
            first = None if not taken else taken[0] if is_product else max(taken, key=lambda read: read.numel)
            fits = first is not None and self.kernels[first.maker].space == first.numel
            same = first is not None and (is_product or first.numel == kernel.space)
            makers.append(first.maker if first is not None and fits and same else None)
        return makers

    def _head_bytes(self, scores: int, product: int) -> int:
        """Keys and values of one head, as the products take them."""
        total_bytes = 0
        for unit in (scores, product):
            op = next(op for op in self.units.ops[unit] if not self.ledger.is_idle[op])
            taken = self.units.graph.index.inputs(op)
            layout = self.units.graph.columns["value_layout"][int(taken[1])]
            operand = self.ledger.operands[int(layout)]
            heads = int(np.prod(operand.shape[:-2], dtype=np.int64))
            total_bytes += operand.bytes // max(heads, 1)
        return total_bytes

    def runs_nothing(self, units: list[int]) -> bool:
        """Whether all of these are views."""
        return all(self.kernels[unit].kind is KernelKind.FREE for unit in units)

    # -- the rules ---------------------------------------------------------------------------------------------------

    def why_not(self, producer: int, consumer: int) -> str:
        """Why two groups are two kernels, where the second takes what the first makes."""
        objection = self._objection(producer, consumer)
        if objection is not None:
            return objection
        if not any(read.saved_bytes for read in self._reads.between(producer, consumer)):
            return "joining them saves no bytes"
        return "joining them would close a circle of dependencies"

    def _objection(self, producer: int, consumer: int) -> str | None:
        """The first rule that forbids it, in words."""
        source, target = self.states[producer], self.states[consumer]
        for state in (source, target):
            if state.alone is not None:
                return f"{self.units.names[state.alone]} {self.kernels[state.alone].why}"
        reads = self._reads.between(producer, consumer)
        for read in reads:
            kind, name = self.kernels[read.reader].kind, self.units.names[read.reader]
            if kind is KernelKind.START:
                return f"{name} reads it at other places than it is made"
            if kind is KernelKind.PRODUCT:
                return f"{name} is a product, which reads its operands many times"
        if source.products and target.products:
            return "both hold a product"
        if (source.products and target.rows is not None) or (target.products and source.rows is not None):
            return "a reduction needs whole rows, which a product has in several places"
        merged = _joined(source, target)
        if (
            source.rows is not None
            and target.rows is not None
            and (source.rows, source.axes) != (target.rows, target.axes)
        ):
            return "they reduce over other rows"
        small = min(source.space, target.space)
        if source.space != target.space and small != merged.rows:
            return "one runs over more elements than the other"
        for read in reads:
            if read.numel not in (merged.space, merged.rows):
                size = (
                    "part of what is made" if read.numel < self.kernels[read.maker].space else "what is made, repeated"
                )
                return f"{self.units.names[read.reader]} takes {size}"
        if merged.rows and merged.row_bytes > self.on_chip_bytes:
            need, room = format_bytes(merged.row_bytes), format_bytes(self.on_chip_bytes)
            return f"the rows of both take {need}, and {room} fit on the chip"
        return None

    @cached_property
    def _reads(self) -> _GroupReads:
        starts = (KernelKind.START, KernelKind.PRODUCT)
        return _GroupReads(self._taken, [kernel.kind in starts for kernel in self.kernels])

    @cached_property
    def _taken(self) -> list[list[_Read]]:
        """Per unit what it reads that other units made."""
        ledger, of_op = self.ledger, self.units.of_op
        node, value = ledger.reads
        root, maker = ledger.root[value], ledger.maker[value]
        readers = np.bincount(root, minlength=len(ledger.root))
        numel = np.array([operand.numel for operand in ledger.operands] or [0], np.int64)[
            self.units.graph.columns["value_layout"]
        ]
        reads: list[list[_Read]] = [[] for _ in range(len(self.units))]
        in_units = (maker >= 0) & (of_op[node] >= 0) & (of_op[maker] >= 0)  # inputs and outputs are in no unit
        for op, taken, base, made in zip(*(a[in_units].tolist() for a in (node, value, root, maker)), strict=True):
            source, target = int(of_op[made]), int(of_op[op])
            if source == target:
                continue
            read = int(ledger.value_bytes[taken]) if ledger.bytes_read[op] else 0
            saved = read + (int(ledger.value_bytes[base]) if readers[base] == 1 else 0)
            reads[target].append(_Read(source, target, len(reads[target]), int(numel[taken]), read, saved))
        return reads


def _state(unit: int, kernel: UnitKernel) -> _State:
    alone = unit if kernel.why else None
    size = kernel.item_bytes * (2 if kernel.kind is KernelKind.ROWS else 1)
    return _State(kernel.space, kernel.rows, kernel.axes, int(kernel.kind is KernelKind.PRODUCT), alone, size)


def _joined(first: _State, second: _State) -> _State:
    """Two kernels as one."""
    rows, axes = (first.rows, first.axes) if first.rows is not None else (second.rows, second.axes)
    space = max(first.space, second.space)
    # Single numbers per row are few: they do not count.
    size = sum(state.element_bytes for state in (first, second) if state.space == space)
    return _State(space, rows, axes, first.products + second.products, None, size)


class _GroupReads:
    """What groups read of each other, kept up to date as groups are joined. At first each unit is a group.

    Of all reads between two groups only those are kept that decide whether the two can be one kernel, at most five:
    neither the number of reads nor the size of the groups matters.
    """

    def __init__(self, taken: list[list[_Read]], begins_kernel: list[bool]) -> None:
        """`taken` is what each unit reads; `begins_kernel` says which units cannot go on with what they read."""
        self._begins_kernel = begins_kernel
        self._of: list[dict[int, list[_Read]]] = []  # per group what it reads of each other one
        self._by: list[set[int]] = [set() for _ in taken]  # per group those that read of it
        for unit, reads in enumerate(taken):
            by_maker: dict[int, list[_Read]] = {}
            for read in reads:
                by_maker.setdefault(read.maker, []).append(read)
                self._by[read.maker].add(unit)
            self._of.append({maker: self._deciding(mine) for maker, mine in by_maker.items()})

    def between(self, producer: int, consumer: int) -> list[_Read]:
        """The reads that decide, in the order of their readers."""
        return self._of[consumer].get(producer, [])

    def join(self, kept: int, gone: int) -> None:
        """Give the reads of and from `gone` to `kept`."""
        for producer, reads in self._of[gone].items():
            self._by[producer].discard(gone)
            self._add(producer, kept, reads)
        for consumer in self._by[gone]:
            self._add(kept, consumer, self._of[consumer].pop(gone))
        self._of[gone], self._by[gone] = {}, set()

    def _add(self, producer: int, consumer: int, reads: list[_Read]) -> None:
        if producer == consumer:
            return
        known = self._of[consumer].get(producer)
        if known is not None:
            reads = self._deciding(sorted([*known, *reads], key=lambda read: (read.reader, read.slot)))
        self._of[consumer][producer] = reads
        self._by[producer].add(consumer)

    def _deciding(self, reads: Iterable[_Read]) -> list[_Read]:
        """The first by a unit that begins a kernel, the first that saves bytes, and the first of each of three sizes.

        Two sizes can fit one kernel, that of its loop and that of its rows: a third cannot.
        """
        deciding, sizes, begins, saves = list[_Read](), set[int](), False, False
        for read in reads:
            is_new = len(sizes) < 3 and read.numel not in sizes
            is_begin = not begins and self._begins_kernel[read.reader]
            if is_new or is_begin or (not saves and read.saved_bytes):
                deciding.append(read)
                sizes.add(read.numel)
                begins, saves = begins or is_begin, saves or read.saved_bytes > 0
        return deciding
