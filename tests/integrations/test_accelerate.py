"""A loop with accelerate: its optimizers are wrapped, its trackers are used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from runs.programs_with_steps import trained
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchatlas as atlas
from torchatlas.errors import InvalidInputError

accelerate = pytest.importorskip("accelerate")

from torchatlas.integrations.accelerate import watch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*pin_memory")


@pytest.fixture(autouse=True)
def no_state_is_left() -> Iterator[None]:
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def loop(accelerator: Any, model: Any, optimizer: Any) -> None:
    loader = accelerator.prepare(DataLoader(TensorDataset(torch.randn(24, 8)), batch_size=3))
    for (batch,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()


def prepared(**options: Any) -> tuple[Any, nn.Module, Any]:
    accelerator = accelerate.Accelerator(cpu=True, **options)
    model, optimizer, _ = trained()
    return accelerator, *accelerator.prepare(model, optimizer)


def test_accumulation_trackers_and_the_same_end() -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accelerator, model, optimizer = prepared(gradient_accumulation_steps=2, log_with="tensorboard", project_dir="logs")
    accelerator.init_trackers("project")
    torch.manual_seed(0)
    with watch(accelerator, optimizer, model, every=2) as watched:
        loop(accelerator, model, optimizer)
    accelerator.end_training()
    assert watched.notes == []
    assert watched.report is not None
    assert watched.report.run is not None
    assert watched.report.run.steps.numbers == [0, 2]
    graph = watched.report.graph
    assert graph is not None
    assert len(graph.where(operation="aten.addmm.default", phase="forward")) == 4
    events = EventAccumulator("logs/project").Reload()
    assert [one.step for one in events.Scalars("atlas/peak_bytes")] == [0, 2]
    assert len(events.Graph().node) == len(graph.nodes)
    accelerator, alone, optimizer = prepared(gradient_accumulation_steps=2)
    torch.manual_seed(0)
    loop(accelerator, alone, optimizer)
    assert all(map(torch.equal, alone.parameters(), model.parameters()))


def test_atlas_watch_takes_a_wrapped_optimizer() -> None:
    accelerator, model, optimizer = prepared()
    with atlas.watch(optimizer, model, steps=range(2), page=False) as watched:
        loop(accelerator, model, optimizer)
    assert watched.recording.recorded == 2
    with pytest.raises(InvalidInputError, match="takes an Accelerator, not Sequential"):
        watch(model, optimizer)
