"""A recording belongs to the thread that began it, and follows the threads that it starts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchatlas as atlas
from torchatlas.graph import Graph


def operations(graph: Graph) -> list[str]:
    return [node.operation.split(".")[1] for node in graph.where(kind="op")]


def in_thread(function: Any, name: str = "worker") -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_ops_of_a_thread_are_recorded_and_labelled() -> None:
    x = torch.ones(3)
    with atlas.recording() as rec:
        y = x + 1
        in_thread(lambda: y.sin())
        y.cos()
    assert operations(rec.graph) == ["add", "sin", "cos"]
    assert rec.graph["sin"].thread == "worker"
    assert rec.graph["cos"].thread == rec.graph["add"].thread == threading.current_thread().name
    assert [node.name for node in rec.graph["sin"].predecessors] == ["add"]


def test_a_module_called_in_a_thread_keeps_its_path() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with atlas.recording(model) as rec:
        in_thread(lambda: model(torch.ones(1, 2)))
        model(torch.ones(1, 2))
    assert [node.scope.path for node in rec.graph.where(operation="addmm")] == ["0", "0"]
    assert [node.call_index for node in rec.graph.where(operation="addmm")] == [0, 1]


def test_a_thread_started_in_a_module_belongs_to_it() -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            results: list[Any] = [None, None]

            def work(i: int) -> None:
                results[i] = self.parts[i](x).sin()

            threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return results[0] + results[1]

    model = nn.Sequential(Parallel())
    graph = atlas.capture(model, torch.ones(1, 2), backward=True)
    assert {node.scope.path for node in graph.where(operation="addmm")} == {"0.parts.0", "0.parts.1"}
    assert {node.scope.path for node in graph.where(operation="sin")} == {"0"}
    for part in ("0", "1"):
        assert graph[f"0.parts.{part}.addmm"].backward_nodes, "its backward belongs to it"
    assert {node.scope.path for node in graph.where(operation="mm", phase="backward")} == {"0.parts.0", "0.parts.1"}


def test_backward_from_another_thread() -> None:
    model = nn.Linear(3, 1)
    with atlas.recording(model) as rec:
        loss = model(torch.ones(2, 3)).sum()
        in_thread(loss.backward)
    backward = rec.graph.where(phase="backward", operation="mm")
    assert backward
    assert {node.thread for node in backward} == {"worker"}
    assert {node.forward_node.name for node in backward if node.forward_node} == {"addmm"}


def test_a_pool_made_while_recording() -> None:
    with atlas.recording() as rec, ThreadPoolExecutor(2, thread_name_prefix="pool") as pool:
        list(pool.map(lambda i: torch.full((2,), i).exp(), range(8)))
    assert operations(rec.graph).count("exp") == 8
    assert {node.thread.partition("_")[0] for node in rec.graph.where(operation="exp")} == {"pool"}


def test_a_thread_that_outlives_the_recording_goes_on_unrecorded() -> None:
    ready, go, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        torch.ones(1).sin()
        ready.set()
        go.wait(timeout=60)
        torch.ones(1).cos()
        done.set()

    with atlas.recording() as rec:
        thread = threading.Thread(target=work)
        thread.start()
        assert ready.wait(timeout=60)
    graph = rec.graph
    go.set()
    assert done.wait(timeout=60)
    thread.join(timeout=60)
    assert operations(graph) == ["ones", "sin"]
    with atlas.recording() as second:
        torch.ones(1).tan()
    assert operations(second.graph) == ["ones", "tan"]


def test_two_recordings_in_two_threads_do_not_mix() -> None:
    """They overlap in time and end in the order of their beginning, not the reverse."""
    step = threading.Barrier(2)
    graphs: dict[str, Graph] = {}

    def work(name: str, first: bool) -> None:
        model = nn.Sequential(nn.Linear(2, 2))
        if not first:
            step.wait(timeout=60)
        with atlas.recording(model) as rec:
            if first:
                step.wait(timeout=60)
            step.wait(timeout=60)  # both run now
            result = model(torch.ones(1, 2))
            result.sin() if first else result.cos()
            step.wait(timeout=60)
            if not first:
                step.wait(timeout=60)  # the first one ends first
        if first:
            step.wait(timeout=60)
        graphs[name] = rec.graph

    threads = [threading.Thread(target=work, args=("a", True)), threading.Thread(target=work, args=("b", False))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert operations(graphs["a"]) == ["ones", "t", "addmm", "sin"]
    assert operations(graphs["b"]) == ["ones", "t", "addmm", "cos"]
    assert graphs["a"]["0.addmm"].call_index == graphs["b"]["0.addmm"].call_index == 0


def test_threads_that_a_recording_did_not_start_are_left_alone() -> None:
    go, done = threading.Event(), threading.Event()
    model = nn.Linear(2, 2)

    def work() -> None:
        go.wait(timeout=60)
        model(torch.ones(1, 2))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    with atlas.recording(model) as rec:
        go.set()
        assert done.wait(timeout=60)
    thread.join(timeout=60)
    assert operations(rec.graph) == []


@pytest.mark.parametrize("coarse", [False, True])
def test_many_threads_at_once_lose_nothing(coarse: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def work() -> None:
        for _ in range(20):
            model(torch.ones(1, 4))

    with atlas.recording(model, track_tensor_ops=not coarse) as rec:
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert len(rec.graph.where(operation="Linear" if coarse else "addmm")) == 120
    assert len(rec.graph.where(operation="ReLU" if coarse else "relu")) == 120


def test_a_thread_class_is_as_before_afterwards() -> None:
    before = vars(threading.Thread)["start"], vars(threading.Thread)["_bootstrap_inner"]
    with atlas.recording():
        pass
    assert (vars(threading.Thread)["start"], vars(threading.Thread)["_bootstrap_inner"]) == before


def test_data_loader_workers_are_unaffected() -> None:
    data = TensorDataset(torch.arange(8.0))
    with atlas.recording() as rec:
        batches = [batch for (batch,) in DataLoader(data, batch_size=4, num_workers=1, timeout=60)]
        total = sum(batch.sum() for batch in batches)
    assert float(total) == 28.0
    assert operations(rec.graph).count("sum") == 2
