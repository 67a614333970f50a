"""pipeline_stages: as good as trying every cut, within limits, and clear about what cannot be."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from partition.models import Net, traced
from torch import fx, nn

import torchatlas as atlas
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.partition import stages as planning
from torchatlas.partition.cut_search import Balance, Memory, best_cuts


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**32 - 1), st.sampled_from(["none", "limit", "memory"]))
@settings(max_examples=400, deadline=None)
def test_the_cuts_are_as_good_as_any(count: int, stages: int, seed: int, way: str) -> None:
    """By work with handing over, the same within a limit of memory, and by memory."""
    stages = min(stages, count)
    numbers = np.random.default_rng(seed)
    total = np.concatenate([[0], np.cumsum(numbers.integers(0, 20, count))]).astype(float)
    crossing = numbers.integers(0, 9, count + 1).astype(float)
    alive, sizes = numbers.integers(1, 20, count), numbers.integers(1, 9, 4)
    reads = np.stack([numbers.integers(0, count, 12), numbers.integers(0, 4, 12)], axis=1)
    limit = 35 if way == "limit" else np.inf
    memory = Memory(alive, reads, sizes)

    def held(a: int, b: int) -> int:
        weights = {weight for place, weight in reads.tolist() if a <= place < b}
        return int(alive[a:b].max() + sum(sizes[weight] for weight in weights))

    def cost(a: int, b: int) -> float:
        if way == "memory":
            return held(a, b)
        return total[b] - total[a] + crossing[a] + crossing[b] if held(a, b) <= limit else np.inf

    def worst(cuts: tuple[int, ...]) -> float:
        return max(cost(a, b) for a, b in itertools.pairwise(cuts))

    every = [(0, *inner, count) for inner in itertools.combinations(range(1, count), stages - 1)]
    best = min(worst(cuts) for cuts in every)
    earliest = memory.earliest(35) if way == "limit" else None
    found = best_cuts(memory if way == "memory" else Balance(total, crossing, earliest), count + 1, stages)
    if found is None:
        assert best == np.inf
    else:
        assert tuple(found) in every
        assert worst(tuple(found)) == best


def test_more_than_can_be_searched_is_refused_before_it_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_MOST_STEPS", 30)
    graph = chain()
    assert len(atlas.pipeline_stages(graph, 2).stages) == 2
    with pytest.raises(AnalysisError, match="Ask for fewer stages"):
        atlas.pipeline_stages(graph, 3)


def chain() -> atlas.Graph:
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)), nn.Linear(16, 64), nn.Linear(64, 16))
    return atlas.capture(model, torch.randn(8, 16))


def test_figures_by_hand() -> None:
    plan = atlas.pipeline_stages(chain(), 3, by="flops")
    assert [op for stage in plan.stages for op in stage.ops] == [n.id for n in plan.graph.where(kind="op")]
    assert [stage.flops for stage in plan.stages] == [4 * 2 * 8 * 16 * 16, 2 * 8 * 16 * 64, 2 * 8 * 16 * 64]
    first, second, third = plan.stages
    assert first.received_bytes == third.sent_bytes == 0
    assert first.sent_bytes == second.received_bytes == 4 * 8 * 16
    assert second.sent_bytes == third.received_bytes == 4 * 8 * 64
    assert first.weight_bytes == 4 * 4 * (16 * 16 + 16)
    assert "no other order" in plan.considered


def test_what_crosses_two_cuts_is_sent_along() -> None:
    def skip(x: torch.Tensor) -> torch.Tensor:
        early = x.exp()
        return early.sin().cos().tan() + early

    plan = atlas.pipeline_stages(atlas.capture(skip, torch.randn(100)), 5, by="flops")
    assert [stage.sent_bytes for stage in plan.stages] == [400, 800, 800, 800, 0]


def test_an_input_that_is_needed_late_is_sent_along() -> None:
    def late(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sin() + x

    plan = atlas.pipeline_stages(atlas.capture(late, torch.randn(100)), 3, by="flops")
    assert [stage.sent_bytes for stage in plan.stages] == [800, 800, 0]


def test_a_shared_weight_counts_once_in_a_stage() -> None:
    shared = nn.Linear(16, 16, bias=False)
    graph = atlas.capture(nn.Sequential(shared, nn.ReLU(), shared), torch.randn(8, 16))
    assert atlas.pipeline_stages(graph, 1, by="memory").stages[0].weight_bytes == 4 * 256
    both = atlas.pipeline_stages(graph, 2, by="flops").stages
    assert [stage.weight_bytes for stage in both] == [4 * 256, 4 * 256]


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_memory_is_what_was_balanced(stages: int) -> None:
    plan = atlas.pipeline_stages(chain(), stages, by="memory")
    assert [stage.cost for stage in plan.stages] == [stage.memory_bytes for stage in plan.stages]
    assert plan.bottleneck == max(stage.memory_bytes for stage in plan.stages)


def test_a_limit_is_kept_and_the_smallest_that_works_is_named() -> None:
    graph = chain()
    with pytest.raises(AnalysisError, match="they do") as caught:
        atlas.pipeline_stages(graph, 3, limit=100)
    least = int(str(caught.value).partition("(")[2].partition(" bytes")[0])
    plan = atlas.pipeline_stages(graph, 3, limit=least)
    assert max(stage.memory_bytes for stage in plan.stages) == least
    with pytest.raises(AnalysisError):
        atlas.pipeline_stages(graph, 3, limit=least - 1)


def test_a_limit_may_be_text() -> None:
    assert atlas.pipeline_stages(chain(), 2, limit="1.5 GiB").limit_bytes == 3 * 2**29


@pytest.mark.parametrize("wrong", [float("nan"), -1, 0, "fast", True])
def test_wrong_limits_and_speeds(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="limit="):
        atlas.pipeline_stages(chain(), 2, limit=wrong)
    if wrong is not True:
        with pytest.raises(InvalidInputError, match="no number of bytes per second"):
            atlas.pipeline_stages(chain(), 2, bandwidth=wrong)


def test_slow_links_move_the_cut_to_where_little_crosses() -> None:
    model = nn.Sequential(nn.Linear(8, 4096), nn.ReLU(), nn.Linear(4096, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    graph = atlas.capture(model, torch.randn(64, 8))
    plan = atlas.pipeline_stages(graph, 2, bandwidth=1e10)
    assert plan.stages[0].sent_bytes == 4 * 64 * 8
    assert plan.stages[0].communication_s == pytest.approx(4 * 64 * 8 / 1e10)


def test_traced_models_fx_graphs_and_files(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    model = Net().eval()
    path = atlas.capture(model, x).save(tmp_path / "net.atlas")
    for thing in (atlas.trace(model, x), traced(model, 2, 3, 8, 8), path):
        plan = atlas.pipeline_stages(thing, 3)
        assert len(plan.stages) == 3
        assert len(plan.cuts) == 2
        assert 0 < plan.balance <= 1
        assert json.loads(json.dumps(plan.to_dict()))["stages"][0]["ops"]
        assert "begins with" in str(plan)


def test_bad_input() -> None:
    graph = chain()
    count = len(graph.where(kind="op"))
    assert len(atlas.pipeline_stages(graph, count).stages) == count
    with pytest.raises(InvalidInputError, match=f"there are {count} operations"):
        atlas.pipeline_stages(graph, count + 1)
    with pytest.raises(InvalidInputError, match="no number of stages"):
        atlas.pipeline_stages(graph, 0)
    with pytest.raises(InvalidInputError, match="one of time"):
        atlas.pipeline_stages(graph, 2, by="speed")
    with pytest.raises(InvalidInputError, match="bytes per second"):
        atlas.pipeline_stages(graph, 2, bandwidth=0)
    with pytest.raises(InvalidInputError, match="ShapeProp"):
        atlas.pipeline_stages(fx.symbolic_trace(Net()), 2)
