"""Looking at backward where programs are not simple: processes, compiled models, threads, tensors without numbers."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import pytest
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.errors import InvalidInputError

PATIENCE = 200  # seconds


# -- several processes -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes, which find each other by a file in it, left what they saw. Neither outlives this."""
    place = tmp_path_factory.mktemp("ranks")
    program = str(Path(__file__).with_name("ranks.py"))
    children.run(*([sys.executable, program, str(place), str(rank)] for rank in (0, 1)), cwd=place, limit=PATIENCE)
    return place


@pytest.mark.timeout(PATIENCE + 100)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", ["", "_views"])
@pytest.mark.parametrize("way", ["recorded", "with_statistics", "debugged", "stepped"])
def test_distributed_training_is_the_same(folder: Path, way: str, kind: str, rank: int) -> None:
    expected = torch.load(folder / f"plain{kind}-rank{rank}.pt")
    found = torch.load(folder / f"{way}{kind}-rank{rank}.pt")
    assert found.keys() == expected.keys()
    assert len(expected) == 12
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    order = json.loads((folder / f"order-rank{rank}.json").read_text())
    assert order[f"{way}{kind}"] == order[f"plain{kind}"]
    assert order["plain"][0][0].count("AccumulateGrad") == 6


@pytest.mark.timeout(PATIENCE + 100)
def test_distributed_gradients_are_reduced_while_it_is_debugged(folder: Path) -> None:
    ranks = [torch.load(folder / f"stepped-rank{rank}.pt") for rank in (0, 1)]
    assert all(torch.equal(tensor, ranks[1][name]) for name, tensor in ranks[0].items())


# -- compiled models ---------------------------------------------------------------------------------------------------


def block() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def ways() -> dict[str, Callable[[torch.Tensor], list[str]]]:
    """Ways to run backward; each returns the operations that ran."""

    def recorded(loss: torch.Tensor) -> list[str]:
        return [node.operation for node in atlas.record_backward(loss).graph.nodes]

    def with_statistics(loss: torch.Tensor) -> list[str]:
        rec = atlas.record_backward(loss, statistics=True)
        assert [each.not_finite for each in rec.statistics] == [0] * len(rec.graph.edges)
        return [node.operation for node in rec.graph.nodes]

    def debugged(loss: torch.Tensor) -> list[str]:
        with atlas.debug_backward(loss) as dbg:
            dbg.run()
            return [dbg.graph[name].operation for name in dbg.executed]

    def stepped(loss: torch.Tensor) -> list[str]:
        ran = []
        with atlas.debug_backward(loss) as dbg:
            while (stop := dbg.step()) is not None:
                ran.append(stop.operation)
        return ran

    return {way.__name__: way for way in (recorded, with_statistics, debugged, stepped)}


def compiled_is_the_same(backend: str) -> None:
    x = torch.randn(3, 4)

    def forward() -> tuple[nn.Sequential, torch.Tensor]:
        model = block()
        compiled = torch.compile(model, backend=backend)
        first, rest = compiled(x).sin(), compiled(x * 2)
        return model, (first * rest).sum()

    try:
        expected, loss = forward()
        loss.backward()
        for name, way in ways().items():
            model, loss = forward()
            ran = way(loss)
            assert ran.count("CompiledFunctionBackward") == 2, name
            assert ran[0] == "SumBackward0"
            assert ran.count("AccumulateGrad") == 4
            for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
                assert mine.grad is not None
                assert theirs.grad is not None
                assert torch.equal(mine.grad, theirs.grad), name
    finally:
        torch.compiler.reset()


def test_a_compiled_model_is_one_node_for_each_call() -> None:
    compiled_is_the_same("aot_eager")


@pytest.mark.slow
@pytest.mark.timeout(300)  # kernels are compiled if no cache has them
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_model_that_inductor_compiled() -> None:
    compiled_is_the_same("inductor")


# -- several threads ---------------------------------------------------------------------------------------------------


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run the same in so many threads at once; what each returned."""
    results: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        barrier.wait(timeout=60)
        try:
            results[number] = work(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def loop(number: int, shared: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A graph of its own length, and one leaf that all threads have in common."""
    x = torch.full((3,), 0.1 * (number + 1), requires_grad=True)
    y = x
    for _ in range(20 + number):
        y = (y * shared).sin()
    return x, y.sum()


def expected_of(number: int) -> tuple[torch.Tensor, list[str]]:
    x, loss = loop(number, torch.ones(3, requires_grad=True))
    rec = atlas.record_backward(loss)
    assert x.grad is not None
    return x.grad, [node.operation for node in rec.graph.nodes]


THREADS, ROUNDS = 4, 6


@pytest.mark.parametrize("way", ["recorded", "with_statistics", "debugged", "stepped"])
def test_threads_that_share_a_leaf_each_look_at_their_own(way: str) -> None:
    expected = [expected_of(number) for number in range(THREADS)]
    run, shared = ways()[way], torch.ones(3, requires_grad=True)
    engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def work(number: int) -> list[tuple[torch.Tensor | None, list[str]]]:
        found = []
        for _ in range(ROUNDS):
            x, loss = loop(number, shared)
            ran = run(loss)
            found.append((x.grad, ran))
        return found

    for number, rounds in enumerate(in_threads(THREADS, work)):
        gradient, operations = expected[number]
        for found, ran in rounds:
            assert torch.equal(found, gradient)
            assert ran == operations
    assert torch.autograd._engine_run_backward is engine  # type: ignore[attr-defined]


@pytest.mark.parametrize("statistics", [False, True])
def test_one_recording_of_several_threads(statistics: bool) -> None:
    expected = [expected_of(number) for number in range(THREADS)]
    shared = torch.ones(3, requires_grad=True)
    gradients: dict[int, torch.Tensor | None] = {}

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            x, loss = loop(number, shared)
            loss.backward()
            gradients[number] = x.grad

    with atlas.recording_backward(statistics=statistics) as rec:
        in_threads(THREADS, work)
    assert len(rec.runs) == THREADS * ROUNDS
    assert [run.task.outer for run in rec.runs] == [None] * len(rec.runs)
    found = sorted([node.operation for node in run.graph.nodes] for run in rec.runs)
    assert found == sorted([order for _, order in expected] * ROUNDS)
    if statistics:
        assert all(len(run.statistics) == len(run.graph.edges) for run in rec.runs)
    for number, (gradient, _) in enumerate(expected):
        mine = gradients[number]
        assert mine is not None
        assert torch.equal(mine, gradient)


def test_debuggers_that_wait_at_the_same_time() -> None:
    """They leave in the order in which they came, not the reverse."""
    engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    shared = torch.ones(3, requires_grad=True)
    leaves, losses = zip(*(loop(number, shared) for number in range(3)), strict=True)
    debuggers = [atlas.debug_backward(loss) for loss in losses]
    for step in range(1, 4):
        for dbg in debuggers:
            stop = dbg.step()
            assert stop is not None
            assert stop.number == step - 1
    for dbg in debuggers:
        dbg.run()
        assert len(dbg.executed) == len(dbg.graph)
    for number, leaf in enumerate(leaves):
        assert torch.equal(leaf.grad, expected_of(number)[0])
    assert torch.autograd._engine_run_backward is engine  # type: ignore[attr-defined]


def test_a_backward_pass_elsewhere_is_not_stopped() -> None:
    shared = torch.ones(3, requires_grad=True)
    (_, mine), (theirs, other) = loop(0, shared), loop(1, shared)
    with atlas.debug_backward(mine) as dbg:
        dbg.break_at("AccumulateGrad")  # the one of `shared` is in both
        stop = dbg.run()
        assert stop is not None
        other.backward()
        assert dbg.current is stop
        assert torch.equal(theirs.grad, expected_of(1)[0])  # type: ignore[arg-type]
        while dbg.run() is not None:
            pass
    assert len(dbg.executed) == len(dbg.graph)


def test_a_pass_through_the_same_nodes_inside_of_one() -> None:
    """A hook that differentiates a part of the graph that is running."""
    x = torch.ones(2, requires_grad=True)
    y = x.sin()
    z = y.exp()
    inner: list[torch.Tensor] = []
    w = z * 1.0
    w.register_hook(lambda gradient: inner.extend(torch.autograd.grad(z, x, gradient, retain_graph=True)))
    with atlas.recording_backward(statistics=True) as rec:
        w.sum().backward()
    first, second = ([node.operation for node in run.graph.nodes] for run in rec.runs)
    assert first == ["SumBackward0", "MulBackward0", "ExpBackward0", "SinBackward0", "AccumulateGrad"]
    assert second == ["ExpBackward0", "SinBackward0"]
    assert [run.task.outer for run in rec.runs] == [None, 0]
    assert torch.equal(inner[0], x.grad)  # type: ignore[arg-type]


# -- no numbers --------------------------------------------------------------------------------------------------------


def on_meta() -> tuple[nn.Sequential, torch.Tensor]:
    model = block().to("meta")
    return model, model(torch.empty(3, 4, device="meta")).sum()


def test_a_backward_pass_on_the_meta_device() -> None:
    model, loss = on_meta()
    real = atlas.record_backward(block()(torch.randn(3, 4)).sum())
    rec = atlas.record_backward(loss, model=model)
    assert [node.operation for node in rec.graph.nodes] == [node.operation for node in real.graph.nodes]
    assert all(parameter.grad is not None and parameter.grad.is_meta for parameter in model.parameters())
    model, loss = on_meta()
    with atlas.recording_backward(statistics=True) as rec:  # nothing of it may end the program's backward
        loss.backward()
    assert rec.statistics == []
    assert rec.graph.notes == [
        f"{len(rec.graph.edges)} gradients are on the meta device, fake or batched, without numbers: "
        "they have no statistics"
    ]
    model, loss = on_meta()
    with pytest.raises(InvalidInputError, match="on the meta device: it has no numbers"):
        atlas.record_backward(loss, statistics=True)
    assert model[0].weight.grad is None


def test_debugging_on_the_meta_device() -> None:
    model, loss = on_meta()
    with atlas.debug_backward(loss, model=model) as dbg:
        assert dbg.run_until("0.weight") is not None
        assert dbg.gradients[0] is not None
        assert dbg.gradients[0].is_meta
        assert dbg.run() is None
    for condition in ({"nan": True}, {"zero": True}, {"above": 1.0}):
        model, loss = on_meta()
        with (
            atlas.debug_backward(loss, model=model) as dbg,
            pytest.raises(InvalidInputError, match="arrives at SumBackward0 is on the meta device or fake"),
        ):
            dbg.run_until(**condition)
