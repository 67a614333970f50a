"""A graph on a device -> what each op costs and which memory it reads and writes, and what crosses groups of ops.

One baseline for everything: each op is a kernel of its own, which reads what it takes and writes what it makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from torchatlas.analysis.autograd_bytes import only_for_backward
from torchatlas.analysis.devices import Device
from torchatlas.analysis.node_work import Counts, count
from torchatlas.analysis.roofline import Roofline, roofline
from torchatlas.graph import EdgeKind, Graph, NodeKind, Role
from torchatlas.graph.columns import EDGE_KINDS, KINDS, ROLES, Array
from torchatlas.operations.work import Operand

_WEIGHTS = [ROLES.index(role) for role in (Role.PARAMETER, Role.BUFFER, Role.CONSTANT)]


@dataclass(frozen=True, eq=False)
class Ledger:
    """Per node and per value of a graph: work, bytes, time at best, and whose memory a value lies in."""

    graph: Graph
    device: Device
    counts: Counts
    best: Roofline
    compute_s: Array  # per node, if no byte had to be moved

    @property
    def operands(self) -> list[Operand]:
        """Per layout of the graph's table."""
        return self.counts.operands

    @cached_property
    def value_bytes(self) -> Array:
        """Per value the bytes that one read of it moves."""
        size = np.array([operand.bytes for operand in self.operands] or [0], np.int64)
        return size[self.graph.columns["value_layout"]]

    @cached_property
    def is_op(self) -> Array:
        return self.counts.is_op

    @cached_property
    def is_known(self) -> Array:
        return self.counts.macs >= 0

    @cached_property
    def bytes_read(self) -> Array:
        """By the op's formula; without one, every tensor that the op takes."""
        return np.where(self.is_known, self.counts.bytes_read, self._per_node("input"))

    @cached_property
    def bytes_written(self) -> Array:
        return np.where(self.is_known, self.counts.bytes_written, self._per_node("output"))

    @cached_property
    def bytes(self) -> Array:
        return self.bytes_read + self.bytes_written

    @cached_property
    def work(self) -> Array:
        """All arithmetic; 0 where unknown."""
        return np.where(self.is_known, 2 * self.counts.macs + self.counts.elementwise_flops, 0)

    @cached_property
    def is_idle(self) -> Array:
        """Ops that compute and move nothing: views, empty tensors."""
        idle: Array = self.is_op & self.is_known & (self.bytes == 0) & (self.work == 0)
        return idle

    @cached_property
    def root(self) -> Array:
        """Per value the one that it is a view of, through any number of views; itself if it is none."""
        columns = self.graph.columns
        root = np.arange(len(columns["value_storage"]))
        producer, storage = columns["value_producer"], columns["value_storage"]
        for value in np.flatnonzero((producer >= 0) & self.is_idle[producer]).tolist():
            taken = self.graph.index.inputs(int(producer[value]))
            same = taken[(storage[taken] == storage[value]) & (taken < value)]
            if len(same):
                root[value] = root[same[0]]
        return root

    @cached_property
    def maker(self) -> Array:
        """Per value the op that wrote its memory; -1 for what was there before."""
        columns = self.graph.columns
        made = columns["value_producer"][self.root].astype(np.int64)
        from_outside = columns["node_kind"][made] == KINDS.index(NodeKind.INPUT) if len(made) else np.zeros(0, bool)
        return np.where((made < 0) | from_outside, -1, made)

    @cached_property
    def is_weight(self) -> Array:
        """Values in the memory of a parameter, buffer or constant, as it was before the run."""
        columns = self.graph.columns
        role = np.append(columns["storage_role"], ROLES.index(Role.TEMPORARY))[columns["value_storage"]]
        return np.isin(role, _WEIGHTS) & (self.maker < 0)

    @cached_property
    def only_for_backward(self) -> Array:
        """Results that only backward needs: pool indices, statistics of norms."""
        return only_for_backward(self.graph)

    @cached_property
    def reads(self) -> tuple[Array, Array]:
        """Nodes and the values they read, a pair per read. A view reads nothing; `copy_` not what it overwrites."""
        columns = self.graph.columns
        node = self.graph.index.node_of_input
        slot = np.arange(len(node)) - columns["input_ptr"][node]
        data = columns["edge_kind"] == EDGE_KINDS.index(EdgeKind.DATA)
        most = int(max(slot.max(initial=0), columns["edge_input_index"].max(initial=0))) + 1
        edges = columns["edge_target"][data].astype(np.int64) * most + columns["edge_input_index"][data]
        handed = np.isin(node * most + slot, edges)
        only_written = columns["input_written"].astype(bool) & (columns["value_producer"][columns["input_value"]] >= 0)
        real = ~self.is_idle[node] & (handed | ~only_written)
        return node[real], columns["input_value"][real].astype(np.int64)

    @cached_property
    def results(self) -> tuple[Array, Array]:
        """Ops and the values they wrote into memory, a pair per write."""
        columns = self.graph.columns
        node = self.graph.index.node_of_output
        value = columns["output_value"].astype(np.int64)
        real = (value >= 0) & ~self.is_idle[node] & self.is_op[node]
        node, value = node[real], value[real]
        own = self.maker[value] == node
        return node[own], value[own]

    def _per_node(self, side: str) -> Array:
        node = self.graph.index.node_of_input if side == "input" else self.graph.index.node_of_output
        value = self.graph.columns[f"{side}_value"]
        totals = np.zeros(len(self.graph), np.int64)
        np.add.at(totals, node[value >= 0], self.value_bytes[value[value >= 0]])
        return totals


def ledger(graph: Graph, device: Device, sizes: Mapping[str, int] | None = None) -> Ledger:
    """Count and time every op of a graph."""
    counts = count(graph, sizes)
    free = replace(device, bandwidth=np.inf, link=np.inf, overhead_s=0.0)
    compute = np.nan_to_num(roofline(graph, counts, free).seconds)
    return Ledger(graph, device, counts, roofline(graph, counts, device), compute)


@dataclass(frozen=True, eq=False)
class Traffic:
    """What groups of ops take, make and hand to each other, in bytes."""

    inputs: Array  # per group: activations from outside, each memory once
    outputs: Array  # what it writes and does not only read itself, but for results that only backward needs
    for_backward: Array  # results that only backward needs
    weights: Array
    saved: Array  # reads and writes that a kernel made of the whole group avoids
    crossing: dict[tuple[int, int], int]  # (group, group) -> bytes that the second reads of the first


def traffic(ledger: Ledger, group: Array, count: int) -> Traffic:
    """What crosses between groups. `group` says per node of the graph which it is in; -1 for none."""
    columns = ledger.graph.columns
    storage, size, maker = columns["value_storage"], ledger.value_bytes, ledger.maker
    node, value = ledger.reads
    to, made_by = group[node], maker[value]
    origin = np.where(made_by >= 0, group[made_by], -1)
    weight = ledger.is_weight[value]
    outside = (to >= 0) & (origin != to) & ~weight

    def distinct(keys: list[Array], values: Array) -> tuple[Array, Array]:
        """Bytes per distinct key and storage. Views of one storage together count no more than the storage."""
        rows = np.unique(np.stack([*keys, storage[values], values], axis=1), axis=0)
        head, first = np.unique(rows[:, :-1], axis=0, return_inverse=True)
        total = np.bincount(first.ravel(), size[rows[:, -1]], minlength=len(head)).astype(np.int64)
        whole = np.append(columns["storage_bytes"], -1)[head[:, -1]]
        return head[:, :-1], np.where((whole >= 0) & (head[:, -1] >= 0), np.minimum(total, whole), total)

    def per_group(chosen: Array) -> Array:
        keys, total = distinct([to[chosen]], value[chosen])
        return np.bincount(keys[:, 0], total, minlength=count).astype(np.int64)

    pairs, bytes_of = distinct(
        [origin[outside & (origin >= 0)], to[outside & (origin >= 0)]], value[outside & (origin >= 0)]
    )
    crossing: dict[tuple[int, int], int] = {}
    for (a, b), size_of in zip(pairs.tolist(), bytes_of.tolist(), strict=True):  # once for each memory
        crossing[a, b] = crossing.get((a, b), 0) + size_of
    inner = (to >= 0) & (origin == to)
    only_inside = _only_inside(ledger, value, inner)
    wrote, result = ledger.results
    leaves_group = (group[wrote] >= 0) & ~only_inside[result]
    later = ledger.only_for_backward[result]

    def written(chosen: Array) -> Array:
        keys, total = distinct([group[wrote][chosen]], result[chosen])
        return np.bincount(keys[:, 0], total, minlength=count).astype(np.int64)

    return Traffic(
        per_group(outside),
        written(leaves_group & ~later),
        written(leaves_group & later),
        per_group(weight & (to >= 0)),
        _saved(ledger, node[inner], value[inner], only_inside, group, count),
        crossing,
    )


def _only_inside(ledger: Ledger, value: Array, inner: Array) -> Array:
    """Per value whether only ops of the group that made it read it, and at least one does."""
    root = ledger.root
    read, elsewhere = np.zeros(len(root), bool), np.zeros(len(root), bool)
    read[root[value[inner]]] = True
    elsewhere[root[value[~inner]]] = True  # also by the program's outputs, which are in no group
    return read & ~elsewhere


def _saved(ledger: Ledger, node: Array, value: Array, only_inside: Array, group: Array, count: int) -> Array:
    """Per group the bytes that one kernel saves: reads of what the group made, and writes that only the group reads; of
    an op at most what it was costed with."""
    size, nodes = ledger.value_bytes, len(ledger.graph)
    reads = np.bincount(node, size[value], minlength=nodes)
    wrote, result = ledger.results
    inside = only_inside[result]
    writes = np.bincount(wrote[inside], size[result[inside]], minlength=nodes)
    saved = np.minimum(reads, ledger.bytes_read) + np.minimum(writes, ledger.bytes_written)
    mine = group >= 0
    return np.bincount(group[mine], saved[mine], minlength=count).astype(np.int64)
