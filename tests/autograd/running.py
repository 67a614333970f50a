"""A case of graphs.py run by torch, with or without somebody who looks on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from autograd.graphs import Case

import torchatlas as atlas
from torchatlas.autograd.debugger import Debugger


def differentiate(case: Case) -> Any:
    """As the case says, by torch."""
    options = {"retain_graph": case.retain_graph, "create_graph": case.create_graph}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Using backward\(\) with create_graph=True")
        if case.grad:
            return torch.autograd.grad(
                case.outputs, case.inputs, case.grad_outputs, allow_unused=case.allow_unused, **options
            )
        torch.autograd.backward(case.outputs, case.grad_outputs, inputs=case.inputs, **options)
        return None


def debugger(case: Case, **options: Any) -> Debugger:
    """The same, to be stepped through."""
    return atlas.debug_backward(
        case.outputs,
        case.grad_outputs,
        inputs=case.inputs,
        retain_graph=case.retain_graph,
        create_graph=case.create_graph,
        **options,
    )


def gradients(case: Case, run: Callable[[Case], Any]) -> list[torch.Tensor | None]:
    returned = run(case)
    return [*(returned or ()), *(tensor.grad for tensor in case.leaves)]


def assert_same(one: list[torch.Tensor | None], other: list[torch.Tensor | None]) -> None:
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert (mine.layout, mine.dtype, mine.shape) == (theirs.layout, theirs.dtype, theirs.shape)
            if mine.layout is not torch.strided:
                mine, theirs = mine.to_dense(), theirs.to_dense()
            assert torch.equal(mine.nan_to_num(), theirs.nan_to_num())
            assert torch.equal(mine.isnan(), theirs.isnan())
