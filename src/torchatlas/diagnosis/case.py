"""What can be known of a loss before its backward pass: the graph behind it, and the recording it was made in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from torchatlas.autograd.tasks import reached, starting_node
from torchatlas.autograd.walk import sequence_nr
from torchatlas.diagnosis.finding import Finding, Where
from torchatlas.graph import Graph, GraphNode, Phase
from torchatlas.registry import Registry

Check = Callable[["Case"], Iterable[Finding]]
CHECKS: Registry[Check] = Registry("diagnosis")  # what can be found from a loss alone


@dataclass(eq=False)
class Case:
    """A loss, or several, before the backward pass."""

    losses: list[torch.Tensor]
    model: nn.Module | None = None
    read: Callable[[], Graph | None] = lambda: None  # the recording; read only if something seems to be wrong
    storage_of: Callable[[torch.Tensor], int | None] = lambda tensor: None  # its number in the recording
    line: Where | None = None  # of the call of backward
    others: Callable[[], Iterable[torch.Tensor]] = lambda: ()  # parameters of other modules that were called
    caller_of: Callable[[GraphNode], Where | None] = lambda node: None  # the line that called the model an op ran in
    known_nodes: list[Any] | None = None  # if somebody has walked them already
    whole: bool = True  # whether the recording holds all that ran
    call_of: Callable[[GraphNode], Where | None] = lambda node: None  # the same line, in whichever file

    @cached_property
    def nodes(self) -> list[Any]:
        """Of autograd, behind the losses that have some."""
        if self.known_nodes is not None:
            return self.known_nodes
        return reached(list(dict.fromkeys(starting_node(loss) for loss in self.losses if loss.requires_grad)))

    @cached_property
    def forward(self) -> Graph | None:
        return self.read()

    @cached_property
    def _made_by(self) -> dict[int, GraphNode]:
        """Autograd's number -> the forward op that made the node."""
        if self.forward is None:
            return {}
        ops = [*self.forward.where(phase=Phase.FORWARD, kind="op"), *self.forward.where(phase=Phase.OTHER, kind="op")]
        return {op.sequence_nr: op for op in reversed(ops) if op.sequence_nr is not None and op.sequence_nr >= 0}

    def op_of(self, node: Any) -> GraphNode | None:
        """The forward op that made a node of autograd, if it was recorded."""
        return self._made_by.get(sequence_nr(node))

    def written_after(self, op: GraphNode, storages: set[int] | None = None) -> list[GraphNode]:
        """The ops that wrote, after this one, to some storages; without them to what it took or made."""
        if self.forward is None:
            return []
        if storages is None:
            storages = {v.storage.id for v in [*op.inputs, *op.outputs] if v.storage is not None}
        return [node for node, written in self._writers if node.id > op.id and not written.isdisjoint(storages)]

    @cached_property
    def _writers(self) -> list[tuple[GraphNode, set[int]]]:
        """The ops that write, and to which storages."""
        if self.forward is None:
            return []
        writers = [node for node in self.forward.where(kind="op") if node.writes]
        return [(node, {s.id for i in node.writes if (s := node.inputs[i].storage)}) for node in writers]

    def leaves(self) -> set[int]:
        """The storages of leaves that require a gradient: of the model, and of all that is known by now."""
        return {storage for storage, trained in self.parameters().items() if trained}

    def parameters(self) -> dict[int, bool]:
        """The storages of all parameters, and whether they require a gradient."""
        known = [] if self.model is None else list(self.model.parameters())
        found = [(self.storage_of(leaf), leaf.requires_grad) for leaf in [*known, *self.others()]]
        return {storage: trained for storage, trained in found if storage is not None}

    def here(self) -> tuple[Where, ...]:
        return () if self.line is None else (self.line,)


def short(node: Any) -> str:
    """The name of a node of autograd, without its namespace."""
    return str(node.name().rpartition("::")[2])
