"""The edges are right: what a node took is what the producer of that value made, checked on the real contents.

A second, independent dispatch mode copies the inputs and outputs of every op. A Value is one state of a tensor, so
its contents when it was made and whenever it is taken must be the same bytes; a missed write, a wrong alias or a
stale tensor number makes them differ.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from capturing.byte_witness import ByteWitness, edge_faults
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


# -- against the bytes that ops share ----------------------------------------------------------------------------------


@pytest.mark.parametrize("specimen", [one for one in ZOO if one.name != "worker_thread"], ids=str)
def test_edges_are_the_bytes_that_ops_share(specimen: Specimen) -> None:
    model, args, kwargs = specimen.build()
    with atlas.recording() as rec, ByteWitness() as witness:
        run_step(model, args, kwargs, specimen.trains)
    assert edge_faults(rec.graph, witness) == []


def into_smaller(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    torch.index_select(x, 0, torch.tensor([1, 0, 1]), out=y.detach())
    return y.sin()


def sum_into(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    torch.sum(x, 0, out=y.detach())
    return y.sin()


def into_larger(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    z = y[4:]
    torch.cat([x, x], out=y.detach()[:0])
    return z.sin()


def through_a_storage(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    y[:2].mul_(2)
    return torch.empty(0).set_(y.untyped_storage(), 1, (4,)).sin()


def deep_copy(x: torch.Tensor) -> torch.Tensor:
    return copy.deepcopy(x.exp()).sin()


def part_of_an_input(x: torch.Tensor) -> torch.Tensor:
    x[:2].zero_()
    return x.sin()


def bytes_of_floats(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    y.view(torch.uint8)[:8].zero_()
    return y[3:].sin()


@pytest.mark.parametrize(
    ("program", "sources"),
    [
        (into_smaller, {"exp", "index_select"}),
        (sum_into, {"exp", "sum"}),
        (into_larger, {"cat"}),
        (through_a_storage, {"exp", "mul_", "set_"}),
        (deep_copy, {"copy_", "set__2"}),
        (part_of_an_input, {"input", "zero_"}),
        (bytes_of_floats, {"slice_1"}),
    ],
)
def test_every_source_of_a_byte_has_an_edge(program: Callable[..., Any], sources: set[str]) -> None:
    x = torch.ones(6)
    with warnings.catch_warnings(), atlas.recording() as rec, ByteWitness() as witness:
        warnings.simplefilter("ignore")  # that torch resizes an out=
        program(x)
    assert edge_faults(rec.graph, witness) == []
    edges = [edge for edge in rec.graph.edges if edge.target.name == "sin" and edge.kind is EdgeKind.DATA]
    assert {edge.source.name for edge in edges} == sources


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_meta and other.is_meta:
        return True
    same = one.eq(other) | (one.ne(one) & other.ne(other))
    return bool(same.all())
