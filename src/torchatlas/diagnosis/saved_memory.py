"""One line whose tensors, saved for backward, are most of what is saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchatlas.autograd.saved import saved_by, storage_bytes, storage_key
from torchatlas.autograd.walk import leaf_of
from torchatlas.diagnosis.case import CHECKS, Case
from torchatlas.diagnosis.finding import Finding, Severity, at
from torchatlas.graph import GraphNode
from torchatlas.units import format_bytes

_LARGE = 64 * 2**20  # below that it is nobody's concern
_MOST = 0.5


@CHECKS.add("saved-memory")
def saved_memory(case: Case) -> Iterator[Finding]:
    leaves = {storage_key(leaf) for node in case.nodes if (leaf := leaf_of(node)) is not None}
    saved = [
        (node, storage_key(each.data), storage_bytes(each.data))
        for node in case.nodes
        for each in saved_by(node)
        if each.data is not None
    ]
    sizes = {storage: max(size, 0) for _, storage, size in saved if storage not in leaves}
    total = sum(sizes.values())
    if total < _LARGE or case.forward is None:
        return
    lines: dict[Any, set[int]] = {}
    first: dict[Any, GraphNode] = {}
    for node, storage, _ in saved:
        op = case.op_of(node)
        if op is not None and op.source is not None and storage in sizes:
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
                "compute it without the large intermediate (broadcasting, one-hot, attention by hand), in pieces, or "
                "under torch.utils.checkpoint",
                severity=Severity.NOTE,
            )
