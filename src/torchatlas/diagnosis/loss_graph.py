"""The autograd graph behind a loss, joined with a recording of the forward pass that made it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from operator import methodcaller
from typing import Any

import numpy as np
import torch

from torchatlas.autograd.graph_walk import FIRST, leaf_of, reached, sequence_nr, starting_node
from torchatlas.diagnosis.findings import Where
from torchatlas.diagnosis.history import Recorded
from torchatlas.graph import Graph, GraphNode, Phase
from torchatlas.graph.columns import KINDS, PHASES, Array
from torchatlas.graph.nouns import NodeKind

_OP, _FORWARD, _OTHER = KINDS.index(NodeKind.OP), PHASES.index(Phase.FORWARD), PHASES.index(Phase.OTHER)
_NUMBER = methodcaller("_sequence_nr")


@dataclass(eq=False)
class LossGraph:
    """A loss, or several, before backward. The recording is read only if something seems to be wrong."""

    losses: list[torch.Tensor]
    recorded: Recorded
    line: Where | None = None  # of the call of backward

    @cached_property
    def nodes(self) -> list[Any]:
        """The nodes of autograd behind those losses that have some."""
        return reached(list(dict.fromkeys(starting_node(loss) for loss in self.losses if loss.requires_grad)))

    @cached_property
    def kinds(self) -> dict[type, list[int]]:
        """The places in `nodes` of the nodes of each kind: kinds are few, and asking each of them takes little."""
        places: dict[type, list[int]] = {}
        for number, kind in enumerate(map(type, self.nodes)):
            if kind in places:
                places[kind].append(number)
            else:
                places[kind] = [number]
        return places

    @cached_property
    def oldest(self) -> int:
        """The smallest of autograd's numbers of the nodes; of leaves alone, a larger one than any other has."""
        return min(min(map(_NUMBER, self.nodes), default=FIRST), FIRST)

    @cached_property
    def leaves(self) -> dict[int, torch.Tensor]:
        """The leaves that get gradients, by the place in `nodes` of what adds to them."""
        kinds = (numbers for numbers in self.kinds.values() if leaf_of(self.nodes[numbers[0]]) is not None)
        return {number: self.nodes[number].variable for numbers in kinds for number in numbers}

    @cached_property
    def targets(self) -> list[list[int]]:
        """By place in `nodes`: the places of the nodes that a node passes gradients on to."""
        number = {node: place for place, node in enumerate(self.nodes)}
        return [[number[target] for target, _ in node.next_functions if target in number] for node in self.nodes]

    @cached_property
    def sources(self) -> list[list[int]]:
        """By place in `nodes`: the places of the nodes that pass gradients on to a node."""
        sources: list[list[int]] = [[] for _ in self.nodes]
        for source, targets in enumerate(self.targets):
            for target in targets:
                sources[target].append(source)
        return sources

    @cached_property
    def root_numbers(self) -> list[int]:
        """Autograd's numbers of the nodes that made the losses."""
        return [sequence_nr(loss.grad_fn) for loss in self.losses if loss.grad_fn is not None]

    @cached_property
    def forward(self) -> Graph | None:
        return self.recorded.graph

    @cached_property
    def _op_by_number(self) -> dict[int, int]:
        """Autograd's number of a node -> the forward op that made the node, by its id."""
        if self.forward is None:
            return {}
        columns = self.forward.columns
        numbers = columns["node_sequence_nr"]
        made = (columns["node_kind"] == _OP) & (numbers >= 0)
        phases = (made & (columns["node_phase"] == phase) for phase in (_FORWARD, _OTHER))
        rows = np.concatenate([np.flatnonzero(phase) for phase in phases])[::-1]  # the first one stays
        return dict(zip(numbers[rows].tolist(), rows.tolist(), strict=True))

    def op_of(self, node: Any) -> GraphNode | None:
        """The forward op that made a node of autograd, if it was recorded."""
        row = self._op_by_number.get(sequence_nr(node))
        return None if row is None or self.forward is None else self.forward.nodes[row]

    def written_after(self, op: GraphNode, storages: set[int] | None = None) -> list[GraphNode]:
        """The ops that wrote to some storages after this one; by default to those of its inputs and outputs."""
        if storages is None:
            storages = {v.storage.id for v in [*op.inputs, *op.outputs] if v.storage is not None}
        nodes, written = self._written
        later = nodes[(nodes > op.id) & np.isin(written, list(storages))]
        return [] if self.forward is None else [self.forward.nodes[node] for node in np.unique(later).tolist()]

    @cached_property
    def _written(self) -> tuple[Array, Array]:
        """The ops that write, by their ids, and the storage that each writes to; several, if it writes to several."""
        if self.forward is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        columns = self.forward.columns
        rows = np.flatnonzero(columns["input_written"])
        return self.forward.index.node_of_input[rows], columns["value_storage"][columns["input_value"][rows]]

    def parameters(self) -> dict[int, bool]:
        """The storages of all parameters, and whether they require a gradient."""
        storages = [(self.recorded.storage_of(leaf), leaf.requires_grad) for leaf in self.recorded.parameters()]
        return {storage: trained for storage, trained in storages if storage is not None}

    @property
    def lines(self) -> tuple[Where, ...]:
        """The line of the call of backward, if there is one."""
        return () if self.line is None else (self.line,)


def short(node: Any) -> str:
    """The name of a node of autograd, without its namespace."""
    return str(node.name().rpartition("::")[2])
