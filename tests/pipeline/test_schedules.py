"""The orders of the schedules are torch's own, and how long they take is what counting by hand gives."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch import nn

from torchatlas.errors import InvalidInputError, UnknownNameError
from torchatlas.pipeline.schedules import SCHEDULES, Action, order_of, simulated


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (2, 4), (3, 5), (4, 8), (4, 4)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_bubble_of_equal_stages_is_the_known_one(schedule: str, ranks: int, microbatches: int) -> None:
    order = order_of(schedule, ranks, ranks, microbatches)
    timeline = simulated(order, [1.0] * ranks, [2.0] * ranks, [0.0] * ranks)
    assert timeline.bubble == pytest.approx((ranks - 1) / (microbatches + ranks - 1))
    assert timeline.busy == (3.0 * microbatches,) * ranks


@pytest.mark.parametrize(("ranks", "local", "microbatches"), [(2, 2, 4), (4, 2, 8), (2, 3, 6), (4, 3, 4)])
def test_interleaving_divides_the_bubble_by_the_stages_per_rank(ranks: int, local: int, microbatches: int) -> None:
    stages = ranks * local
    order = order_of("interleaved", ranks, stages, microbatches)
    timeline = simulated(order, [1.0] * stages, [2.0] * stages, [0.0] * stages)
    assert timeline.bubble == pytest.approx((ranks - 1) / (local * microbatches + ranks - 1))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_everything_runs_once_where_it_belongs(schedule: str) -> None:
    stages = 8 if schedule == "interleaved" else 4
    order = order_of(schedule, 4, stages, 8)
    every = [action for mine in order for action in mine]
    assert sorted(every) == sorted(Action(s, k, m) for s in range(stages) for k in "FB" for m in range(8))
    assert all(action.stage % 4 == rank for rank, mine in enumerate(order) for action in mine)


@pytest.mark.parametrize(("ranks", "local", "microbatches"), [(2, 2, 4), (4, 2, 8), (2, 3, 6)])
def test_the_interleaved_order_is_torchs(ranks: int, local: int, microbatches: int) -> None:
    """torch works the order out from stages, which want a process group; one of a single process will do."""
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        import torch

        device, stages = torch.device("cpu"), ranks * local
        made = [PipelineStage(nn.Identity(), number * 1, stages, device) for number in range(0, stages, ranks)]
        for stage in made:
            stage.group_size = ranks
        schedule = ScheduleInterleaved1F1B(made, microbatches, loss_fn=lambda output, target: output.sum())
        ours = order_of("interleaved", ranks, stages, microbatches)
        for rank in range(ranks):
            theirs = [a for a in schedule.pipeline_order[rank] if a is not None]
            kinds = {"FORWARD": "F", "FULL_BACKWARD": "B"}
            read = [(a.stage_index, kinds[a.computation_type.name], a.microbatch_index) for a in theirs]
            assert [tuple(action) for action in ours[rank]] == read
    finally:
        dist.destroy_process_group()


def test_sending_takes_time_and_an_order_that_waits_for_itself_is_refused() -> None:
    order = order_of("gpipe", 2, 2, 1)
    assert simulated(order, [1.0, 1.0], [1.0, 1.0], [0.5, 0.0]).span == 5.0
    with pytest.raises(InvalidInputError, match="waits for itself"):
        simulated([[Action(0, "B", 0), Action(0, "F", 0)]], [1.0], [1.0], [0.0])


def test_what_does_not_fit() -> None:
    with pytest.raises(InvalidInputError, match="one stage per rank"):
        order_of("1f1b", 2, 4, 4)
    with pytest.raises(InvalidInputError, match="more than one"):
        order_of("interleaved", 2, 3, 4)
    with pytest.raises(InvalidInputError, match="no multiple"):
        order_of("interleaved", 2, 4, 3)
    with pytest.raises(UnknownNameError, match="did you mean 'gpipe'"):
        order_of("gpip", 2, 2, 2)
