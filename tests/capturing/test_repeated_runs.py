"""warmup= and repeat=: medians over runs that all begin alike, and nothing left of any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchatlas as atlas
from torchatlas.analysis.totals import operations_mask
from torchatlas.capturing import repeated_runs
from torchatlas.errors import InvalidInputError
from torchatlas.graph.timing import Measured, Timing


class Stateful(nn.Module):
    """Whatever changes in a run: buffers, random numbers, an attribute, a gradient, what a closure holds."""

    def __init__(self, outside: Tensor) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.outside, self.calls, self.seen = [outside], 0, []

    def seeing(self, outside: Tensor) -> Stateful:
        self.outside = [outside]
        return self

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(torch.is_inference_mode_enabled())
        self.outside[0].add_(1)
        x.mul_(2)
        return self.dropout(self.norm(self.linear(x)))


def stateful() -> tuple[Stateful, Tensor, torch.optim.Optimizer, Tensor]:
    torch.manual_seed(0)
    outside = torch.zeros(3)
    model = Stateful(outside)
    model(torch.randn(2, 4)).sum().backward()
    model.calls, model.seen = 0, []
    return model, torch.ones(2, 4), torch.optim.Adam(model.parameters()), outside


def everything(model: Stateful, x: Tensor, optimizer: torch.optim.Optimizer, outside: Tensor) -> list[Any]:
    tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters()), x, outside, torch.get_rng_state()]
    contents = [tensor.clone().tolist() for tensor in tensors if tensor is not None]
    return [contents, len(optimizer.state), model.calls, model.seen]


RUNS = {
    "capture": lambda model, x, optimizer: atlas.capture(
        model, x, backward=True, optimizer=optimizer, warmup=2, repeat=3
    ),
    "made optimizer": lambda model, x, _: atlas.capture(model, x, optimizer=torch.optim.SGD, warmup=1, repeat=2),
    "module calls": lambda model, x, _: atlas.capture(  # they do not show who else is written to
        model.seeing(torch.zeros(3)), x, backward=True, repeat=3, track_tensor_ops=False
    ),
    "values": lambda model, x, _: atlas.capture(model, x, backward=True, repeat=2, values="replay"),
    "track": lambda model, x, _: atlas.track_computational_graph(model, x, warmup=1, repeat=3).graph,
}
every_way = pytest.mark.parametrize("run", [pytest.param(run, id=name) for name, run in RUNS.items()])


@every_way
def test_nothing_is_left_of_any_run(run: Callable[..., Any]) -> None:
    model, x, optimizer, outside = stateful()
    before = everything(model, x, optimizer, outside)
    graph = run(model, x, optimizer)
    assert everything(model, x, optimizer, outside) == before
    assert graph.timing.runs == len(graph.timing.eager_ns) == len(graph.timing.recorded_ns) > 1
    assert not any("other operations" in note for note in graph.notes)


@pytest.mark.parametrize("at", range(1, 9))
def test_an_exception_in_any_run_leaves_everything_as_found(at: int) -> None:
    """Two warm-ups and three recorded runs with an unrecorded one after each: eight runs."""
    model, x, optimizer, outside = stateful()
    runs, before = count(1), everything(model, x, optimizer, outside)

    def loss(made: Tensor) -> Tensor:
        made.sum().backward(retain_graph=True)
        if next(runs) == at:
            raise KeyboardInterrupt
        return made.sum()

    with pytest.raises(KeyboardInterrupt):
        atlas.capture(model, x, loss=loss, optimizer=optimizer, warmup=2, repeat=3)
    assert everything(model, x, optimizer, outside) == before
    assert next(runs) == at + 1


def test_each_run_computes_the_same() -> None:
    made: list[Tensor] = []

    def loss(result: Tensor) -> Tensor:
        made.append(result.detach().clone())
        return result.sum()

    model, x, optimizer, _ = stateful()
    atlas.capture(model, x, loss=loss, optimizer=optimizer, warmup=2, repeat=3)
    assert len(made) == 8
    assert all(torch.equal(made[0], other) for other in made)


def test_repeating_changes_nothing_but_times_and_values_are_those_of_one_run() -> None:
    model, x, optimizer, _ = stateful()
    once = atlas.capture(model, x, backward=True, optimizer=optimizer, values="all")
    often = atlas.capture(model, x, backward=True, optimizer=optimizer, values="all", warmup=1, repeat=3)
    assert often == once
    assert often.recorded.keys() == once.recorded.keys()
    filled = [key for key in once.recorded if "empty" not in once[int(key.partition(":")[0])].operation]
    assert all(np.array_equal(often.recorded[key], once.recorded[key], equal_nan=True) for key in filled)
    times = {"node_start_ns", "node_time_ns", "node_time_spread_ns", "node_sequence_nr"}  # autograd counts on
    same = [name for name in once.columns if name not in times]
    assert [name for name in same if not np.array_equal(once.columns[name], often.columns[name])] == []
    assert (once.columns["node_time_spread_ns"] < 0).all()
    assert ((often.columns["node_time_spread_ns"] >= 0) == (often.columns["node_time_ns"] >= 0)).all()
    replayed = atlas.capture(model, x, backward=True, optimizer=optimizer, values="replay", repeat=2)
    assert atlas.verify(replayed)


# -- times, fed in ----------------------------------------------------------------------------------------------------


def test_times_are_medians_over_the_runs_and_spreads_their_interquartile_range(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = iter([[1000, 50], [9000, 70], [3000, 90], [2000, 80], [4000, 60]])
    original = repeated_runs._Run.of

    def with_times(graph: atlas.Graph) -> repeated_runs._Run:
        graph.columns["node_time_ns"][operations_mask(graph)] = next(fed)
        return original(graph)

    monkeypatch.setattr(repeated_runs._Run, "of", with_times)
    graph = atlas.capture(lambda x: x.exp().sin(), torch.ones(3), warmup=2, repeat=5)
    exp, sin = graph.where(kind="op")
    assert (exp.time_ns, exp.time_spread_ns) == (3000, 2000)
    assert (sin.time_ns, sin.time_spread_ns) == (70, 20)
    assert graph.measured() == graph.scopes[""].measured == Measured(3070, 5, 2020)
    assert (graph.timing.runs, graph.timing.warmup) == (5, 2)
    assert [node.time_ns for node in graph.where(kind="input")] == [None]
    part = graph.subgraph([sin])
    assert part.measured() == Measured(70, 5, 20)
    assert part.timing == Timing(runs=5, warmup=2)


def test_runs_that_take_other_operations_are_not_mixed_with_the_last() -> None:
    calls: Iterator[int] = count()

    def moody(x: Tensor) -> Tensor:
        return x.exp() if next(calls) < 3 else x.sin().cos()  # recorded, alone, recorded, then something else

    graph = atlas.capture(moody, torch.ones(3), repeat=4)
    assert [node.operation for node in graph.where(kind="op")] == ["aten.sin.default", "aten.cos.default"]
    assert graph.timing.runs == 2
    assert any("2 of 4 recorded runs took other operations than the last" in note for note in graph.notes)


def test_what_only_an_unrecorded_run_writes_to_is_put_back() -> None:
    calls: Iterator[int] = count()

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            if next(calls) % 2:  # every recorded run is followed by one that nothing records
                self.seen.add_(1)
            return x + 1

    model = Odd()
    atlas.capture(model, torch.ones(2), repeat=2)
    assert next(calls) == 4
    assert model.seen.tolist() == [0, 0]


def test_one_run_knows_the_time_of_recording_only() -> None:
    graph = atlas.capture(torch.sin, torch.ones(3))
    assert (graph.timing.runs, graph.timing.eager) == (1, None)
    assert graph.timing.recorded is not None
    with atlas.recording() as rec:
        torch.ones(3).sin()
    assert rec.graph.timing.recorded is not None
    assert atlas.capture(torch.sin, torch.ones(3), fake=True).timing is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeat": 0}, r"repeat=0: a whole number of runs is expected, 1 or more"),
        ({"repeat": True}, "repeat=True: a whole number"),
        ({"repeat": 2.0}, r"repeat=2\.0: a whole number"),
        ({"warmup": -1}, "warmup=-1: a whole number of runs is expected, 0 or more"),
        ({"warmup": None}, "warmup=None: a whole number"),
        ({"fake": True, "repeat": 2}, "repeat=2 is for times, and fake=True takes none"),
        ({"fake": True, "warmup": 1}, "warmup=1 is for times, and fake=True takes none"),
    ],
)
def test_what_is_no_number_of_runs_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        atlas.capture(nn.Linear(2, 2), torch.ones(1, 2), **options)


def test_the_tracker_takes_the_same_numbers_and_summarizes_them() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    with pytest.raises(InvalidInputError, match="repeat=2 is for times, and track_timing=False takes none"):
        atlas.track_computational_graph(model, x, track_timing=False, repeat=2)
    analysis = atlas.analyze_computational_graph(model, x, warmup=1, repeat=4)
    times = analysis["summary"]["times"]
    assert (times["warmup"], times["operations"]["runs"], times["eager"]["runs"]) == (1, 4, 4)
    assert analysis["summary"]["execution_time"] == times["recorded"]["ns"] / 1e9
    rate = analysis["summary"]["total_operations"] / (times["eager"]["ns"] / 1e9)
    assert analysis["performance"]["operations_per_second"] == rate
    assert atlas.analyze_computational_graph(model, x)["summary"]["times"]["eager"] is None


def test_the_wall_time_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no accelerator here: only that it is asked to finish before and after each run can be seen."""
    order: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("wait"))

    class OnDevice:
        device = torch.device("cuda")

    monkeypatch.setattr(repeated_runs, "named_tensors", lambda tree: [("x", OnDevice())])
    atlas.capture(lambda x: order.append("run") or x + 1, torch.ones(2), repeat=2)
    assert order == ["run", "wait", "run", "wait"] * 2


def test_gradients_of_what_a_function_reaches_by_itself_are_put_back_after_each_run() -> None:
    weight = torch.ones(3, requires_grad=True)
    graph = atlas.capture(lambda x: x * weight, torch.ones(3), backward=True, warmup=1, repeat=3)
    assert weight.grad is None
    assert graph.timing.runs == 3
