"""Where the data of a recording came from and where it went: which ops made what, which took it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from typing import TypeVar

import numpy as np

from torchatlas.graph import Graph, Phase
from torchatlas.graph.columns import PHASES
from torchatlas.graph.names import short_name

_PROGRAM = [PHASES.index(phase) for phase in (Phase.FORWARD, Phase.OTHER, Phase.RECOMPUTE)]
T = TypeVar("T")


def reachable(start: Iterable[T], following: Callable[[T], Iterable[T]]) -> set[T]:
    """The nodes to start from, and all that `following` leads to from them."""
    reached = set(start)
    waiting = list(reached)
    while waiting:
        new = set(following(waiting.pop())) - reached
        reached |= new
        waiting += new
    return reached


class DataFlow:
    """The ops of a recording, by their ids. `is_program` marks those outside of backward and optimizers, `has_node`
    those that made a node of autograd."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.has_node = graph.columns["node_sequence_nr"] >= 0
        self.is_program = np.isin(graph.columns["node_phase"], _PROGRAM)

    def before_op(self, node: int) -> list[int]:
        """The ops whose data an op took."""
        ops: list[int] = self.graph.index.predecessors(node).tolist()
        return ops

    def after_op(self, node: int) -> list[int]:
        """The ops that took what an op made."""
        ops: list[int] = self.graph.index.successors(node).tolist()
        return ops

    def after(self, nodes: Iterable[int]) -> set[int]:
        """These ops, and all that used their results, directly or not."""
        return reachable(nodes, self.after_op)

    def name(self, node: int) -> str:
        """The short name of the operation of an op."""
        return short_name(self.graph.tables.operations[int(self.graph.columns["node_operation"][node])].name)

    @cached_property
    def _users(self) -> dict[int, list[int]]:
        """By storage: the ops of the program that take something from it and do not write to it."""
        columns, users = self.graph.columns, dict[int, list[int]]()
        takers, storages = self.graph.index.node_of_input, columns["value_storage"][columns["input_value"]]
        written = columns["input_written"]  # then it is an initialisation, or an update by hand
        for node, storage, changed in zip(takers.tolist(), storages.tolist(), written.tolist(), strict=True):
            if self.is_program[node] and not changed:
                users.setdefault(storage, []).append(node)
        return users

    def users(self, storage: int | None) -> list[int]:
        """The ops of the program that take something from a storage and do not write to it."""
        return [] if storage is None else self._users.get(storage, [])

    def writers(self, storages: Collection[int]) -> set[int]:
        """The ops that made or changed what is in some storages; -1 if it came from outside."""
        columns = self.graph.columns
        return set(columns["value_producer"][np.isin(columns["value_storage"], list(storages))].tolist())

    def makers(self, sequence_nrs: Iterable[int]) -> list[int]:
        """The ops of the program that made some nodes of autograd."""
        made = np.isin(self.graph.columns["node_sequence_nr"], list(sequence_nrs))
        ops: list[int] = np.flatnonzero(made & self.is_program).tolist()
        return ops
