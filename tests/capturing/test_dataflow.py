"""The edges are right: what a node took is what the producer of that value made, checked on the real contents.

A second, independent dispatch mode copies the inputs and outputs of every op. A Value is one state of a tensor, so
its contents when it was made and whenever it is taken must be the same bytes; a missed write, a wrong alias or a
stale tensor number makes them differ.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import ZOO, Specimen, loss_of

import torchatlas as atlas
from torchatlas.graph import EdgeKind, Graph, NodeKind

SKIPPED = ("prim.device", "profiler.")


class Witness(TorchDispatchMode):
    """Copies everything that goes into and comes out of each op."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, list[Any], list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        taken = [_copy(item) for item in pytree.tree_leaves((args, kwargs or {})) if isinstance(item, torch.Tensor)]
        out = func(*args, **(kwargs or {}))
        if not str(func).startswith(SKIPPED):
            made = [_copy(item) for item in pytree.tree_leaves(out) if isinstance(item, torch.Tensor)]
            self.rows.append((str(func), taken, made))
        return out


def _copy(tensor: torch.Tensor) -> Any:
    if tensor.layout is not torch.strided or isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        return None
    return tensor.detach().clone()


def run_step(model: Any, args: Any, kwargs: Any, trains: bool) -> None:
    result = model(*args, **kwargs)
    if trains:
        loss_of(result).backward()


def witnessed(specimen: Specimen) -> tuple[Graph, Witness]:
    model, args, kwargs = specimen.build()
    witness = Witness()
    module = model if isinstance(model, torch.nn.Module) else None
    with witness, atlas.recording(module) as rec:
        run_step(model, args, kwargs, specimen.trains)
    return rec.graph, witness


# worker_thread: the recording follows the program's threads, the witness does not.
@pytest.mark.parametrize(
    "specimen", [one for one in ZOO if one.name != "worker_thread"], ids=lambda specimen: specimen.name
)
def test_values_are_what_nodes_made_and_took(specimen: Specimen) -> None:
    graph, witness = witnessed(specimen)
    ops = graph.where(kind=NodeKind.OP)
    assert [node.operation for node in ops] == [name for name, _, _ in witness.rows]
    contents: dict[int, Any] = {}
    checked = 0
    for node, (_, taken, made) in zip(ops, witness.rows, strict=True):
        assert len(node.inputs) == len(taken)
        for value, content in zip(node.inputs, taken, strict=True):
            if content is None:
                continue
            assert tuple(content.shape) == value.shape
            if value.id in contents:
                assert _same(contents[value.id], content), f"{node.name} took another state of {value}"
                checked += 1
            contents.setdefault(value.id, content)
        for value, content in zip(node.outputs, made, strict=False):
            if content is not None:
                contents[value.id] = content
    assert checked > 0 or len(ops) < 3


@pytest.mark.parametrize("specimen", ZOO, ids=lambda specimen: specimen.name)
def test_every_value_that_was_made_has_an_edge_to_whoever_takes_it(specimen: Specimen) -> None:
    graph, _ = witnessed(specimen)
    arriving = {(edge.target_id, edge.input_index) for edge in graph.edges}
    for node in graph.nodes:
        for index, value in enumerate(node.inputs):
            if value.producer is not None:
                assert (node.id, index) in arriving, f"{node.name} input {index} comes from nowhere"
    for edge in graph.edges:
        if edge.kind is EdgeKind.DATA:
            assert edge.value is not None
            assert edge.target.inputs[edge.input_index or 0] == edge.value
            assert edge.source_id < edge.target_id


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    same = one.eq(other) | (one.ne(one) & other.ne(other))
    return bool(same.all())
