"""Models nobody could run here: whole training steps of 7, 70 and 405 billion parameters, on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import GIANTS, giant_llama
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import torchatlas as atlas


class Count(TorchDispatchMode):
    """Counts ops, but for what a fake tensor is asked about itself and what the profiler is told."""

    ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops += func.namespace not in ("prim", "profiler")
        return func(*args, **(kwargs or {}))


def training_step(size: str, **changes: int) -> atlas.Graph:
    tokens = torch.zeros(1, 2048, dtype=torch.long)
    return atlas.capture(
        lambda: giant_llama(size, **changes),
        input_ids=tokens,
        labels=tokens,
        loss=lambda result: result.loss,
        optimizer=torch.optim.AdamW,
        fake=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", GIANTS)
def test_a_training_step_of_a_giant(size: str) -> None:
    few = [len(training_step(size, num_hidden_layers=layers).where(kind="op")) for layers in (1, 2)]
    graph = training_step(size)
    ops, layers = len(graph.where(kind="op")), GIANTS[size]["num_hidden_layers"]
    assert ops == few[0] + (layers - 1) * (few[1] - few[0])
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in giant_llama(size).parameters())
    assert graph.scopes[""].parameters == parameters
    assert graph.peak_bytes is not None
    assert graph.peak_bytes > 4 * 2 * parameters  # parameters, gradients and two moments, two bytes each
    assert {node.phase for node in graph.where(kind="op")} == {"forward", "backward", "optimizer"}


def test_the_ops_of_a_giant_are_those_that_ran() -> None:
    with FakeTensorMode():
        model, tokens = giant_llama("405B", num_hidden_layers=3), torch.zeros(1, 2048, dtype=torch.long)
        optimizer = torch.optim.AdamW(model.parameters())
        with Count() as count:
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
    assert len(training_step("405B", num_hidden_layers=3).where(kind="op")) == count.ops
