"""Graph of a training step -> the modules that could be checkpointed, and which memory that would free.

It predicts torch.utils.checkpoint without reentrance. What is saved inside a checkpointed call is freed in forward as
soon as forward is done with it; its arguments are held until its backward ends; the first op of its backward that
wants something saved runs the forward of the call again, up to the last thing saved and no further.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torchatlas.analysis.cost import CostReport
from torchatlas.analysis.storages import peak_of, storages_of
from torchatlas.errors import AnalysisError
from torchatlas.graph import Graph, Phase, Role
from torchatlas.graph.columns import PHASES, ROLES, Array

_FORWARD, _BACKWARD, _RECOMPUTE = (PHASES.index(one) for one in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE))
_NOT_SAVED = (ROLES.index(Role.GRADIENT), ROLES.index(Role.OPTIMIZER_STATE))
_MADE_HERE = tuple(ROLES.index(role) for role in (Role.ACTIVATION, Role.TEMPORARY))
WRITES_OUTSIDE = "writes to what was there before, which running forward twice would do twice (BatchNorm in training)"
RECOMPUTED_ALREADY = "holds a module that is checkpointed already"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A module that is called once and saves tensors inside. Nodes are positions in the graph."""

    path: str
    type: str
    first: int  # nodes of its forward, both included
    last: int
    stop: int  # the last node that runs again
    resume: int  # the node of backward before which they do
    backward_end: int  # the node after which its arguments are freed
    saved_bytes: int  # of saved tensors inside it, which checkpointing would free
    output_bytes: int
    flops: int  # of what runs again; 2 per multiply-add
    elementwise_flops: int
    seconds: float  # of what runs again, at best
    recompute_bytes: int = field(repr=False)  # the most that running again adds
    copied: Array = field(repr=False)  # storages that are made twice
    original_end: Array = field(repr=False)  # for each of them, the last node at which the first copy is alive
    arguments: Array = field(repr=False)  # storages that it reads, held for the second run

    @property
    def work(self) -> int:
        """Arithmetic of all kinds that is done again."""
        return self.flops + self.elementwise_flops

    def contains(self, other: Candidate) -> bool:
        return self.first <= other.first and other.last <= self.last

    def meets(self, other: Candidate) -> bool:
        """Whether one is inside the other."""
        return self.first <= other.last and other.first <= self.last

    def is_like(self) -> tuple[Any, ...]:
        """A key that is equal for blocks of the same kind, work and memory."""
        span = self.last - self.first, self.stop - self.first
        return self.type, span, self.saved_bytes, self.output_bytes, self.flops, self.elementwise_flops


class TrainingStep:
    """A recorded training step and the modules of it that could be checkpointed."""

    def __init__(self, graph: Graph, costs: CostReport) -> None:
        self.peak_bytes = peak_of(graph)
        self.graph, self.costs, self.storages = graph, costs, storages_of(graph)
        self.live = graph.columns["node_memory_bytes"].astype(np.int64)
        self._phase = graph.columns["node_phase"]
        if not (self._phase == _BACKWARD).any():
            raise AnalysisError(
                "There is no backward in this graph, so nothing is saved for it. Record a training step: "
                "atlas.capture(model, *args, backward=True)."
            )
        self._born = graph.columns["storage_born"]
        self._made = np.isin(graph.columns["storage_role"], _MADE_HERE)
        self.born_bytes = np.zeros(len(graph) + 1, np.int64)
        np.add.at(self.born_bytes, self.storages.start, self.storages.bytes)
        self._read()
        self._find_calls()
        self._find_backwards()
        self.excluded: dict[str, str] = {}
        self.candidates = self._candidates()

    # -- what is read where --------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Index the nodes that read and write each storage, by node and by storage, and the storages by birth."""
        columns = self.graph.columns
        node = self.graph.index.node_of_input
        storage = columns["value_storage"][columns["input_value"]].astype(np.int64)
        written = columns["input_written"].astype(bool)
        known = storage >= 0
        node, storage, written = node[known], storage[known], written[known]
        self._written_node, self._written_storage = node[written], storage[written]
        self._reading_node, self._storage_read = node, storage
        order = np.argsort(storage, kind="stable")
        self._reader, self._read_storage = node[order], storage[order]
        self._reads = np.searchsorted(self._read_storage, np.arange(len(self._born) + 1))
        self._by_birth = np.argsort(self._born, kind="stable")
        self._births = self._born[self._by_birth]
        self._gone: dict[int, int] = {}

    def _readers(self, storage: int) -> Array:
        return self._reader[self._reads[storage] : self._reads[storage + 1]]

    def _find_calls(self) -> None:
        """The first and the last forward node of each call, with the calls inside it."""
        columns = self.graph.columns
        call, parent = columns["node_call"], columns["call_parent"].tolist()
        self._parent, count = parent, len(parent)
        forward = np.flatnonzero((self._phase == _FORWARD) & (call >= 0))
        self.first, self.last = np.full(count, len(self.graph)), np.full(count, -1)
        self._nodes = np.bincount(call[forward], minlength=count)
        np.minimum.at(self.first, call[forward], forward)
        np.maximum.at(self.last, call[forward], forward)
        for one in range(count - 1, -1, -1):  # a call comes after the one it is in
            if (outer := parent[one]) >= 0:
                self.first[outer] = min(self.first[outer], self.first[one])
                self.last[outer] = max(self.last[outer], self.last[one])
                self._nodes[outer] += self._nodes[one]

    def _let_go(self, storage: int) -> int:
        """The node of forward after which a tensor is gone if nothing saves it.

        An argument stays with its call until that returns, as the frames of the call hold it.
        """
        if storage in self._gone:
            return self._gone[storage]
        born = gone_after = int(self._born[storage])
        for node in self._readers(storage).tolist():
            if self._phase[node] != _FORWARD:
                continue
            call, end = int(self.graph.columns["node_call"][node]), node
            while call >= 0 and not self.first[call] <= born <= self.last[call]:
                end = max(end, int(self.last[call]))
                call = self._parent[call]
            gone_after = max(gone_after, end)
        self._gone[storage] = gone_after
        return gone_after

    def _find_backwards(self) -> None:
        """Per node of forward whose backward reads something saved: the first and last op of its backward, and whether
        it saved a result of its own, so that it has to run again itself."""
        forward = self.graph.columns["node_forward"]
        role = self.graph.columns["storage_role"][self._read_storage]
        made = np.where(self._born[self._read_storage] < 0, _FORWARD, self._phase[self._born[self._read_storage]])
        saved = (self._phase[self._reader] == _BACKWARD) & (forward[self._reader] >= 0)
        saved &= (made == _FORWARD) & ~np.isin(role, _NOT_SAVED)
        self._saver = forward[self._reader]  # per read, for those of backward
        self._is_saved_read = saved
        own = saved & (self._born[self._read_storage] == self._saver)
        count = len(self.graph)
        self._has_saved, self._saves_own = np.zeros(count, bool), np.zeros(count, bool)
        self._has_saved[self._saver[saved]] = True
        self._saves_own[self._saver[own]] = True
        backward = np.flatnonzero((self._phase == _BACKWARD) & (forward >= 0))
        self._backward_first, self._backward_last = np.full(count, count), np.full(count, -1)
        np.minimum.at(self._backward_first, forward[backward], backward)
        np.maximum.at(self._backward_last, forward[backward], backward)

    # -- candidates ----------------------------------------------------------------------------------------------------

    def _candidates(self) -> list[Candidate]:
        columns, tables, index = self.graph.columns, self.graph.tables, self.graph.index
        path_of = index.path_of_call[:-1]
        times = np.bincount(path_of, minlength=len(index.paths))
        again = np.unique(index.path_of_call[columns["node_call"][self._phase == _RECOMPUTE]])
        around_recomputed = {outer for one in again.tolist() for outer in outer_paths(index.paths[one])}
        candidates: list[Candidate] = []
        spans: set[tuple[int, int]] = set()
        for call in range(len(path_of)):
            path, first, last = index.paths[path_of[call]], int(self.first[call]), int(self.last[call])
            whole = self._nodes[call] == last - first + 1  # other threads, and optimizers, are not followed
            if not path or times[path_of[call]] != 1 or last < first or not whole or (first, last) in spans:
                continue
            candidate = self._candidate(path, tables.modules[int(columns["call_module"][call])].type, first, last)
            if candidate is None:
                continue
            spans.add((first, last))
            if path in around_recomputed:
                self.excluded[path] = RECOMPUTED_ALREADY
            elif self._writes_outside(first, last):
                self.excluded[path] = WRITES_OUTSIDE
            else:
                candidates.append(candidate)
        return candidates

    def _writes_outside(self, first: int, last: int) -> bool:
        inside = _rows(self._written_node, first, last)
        return bool((self._born[self._written_storage[inside]] < first).any())

    def _candidate(self, path: str, type_name: str, first: int, last: int) -> Candidate | None:
        """None where nothing inside it is saved for its backward only."""
        saves = first + np.flatnonzero(self._has_saved[first : last + 1])
        if not len(saves):
            return None
        stop = int((saves - ~self._saves_own[saves]).max())
        resume, backward_end = int(self._backward_first[saves].min()), int(self._backward_last[saves].max())
        inner = np.sort(self._by_birth[_rows(self._births, first, last)])
        inner = inner[self._made[inner]]
        end, size = self.storages.end, self.storages.bytes
        copied, original_end, passing_end = [], [], {}
        saved_bytes = output_bytes = 0
        for one in inner.tolist():
            rows = slice(int(self._reads[one]), int(self._reads[one + 1]))
            reader, mine = self._reader[rows], self._is_saved_read[rows]
            mine = mine & (self._saver[rows] >= first) & (self._saver[rows] <= last)
            within = mine | ((reader >= first) & (reader <= last))
            handed_on = not within.all()
            output_bytes += int(size[one]) if handed_on else 0
            if mine.any() and end[one] >= resume and self._born[one] <= stop:
                copied.append(one)
                if not handed_on:
                    original_end.append(self._let_go(one))
                    saved_bytes += int(size[one])
                else:  # other readers, or the program itself, hold the original for longer than forward needs it
                    held = end[one] > backward_end
                    original_end.append(int(end[one]) if held else max(int(reader[~within].max()), last))
            else:
                passing_end[one] = stop if handed_on else int(end[one])
        if not saved_bytes:
            return None
        ran_again = slice(first, stop + 1)
        counts, seconds = self.costs.counts, self.costs.roofline.seconds
        macs, other = counts.macs[ran_again], counts.elementwise_flops[ran_again]
        return Candidate(
            path=path,
            type=type_name,
            first=first,
            last=last,
            stop=stop,
            resume=resume,
            backward_end=backward_end,
            saved_bytes=saved_bytes,
            output_bytes=output_bytes,
            flops=2 * int(macs[macs > 0].sum()),
            elementwise_flops=int(other[other > 0].sum()),
            seconds=float(np.nansum(seconds[ran_again])),
            recompute_bytes=self._recompute_bytes(first, stop, copied, passing_end),
            copied=np.array(copied, np.int64),
            original_end=np.array(original_end, np.int64),
            arguments=self._arguments(first, last),
        )

    def _recompute_bytes(self, first: int, stop: int, copied: list[int], passing_end: dict[int, int]) -> int:
        """The most that is alive while forward runs again: what is saved stays, the rest comes and goes."""
        if stop < first:
            return 0
        change, size = np.zeros(stop - first + 2, np.int64), self.storages.bytes
        for one in copied:
            change[self._born[one] - first] += size[one]
        for one, end in passing_end.items():
            if self._born[one] <= stop:
                change[self._born[one] - first] += size[one]
                change[min(end, stop) + 1 - first] -= size[one]
        return int(np.cumsum(change[:-1]).max())

    def _arguments(self, first: int, last: int) -> Array:
        """The storages it reads that earlier ops of forward made: running it again needs them."""
        read = np.unique(self._storage_read[_rows(self._reading_node, first, last)])
        return read[(self._born[read] >= 0) & (self._born[read] < first) & self._made[read]]


def _rows(column: Array, first: int, last: int) -> slice:
    """The rows of a sorted column whose numbers lie from first to last, both included."""
    return slice(*np.searchsorted(column, [first, last + 1]).tolist())


def outer_paths(path: str) -> list[str]:
    """The paths of the modules around one, without the root.

    >>> outer_paths("layers.0.norm")
    ['layers', 'layers.0']
    """
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
