"""What one call in a small program costs, for the tests of formulas; and small tensors to call with."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

import torchatlas as atlas
from torchatlas.analysis.node_work import Counts, count
from torchatlas.graph import Graph

Run = Callable[[], Any]

X, Y, Z = torch.rand(2, 3), torch.rand(2, 3) + 1, torch.rand(2, 3) + 1  # six elements each, 24 bytes
MASK = torch.tensor([[True, False, False], [False, True, True]])
SQUARE, EIGHT, ORDERED = torch.randn(1, 1, 4, 4), torch.randn(8), torch.arange(7.0)
LOGITS, TARGETS = torch.randn(2, 3), torch.tensor([0, 2])


class Cost(NamedTuple):
    flops: int  # elementwise
    read: int
    written: int
    parallelism: int


def recorded(run: Run) -> tuple[Graph, Counts]:
    with atlas.recording() as rec:
        run()
    return rec.graph, count(rec.graph)


def cost_of(run: Run, operation: str) -> Cost:
    """The cost of the one call of an ATen operation in a run."""
    graph, counts = recorded(run)
    found = [node.id for node in graph.where(kind="op") if node.operation.startswith(f"aten.{operation}.")]
    assert len(found) == 1, [node.operation for node in graph.where(kind="op")]
    assert counts.macs[found[0]] == 0
    columns = (counts.elementwise_flops, counts.bytes_read, counts.bytes_written, counts.parallelism)
    return Cost(*(int(column[found[0]]) for column in columns))


def total(run: Run) -> tuple[int, int, int]:
    """Elementwise FLOPs, bytes read and written of everything a run does."""
    _, counts = recorded(run)
    assert not counts.uncosted
    return int(counts.elementwise_flops.sum()), int(counts.bytes_read.sum()), int(counts.bytes_written.sum())


def backward(forward: Callable[[Tensor], Any], *shape: int) -> Run:
    """Forward and backward of a function of one tensor; the gradient that arrives is a whole tensor, not one number."""
    x = torch.rand(*shape, requires_grad=True)

    def run() -> None:
        y = forward(x)
        y.backward(torch.ones(y.shape))

    return run


def whole(run: Run) -> Run:
    """In inference mode an op that torch otherwise takes apart (cross_entropy_loss, layer_norm) is recorded whole."""

    def in_inference_mode() -> None:
        with torch.inference_mode():
            run()

    return in_inference_mode


def declare_operators() -> None:
    """Import what brings operators of its own, so that their names are known."""
    for module in (
        "torch.ao.quantization.fx._decomposed",
        "torch.distributed._functional_collectives",
        "torch.distributed.fsdp",
        "torch.nn.modules.linear_cross_entropy",  # not in the oldest versions
    ):
        if find_spec(module) is not None:
            import_module(module)
