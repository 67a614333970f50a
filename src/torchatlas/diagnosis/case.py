"""What a diagnosis looks at: the graph behind a loss, the model, and a recording of the forward pass if there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from torchatlas.autograd.tasks import starting_node
from torchatlas.autograd.walk import Walk, sequence_nr, walk
from torchatlas.diagnosis.finding import Finding
from torchatlas.graph import Graph, GraphNode, Phase
from torchatlas.registry import Registry

Check = Callable[["Case"], Iterable[Finding]]
CHECKS: Registry[Check] = Registry("diagnosis")


@dataclass(eq=False)
class Case:
    """A loss before its backward pass."""

    losses: list[torch.Tensor]
    model: nn.Module | None = None
    forward: Graph | None = field(default=None, repr=False)

    @cached_property
    def graph(self) -> Walk:
        """Of the losses that have one."""
        return walk([starting_node(loss) for loss in self.losses if loss.requires_grad])

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

    def written_after(self, op: GraphNode) -> list[GraphNode]:
        """The ops that wrote, after this one, to memory that it took or made."""
        if self.forward is None:
            return []
        storages = {v.storage.id for v in [*op.inputs, *op.outputs] if v.storage is not None}
        later = (node for node in self.forward.where(kind="op") if node.id > op.id and node.writes)
        return [node for node in later if {s.id for i in node.writes if (s := node.inputs[i].storage)} & storages]


def place(node: GraphNode | None) -> str:
    """An op and its line, in words."""
    if node is None:
        return "a line that was not recorded"
    text = f" ({node.source.text})" if node.source is not None and node.source.text else ""
    return f"{node.name}, {node.source}{text}" if node.source is not None else node.name
