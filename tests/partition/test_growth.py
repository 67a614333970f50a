"""Twice the operations take about twice the work and memory, whatever the shape of the graph. Counted, never timed."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from growing import PROGRAMS, Block
from support import sampled
from torch import nn

import torchatlas as atlas
from torchatlas.analysis.checkpoint_choice import choose_checkpoints
from torchatlas.errors import AnalysisError

MOST = 2.3  # times as much for twice the size: n log n, and what does not grow evenly


class Counted(np.ndarray):
    """An array that counts the elements that numpy works on, in it and in all that is made of it."""

    elements = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = [one.view(np.ndarray) if isinstance(one, Counted) else one for one in inputs]
        if "out" in kwargs:
            kwargs["out"] = tuple(one.view(np.ndarray) if isinstance(one, Counted) else one for one in kwargs["out"])
        Counted.elements += np.size(plain[1]) if method == "at" else max(np.size(one) for one in plain)
        found = getattr(ufunc, method)(*plain, **kwargs)
        return found.view(Counted) if isinstance(found, np.ndarray) else found


def lines_of(work: Callable[[], Any]) -> int:
    """How many lines of torchatlas ran, each round of a loop counted."""
    count = 0

    def inside(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return inside

    def entered(frame: FrameType, event: str, argument: Any) -> Any:
        return inside if "torchatlas" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def measured(work: Callable[[atlas.Graph], Any], make: Callable[[int], atlas.Graph], size: int) -> dict[str, int]:
    work(make(40))  # what is imported and built once
    graph = make(size)
    lines = lines_of(lambda: work(graph))
    graph = make(size)
    for name, column in graph.columns.items():
        graph.columns[name] = column.view(Counted)
    Counted.elements = 0
    work(graph)
    elements, graph = Counted.elements, make(size)
    tracemalloc.start()
    work(graph)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"lines": lines, "elements": elements, "bytes": peak}


def recorded(program: Callable[[int], Any]) -> Callable[[int], atlas.Graph]:
    def make(size: int) -> atlas.Graph:
        with atlas.recording() as rec:
            program(size)
        assert rec.graph is not None
        return rec.graph

    return make


def training(size: int, widths: tuple[int, ...] = (8,)) -> atlas.Graph:
    blocks = nn.Sequential(*(Block(widths[at % len(widths)]) for at in range(size // 10)))
    return atlas.capture(blocks, torch.ones(64, 4), backward=True, optimizer=torch.optim.SGD)


SHAPES: dict[str, Callable[[int], atlas.Graph]] = {program.__name__: recorded(program) for program in PROGRAMS} | {
    "training": training
}


def fused(graph: atlas.Graph) -> Any:
    return atlas.GraphPartitioner().partition(graph)


def concurrent(graph: atlas.Graph) -> Any:
    return atlas.ConcurrencyAnalyzer().analyze(atlas.GraphPartitioner("op").partition(graph))


def staged_by_memory(graph: atlas.Graph) -> Any:
    return atlas.pipeline_stages(graph, 4, by="memory")


def staged_within_a_limit(graph: atlas.Graph) -> Any:
    peak = max(stage.memory_bytes for stage in atlas.pipeline_stages(graph, 4).stages)
    return atlas.pipeline_stages(graph, 4, limit=peak)


def checkpointed(graph: atlas.Graph) -> Any:
    return choose_checkpoints(graph, 0.7 * (graph.peak_bytes or 0))


def checkpointed_in_vain(graph: atlas.Graph) -> Any:
    with pytest.raises(AnalysisError, match="works"):
        choose_checkpoints(graph, 1)


def hold(work: Callable[[atlas.Graph], Any], make: Callable[[int], atlas.Graph], size: int) -> None:
    once, twice = measured(work, make, size), measured(work, make, 2 * size)
    found = {what: twice[what] / once[what] for what in once if once[what]}
    assert max(found.values()) < MOST, found


@pytest.mark.parametrize("work", [fused, concurrent, staged_by_memory, staged_within_a_limit])
@pytest.mark.parametrize("shape", sampled(SHAPES, 4))
def test_cutting_grows_with_the_graph(shape: str, work: Callable[[atlas.Graph], Any]) -> None:
    hold(work, SHAPES[shape], 400)


@pytest.mark.parametrize("work", [checkpointed, checkpointed_in_vain])
@pytest.mark.parametrize("widths", [(8,), (4, 8, 12, 16, 20, 24)])
def test_training_steps_grow_with_the_graph(work: Callable[[atlas.Graph], Any], widths: tuple[int, ...]) -> None:
    hold(work, lambda size: training(size, widths), 300)
