"""saved-memory: the tensors that one line saves for backward are most of what is saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchatlas.autograd.graph_walk import leaf_of
from torchatlas.autograd.saved_tensors import memory_address, saved_by, storage_bytes, storage_key
from torchatlas.diagnosis.backward_passes import BackwardPass
from torchatlas.diagnosis.events import Diagnosis, Doublings, diagnosis
from torchatlas.diagnosis.findings import Finding, Severity, at
from torchatlas.diagnosis.loss_graph import LossGraph
from torchatlas.graph import GraphNode
from torchatlas.units import format_bytes

_LARGE = 64 * 2**20  # below that it is nobody's concern
_MOST = 0.5


@diagnosis
class SavedMemory(Diagnosis):
    keys = loss_keys = ("saved-memory",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit)
        self._passes = Doublings()

    def before_backward(self, backward: BackwardPass) -> None:
        for finding in self.check_loss(backward) if self._passes.count(backward.line) else ():
            self.visit.report(finding)

    @staticmethod
    def check_loss(loss: LossGraph) -> Iterator[Finding]:
        saved = saved_storages(loss.nodes)
        sizes = {storage: size for _, storage, size in saved}
        total = sum(sizes.values())
        if total < _LARGE or loss.forward is None:
            return
        lines: dict[Any, set[int]] = {}
        first: dict[Any, GraphNode] = {}
        for node, storage, _ in saved:
            op = loss.op_of(node)
            if op is not None and op.source is not None:
                key = op.source, op.scope.path, op.call_index  # a line that every layer runs is no fault of that line
                lines.setdefault(key, set()).add(storage)
                first.setdefault(key, op)
        for key, storages in lines.items():
            held = sum(sizes[storage] for storage in storages)
            if held >= _LARGE and held > _MOST * total:
                yield Finding(
                    "saved-memory",
                    f"one line saves {format_bytes(held)} for backward, of {format_bytes(total)} in all",
                    (at("saved by", first[key]),),
                    "its inputs or results are kept until backward has used them",
                    "compute it without the large intermediate (broadcasting, one-hot, attention by hand), in pieces, "
                    "or under torch.utils.checkpoint",
                    severity=Severity.NOTE,
                )


def saved_storages(nodes: list[Any]) -> list[tuple[Any, int, int]]:
    """The storages that nodes of autograd saved and still have, without those of leaves: node, storage, bytes."""
    leaves = {memory_address(leaf) for node in nodes if (leaf := leaf_of(node)) is not None} - {0}
    saved = ((node, each.data) for node in nodes for each in saved_by(node) if each.data is not None)
    others = ((node, data) for node, data in saved if memory_address(data) not in leaves)
    return [(node, storage_key(data), max(storage_bytes(data), 0)) for node, data in others]
