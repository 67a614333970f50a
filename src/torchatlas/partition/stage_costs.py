"""What every op and every cut between pipeline stages costs: work, bytes handed over, memory held. stages.py reports
it, cut_search.py searches with it.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from torchatlas.graph.columns import Array
from torchatlas.partition.cut_search import Balance, Memory
from torchatlas.partition.traffic import Ledger


class OpCosts:
    """What every op and every cut costs. Position i is the i-th op; cut i is before it. `places`: where cuts may be."""

    def __init__(self, ledger: Ledger, ops: Array, places: Array) -> None:
        self.ledger, self.ops, self.places = ledger, ops, places
        self.position = np.full(len(ledger.graph), -1, np.int64)
        self.position[ops] = np.arange(len(ops))

    def balance(self, by: str, speed: float, earliest: list[int] | None) -> Balance:
        """The cost of each op, and the cost of communication at each cut, which the stages on both sides pay."""
        if by == "flops":
            work, crossing = self.ledger.work[self.ops].astype(float), np.zeros(len(self.ops) + 1)
        else:
            work, crossing = np.nan_to_num(self.ledger.best.seconds[self.ops]), self.crossing_bytes() / speed
        total = np.concatenate([[0.0], np.cumsum(work)])
        return Balance(total[self.places], crossing[self.places], earliest)

    @cached_property
    def lifetimes(self) -> tuple[Array, Array, Array]:
        """Per piece of memory, weights left out: its bytes, the op that fills it first, the last that reads it.

        The program's inputs are there from the first op on.
        """
        ledger = self.ledger
        storage = ledger.graph.columns["value_storage"]
        node, value = ledger.reads
        wrote, result = ledger.results
        count = len(ledger.graph.columns["storage_bytes"])
        end = np.full(count, -1, np.int64)
        begin = np.full(count, len(self.ops), np.int64)
        size = np.zeros(count, np.int64)
        held = storage[result] >= 0
        np.minimum.at(begin, storage[result[held]], self.position[wrote[held]])
        np.maximum.at(end, storage[result[held]], self.position[wrote[held]])
        np.maximum.at(size, storage[result[held]], ledger.value_bytes[result[held]])
        taken = storage[value] >= 0
        last = np.where(self.position[node] >= 0, self.position[node], len(self.ops) - 1)  # outputs leave at the end
        np.maximum.at(end, storage[value[taken]], last[taken])
        from_inputs = taken & ~ledger.is_weight[value] & (ledger.maker[value] < 0) & (self.position[node] >= 0)
        np.maximum.at(size, storage[value[from_inputs]], ledger.value_bytes[value[from_inputs]])
        begin[storage[value[from_inputs]]] = 0
        made = begin < len(self.ops)
        return size[made], begin[made], end[made]

    @cached_property
    def alive(self) -> Array:
        """Bytes alive while each op runs, weights left out: everything made at or before it and needed at or after it.

        It does not depend on where its stage begins: what an earlier stage made and this one reads, or hands on, must
        be held from then on just the same.
        """
        count = len(self.ops)
        size, begin, end = self.lifetimes
        change = np.zeros(count + 1, np.int64)
        np.add.at(change, begin, size)
        np.subtract.at(change, np.minimum(end + 1, count), size)
        return np.cumsum(change)[:count]

    def crossing_bytes(self) -> Array:
        """Per cut the bytes made before it and needed after it; what several cuts cross is sent along at each."""
        size, begin, end = self.lifetimes
        change = np.zeros(len(self.ops) + 2, np.int64)
        np.add.at(change, begin + 1, size)
        np.subtract.at(change, end + 1, size)
        crossing: Array = np.cumsum(change)[: len(self.ops) + 1]
        crossing[-1] = 0
        return crossing

    @cached_property
    def weights(self) -> tuple[Array, Array, Array]:
        """Which op reads which weight: position, storage, bytes of each storage."""
        ledger, columns = self.ledger, self.ledger.graph.columns
        node, value = ledger.reads
        mine = ledger.is_weight[value] & (self.position[node] >= 0) & (columns["value_storage"][value] >= 0)
        storage = columns["value_storage"][value[mine]]
        size = np.maximum(columns["storage_bytes"], 0)
        return self.position[node[mine]], storage, size

    def weight_bytes(self, begin: int, end: int) -> int:
        """Bytes of the weights that the ops from position `begin` up to `end` read, each once."""
        position, storage, size = self.weights
        return int(size[np.unique(storage[(position >= begin) & (position < end)])].sum())

    def memory(self) -> Memory:
        """What stages between places hold."""
        position, storage, size = self.weights
        place = np.searchsorted(self.places, position, "right") - 1
        alive = np.maximum.reduceat(self.alive, self.places[:-1])
        return Memory(alive, np.stack([place, storage], axis=1), size)
