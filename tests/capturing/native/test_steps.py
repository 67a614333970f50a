"""What the native recorder tells of a step without making rows: which structure it has, times, and what died."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.capturing.step_rows import StepReader, StepRows

pytestmark = pytest.mark.usefixtures("native")
X, FLAT = torch.ones(4, 4), torch.ones(2, 8)


def rows_of(run: Callable[[], Any], model: nn.Module | None = None) -> StepRows:
    with atlas.recording(model, native=True) as rec:
        run()
    rows = StepReader().read(rec)
    assert not rec._recorder._written  # type: ignore[attr-defined]  # no row became a Python object
    return rows


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: X + X, lambda: X - X),
        (lambda: X + X, lambda: FLAT + FLAT),
        (lambda: X + X, lambda: X + X.clone()),
        (lambda: X.sum(0), lambda: X.sum(1)),
        (lambda: X.sum(0), lambda: X.sum(0, keepdim=True)),
        (lambda: X.t() @ X, lambda: X @ X.t()),
        (lambda: X.to(torch.float64), lambda: X.to(torch.float16)),
        (lambda: torch.cat([X, X]), lambda: torch.cat([X, X, X])),
        (lambda: X.view(2, 8), lambda: X.view(8, 2)),
        (lambda: X * 2, lambda: X * 2.0),
        (lambda: nn.Identity()(X) + X, lambda: X + X),
    ],
)
def test_structures_differ(one: Callable[[], Any], other: Callable[[], Any]) -> None:
    assert rows_of(one).signature == rows_of(one).signature
    assert rows_of(one).signature != rows_of(other).signature


def test_a_learning_rate_is_no_part_of_the_structure() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()

    step()
    first = rows_of(step, model)
    optimizer.param_groups[0]["lr"] = 0.05
    assert rows_of(step, model).signature == first.signature


def test_times_and_deaths_are_those_of_the_graph() -> None:
    with atlas.recording(native=True) as rec:
        y = X @ X
        z = y.relu()
        del y
        z.sum()
    rows = StepReader().read(rec)
    graph = rec.graph
    assert rows.times_ns.tolist() == [node.time_ns for node in graph.where(kind="op")]
    died = [storage for storage in graph.storages if storage.died is not None]
    assert sum(size for _, size in rows.freed) == sum(storage.bytes for storage in died) > 0


def test_a_recording_that_nobody_decodes_is_no_garbage() -> None:
    """Thousands of steps of a run are never decoded: if each were a cycle, the garbage collector would work for it."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gc.collect()
    gc.disable()
    try:
        with atlas.recording(model, native=True) as rec:
            model(X).sum().backward()
            optimizer.step()
        names = weakref.ref(rec._watch.names)
        del rec
        assert names() is None
    finally:
        gc.enable()
