"""What is told of a recorded step before it is decoded: equal structures, and only those, have equal signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchatlas as atlas
from torchatlas.capturing.step_rows import StepReader, StepRows

X, FLAT = torch.ones(4, 4), torch.ones(2, 8)


def rows_of(run: Callable[[], Any], model: nn.Module | None = None, reader: StepReader | None = None) -> StepRows:
    with atlas.recording(model) as rec:
        run()
    return (reader or StepReader()).read(rec)


def scaled(by: Any) -> Callable[[], Any]:
    return lambda: torch.add(X * by, X, alpha=by)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (scaled(2.0), scaled(3.0), True),  # the value of a number that an op takes
        (scaled(2), scaled(3), True),
        (scaled(2), scaled(2.0), False),  # its kind
        (lambda: X.sum(0), lambda: X.sum(1), False),  # a dimension is no such number
        (lambda: X.view(2, 8), lambda: X.view(8, 2), False),
        (lambda: X + X, lambda: X - X, False),
        (lambda: X + X, lambda: FLAT + FLAT, False),  # as many bytes, another shape
        (lambda: X + X, lambda: X + X.clone(), False),
        (lambda: torch.cat([X, X]), lambda: torch.cat([X, X, X]), False),
        (lambda: X[:2] * 1, lambda: X[:3] * 1, False),
        (lambda: torch._foreach_mul([X.clone()], [2.0]), lambda: torch._foreach_mul([X.clone()], [3.0]), True),
        (lambda: X.to(torch.float64), lambda: X.to(torch.float16), False),
        (lambda: nn.functional.dropout(X, 0.1), lambda: nn.functional.dropout(X, 0.2), True),
        (lambda: X.split(2), lambda: X.split(1), False),
        (lambda: torch.zeros(3, dtype=torch.int8), lambda: torch.zeros(3, dtype=torch.int16), False),
    ],
)
def test_signatures(one: Callable[[], Any], other: Callable[[], Any], equal: bool) -> None:
    first = rows_of(one).signature
    reader = StepReader()  # which compares a step with the one before
    again, another, back = (rows_of(run, reader=reader).signature for run in (one, other, one))
    assert first == again == back
    assert (another == first) == equal
    assert rows_of(other).signature == another


def test_modules_are_part_of_a_structure() -> None:
    first, second = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Identity(), nn.Linear(4, 4), nn.ReLU())
    signatures = [rows_of(lambda model=model: model(X), model).signature for model in (first, first, second)]
    assert signatures[0] == signatures[1] != signatures[2]


def test_steps_are_compared_with_the_last_one_of_their_recorder() -> None:
    """Read row by row or compared as a whole, the same is told; with a checkpoint, whose events carry numbers."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        checkpoint(model, x, use_reentrant=False).sum().backward()
        optimizer.step()

    reader, signatures = StepReader(), []
    for x in [X, X, X, X, X[:2], X, X]:
        with atlas.recording(model) as rec:
            step(x)
        step_rows = [reader.read(rec), StepReader().read(rec)]
        assert step_rows[0].signature == step_rows[1].signature
        assert step_rows[0].freed == step_rows[1].freed
        assert step_rows[0].times_ns.tolist() == step_rows[1].times_ns.tolist()
        graph = rec.graph
        assert step_rows[0].times_ns.tolist() == [node.time_ns for node in graph.where(kind="op")]
        signatures.append(step_rows[0].signature)
    first, second, *others = signatures  # the first makes the optimizer's state and meets no gradients
    assert first != second
    assert [signature == second for signature in others] == [True, True, False, True, True]


def test_times_and_what_died_are_those_of_the_graph() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    with atlas.recording(model) as rec:
        model(X).sum().backward()
    rows = StepReader().read(rec)
    graph = rec.graph
    ops = graph.where(kind="op")
    assert rows.times_ns.tolist() == [node.time_ns for node in ops]
    died = [storage for storage in graph.storages if storage.died is not None]
    assert sum(size for _, size in rows.freed) == sum(storage.bytes for storage in died) > 0
    assert rows.freed_bytes()[-1] <= sum(size for _, size in rows.freed)


def test_a_recorder_may_answer_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with atlas.recording(native=False) as rec:
        X + X
    summary = (7, np.array([1, 2]).tobytes(), ((1, 64),), [], [])
    monkeypatch.setattr(type(rec._recorder), "summary", lambda recorder: summary)
    rows = StepReader().read(rec)
    assert rows.signature[0] == 7
    assert (rows.times_ns.tolist(), rows.freed) == ([1, 2], ((1, 64),))
